"""Tests of the rules for NCCL's example tuner plugin."""

from pathlib import Path
from typing import Any

import pytest
from builders import KIB, make_case, make_info, make_launches
from networks import write_run

from commbench.errors import InputError
from commbench.exports.nccl_tuner import rules_of, write_nccl_tuner
from commbench.records import Record, Row
from commbench.store import load_run
from commbench.summary import summarise_run

SPREAD = (1.0, 1.01, 0.99, 1.0, 1.005, 0.995)


def measured(times_us: dict[tuple[int, str], float], **changes: Any) -> list[Record]:
    """Records of all_reduce over NCCL, by size and what was asked for; what ran is said whole."""
    ran = {"auto": "ring/simple/4ch", "tree": "tree/ll/2ch", "ring/ll": "ring/ll/2ch"}
    return [
        record
        for (size, algorithm), time_us in times_us.items()
        for record in make_launches(
            [time_us * share for share in SPREAD],
            make_case(backend="nccl", message_bytes=size, algorithm=algorithm),
            algorithm=ran.get(algorithm, ""),
            **changes,
        )
    ]


def rows(times_us: dict[tuple[int, str], float]) -> list[Row]:
    """Their rows."""
    return summarise_run(measured(times_us), make_info())


TIMES = {
    (1 * KIB, "auto"): 20.0,
    (1 * KIB, "tree"): 10.0,
    (2 * KIB, "auto"): 21.0,
    (2 * KIB, "tree"): 12.0,
    (2 * KIB, "ring/ll"): 15.0,
    (4 * KIB, "auto"): 22.0,
    (4 * KIB, "tree"): 21.9,
    (8 * KIB, "auto"): 30.0,
    (8 * KIB, "ring/ll/4ch"): 20.0,
}


def test_ranges_meet_in_the_middle_and_equals_are_one() -> None:
    """Rule where something was surely faster, between sizes up to the middle, and nowhere else."""
    first, second = rules_of(rows(TIMES))
    assert ("all_reduce", 1 * KIB, 3 * KIB, "tree/ll") == (
        first.operation,
        first.least_bytes,
        first.most_bytes,
        str(first.choice),
    )
    assert (6 * KIB + 1, 8 * KIB, "ring/ll/4ch") == (second.least_bytes, second.most_bytes, str(second.choice))
    assert ("allreduce", 1024, 3072, "tree", "ll", -1, 1, 2, -1, -1) == first.line


def test_without_the_library_s_own_choice_there_is_no_rule() -> None:
    """Say nothing where nobody knows what NCCL would do by itself."""
    assert [] == rules_of(rows({key: time for key, time in TIMES.items() if key[1] != "auto"}))


def test_a_choice_that_is_not_known_whole_is_no_rule() -> None:
    """Rule by algorithm and protocol, both asked for or seen."""
    assert [] == rules_of(rows({(KIB, "auto"): 20.0, (KIB, "nvls"): 10.0}))
    assert ["nvls/simple"] == [
        str(rule.choice) for rule in rules_of(rows({(KIB, "auto"): 20.0, (KIB, "nvls/simple"): 10.0}))
    ]


def test_the_file_is_what_the_plugin_reads(tmp_path: Path) -> None:
    """Write a heading and a line for each rule; refuse a run that shows nothing."""
    for name, records in (("shown", measured(TIMES)), ("not", measured({(KIB, "auto"): 20.0}))):
        write_run(tmp_path / name, records, **make_info())
    path = write_nccl_tuner(load_run(tmp_path / "shown"), None)
    assert tmp_path / "shown" / "nccl_tuner.csv" == path
    assert "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n" in (
        path.read_text()
    )
    assert 3 == len(path.read_text().splitlines())
    with pytest.raises(InputError, match="shows no algorithm of NCCL to be faster than its own choice"):
        write_nccl_tuner(load_run(tmp_path / "not"), None)
