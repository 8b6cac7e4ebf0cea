"""Tests of fits: noise is found and makes no segments, and jumps are found through noise."""

from collections.abc import Callable

import numpy as np
import pytest
from laws import COARSE, POWERS, launches_of, one, two

from commbench.analysis.prediction.fits import (
    Segment,
    fit_segments,
    noise_of,
)
from commbench.stats import Floats


def fitted(
    law: Callable[[Floats], Floats], sizes: list[int], *, noise: float = 0.03, **drawn: int
) -> list[Segment]:
    """Return the segments fitted to noisy launches."""
    table = np.array(launches_of(law, sizes, noise=noise, **drawn))
    return fit_segments(np.array(sizes, dtype=float), np.median(table, axis=1), noise_of(table))


@pytest.mark.parametrize("sizes", [POWERS, COARSE], ids=["22 sizes", "11 sizes"])
@pytest.mark.parametrize("launches", [1, 2, 6])
def test_noise_is_no_segment(sizes: list[int], launches: int) -> None:
    """Split a straight line into segments in at most 10 of 100 draws."""
    draws = [fitted(one, sizes, launches=launches, seed=seed) for seed in range(100)]
    assert sum(len(segments) > 1 for segments in draws) <= 10


@pytest.mark.parametrize("launches", [1, 2, 6])
def test_jumps_are_found_through_noise(launches: int) -> None:
    """Find two segments in at least 80 of 100 draws if the second has twice the latency."""
    draws = [fitted(two, COARSE, launches=launches, seed=seed) for seed in range(100)]
    assert sum(len(segments) > 1 for segments in draws) >= 80


@pytest.mark.parametrize("launches", [2, 3, 4, 6, 10])
def test_noise_is_found(launches: int) -> None:
    """Estimate the standard error of medians over launches within 25 %."""
    drawn = [
        np.array(launches_of(one, POWERS, noise=0.05, launches=launches, seed=seed))
        for seed in range(40)
    ]
    true = np.std([np.log(np.median(table, axis=1)) for table in drawn], axis=0).mean()
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
