"""Tests of programs on several emulated hosts: MPI, Gloo and training."""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import read_info, read_rows
from fields import fields_of
from labs import lab, mark, running

__all__ = ["mark"]  # a fixture

pytestmark = [pytest.mark.lab, pytest.mark.mpi, pytest.mark.slow, pytest.mark.usefixtures("mark")]


def measure(
    out: Path, words: str, flags: Any = ()
) -> tuple[dict[str, Any], list[Mapping[str, str]]]:
    """Run a command on the hosts of a lab; return run.json and the rows of collectives."""
    command = [sys.executable, "-m", "commbench", *words.split(), "--out", str(out)]
    output = lab(*running(*command, rate="1gbit", flags=flags))
    rows = read_rows(out) if (out / "collectives.csv").exists() else []
    assert {"ok"} >= set(fields_of(rows, "status")), output
    return read_info(out), rows


@pytest.mark.parametrize(
    ("words", "column", "least"),
    [
        ("-c all_reduce --sizes 16M --backend gloo", "busbw_GBps", 0.85),
        ("-c bandwidth --sizes 64K --backend mpi --sync dissemination", "algbw_GBps", 0.5),
    ],
)
def test_messages_fill_the_link(tmp_path, words, column, least):
    """Reach the link's rate between two hosts over TCP, and no more."""
    _, (row,) = measure(tmp_path / "run", f"run {words} --launches 1")
    assert row["transport"].startswith("tcp")
    assert least < float(row[column]) / 0.125 <= 1.05


def test_variables_reach_the_ranks_of_every_host(tmp_path):
    """Give the ranks on both hosts the variables of a start, also one that commbench forwards by no
    rule.
    """
    words = "run -c latency --sizes 8 --backend mpi,gloo --env ANY_VARIABLE=1,default --launches 1"
    run, rows = measure(tmp_path / "run", words)
    values = {}
    for launch in run["launches"]:
        values[launch["env"]] = launch["variables"]["ANY_VARIABLE"]["ranks"]
    expected = {f"ANY_VARIABLE={value}": ["1"] for value in ("1", "1 (again)")}
    assert {**expected, "ANY_VARIABLE=default": [None]} == values
    assert values.keys() == set(fields_of(rows, "env"))
    assert {"host0", "host1"} == set(fields_of(run["ranks"], "host"))


def test_training_crosses_the_link(tmp_path):
    """Train under DDP on two hosts, and mark the row as emulated."""
    pytest.importorskip("torch")
    words = "train --workload digits --bucket-cap-mb default --hook none --steps 6"
    measure(tmp_path / "run", f"{words} --launches 1 --confirm-launches 1")
    (row,) = csv.DictReader((tmp_path / "run" / "ddp.csv").read_text().splitlines())
    assert "ok" == row["status"]
    assert "2" == row["nodes"]
    assert "true" == row["ranks_agree"]
    assert "emulated" in row["flags"].split(";")
