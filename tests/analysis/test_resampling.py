"""Tests of statistics over launches: the noise of medians, resamples and intervals."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import POWERS, launches_of, one

from commbench.analysis.prediction.fits import (
    RESAMPLES,
    interval_of,
    medians_over_launches,
    noise_of,
    resampled_medians,
)
from commbench.stats import launch_interval

tables = st.integers(1, 6).flatmap(
    lambda launches: st.lists(
        st.lists(st.floats(0.1, 1e6) | st.just(math.nan), min_size=launches, max_size=launches),
        min_size=1,
        max_size=5,
    )
)


@given(tables)
def test_medians_equal_numpys(table: list[list[float]]) -> None:
    """Return numpy's medians, and NaN for rows without values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of rows without a number
        expected = np.nanmedian(np.array(table), axis=-1)
    assert expected == pytest.approx(medians_over_launches(np.array(table)), nan_ok=True)


@pytest.mark.parametrize("launches", [2, 3, 4, 6, 10])
def test_noise_is_found(launches: int) -> None:
    """Estimate the standard error of medians over launches within 25 %."""
    drawn = [
        np.array(launches_of(one, POWERS, noise=0.05, launches=launches, seed=seed))
        for seed in range(40)
    ]
    true = np.std([np.log(medians_over_launches(table)) for table in drawn], axis=0).mean()
    assert float(np.mean([noise_of(table).error for table in drawn])) == pytest.approx(
        true, rel=0.25
    )


def test_slow_launches_are_no_noise() -> None:
    """Report no noise if launches differ by one factor at all sizes, and little for one noisy
    size.
    """
    table = one(np.array(POWERS, dtype=float))[:, None] * np.array([0.8, 1.0, 1.3, 1.5])
    assert 0.0 == pytest.approx(noise_of(table).error, abs=1e-9)
    table[3] *= [1, 9, 0.2, 3]
    assert noise_of(table).error < 0.01


def test_one_launch_has_unknown_noise() -> None:
    """Report zero degrees of freedom if every size has one launch."""
    assert 0 == noise_of(np.array([[1.0], [2.0]])).degrees
    assert 0 == noise_of(np.array([[1.0, math.nan], [math.nan, 2.0]])).degrees


def test_resamples_keep_launches_together() -> None:
    """Resample the same launches at all sizes."""
    resampled = resampled_medians(
        np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [math.nan, math.nan, 7.0]])
    )
    assert (RESAMPLES, 3) == resampled.shape
    assert resampled[:, 1] == pytest.approx(10 * resampled[:, 0])
    assert {7.0} == set(resampled[:, 2])
    assert {1.0, 2.0, 3.0} == set(resampled[:, 0])


@pytest.mark.parametrize("launches", [2, 3, 5, 6, 12])
def test_intervals_of_one_size_are_as_wide_as_those_of_rows(launches: int) -> None:
    """Return an interval about as wide as that of the row."""
    widths = []
    for seed in range(60):
        times = np.random.default_rng(seed).lognormal(0, 0.05, launches)
        resampled_interval = interval_of(
            float(np.median(times)), resampled_medians(times[None, :])[:, 0], launches
        )
        row_interval = launch_interval(times)
        assert resampled_interval is not None
        assert row_interval is not None
        widths.append(
            math.log(resampled_interval.high / resampled_interval.low)
            / math.log(row_interval.high / row_interval.low)
        )
    assert 0.6 < float(np.median(widths)) < 1.6


def test_one_launch_has_no_interval() -> None:
    """Return no interval for one launch."""
    assert interval_of(1.0, np.array([]), 1) is None
