"""Tests of the program that times what a call costs the host."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "benchmarks" / "host_call_cost.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    return subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_table_and_a_file_have_every_operation_of_one_rank(tmp_path: Path) -> None:
    """Time Gloo as a stand-in: each operation that one rank can have, with an interval."""
    pytest.importorskip("torch")
    file = tmp_path / "cost.csv"
    done = run("--backend", "gloo", "--rounds", 6, "--out", file)
    assert 0 == done.returncode, done.stdout + done.stderr
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert {"all_reduce", "all_gather", "broadcast", "all_to_all"} <= {row["operation"] for row in rows}
    assert all(0 < float(r["host_us_ci_low"]) <= float(r["host_us"]) <= float(r["host_us_ci_high"]) for r in rows)
    assert all(row["operation"] in done.stdout for row in rows)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--rounds", 5, "--backend", "fake"), "--rounds 5 was asked for; give 6 or more"),
        (("--backend", "a,,b"), "has an empty name between commas"),
    ],
)
def test_bad_input_gets_a_sentence(arguments: tuple[object, ...], sentence: str) -> None:
    """Refuse with exit code 2."""
    done = run(*arguments)
    assert (2, True) == (done.returncode, sentence in done.stderr)
    assert 1 == len(done.stderr.splitlines())
