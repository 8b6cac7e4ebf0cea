"""Tests of the words of captions."""

from pathlib import Path

import pytest

from commbench.report.figures.drawing import Estimate
from commbench.report.figures.words import left_out, number_text, run_names, shown_apart, time_text
from commbench.report.formats import listed
from commbench.results import Run


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["results/bench_xeon_2026", "results/quick_xeon_2026"], ["bench", "quick"]),
        (["a-b-c", "a-d-c"], ["b", "d"]),
        (["pair/a", "pair/b"], ["a", "b"]),
        (["pair1/a", "pair2/a"], ["pair1", "pair2"]),
        (["same/x", "same/x"], ["x (1)", "x (2)"]),
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
    assert "" == left_out(["a", "b"], 2)
    assert "told apart: c." in left_out(["a", "b", "c"], 2)


def test_estimates_have_their_interval() -> None:
    """Write the interval of an estimate if known."""
    assert "10.0 us [9.00 us, 12.0 us]" == time_text(Estimate(value=10.0, low=9.0, high=12.0))
    assert "2.00 GB/s" == number_text(Estimate(value=2.0), "GB/s")


def test_only_intervals_that_do_not_meet_are_apart() -> None:
    """Claim a difference only for disjoint intervals."""
    low, high = Estimate(value=1.0, low=0.9, high=1.1), Estimate(value=2.0, low=1.5, high=2.5)
    wide = Estimate(value=2.0, low=1.0, high=4.0)
    assert [True, True, False, False] == [
        shown_apart(*pair)
        for pair in ((low, high), (high, low), (low, wide), (low, Estimate(value=9.0)))
    ]
