"""Tests of interpolation: isotonic regression against pooling, cubics that never overshoot."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.analysis.prediction.fits import cubic, interval_position, isotonic, monotone_cubics

# Microseconds to a nanosecond: the weights of a cubic overflow where values differ by 1e-308.
microseconds = st.integers(-1_000_000, 1_000_000).map(lambda nanoseconds: nanoseconds / 1e3)
values = st.lists(microseconds, min_size=2, max_size=12)


def pooled(numbers: list[float]) -> list[float]:
    """Return the isotonic regression by pooling adjacent violators."""
    blocks: list[list[float]] = []
    for number in numbers:
        blocks.append([number])
        while len(blocks) > 1 and np.mean(blocks[-2]) >= np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [float(np.mean(block)) for block in blocks for _ in block]


@given(values)
def test_isotonic_equals_pool_adjacent_violators(numbers: list[float]) -> None:
    """Return the non-decreasing result of pooling adjacent violators."""
    regression = isotonic(np.array(numbers))
    assert pooled(numbers) == pytest.approx(regression, abs=1e-6)
    assert (np.diff(regression) >= 0).all()


def test_isotonic_keeps_rising_values() -> None:
    """Leave the rising values of every row unchanged."""
    rows = np.array([[1.0, 2.0, 5.0], [3.0, 2.0, 4.0]])
    assert [[1.0, 2.0, 5.0], [2.5, 2.5, 4.0]] == isotonic(rows).tolist()


@given(values)
def test_cubics_never_overshoot(numbers: list[float]) -> None:
    """Interpolate monotonically between neighbours and pass through both."""
    x, y = np.cumsum(1 + np.arange(len(numbers)) % 3).astype(float), np.sort(numbers)
    for i, piece in enumerate(monotone_cubics(x, y).tolist()):
        path = [cubic(piece, place) for place in np.linspace(0, 1, 21)]
        assert (y[i], y[i + 1]) == pytest.approx((path[0], path[-1]), abs=1e-9)
        assert (np.diff(path) >= -1e-9).all()


def test_straight_lines_stay_straight() -> None:
    """Reproduce a straight line on any grid, also from two points."""
    for x in (np.array([0.0, 1.0, 3.0, 4.0]), np.array([0.0, 2.0])):
        pieces = monotone_cubics(x, 2 * x + 1).tolist()
        for at in np.linspace(0, x[-1], 9):
            i, place = interval_position(x.tolist(), at)
            assert cubic(pieces[i], place) == pytest.approx(2 * at + 1)


def test_smooth_curves_are_followed() -> None:
    """Interpolate a smooth rising curve with a third of the error of straight lines."""
    x = np.linspace(0, 2, 6)
    y, pieces = np.exp(x), monotone_cubics(x, np.exp(x)).tolist()
    places = np.linspace(0, 2, 101)
    interpolated = [
        cubic(pieces[i], place) for i, place in (interval_position(x.tolist(), at) for at in places)
    ]
    curved, straight = (
        np.abs(guess - np.exp(places)).max()
        for guess in (np.array(interpolated), np.interp(places, x, y))
    )
    assert curved < straight / 3
