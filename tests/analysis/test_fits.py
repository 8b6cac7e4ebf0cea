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
