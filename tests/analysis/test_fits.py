"""Tests of fits: noise is found and makes no segments, and jumps are found through noise."""

from collections.abc import Callable

import numpy as np
import pytest
from effort import repetitions, slack
from laws import COARSE, POWERS, launches_of, one, two

from commbench.analysis.prediction.fits import fit_segments, noise_of
from commbench.stats import Floats


def share_split(law: Callable[[Floats], Floats], sizes: list[int], launches: int) -> float:
    """Return the share of draws of noisy launches that are split in segments."""
    split, draws = 0, repetitions(100)
    for seed in range(draws):
        table = np.array(launches_of(law, sizes, launches=launches, seed=seed))
        medians_us = np.median(table, axis=1)
        segments = fit_segments(np.array(sizes, dtype=float), medians_us, noise_of(table))
        split += len(segments) > 1
    return split / draws


@pytest.mark.parametrize(("sizes", "launches"), [(POWERS, 1), (COARSE, 2), (POWERS, 6)])
def test_noise_is_no_segment(sizes, launches):
    """Split a straight line into segments in at most a tenth of the draws."""
    assert share_split(one, sizes, launches) <= 0.1 + slack(0.1, 100)


@pytest.mark.parametrize("launches", [1, 2, 6])
def test_jumps_are_found_through_noise(launches):
    """Find two segments in at least 80 % of the draws if the second has twice the latency."""
    assert share_split(two, COARSE, launches) >= 0.8 - slack(0.8, 100)
