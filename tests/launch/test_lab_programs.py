"""Tests of programs on several emulated hosts: MPI, Gloo, torchrun and training."""

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import read_rows
from labs import finish, mark, start

__all__ = ["mark"]  # a fixture

pytestmark = [pytest.mark.lab, pytest.mark.mpi, pytest.mark.slow, pytest.mark.usefixtures("mark")]

COMMBENCH = (sys.executable, "-m", "commbench")


def measure(out: Path, *words: str, **lab: Any) -> tuple[dict[str, Any], list[Mapping[str, str]]]:
    """Run collectives on the hosts of a lab; return run.json and the rows."""
    output = finish(start(*COMMBENCH, "run", *words, "--launches", "1", "--out", str(out), **lab))
    rows = read_rows(out)
    assert {"ok"} == {row["status"] for row in rows}, output
    return json.loads((out / "run.json").read_text()), rows


def test_two_ranks_on_each_of_two_hosts(tmp_path: Path) -> None:
    """Fill the first host, then the second, over MPI and Gloo; record the lab's shape."""
    flags = ("--ranks-per-host", "2", "--slow", "host1=500mbit")
    words = ("-c", "all_reduce", "--sizes", "64K", "--backend", "mpi,gloo")
    run, rows = measure(tmp_path / "run", *words, rate="1gbit", flags=flags)
    assert ["host0", "host0", "host1", "host1"] == [rank["host"] for rank in run["ranks"]]
    assert {"hosts": 2, "rate": "1gbit", "slow": {"host1": "500mbit"}} == run["environment"][
        "emulated"
    ]
    assert {("mpi", "2", "2"), ("gloo", "2", "2")} == {
        (row["backend"], row["nodes"], row["ranks_per_node"]) for row in rows
    }


def test_gloo_fills_the_link(tmp_path: Path) -> None:
    """Reach 85 to 100 % of the link's rate with a large all-reduce between two hosts."""
    words = ("-c", "all_reduce", "--sizes", "16M", "--backend", "gloo")
    _, (row,) = measure(tmp_path / "run", *words, rate="1gbit")
    assert 0.85 < float(row["busbw_GBps"]) / 0.125 <= 1.0


def test_variables_reach_the_ranks_of_every_host(tmp_path: Path) -> None:
    """Give the ranks on both hosts the variables of a start, also one that commbench forwards by no
    rule.
    """
    words = (
        "-c",
        "latency",
        "--sizes",
        "8",
        "--backend",
        "mpi,gloo",
        "--env",
        "ANY_VARIABLE=1,default",
    )
    run, rows = measure(tmp_path / "run", *words, rate="1gbit")
    assert {"ANY_VARIABLE=1", "ANY_VARIABLE=1 (again)", "ANY_VARIABLE=default"} == {
        row["env"] for row in rows
    }
    values = {
        launch["env"]: launch["variables"]["ANY_VARIABLE"]["ranks"] for launch in run["launches"]
    }
    assert {("1",), (None,)} == set(map(tuple, values.values()))
    assert [None] == values["ANY_VARIABLE=default"]
    assert {"host0", "host1"} == {rank["host"] for rank in run["ranks"]}


def test_training_crosses_the_link(tmp_path: Path) -> None:
    """Train under DDP on two hosts, and mark the row as emulated."""
    pytest.importorskip("torch")
    options = (
        "--workload",
        "digits",
        "--bucket-cap-mb",
        "default",
        "--hook",
        "none",
        "--steps",
        "6",
    )
    more_options = ("--launches", "1", "--confirm-launches", "1", "--out", str(tmp_path / "run"))
    finish(start(*COMMBENCH, "train", *options, *more_options, rate="1gbit"))
    (row,) = csv.DictReader((tmp_path / "run" / "ddp.csv").read_text().splitlines())
    assert ("ok", "2", "true") == (row["status"], row["nodes"], row["ranks_agree"])
    assert "emulated" in row["flags"].split(";")
