"""Tests of the rules for NCCL's example tuner plugin."""

from typing import Any

import pytest
from builders import KIB, make_case, make_info, make_launches, summarise_run
from networks import write_run

from commbench.engine.records import Record, Row
from commbench.errors import InputError
from commbench.interop.exports.nccl_tuner import rules_of, write_nccl_tuner
from commbench.results import load_run

SPREAD = (1.0, 1.01, 0.99, 1.0, 1.005, 0.995)
#: What NCCL's log says of what was asked for; of others nothing.
RAN = {
    "auto": "ring/simple/4ch",
    "tree": "tree/ll/2ch",
    "ring/ll": "ring/ll/2ch",
    "8ch": "ring/simple/8ch",
}


def measured(times_us: dict[int, str], **changes: Any) -> list[Record]:
    """Return records of an NCCL all_reduce: by size, the time with each requested algorithm."""
    records = []
    for size, texts in times_us.items():
        for text in texts.split():
            algorithm, _, time_us = text.partition("=")
            case = {"backend": "nccl", "message_bytes": size, "algorithm": algorithm, **changes}
            times = [float(time_us) * share for share in SPREAD]
            records += make_launches(times, make_case(**case), algorithm=RAN.get(algorithm, ""))
    return records


def rows(*measurements: list[Record]) -> list[Row]:
    """Return the rows of one run."""
    return summarise_run([record for records in measurements for record in records], make_info())


def choices(*measurements: list[Record]) -> list[str]:
    """Return the rules made from one run."""
    rules = rules_of(rows(*measurements))
    return [f"{rule.algorithm}/{rule.protocol}/{rule.channels}ch" for rule in rules]


TIMES = {
    1 * KIB: "auto=20 tree=10",
    2 * KIB: "auto=21 tree=12 ring/ll=15",
    4 * KIB: "auto=22 tree=21.9",
    8 * KIB: "auto=30 8ch=20",
}


def test_without_the_library_s_own_choice_or_channels_there_is_no_rule():
    """Write no rule without NCCL's own choice, or without a known number of channels."""
    assert [] == choices(measured({KIB: "tree=10 ring/ll=15"}))
    assert [] == choices(measured({KIB: "auto=20 nvls/simple=10"}))
    assert ["ring/ll/2ch"] == choices(measured({KIB: "auto=20 ring/ll=10"}))


@pytest.mark.parametrize(
    "other",
    [
        {"sync": "none"},
        {"buffers": "rotated"},
        {"in_place": False},
        {"dtype": "float16"},
        {"redop": "max"},
        {"backend": "torch-nccl"},
    ],
)
def test_only_what_is_alike_is_compared(other):
    """Write no rule from cases measured differently from NCCL's own choice."""
    assert [] == choices(measured({KIB: "auto=20"}), measured({KIB: "tree=10"}, **other))


def test_a_rule_is_for_all_that_the_plugin_cannot_tell_apart():
    """Write one rule for types and backends that the plugin cannot distinguish, if it is faster in
    each.
    """
    both = {KIB: "auto=20 tree=10 ring/ll=12"}
    half = {KIB: "auto=20 tree=21 ring/ll=11"}
    assert ["ring/ll/2ch"] == choices(measured(both), measured(half, dtype="float16"))
    worse = {KIB: "auto=20 tree=25 ring/ll=25"}
    assert [] == choices(measured(both), measured(worse, backend="torch-nccl"))
    assert ["tree/ll/2ch"] == choices(measured(both), measured({KIB: "auto=20"}, dtype="float16"))


def test_the_file_is_what_the_plugin_reads(tmp_path):
    """Write a rule where an algorithm was clearly faster, up to the middle between sizes, one a
    line and nothing else; refuse a run without rules.
    """
    for name, records in (("shown", measured(TIMES)), ("not", measured({KIB: "auto=20"}))):
        write_run(tmp_path / name, records, **make_info())
    path = write_nccl_tuner(load_run(tmp_path / "shown"), None)
    assert tmp_path / "shown" / "nccl_tuner.csv" == path
    lines = path.read_text().splitlines()
    assert (
        "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps"
        ",regBuff" in lines
    )
    assert [
        "allreduce,1024,3072,tree,ll,2,1,2,-1,-1",
        "allreduce,6145,8192,ring,simple,8,1,2,-1,-1",
    ] == [line for line in lines if not line.startswith("#")]
    assert max(map(len, lines)) < 255, (
        "the plugin's buffer: what is beyond it would be a line of its own"
    )
    with pytest.raises(InputError, match="no algorithm"):
        write_nccl_tuner(load_run(tmp_path / "not"), None)
    with pytest.raises(InputError, match="cannot be used"):
        write_nccl_tuner(load_run(tmp_path / "shown"), tmp_path / "absent" / "rules.csv")


def test_ranks_that_share_a_gpu_rule_nothing(tmp_path):
    """Refuse to write rules from ranks that shared a GPU."""
    write_run(tmp_path / "shared", measured(TIMES), **make_info(ranks_per_gpu=2))
    with pytest.raises(InputError, match="shared a GPU"):
        write_nccl_tuner(load_run(tmp_path / "shared"), None)
