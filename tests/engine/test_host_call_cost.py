"""Tests of the benchmark that times a call's cost on the host."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "evidence" / "host_call_cost.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the benchmark."""
    return subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.mpi)])
@pytest.mark.usefixtures("forks")
def test_a_table_and_a_file_have_every_collective(tmp_path: Path, ranks: int) -> None:
    """Time each possible collective over Gloo, with an interval."""
    pytest.importorskip("torch")
    file = tmp_path / "cost.csv"
    done = run("--backend", "gloo", "--ranks", ranks, "--rounds", 6, "--out", file)
    assert 0 == done.returncode, done.stdout + done.stderr
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert {"all_reduce", "all_gather", "broadcast", "all_to_all"} <= {
        row["operation"] for row in rows
    }
    assert not {"latency", "bandwidth", "barrier", "iall_reduce"} & {
        row["operation"] for row in rows
    }
    assert {str(ranks)} == {row["ranks"] for row in rows}
    assert all(
        0 < float(r["host_us_ci_low"]) <= float(r["host_us"]) <= float(r["host_us_ci_high"])
        for r in rows
    )
    assert all(row["operation"] in done.stdout for row in rows)
    assert (ranks == 1) == ("Nothing is judged" in done.stdout)
