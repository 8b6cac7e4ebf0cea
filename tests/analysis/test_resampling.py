"""Tests of statistics over launches: the noise of medians, resamples and intervals."""

import numpy as np
import pytest
from laws import POWERS, launches_of, one

from commbench.analysis.prediction.fits import (
    medians_over_launches,
    noise_of,
)


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
