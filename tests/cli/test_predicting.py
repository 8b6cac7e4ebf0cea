"""Tests of the command predict: from run directories alone, in seconds, labelled.

One sentence on what is missing.
"""

import csv
import dataclasses
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from builders import KIB, MIB
from networks import (
    Hop,
    network_info,
    network_records,
    ring_us,
    training_of,
    workload_facts,
    write_run,
)

from commbench import cli
from commbench.cli.predict import hook_name, parse_rates, parse_world_sizes
from commbench.ddp.plan.records import TrainingRecord
from commbench.errors import InputError

pytestmark = pytest.mark.programs

KEPT = Path(__file__).parents[2] / "results" / "bench_xeon2core_20261125"
STEPS = {"none": 420.0, "topk:0.01": 140.0}


class Predict:
    """The command predict, run in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        self._monkeypatch.setattr(sys, "argv", ["commbench", "predict", *map(str, words)])
        with pytest.raises(SystemExit) as ending:
            cli.main()
        captured = self._capsys.readouterr()
        return int(ending.value.code or 0), captured.out, captured.err


@pytest.fixture
def predict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Predict:
    """Return the command predict."""
    return Predict(monkeypatch, capsys)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Return a run of collectives on 2 and 4 hosts."""
    return write_run(tmp_path / "network", network_records((2, 4)), **network_info(4))


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Return a run of collectives and training on 2 hosts."""
    info = network_info(2, facts=workload_facts().to_json())
    return write_run(tmp_path / "both", network_records((2,)), training_of(STEPS), **info)


def test_collectives_as_a_table(predict: Predict, network: Path) -> None:
    """Print sources, held-out errors, and predicted times with intervals."""
    code, out, _ = predict(network, "--world-size", "8:32", "--sizes", "1M")
    assert code == 0
    assert out.startswith("PREDICTED, not measured, from network\n")
    words = " ".join(out.split())
    assert "gloo all_reduce of float32 2, 4 1gbit (emulated)" in words
    assert "for each doubling of ranks or rate. Forecasts count the latter as 27 %" in words
    assert "gloo all_reduce, float32, links as measured" in out
    assert "predicted time [95 %] error" in words
    lines = [line.split() for line in out.split("gloo all_reduce, float32")[1].splitlines()]
    (cells,) = (line for line in lines if line[:3] == ["1", "MiB", "16"])
    assert float(cells[3]) == pytest.approx(ring_us("all_reduce", 16, MIB) / 1e3, rel=0.1)
    assert cells[4] == "ms"


def test_rows_as_csv_and_json(predict: Predict, network: Path) -> None:
    """Write the same labelled rows as CSV and JSON, with rate and held-out error."""
    line = (network, "--world-size", "8,16", "--rate", "measured,10gbit", "--sizes", "64K,16M")
    rows = list(csv.DictReader(io.StringIO(predict(*line, "--format", "csv")[1])))
    assert {"collective"} == {row["about"] for row in rows}
    assert len(rows) == 2 * 2 * 2 * 2
    assert {"predicted"} == {row["kind"] for row in rows}
    assert {"", "10gbit"} == {row["rate"] for row in rows}
    assert {0.27} == {float(row["held_out_error"]) for row in rows}
    plain = json.loads(predict(*line, "--format", "json")[1])
    assert [float(row["time_us"]) for row in rows] == pytest.approx(
        [row["time_us"] for row in plain["collectives"]], 1e-4
    )
    assert (plain["runs"], plain["steps"]) == (["network"], [])
    reduced = [
        row
        for row in plain["collectives"]
        if row["operation"] == "all_reduce" and row["rate"] == ""
    ]
    for row in reduced:
        expected = ring_us("all_reduce", row["world_size"], row["message_bytes"])
        assert row["time_us"] == pytest.approx(expected, rel=0.1)
        assert row["time_us_low"] < row["time_us"] < row["time_us_high"]


def test_training_steps(predict: Predict, both: Path) -> None:
    """Predict step, efficiency and best bucket size per hook."""
    code, out, _ = predict(both, "--world-size", "2,8", "--rate", "1gbit,25gbit")
    assert code == 0
    words = " ".join(out.split())
    assert "mlp (gloo, batch 32 a rank), links 25gbit" in words
    assert "predicted ms [interval] error efficiency exposed ms MiB" in words
    assert "Without DDP a step takes 130 ms, as measured." in words
    plain = json.loads(
        predict(both, "--world-size", "2,8,64", "--hook", "none", "--format", "json")[1]
    )
    assert {"none"} == {row["hook"] for row in plain["steps"]}
    efficiencies = [row["scaling_efficiency"] for row in plain["steps"]]
    assert sorted(efficiencies, reverse=True) == efficiencies
    trained, *others = plain["steps"]
    assert (trained["step_ms"], trained["step_ms_low"]) == (STEPS["none"], None)
    assert all(row["step_ms_low"] < row["step_ms"] < row["step_ms_high"] for row in others)
    assert {0.13} == {row["held_out_error"] for row in others}


def settings_of(steps_ms: dict[str, float], ranks: int = 2, **changes: Any) -> list[TrainingRecord]:
    """Return records of two bucket sizes per hook, so that one can be held out, and of the step
    without DDP.
    """
    records = training_of(steps_ms, ranks)
    records = [dataclasses.replace(r, case=dataclasses.replace(r.case, **changes)) for r in records]
    others = [
        dataclasses.replace(r, case=dataclasses.replace(r.case, bucket_cap_mb="5"))
        for r in records[1:]
    ]
    return [*records, *others]


def test_intervals_are_called_what_they_are(
    predict: Predict, network: Path, tmp_path: Path
) -> None:
    """Claim 95 % only if a number of ranks could be held out, and at what was measured."""
    single = write_run(tmp_path / "one", network_records((2,)), **network_info(2))
    for run, ranks, level in ((network, 8, 0.95), (single, 8, None), (single, 2, 0.95)):
        words = " ".join(predict(run, "--world-size", ranks)[1].split())
        assert (level is None) == ("predicted time [interval]" in words)
        assert (level is None) == ("the error was measured over other runs" in words)
        rows = json.loads(predict(run, "--world-size", ranks, "--format", "json")[1])
        assert {level} == {row["level"] for row in rows["collectives"]}


def test_precisions_are_predicted_each(predict: Predict, network: Path, tmp_path: Path) -> None:
    """Fit and name a model for every trained precision."""
    info = network_info(2, facts=workload_facts().to_json())
    faster = {hook: 0.9 * step_ms for hook, step_ms in STEPS.items()}
    training = [*settings_of(STEPS), *settings_of(faster, precision="amp-bf16")]
    path = write_run(tmp_path / "swept", training=training, **info)
    out = predict(network, path, "--world-size", "8")[1]
    assert "mlp (gloo, batch 32 a rank), links" in out
    assert "mlp (gloo, batch 32 a rank, amp-bf16), links" in out
    assert "was measured: measure" not in out
    rows = json.loads(predict(network, path, "--world-size", "8", "--format", "json")[1])
    assert {"fp32": 2, "amp-bf16": 2} == Counter(row["precision"] for row in rows["steps"])


@pytest.mark.slow
def test_workloads_trained_on_several_numbers_of_ranks_are_told_apart(
    predict: Predict, network: Path, tmp_path: Path
) -> None:
    """Name the ranks and the run of each training in its table."""
    info = {ranks: network_info(ranks, facts=workload_facts().to_json()) for ranks in (2, 4)}
    paths = [write_run(tmp_path / f"t{n}", training=settings_of(STEPS, n), **info[n]) for n in info]
    out = predict(network, *paths, "--world-size", "8,16")[1]
    for origin in ("2 ranks in t2", "4 ranks in t4"):
        assert out.count(f"mlp (gloo, batch 32 a rank, trained on {origin})") == 1
    rows = json.loads(predict(network, *paths, "--world-size", "8,16", "--format", "json")[1])[
        "steps"
    ]
    assert {"2 ranks in t2": 4, "4 ranks in t4": 4} == Counter(row["trained_on"] for row in rows)


def test_training_within_a_host_met_no_link(
    predict: Predict, network: Path, tmp_path: Path
) -> None:
    """Replay training within a host from collectives within a host, and not without them."""
    inside = network_info(2, None, nodes=1, ranks_per_node=2, facts=workload_facts().to_json())
    trained = write_run(tmp_path / "trained", training=settings_of(STEPS), **inside)
    out = " ".join(predict(network, trained, "--world-size", "8", "--rate", "1gbit")[1].split())
    assert (
        "was measured across hosts alone and is not predicted for 2 ranks, which fit on one host"
        " of 2" in out
    )
    assert "predicted ms" not in out
    fast = network_records((2,), hop=Hop(alpha_us=5.0, beta_us_per_byte=8e-4))
    within = write_run(tmp_path / "within", fast, **inside)
    line = (network, within, trained, "--world-size", "8", "--rate", "1gbit")
    rows = json.loads(predict(*line, "--ranks-per-node", "1", "--format", "json")[1])["steps"]
    assert {"ok"} == {row["status"] for row in rows}


def test_patterns_are_not_predicted(predict: Predict, tmp_path: Path) -> None:
    """Leave out curves of another pattern than flat."""
    records = [
        dataclasses.replace(r, case=dataclasses.replace(r.case, pattern="cross", world_size=None))
        for r in network_records((8,))
    ]
    path = write_run(tmp_path / "cross", records, **network_info(4, world_size=8, ranks_per_node=2))
    code, _, err = predict(path, "--world-size", "16")
    assert (2, True) == (code, "no curve of a collective" in " ".join(err.split()))


def test_hosts_are_those_of_the_runs_across_hosts(
    predict: Predict, network: Path, tmp_path: Path
) -> None:
    """Use the ranks per host of the runs across hosts."""
    inside = write_run(
        tmp_path / "one", network_records((8,)), **network_info(8, None, nodes=1, ranks_per_node=8)
    )
    line = (network, inside, "--world-size", "16", "--rate", "1gbit", "--format", "json")
    assert {1} == {row["ranks_per_node"] for row in json.loads(predict(*line)[1])["collectives"]}


def test_the_example_in_the_docs_is_output(predict: Predict, network: Path, tmp_path: Path) -> None:
    """The example in docs/predicting.md has the headings that the command prints."""
    info = network_info(2, facts=workload_facts().to_json())
    both = write_run(tmp_path / "both", network_records((2,)), settings_of(STEPS), **info)
    page = (Path(__file__).parents[2] / "docs" / "predicting.md").read_text(encoding="utf-8")
    assert "EXAMPLE" not in page
    (example,) = (
        block for block in page.split("```") if block.startswith("\nPREDICTED, not measured, from ")
    )
    out = predict(network, both, "--world-size", "8", "--rate", "200mbit,10gbit")[1]

    def headings(text: str) -> set[str]:
        lines = text.splitlines()
        return {
            " ".join(above.split())
            for above, line in itertools.pairwise(lines)
            if line.startswith("───")
        }

    assert len(headings(example)) == 3
    assert headings(example) <= headings(out)


def test_one_table_holds_all_rows(predict: Predict, both: Path, tmp_path: Path) -> None:
    """Write collectives, steps as one CSV table, and messages to stderr."""
    rows = list(
        csv.DictReader(io.StringIO(predict(both, "--world-size", "8,64", "--format", "csv")[1]))
    )
    assert {"collective": 2 * 3 * 2, "step": 2 * 2} == Counter(row["about"] for row in rows)
    assert all(None not in row and None not in row.values() for row in rows)
    for row in rows:
        assert (row["operation"] != "") == (row["about"] == "collective")
        assert (row["step_ms"] != "") == (row["about"] == "step")
    unknown = write_run(tmp_path / "old", training=training_of(STEPS), **network_info(2))
    _, out, err = predict(both, unknown, "--world-size", "8", "--format", "csv")
    assert "keeps no facts of mlp" not in out
    assert "keeps no facts of mlp" in " ".join(err.split())


def test_training_and_network_from_two_runs(
    predict: Predict, network: Path, tmp_path: Path
) -> None:
    """Join the training of one run with the network of another."""
    trained = write_run(
        tmp_path / "trained",
        training=training_of(STEPS),
        **network_info(2, facts=workload_facts().to_json()),
    )
    code, out, _ = predict(network, trained, "--world-size", "8", "--workload", "mlp")
    assert code == 0
    assert "from network and trained" in out
    assert "mlp (gloo, batch 32 a rank)" in out


def test_training_over_other_links(predict: Predict, network: Path, tmp_path: Path) -> None:
    """Replay training from its own link, which may differ from that of the collectives."""
    steps_ms = []
    for rate in ("1gbit", "100mbit"):
        info = network_info(2, rate, facts=workload_facts().to_json())
        path = write_run(tmp_path / rate, training=training_of(STEPS), **info)
        options = ("--world-size", "2", "--hook", "none", "--rate", "1gbit", "--format", "json")
        steps_ms.append(json.loads(predict(network, path, *options)[1])["steps"][0]["step_ms"])
    assert steps_ms[0] == STEPS["none"]
    assert steps_ms[1] < 0.6 * steps_ms[0]


def test_runs_at_several_rates(predict: Predict, network: Path, tmp_path: Path) -> None:
    """Require --rate if the runs have different link rates."""
    slow = write_run(
        tmp_path / "slow",
        network_records((8,), hop=Hop(alpha_us=50.0, beta_us_per_byte=8e-2)),
        **network_info(8, "100mbit"),
    )
    trained = write_run(
        tmp_path / "t",
        training=training_of(STEPS),
        **network_info(2, "100mbit", facts=workload_facts().to_json()),
    )
    for other in (slow, trained):
        code, out, err = predict(network, other, "--world-size", "16")
        assert (code, out) == (2, "")
        words = " ".join(err.split())
        assert "measured over links of different rates (100mbit and 1gbit)" in words
        assert "such as --rate 100mbit" in words
        assert predict(network, other, "--world-size", "16", "--rate", "100mbit,1gbit")[0] == 0


def test_what_is_off_by_far_says_so(predict: Predict, tmp_path: Path) -> None:
    """Warn of a large held-out error, and print no derived bandwidth."""
    records = [
        *network_records((2,)),
        *network_records((8,), hop=Hop(alpha_us=500.0, beta_us_per_byte=8e-2)),
    ]
    records = [
        dataclasses.replace(r, case=dataclasses.replace(r.case, world_size=r.group_size))
        for r in records
    ]
    path = write_run(tmp_path / "off", records, **network_info(8))
    line = (path, "--world-size", "16", "--sizes", "1M")
    words = " ".join(predict(*line)[1].split())
    assert "Too uncertain to use: such predictions were off by" in words
    (cells,) = (
        ln.split()
        for ln in predict(*line)[1].split("gloo all_reduce, float32")[1].splitlines()
        if "MiB" in ln
    )
    assert cells[-1] == "%", "no busbw"
    rows = json.loads(predict(*line, "--format", "json")[1])["collectives"]
    assert all(row["held_out_error"] > 0.5 for row in rows)


@pytest.mark.slow
def test_ten_thousand_ranks_in_seconds(predict: Predict, both: Path) -> None:
    """Predict up to 10000 ranks at three rates within a minute of CPU time."""
    begun = time.process_time()
    code, out, _ = predict(
        both, "--world-size", "8:8192,10000", "--rate", "1gbit,10gbit,100gbit", "--format", "csv"
    )
    assert code == 0
    assert "10000" in out
    assert time.process_time() - begun < 60, "seconds of one core; a few where nothing else runs"


def test_kept_run_of_one_host(predict: Predict) -> None:
    """Predict across hosts from one host, and say that the times are lower bounds."""
    code, out, _ = predict(KEPT, "--world-size", "4,1024", "--rate", "25gbit")
    assert code == 0
    words = " ".join(out.split())
    assert re.search(r"gloo all_gather of float32 +2 +within one host", out)
    assert "do not show a network's start-up time" in words
    assert "predicted time [interval]" in words
    assert "keeps no facts of mlp (an earlier version trained it)" in words
    assert "commbench train --workload mlp" in words


@pytest.mark.parametrize("style", ["table", "csv"])
def test_nothing_that_can_be_predicted(predict: Predict, style: str) -> None:
    """Exit with 2 and one sentence on what to do if nothing can be predicted."""
    code, out, err = predict(KEPT, "--world-size", "8:1024", "--format", style)
    assert (code, out) == (2, "")
    words = " ".join(err.split())
    assert "Nothing of this can be predicted: gloo all_gather was measured within one host" in words
    assert "give --rate, or measure across hosts" in words
    assert words.count("nothing is known of links") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["absent", "--world-size", "8"], "There is no absent"),
        (["RUN", "--world-size", "many"], "World sizes 'many' are not understood"),
        (["RUN", "--world-size", "1,8"], "World sizes '1,8' are not all from 2 to 10000"),
        (["RUN", "--world-size", "8:20000"], "are not all from 2 to 10000"),
        (
            ["RUN", "--world-size", "64:8"],
            "World sizes '64:8' end below their start; write the fewer ranks first",
        ),
        (
            ["RUN", "--world-size", "8:16:1"],
            "World sizes '8:16:1' have a factor below 2; write e.g. 8:512:4",
        ),
        (["RUN", "--world-size", "8,,16"], "World sizes '8,,16' are not understood"),
        (["RUN", "--world-size", ""], "World sizes '' are not understood; write ranks such as 8"),
        (["RUN", "--world-size", "8", "--rate", ""], "The rate '' is not understood"),
        (
            ["RUN", "--world-size", "8", "--sizes", "0"],
            "Messages of 0 B were to be predicted, but float32",
        ),
        (
            ["RUN", "--world-size", "8", "--sizes", "4,7"],
            "Messages of 7 B were to be predicted, but float32",
        ),
        (["RUN", "--world-size", "8", "--sizes", ""], "hold an empty item"),
        (["RUN", "--world-size", "8", "--hook", ""], "Unknown hook ''"),
        (["RUN", "--world-size", "8", "--hook", "nope"], "Unknown hook 'nope'; choose from none"),
        (["RUN", "--world-size", "8", "--hook", "fp16"], "but no training is in these runs"),
        (
            ["RUN", "--world-size", "8", "--rate", "fast"],
            "The rate 'fast' is not understood; write rates such as",
        ),
        (
            ["RUN", "--world-size", "8", "--format", "osu"],
            "Unknown format 'osu'; choose from table, csv, json",
        ),
        (["RUN", "--world-size", "8", "--sizes", "big"], "size 'big' is not understood"),
        (
            ["RUN", "--world-size", "8", "--chart", "rates.svg"],
            "`predict --chart` was removed: `predict` forecasts the step of each hook",
        ),
        (["RUN", "--world-size", "8", "--ranks-per-node", "0"], "0 ranks per node were asked for"),
        (
            ["RUN", "--world-size", "8", "--workload", "bert"],
            "No training of 'bert' is in these runs",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    predict: Predict, network: Path, words: list[str], sentence: str
) -> None:
    """Exit with 2, print one sentence on stderr, and nothing on stdout."""
    code, out, err = predict(*(str(network) if word == "RUN" else word for word in words))
    assert (code, out) == (2, "")
    assert sentence in " ".join(err.split())


def test_hooks_as_typed(predict: Predict, both: Path) -> None:
    """Normalise spaces and numbers in hook names, and refuse an untrained hook."""
    assert hook_name(" topk:0.010") == "topk:0.01"
    line = (both, "--world-size", "8", "--format", "json", "--hook")
    assert ["none", "topk:0.01"] == [
        row["hook"] for row in json.loads(predict(*line, "none, topk:1e-2")[1])["steps"]
    ]
    code, _, err = predict(*line, "none,fp16")
    assert code == 2
    assert "hook fp16 were to be predicted, but only none, topk:0.01 can be" in " ".join(
        err.split()
    )


def test_runs_without_curves_say_what_to_measure(predict: Predict, tmp_path: Path) -> None:
    """Print the command that measures enough sizes for a curve."""
    few = write_run(tmp_path / "few", network_records((2,), sizes=[64 * KIB]), **network_info(2))
    code, _, err = predict(few, "--world-size", "8")
    assert code == 2
    assert "has no curve of a collective over at least 3 message sizes" in " ".join(err.split())
    assert (
        "commbench run -c all_reduce,all_gather --backend gloo,mpi --sizes 64K:16M:4 -n 4"
        in " ".join(err.split())
    )
    assert "on two hosts or more" in " ".join(err.split())
    trained = write_run(tmp_path / "trained", training=training_of(STEPS), **network_info(2))
    words = " ".join(predict(few, trained, "--world-size", "8")[2].split())
    assert f"{few} and {trained} have no curve" in words


def test_missing_parts_of_a_training_are_said(predict: Predict, tmp_path: Path) -> None:
    """Predict the other hooks and name the missing measurement."""
    info = network_info(2, facts=workload_facts().to_json())
    reduced = network_records((2,), operations=["all_reduce"])
    lacking = write_run(tmp_path / "lacking", reduced, training_of(STEPS), **info)
    words = " ".join(predict(lacking, "--world-size", "8")[1].split())
    assert words.count("Nothing is known of gloo all_gather of float32; measure it") == 1
    assert "topk:0.01 all not predicted" in words
    dense = write_run(
        tmp_path / "dense", network_records((2,)), training_of({"none": 420.0}), **info
    )
    assert "predicted ms" in predict(dense, "--world-size", "8")[1]


def test_a_hook_without_its_collectives_costs_no_other(predict: Predict, tmp_path: Path) -> None:
    """Predict hook none next to hooks whose collectives were not measured."""
    info = network_info(2, facts=workload_facts().to_json())
    steps = STEPS | {"fp16": 250.0}
    reduced = network_records((2,), operations=["all_reduce"])
    path = write_run(tmp_path / "run", reduced, training_of(steps), **info)
    code, out, _ = predict(path, "--world-size", "2,8")
    assert code == 0
    words = " ".join(out.split())
    assert "fp16 all not predicted" in words
    assert "topk:0.01 all not predicted" in words
    (row,) = (
        line.split()
        for line in out.splitlines()
        if line.startswith("none") and line.split()[1] == "2"
    )
    assert float(row[2]) > 0


def test_neither_torch_nor_mpi_is_needed(network: Path) -> None:
    """Predict without importing torch, mpi4py or numba."""
    code = (
        "import sys; sys.argv = ['commbench', 'predict', sys.argv[1], '--world-size', '8']\n"
        "from commbench import cli\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write(' '.join({'torch', 'mpi4py', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(network)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("PREDICTED")
    assert done.stderr == ""


def test_lists_of_ranks_and_rates() -> None:
    """Parse lists and ranges without duplicates, and ``measured`` as a rate."""
    assert parse_world_sizes("64, 2,8:32") == [2, 8, 16, 32, 64]
    assert parse_world_sizes("8:128:4") == [8, 32, 128]
    assert parse_rates(None) == [None]
    assert parse_rates("measured,1gbit,2.5gbit,1gbit") == [None, 1e9, 2.5e9]
    with pytest.raises(InputError, match="The rate '0gbit'"):
        parse_rates("0gbit")


def test_hosts_of_several_ranks(predict: Predict, network: Path) -> None:
    """Predict for other numbers of ranks on a host."""
    words = " ".join(predict(network, "--world-size", "64", "--ranks-per-node", "8")[1].split())
    assert "links as measured, 8 ranks a host" in words


@pytest.mark.parametrize(
    "style", ["table", *(pytest.param(name, marks=pytest.mark.slow) for name in ("csv", "json"))]
)
def test_who_reads_may_have_enough(network: Path, style: str) -> None:
    """Exit silently with code 141 when the reader of stdout closes the pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    words = ["predict", str(network), "--world-size", "8", "--format", style]
    done = subprocess.run(
        [sys.executable, "-m", "commbench", *words],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize(("ranks_per_gpu", "code"), [(1, 0), (2, 2)])
def test_time_slices_are_no_network(
    predict: Predict, tmp_path: Path, ranks_per_gpu: int, code: int
) -> None:
    """Refuse to predict from ranks that shared a GPU."""
    info = network_info(4, ranks_per_gpu=ranks_per_gpu)
    run = write_run(tmp_path / "gpus", network_records((2, 4), backend="nccl"), **info)
    ended, _, message = predict(run, "--world-size", "8")
    assert code == ended, message
    assert (code == 2) == ("comes from ranks that share a GPU" in message)


def test_steps_on_a_shared_gpu_are_not_predicted(
    predict: Predict, network: Path, tmp_path: Path
) -> None:
    """Predict collectives, but no steps of ranks that shared a GPU."""
    records = [
        dataclasses.replace(r, case=dataclasses.replace(r.case, backend="nccl"))
        for r in training_of(STEPS)
    ]
    info = network_info(2, facts=workload_facts().to_json(), ranks_per_gpu=2)
    trained = write_run(tmp_path / "trained", [], records, **info)
    code, out, _ = predict(network, trained, "--world-size", "8")
    assert 0 == code
    assert "trained shared a GPU, so its steps do not hold for one GPU for each rank" in " ".join(
        out.split()
    )
