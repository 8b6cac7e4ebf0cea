"""Tests of the names of runs in figures."""

from pathlib import Path

import pytest

from commbench.report.figures.words import run_names
from commbench.report.formats import listed
from commbench.results import Run


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["results/bench_xeon_2026", "results/quick_xeon_2026"], ["bench", "quick"]),
        (["a-b-c", "a-d-c"], ["b", "d"]),
        (["pair/a", "pair/b"], ["a", "b"]),
        (["pair1/a", "pair2/a"], ["pair1", "pair2"]),
        (["a/same/x", "b/same/x"], ["a", "b"]),
        (["x_1", "x"], ["x_1", "x"]),
        (["only_one_run"], ["only_one_run"]),
    ],
)
def test_runs_are_called_by_what_differs(paths: list[str], expected: list[str]) -> None:
    """Drop words common to all names, but never a whole name."""
    runs = [Run(path=Path("/r") / path, info={}, records=()) for path in paths]
    assert expected == run_names(runs)


def test_long_lists_are_counted() -> None:
    """Name the first items of a long list, and count the others."""
    assert ["", "a", "a and b", "a, b, c, d and 2 more"] == [
        listed(text) for text in ("", "a", "ab", "abcdef")
    ]
