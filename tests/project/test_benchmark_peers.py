"""Tests of benchmarks/peers.py, which measures another tool and commbench in turn."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from commands import RunBenchmark

from commbench.errors import InputError

IMB = """
#    Intel(R) MPI Benchmarks 2021.11, MPI-1 part
# MPI_Datatype for reductions    :   MPI_FLOAT
# Benchmarking Allreduce
# #processes = 2
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1024         1000         1.00         3.00         2.00
# All processes entering MPI_Finalize
"""


@pytest.fixture
def peers(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """Return benchmarks/peers.py as a module."""
    return load_benchmark("peers")


def test_the_mean_over_ranks_is_read(peers: ModuleType) -> None:
    """Read the mean over ranks, not the slowest rank, from a tool's text."""
    assert {("all_reduce", 1024): 2.0} == peers.times_of(IMB, "imb.txt", None)


@pytest.mark.parametrize(
    ("factor", "is_close"), [(1.0, True), (1.04, True), (1.2, False), (0.8, False)]
)
def test_a_ratio_beyond_the_tolerance_is_found(
    peers: ModuleType, factor: float, is_close: bool
) -> None:
    """Call a planted factor beyond 5 % different, and no smaller one."""
    theirs = [{("latency", 8): 1.0 + 0.001 * number} for number in range(8)]
    ours = [{key: factor * time_us for key, time_us in times.items()} for times in theirs]
    (case,) = peers.compare(theirs, ours)
    assert factor == pytest.approx(case.ratio)
    assert is_close == case.is_close


def test_cases_of_one_side_only_are_refused(peers: ModuleType) -> None:
    """Compare nothing where no case was measured by both."""
    with pytest.raises(InputError, match="No case was measured by both"):
        peers.compare([{("latency", 8): 1.0}] * 2, [{("latency", 16): 1.0}] * 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--as", "imb"], "No command of the other tool was given"),
        (["--rounds", "1", "--", "true"], "Give --rounds of at least 2"),
        (["--as", "imb", "--"], "a command behind --"),
    ],
)
def test_bad_requests_start_nothing(
    run_benchmark: RunBenchmark, tmp_path: Path, words: list[str], sentence: str
) -> None:
    """Refuse a request without a command or with one round, with exit code 2."""
    done = run_benchmark("peers", "--out", str(tmp_path / "out"), *words)
    assert (2, "") == (done.code, done.out)
    assert sentence in done.err
    assert not (tmp_path / "out").exists()


def test_a_side_that_fails_is_named(run_benchmark: RunBenchmark, tmp_path: Path) -> None:
    """End with the command and its last line when one side fails."""
    words = ["--rounds", "2", "--out", str(tmp_path / "out"), "--as", "nothing", "--", "true"]
    done = run_benchmark("peers", *words)
    assert done.code
    assert "--as nothing" in done.err
    assert "Unknown tool 'nothing'" in done.err
