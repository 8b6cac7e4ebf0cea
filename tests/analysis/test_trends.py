"""Tests of the trend of launches over time."""

import numpy as np
import pytest

from commbench.analysis.soak import trend

SIMULATIONS = 400


def test_an_exact_trend_is_found():
    """Return the factor from the first time to the last, in any order of times."""
    factor, interval = trend([0.0, 30.0, 10.0, 20.0, 40.0, 50.0], [1.0, 1.3, 1.1, 1.2, 1.4, 1.5])
    assert pytest.approx(1.5, rel=0.03) == factor
    assert interval.low <= factor <= interval.high


@pytest.mark.parametrize(("count", "change"), [(6, 0.0), (12, 0.1), (40, 0.1)])
def test_the_interval_holds_the_trend(count, change):
    """Cover the true change in at least 93 % of samples."""
    draw = np.random.default_rng(count)
    times = np.arange(count, dtype=float)
    truth = np.exp(np.log1p(change) * times / times[-1])
    held = 0
    for _ in range(SIMULATIONS):
        _, interval = trend(times, truth * np.exp(0.03 * draw.standard_normal(count)))
        held += interval.low <= 1 + change <= interval.high
    assert 0.93 * SIMULATIONS <= held
