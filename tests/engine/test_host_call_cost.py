"""Tests of the benchmark that times a call's cost on the host."""

import csv
import sys

import pytest
from fields import fields_of
from launching import succeeded
from places import ROOT

PROGRAM = ROOT / "benchmarks" / "evidence" / "host_call_cost.py"


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
def test_a_table_and_a_file_have_every_collective(tmp_path):
    """Time each possible collective over Gloo, with an interval."""
    pytest.importorskip("torch")
    file = tmp_path / "cost.csv"
    words = f"{PROGRAM} --backend gloo --rounds 6 --out {file}"
    printed = succeeded(sys.executable, *words.split())
    rows = list(csv.DictReader(file.read_text().splitlines()))
    operations = set(fields_of(rows, "operation"))
    assert {"all_reduce", "all_gather", "broadcast", "all_to_all"} <= operations
    assert operations.isdisjoint({"latency", "bandwidth", "barrier", "iall_reduce"})
    for row in rows:
        assert 0 < float(row["host_us_ci_low"]) <= float(row["host_us_ci_high"])
        assert "2" == row["ranks"]
        assert row["operation"] in printed
