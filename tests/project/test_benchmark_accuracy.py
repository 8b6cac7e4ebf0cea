"""Tests of the two benchmarks of commbench itself: against a C loop, and run against run."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from builders import read_records

from commbench.analysis.comparison import compare
from commbench.launch.launchers import MpirunLauncher
from commbench.results import load_run

RunBenchmark = Callable[..., "subprocess.CompletedProcess[str]"]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def accuracy(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """Return benchmarks/accuracy.py as a module."""
    return load_benchmark("accuracy")


@pytest.fixture
def self_check(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """Return benchmarks/self_check.py as a module."""
    return load_benchmark("self_check")


@pytest.fixture
def run_benchmark(mpirun: MpirunLauncher, mpi_environment: dict[str, str]) -> RunBenchmark:
    """Return a function that runs a benchmark script.

    Skip the test without a core for each of its two ranks.
    """
    if mpirun.slots() < 2:
        pytest.skip("needs two CPUs")

    def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(BENCHMARKS / name), *map(str, arguments)]
        return subprocess.run(
            command, env=mpi_environment, capture_output=True, text=True, timeout=200, check=False
        )

    return run


def fake_launch(accuracy: ModuleType, native_us: float) -> dict[str, Any]:
    """Return the report of rank 0 for 2 us in C and 5 us in Python."""
    times = {"c": 2.0, "native": native_us, "python": 5.0}
    frozen = {"warmups": 1, "batch": 4}
    return {
        "cases": [
            {"case": case.key, "frozen": frozen, "time_us": times}
            for case in accuracy.SWEEP.cases(2)
        ]
    }


def test_drift_affects_loops_equally(accuracy: ModuleType) -> None:
    """Give C and native the same number of chunks at the same mean position."""
    order = [name for number in range(4) for name in accuracy.chunk_order(number)]
    places = {
        name: [place for place, loop in enumerate(order) if loop == name] for name in accuracy.LOOPS
    }
    assert [8, 8, 4] == [len(places[name]) for name in accuracy.LOOPS]
    assert sum(places["c"]) == sum(places["native"])


@pytest.mark.parametrize(
    ("native_us", "within"),
    [
        ([1.99, 2.0, 2.01, 1.98, 2.02, 2.0], True),
        ([2.1, 2.09, 2.1, 2.11, 2.1, 2.1], False),
        ([1.9, 2.1, 2.0, 2.0, 2.1, 1.9], False),
        ([2.0], False),
    ],
)
def test_the_interval_decides(accuracy: ModuleType, native_us: list[float], within: bool) -> None:
    """Call native as exact as C only if the interval over launches shows it."""
    rows = accuracy.summarise([fake_launch(accuracy, time_us) for time_us in native_us])
    assert [within] * len(accuracy.SWEEP.cases(2)) == [row.within for row in rows]
    assert 4 == rows[0].batch
    assert 2.5 == rows[0].python_ratio


def test_runs_take_turns(self_check: ModuleType) -> None:
    """Order launches as ABBA."""
    assert [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)] == self_check.launch_order(
        3
    )


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_accuracy_compares_the_loops_on_real_ranks(
    tmp_path: Path, run_benchmark: RunBenchmark
) -> None:
    """Build the C loop, time all cases with all loops, and write every documented field."""
    options = ("--launches", 1, "--rounds", 2, "--chunk", 50, "--out", tmp_path / "out")
    done = run_benchmark("accuracy.py", *options)
    assert 1 == done.returncode, done.stderr  # one launch gives no interval
    facts = json.loads((tmp_path / "out" / "accuracy.json").read_text())
    promised = "schema argv started git_commit environment ranks tolerance within cases launches"
    assert set(promised.split()) == set(facts)
    rows = facts["cases"]
    sizes = [8, 1024, 65536]
    assert [(name, size) for name in ("all_reduce", "latency") for size in sizes] == [
        (row["operation"], row["message_bytes"]) for row in rows
    ]
    assert all(row["ratio"] > 0 for row in rows)
    assert all(
        {"c", "native", "python"} == set(case["time_us"]) for case in facts["launches"][0]["cases"]
    )
    assert 1 + len(rows) == len((tmp_path / "out" / "accuracy.csv").read_text().splitlines())


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
def test_self_check_compares_two_runs(tmp_path: Path, run_benchmark: RunBenchmark) -> None:
    """Measure both sides launch by launch; two launches are too few to call any case different."""
    options = ("--launches", 2, "--sizes", "8,1K", "--backends", "mpi", "--out", tmp_path / "out")
    done = run_benchmark("self_check.py", *options)
    assert 0 == done.returncode, done.stderr
    assert "0 of 6 cases called different (at most 5 % allowed)" in done.stdout
    a, b = (load_run(tmp_path / "out" / "pair1" / side) for side in "ab")
    assert [12, 12] == [len(read_records(run.path)) for run in (a, b)]
    assert a.info["seed"] != b.info["seed"]
    assert 6 == len(compare(a, b).cases)
    assert 1 + 6 == len((tmp_path / "out" / "comparisons.csv").read_text().splitlines())
    assert 0 == json.loads((tmp_path / "out" / "self_check.json").read_text())["different"]
