"""Tests of curves: known ones are recovered, predictions are monotone, intervals cover, JSON is
read back.
"""

from itertools import pairwise

import numpy as np
import pytest
from builders import KIB, MIB
from effort import repetitions, slack
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from laws import COARSE, POWERS, covered, curve_of, launches_of, one, three, two

from commbench.analysis.prediction.curves import fit_curve

# --------------------------------------------------------------------------------------- prediction


@pytest.mark.parametrize(("law", "worst"), [(one, 0.03), (two, 0.2), (three, 0.2)])
def test_predictions_between_sizes_follow_the_law(law, worst):
    """Predict a line within 3 % between sizes 4 apart, and other laws at most sizes."""
    curve = curve_of(COARSE, launches_of(law, COARSE, noise=0.0))
    between = np.geomspace(COARSE[0], COARSE[-1], 200)
    errors = np.abs([curve.time_us(n) / float(law(np.array(n))) - 1 for n in between])
    assert np.median(errors) < 0.03
    assert np.quantile(errors, 0.8) < worst


def test_beyond_the_data_the_outer_lines_go_on():
    """Extrapolate the first and the last line without a jump."""
    curve = curve_of(POWERS, launches_of(three, POWERS, noise=0.0))
    for n in (1, 4, 32 * MIB, 2**40):
        assert curve.time_us(n) == pytest.approx(float(three(np.array(n))), rel=1e-6)
    assert curve.time_us(0) == pytest.approx(1)


sorted_sizes = st.lists(st.integers(1, 2**36), min_size=3, max_size=12, unique=True)


def test_intervals_widen_beyond_the_sizes():
    """Widen intervals with each doubling above the largest size and once below the smallest."""
    sizes = [2**k for k in range(10, 16)]
    curve = curve_of(sizes, [[(50 + 0.01 * n) * f for f in (0.99, 1, 1.01)] for n in sizes])
    below, least, most, once, fourfold = map(
        curve.half_width_beyond_sizes, (2**9, 2**10, 2**15, 2**16, 2**19)
    )
    assert (0.0, 0.0) == (least, most)
    assert fourfold == pytest.approx(2 * once)
    assert below == curve.half_width_beyond_sizes(1)


@settings(max_examples=repetitions(100))
@given(st.data())
def test_a_longer_message_is_never_faster(data):
    """Predict positive, non-decreasing times without a jump at the ends for any measurements."""
    sizes = sorted(data.draw(sorted_sizes))
    # a step between sizes that are all but the same looks like a jump to arithmetic
    assume(all(larger > 1.0001 * smaller for smaller, larger in pairwise(sizes)))
    times = data.draw(st.lists(st.floats(0.01, 1e8), min_size=len(sizes), max_size=len(sizes)))
    curve = curve_of(sizes, [[time] for time in times])
    between = np.geomspace(sizes[0] / 4, sizes[-1] * 4, 60).tolist()
    predicted = np.array([curve.time_us(n) for n in sorted({*sizes, *between})])
    assert predicted.min() > 0
    assert (np.diff(predicted) >= -1e-9 * predicted[1:]).all()
    for end in (sizes[0], sizes[-1]):
        before_us, after_us = (curve.time_us(end * (1 + step)) for step in (-1e-14, 1e-14))
        assert before_us == pytest.approx(after_us, rel=1e-5)


# ---------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize("launches", [3, 6, 10])
def test_intervals_cover_the_truth(launches):
    """Cover the true time in about 95 % of draws at, between and beyond measured sizes, and latency
    and rate of a line.
    """
    sizes, queried_sizes = [KIB * 2**k for k in range(8)], [4 * KIB, 6 * KIB, MIB]
    runs, lines, hits = repetitions(100), 0, np.zeros(3)
    line_hits = np.zeros(2)
    for seed in range(runs):
        curve = curve_of(sizes, launches_of(one, sizes, launches=launches, seed=seed))
        intervals = [curve.interval_us(n) for n in queried_sizes]
        hits += [
            covered(each, float(one(np.array(n))))
            for each, n in zip(intervals, queried_sizes, strict=True)
        ]
        if len(curve.segments) == 1:
            lines += 1
            alpha, beta = curve.parameter_intervals[0]
            line_hits += covered(alpha, 20), covered(beta, 1e-3)
    assert lines > 0.6 * runs
    assert (hits / runs >= 0.88 - slack(0.88, 100)).all(), hits / runs
    assert (line_hits / lines >= 0.85 - slack(0.85, 80)).all(), line_hits / lines


def test_intervals_know_that_launches_are_slow_as_a_whole():
    """Keep the variance between launches in an interval beyond the data."""
    slow = np.array([0.8, 0.9, 0.95, 1.05, 1.1, 1.2])
    curve = curve_of(POWERS, (one(np.array(POWERS, dtype=float))[:, None] * slow).tolist())
    interval = curve.interval_us(64 * MIB)
    assert (interval.high - interval.low) / curve.time_us(64 * MIB) > 0.2


# --------------------------------------------------------------------------------------- odd inputs


def test_launches_may_miss_sizes():
    """Take medians over the launches that measured a size."""
    curve = fit_curve({4 * KIB: {0: 8.0, 2: 8.2}, KIB: {0: 2.0}, 2 * KIB: {0: 4.0, 2: 4.2}})
    assert (KIB, 2 * KIB, 4 * KIB) == curve.sizes
    assert pytest.approx([2.0, 4.1, 8.1]) == list(curve.times_us)
    assert ((2.0, None), (4.0, 4.2), (8.0, 8.2)) == curve.launches_us
