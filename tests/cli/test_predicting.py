"""Tests of the command predict: rows from run directories alone, with intervals and errors."""

import csv
import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import KIB
from commands import Command
from networks import (
    Hop,
    network_info,
    network_records,
    ring_us,
    training_of,
    workload_facts,
    write_run,
)

from commbench.cli.predict import parse_rates, parse_world_sizes

pytestmark = pytest.mark.programs

STEPS = {"none": 420.0, "topk:0.01": 140.0}
FACTS = {"facts": workload_facts().to_json()}
#: A run within one host of two ranks.
INSIDE = {"nodes": 1, "ranks_per_node": 2}
SLOW_HOP = Hop(alpha_us=50.0, beta_us_per_byte=8e-2)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Return a run of collectives on 2 and 4 hosts."""
    return write_run(tmp_path / "network", network_records((2, 4)), **network_info(4))


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Return a run of collectives and training on 2 hosts."""
    return write_run(
        tmp_path / "both", network_records((2,)), training_of(STEPS), **network_info(2, **FACTS)
    )


def predicted(command: Command, words: str) -> dict[str, Any]:
    """Return the prediction as JSON."""
    done = command(f"predict {words} --format json")
    assert (0, "") == (done.code, done.err)
    document: dict[str, Any] = json.loads(done.out)
    return document


def refused(command: Command, words: str) -> str:
    """Return the sentence on stderr, without line breaks."""
    done = command(f"predict {words}")
    assert (2, "") == (done.code, done.out)
    return " ".join(done.err.split())


def test_collectives_follow_the_law(commbench: Command, network: Path) -> None:
    """Write the same labelled rows as CSV and JSON, within 10 % of the simulated network."""
    words = f"{network} --world-size 8,16 --rate measured,10gbit --sizes 64K,16M"
    rows = list(csv.DictReader(io.StringIO(commbench(f"predict {words} --format csv").out)))
    plain = predicted(commbench, words)
    assert Counter(collective=16) == Counter(row["about"] for row in rows)
    assert {"predicted"} == {row["kind"] for row in rows}
    assert {"", "10gbit"} == {row["rate"] for row in rows}
    assert {0.27} == {float(row["held_out_error"]) for row in rows}
    times = [row["time_us"] for row in plain["collectives"]]
    assert [float(row["time_us"]) for row in rows] == pytest.approx(times, 1e-4)
    assert (["network"], []) == (plain["runs"], plain["steps"])
    for row in plain["collectives"]:
        if row["operation"] == "all_reduce" and row["rate"] == "":
            expected = ring_us("all_reduce", row["world_size"], row["message_bytes"])
            assert row["time_us"] == pytest.approx(expected, rel=0.1)
            assert row["time_us_low"] < row["time_us"] < row["time_us_high"]


def test_training_steps(commbench: Command, both: Path) -> None:
    """Return the trained step as measured, and others with intervals and less efficiency."""
    assert commbench(f"predict {both} --world-size 2,8").out.startswith("PREDICTED")
    trained, *others = predicted(commbench, f"{both} --world-size 2,8,64 --hook none")["steps"]
    assert (STEPS["none"], None, "none") == (
        trained["step_ms"],
        trained["step_ms_low"],
        trained["hook"],
    )
    assert all(row["step_ms_low"] < row["step_ms"] < row["step_ms_high"] for row in others)
    assert {0.13} == {row["held_out_error"] for row in others}
    efficiencies = [row["scaling_efficiency"] for row in (trained, *others)]
    assert sorted(efficiencies, reverse=True) == efficiencies


@pytest.mark.parametrize(
    ("counts", "ranks", "level"), [((2, 4), 8, 0.95), ((2,), 8, None), ((2,), 2, 0.95)]
)
def test_intervals_are_called_what_they_are(
    commbench: Command, tmp_path: Path, counts: tuple[int, ...], ranks: int, level: float | None
) -> None:
    """Claim 95 % only if a number of ranks could be held out, and at what was measured."""
    run = write_run(tmp_path / "run", network_records(counts), **network_info(max(counts)))
    rows = predicted(commbench, f"{run} --world-size {ranks}")["collectives"]
    assert {level} == {row["level"] for row in rows}


def test_training_within_a_host_met_no_link(
    commbench: Command, network: Path, tmp_path: Path
) -> None:
    """Replay training within a host from collectives within a host, and not without them."""
    inside = network_info(2, None, **INSIDE, **FACTS)
    write_run(tmp_path / "trained", training=training_of(STEPS), **inside)
    line = f"{network} trained --world-size 8 --rate 1gbit --ranks-per-node 1"
    assert {"ok"} != {row["status"] for row in predicted(commbench, line)["steps"]}
    fast = network_records((2,), hop=Hop(alpha_us=5.0, beta_us_per_byte=8e-4))
    write_run(tmp_path / "within", fast, **inside)
    assert {"ok"} == {row["status"] for row in predicted(commbench, f"within {line}")["steps"]}


@pytest.mark.parametrize(("option", "ranks_per_node"), [("", 1), ("--ranks-per-node 8", 8)])
def test_hosts_are_those_of_the_runs_across_hosts(
    commbench: Command, network: Path, tmp_path: Path, option: str, ranks_per_node: int
) -> None:
    """Use the ranks per host of the runs across hosts, unless another number is given."""
    info = network_info(8, None, nodes=1, ranks_per_node=8)
    write_run(tmp_path / "one", network_records((8,)), **info)
    rows = predicted(commbench, f"{network} one --world-size 16 --rate 1gbit {option}")
    assert {ranks_per_node} == {row["ranks_per_node"] for row in rows["collectives"]}


def test_one_table_holds_all_rows(commbench: Command, both: Path, tmp_path: Path) -> None:
    """Write collectives and steps as one CSV table, and messages to stderr."""
    write_run(tmp_path / "old", training=training_of(STEPS), **network_info(2))
    done = commbench(f"predict {both} old --world-size 8,64 --format csv")
    assert "mlp" in done.err
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert Counter(collective=12, step=4) == Counter(row["about"] for row in rows)
    for row in rows:
        assert None not in row.values()
        assert (row["operation"] != "") == (row["about"] == "collective")
        assert (row["step_ms"] != "") == (row["about"] == "step")


def test_training_over_other_links(commbench: Command, network: Path, tmp_path: Path) -> None:
    """Replay training from its own link, which may differ from that of the collectives."""
    steps_ms = []
    for rate in ("1gbit", "100mbit"):
        write_run(tmp_path / rate, training=training_of(STEPS), **network_info(2, rate, **FACTS))
        words = f"{network} {rate} --world-size 2 --hook none --rate 1gbit"
        steps_ms.append(predicted(commbench, words)["steps"][0]["step_ms"])
    assert steps_ms[0] == STEPS["none"]
    assert steps_ms[1] < 0.6 * steps_ms[0]


def test_runs_at_several_rates(commbench: Command, network: Path, tmp_path: Path) -> None:
    """Require --rate if the runs have different link rates."""
    write_run(tmp_path / "slow", network_records((8,), hop=SLOW_HOP), **network_info(8, "100mbit"))
    write_run(
        tmp_path / "trained", training=training_of(STEPS), **network_info(2, "100mbit", **FACTS)
    )
    for other in ("slow", "trained"):
        words = f"{network} {other} --world-size 16"
        assert "--rate 100mbit" in refused(commbench, words)
        assert predicted(commbench, f"{words} --rate 100mbit,1gbit")["collectives"]


def test_what_is_off_by_far_says_so(commbench: Command, tmp_path: Path) -> None:
    """State a held-out error above 50 %, and print no derived bandwidth then."""
    slower = network_records((8,), hop=Hop(alpha_us=500.0, beta_us_per_byte=8e-2))
    records = [
        replace(record, case=replace(record.case, world_size=record.group_size))
        for record in (*network_records((2,)), *slower)
    ]
    write_run(tmp_path / "off", records, **network_info(8))
    words = "off --world-size 16 --sizes 1M"
    rows = predicted(commbench, words)["collectives"]
    assert all(row["held_out_error"] > 0.5 for row in rows)
    out = commbench(f"predict {words}").out
    assert "too uncertain" in out
    assert "busbw" not in out


def test_a_run_of_one_host(commbench: Command, tmp_path: Path) -> None:
    """Predict across hosts from one host only at a given rate, and without a level."""
    write_run(tmp_path / "one", network_records((2,)), **network_info(2, None, **INSIDE))
    assert refused(commbench, "one --world-size 8:1024").count("--rate") == 1
    rows = predicted(commbench, "one --world-size 1024 --rate 25gbit")["collectives"]
    assert {None} == {row["level"] for row in rows}


def test_hooks_as_typed(commbench: Command, both: Path) -> None:
    """Normalise spaces and numbers in hook names, and refuse an untrained hook."""
    rows = predicted(commbench, f"{both} --world-size 8 --hook none,topk:1e-2,topk:0.010")["steps"]
    assert ["none", "topk:0.01"] == [row["hook"] for row in rows]
    assert "fp16" in refused(commbench, f"{both} --world-size 8 --hook none,fp16")


def test_runs_without_curves_say_what_to_measure(commbench: Command, tmp_path: Path) -> None:
    """Print the command that measures enough sizes for a curve."""
    write_run(tmp_path / "few", network_records((2,), sizes=[64 * KIB]), **network_info(2))
    command = "commbench run -c all_reduce,all_gather --backend gloo,mpi --sizes 64K:16M:4 -n 4"
    assert command in refused(commbench, "few --world-size 8")


def test_a_hook_without_its_collectives_costs_no_other(commbench: Command, tmp_path: Path) -> None:
    """Predict hook none next to hooks whose collectives were not measured."""
    steps = STEPS | {"fp16": 250.0}
    reduced = network_records((2,), operations=["all_reduce"])
    write_run(tmp_path / "run", reduced, training_of(steps), **network_info(2, **FACTS))
    rows = predicted(commbench, "run --world-size 8")["steps"]
    assert {"none"} == {row["hook"] for row in rows if row["status"] == "ok"}
    assert "Not predicted: fp16" in commbench("predict run --world-size 8").out


def test_lists_of_ranks_and_rates() -> None:
    """Parse lists and ranges without duplicates, and ``measured`` as a rate."""
    assert parse_world_sizes("64, 2,8:32") == [2, 8, 16, 32, 64]
    assert parse_world_sizes("8:128:4") == [8, 32, 128]
    assert parse_rates("measured") == [None]
    assert parse_rates("measured,1gbit,2.5gbit,1gbit") == [None, 1e9, 2.5e9]


def test_ranks_that_share_a_gpu_are_no_network(
    commbench: Command, network: Path, tmp_path: Path
) -> None:
    """Predict neither collectives nor steps from ranks that shared a GPU."""
    shared = network_info(4, ranks_per_gpu=2)
    write_run(tmp_path / "gpus", network_records((2, 4), backend="nccl"), **shared)
    assert "share a GPU" in refused(commbench, "gpus --world-size 8")
    records = [
        replace(record, case=replace(record.case, backend="nccl")) for record in training_of(STEPS)
    ]
    write_run(tmp_path / "trained", training=records, **network_info(2, ranks_per_gpu=2, **FACTS))
    assert [] == predicted(commbench, f"{network} trained --world-size 8")["steps"]
