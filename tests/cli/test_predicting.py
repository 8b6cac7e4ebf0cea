"""Tests of the command predict: rows from run directories alone, with intervals and errors."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from builders import KIB
from fields import fields_of
from networks import LAYERS, Hop, network_info, network_records, ring_us, training_of, write_run

from commbench.analysis.prediction.law import KEPT_ERROR
from commbench.cli.predict import parse_rates, parse_world_sizes

pytestmark = pytest.mark.programs

STEPS = {"none": 420.0, "topk:0.01": 140.0}
TRAINED = training_of(STEPS)
FACTS = {"facts": asdict(LAYERS)}
#: A run within one host of two ranks.
INSIDE = {"nodes": 1, "ranks_per_node": 2}
PAIR = network_records((2,))
SLOW = network_records((8,), hop=Hop(alpha_us=50.0, beta_us_per_byte=8e-2))
ERRATIC = network_records((8,), hop=Hop(alpha_us=500.0, beta_us_per_byte=8e-2))
FAST = network_records((2,), hop=Hop(alpha_us=5.0, beta_us_per_byte=8e-4))
#: What runs hold, by their names: records of collectives, records of training, run.json.
RUNS = {
    "network": (network_records((2, 4)), (), network_info(4)),
    "both": (PAIR, TRAINED, network_info(2, **FACTS)),
    "old": ((), TRAINED, network_info(2)),
    "1gbit": ((), TRAINED, network_info(2, "1gbit", **FACTS)),
    "100mbit": ((), TRAINED, network_info(2, "100mbit", **FACTS)),
    "slow": (SLOW, (), network_info(8, "100mbit")),
    "trained-within": ((), TRAINED, network_info(2, None, **INSIDE, **FACTS)),
    "within": (FAST, (), network_info(2, None, **INSIDE, **FACTS)),
    "eight": (network_records((8,)), (), network_info(8, None, nodes=1, ranks_per_node=8)),
    "one": (PAIR, (), network_info(2, None, **INSIDE)),
    "few": (network_records((2,), sizes=[64 * KIB]), (), network_info(2)),
    "off": (
        [
            replace(record, case=replace(record.case, world_size=record.group_size))
            for record in (*PAIR, *ERRATIC)
        ],
        (),
        network_info(8),
    ),
    "reduced": (
        network_records((2,), operations=["all_reduce"]),
        training_of(STEPS | {"fp16": 250.0}),
        network_info(2, **FACTS),
    ),
    "gpus": (network_records((2, 4), backend="nccl"), (), network_info(4, ranks_per_gpu=2)),
    "trained-gpus": (
        (),
        [replace(record, case=replace(record.case, backend="nccl")) for record in TRAINED],
        network_info(2, ranks_per_gpu=2, **FACTS),
    ),
}
#: The prediction for the words behind ``predict``, from JSON.
Predict = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a directory with all runs."""
    path = tmp_path_factory.mktemp("runs")
    for name, (records, training, info) in RUNS.items():
        write_run(path / name, records, training, **info)
    return path


@pytest.fixture
def command(commbench, folder, monkeypatch):
    """Return the command beside the runs."""
    monkeypatch.chdir(folder)
    return commbench


@pytest.fixture
def predicted(command):
    """Return the function that predicts."""

    def predict(words: str) -> dict[str, Any]:
        done = command(f"predict {words} --format json")
        assert (0, "") == (done.code, done.err)
        return json.loads(done.out)

    return predict


def test_collectives_follow_the_law(command, predicted):
    """Write the same labelled rows as CSV and JSON, within 10 % of the simulated network."""
    words = "network --world-size 8,16 --rate measured,10gbit --sizes 64K,16M"
    rows = list(csv.DictReader(io.StringIO(command(f"predict {words} --format csv").out)))
    plain = predicted(words)
    assert Counter(collective=16) == Counter(row["about"] for row in rows)
    assert {"predicted"} == set(fields_of(rows, "kind"))
    assert {"", "10gbit"} == set(fields_of(rows, "rate"))
    assert {KEPT_ERROR} == {float(row["held_out_error"]) for row in rows}
    times = fields_of(plain["collectives"], "time_us")
    assert [float(row["time_us"]) for row in rows] == pytest.approx(times, 1e-4)
    assert (["network"], []) == (plain["runs"], plain["steps"])
    for row in plain["collectives"]:
        if row["operation"] == "all_reduce" and row["rate"] == "":
            expected = ring_us("all_reduce", row["world_size"], row["message_bytes"])
            assert row["time_us"] == pytest.approx(expected, rel=0.1)
            assert row["time_us_low"] < row["time_us"] < row["time_us_high"]


def test_training_steps(command, predicted):
    """Return the trained step as measured, and others with intervals and less efficiency."""
    assert command("predict both --world-size 2,8").out.startswith("PREDICTED")
    trained, *others = predicted("both --world-size 2,8,64 --hook none")["steps"]
    measured = [trained[name] for name in ("step_ms", "step_ms_low", "hook")]
    assert [STEPS["none"], None, "none"] == measured
    assert all(row["step_ms_low"] < row["step_ms"] < row["step_ms_high"] for row in others)
    assert {0.13} == set(fields_of(others, "held_out_error"))
    efficiencies = fields_of((trained, *others), "scaling_efficiency")
    assert sorted(efficiencies, reverse=True) == efficiencies


@pytest.mark.parametrize(
    ("words", "column", "expected"),
    [
        ("network --world-size 8", "level", 0.95),
        ("both --world-size 8", "level", None),
        ("both --world-size 2", "level", 0.95),
        ("one --world-size 1024 --rate 25gbit", "level", None),
        ("network eight --world-size 16 --rate 1gbit", "ranks_per_node", 1),
        ("network eight --world-size 16 --rate 1gbit --ranks-per-node 8", "ranks_per_node", 8),
    ],
)
def test_each_row_of_a_collective_states(predicted, words, column, expected):
    """Claim 95 % only if a number of ranks could be held out, and at what was measured.

    Use the ranks per host of the runs across hosts, unless another number is given.
    """
    assert {expected} == {row[column] for row in predicted(words)["collectives"]}


def test_training_within_a_host_met_no_link(predicted):
    """Replay training within a host from collectives within a host, and not without them."""
    words = "network trained-within --world-size 8 --rate 1gbit --ranks-per-node 1"
    assert {"ok"} != set(fields_of(predicted(words)["steps"], "status"))
    assert {"ok"} == set(fields_of(predicted(f"within {words}")["steps"], "status"))


def test_one_table_holds_all_rows(command):
    """Write collectives and steps as one CSV table, and messages to stderr."""
    done = command("predict both old --world-size 8,64 --format csv")
    assert "mlp" in done.err
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert Counter(collective=12, step=4) == Counter(row["about"] for row in rows)
    for row in rows:
        assert None not in row.values()
        assert (row["operation"] != "") == (row["about"] == "collective")
        assert (row["step_ms"] != "") == (row["about"] == "step")


def test_training_over_other_links(predicted):
    """Replay training from its own link, which may differ from that of the collectives."""
    same, slower = (
        predicted(f"network {run} --world-size 2 --hook none --rate 1gbit")["steps"][0]["step_ms"]
        for run in ("1gbit", "100mbit")
    )
    assert same == STEPS["none"]
    assert slower < 0.6 * same


def test_what_is_off_by_far_says_so(command, predicted):
    """State a held-out error above 50 %, and print no derived bandwidth then."""
    words = "off --world-size 16 --sizes 1M"
    assert all(row["held_out_error"] > 0.5 for row in predicted(words)["collectives"])
    out = command(f"predict {words}").out
    assert "too uncertain" in out
    assert "busbw" not in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("network slow --world-size 16", "--rate 100mbit"),
        ("network 100mbit --world-size 16", "--rate 100mbit"),
        ("one --world-size 8:1024", "--rate"),
        ("both --world-size 8 --hook none,fp16", "fp16"),
        (
            "few --world-size 8",
            "run -c all_reduce,all_gather --backend gloo,mpi --sizes 64K:16M:4 -n 4",
        ),
        ("gpus --world-size 8", "share a GPU"),
    ],
)
def test_what_cannot_be_predicted_is_refused(command, words, sentence):
    """Name the rate to give for links of several rates, the hook to train, what to measure; predict
    nothing from ranks that shared a GPU.
    """
    done = command(f"predict {words}")
    assert (2, "") == (done.code, done.out)
    assert 1 == " ".join(done.err.split()).count(sentence)


def test_runs_at_several_rates(predicted):
    """Predict from runs over links of different rates for the rates that are given."""
    for other in ("slow", "100mbit"):
        assert predicted(f"network {other} --world-size 16 --rate 100mbit,1gbit")["collectives"]


def test_hooks_as_typed(predicted):
    """Normalise spaces and numbers in hook names."""
    rows = predicted("both --world-size 8 --hook none,topk:1e-2,topk:0.010")["steps"]
    assert ["none", "topk:0.01"] == fields_of(rows, "hook")


def test_a_hook_without_its_collectives_costs_no_other(command, predicted):
    """Predict hook none next to hooks whose collectives were not measured, and nothing of ranks
    that shared a GPU.
    """
    rows = predicted("reduced --world-size 8")["steps"]
    assert {"none"} == {row["hook"] for row in rows if row["status"] == "ok"}
    assert "Not predicted: fp16" in command("predict reduced --world-size 8").out
    assert [] == predicted("network trained-gpus --world-size 8")["steps"]


def test_lists_of_ranks_and_rates():
    """Parse lists and ranges without duplicates, and ``measured`` as a rate."""
    assert parse_world_sizes("64, 2,8:32") == [2, 8, 16, 32, 64]
    assert parse_world_sizes("8:128:4") == [8, 32, 128]
    assert parse_rates("measured") == [None]
    assert parse_rates("measured,1gbit,2.5gbit,1gbit") == [None, 1e9, 2.5e9]
