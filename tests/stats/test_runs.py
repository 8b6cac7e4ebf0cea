"""Tests of one run against several baselines, mostly simulations with fixed seeds."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from effort import repetitions, slack
from fields import fields_of

from commbench.stats import Comparison, compare_family
from commbench.stats.intervals import Floats
from commbench.stats.runs import RunRatio

LAUNCHES = 10
CASES = 40
DIFFERENT = {"slower", "faster"}


def make_runs(
    generator: np.random.Generator,
    counts: Sequence[int],
    *,
    between: float,
    within: float,
) -> list[Floats]:
    """Return launches of several runs with given spreads between runs and between launches."""
    return [
        np.exp(between * generator.standard_normal() + within * generator.standard_normal(count))
        for count in counts
    ]


def equal_case(
    generator: np.random.Generator, count: int, *, between: float, within: float = 0.01
) -> list[Floats]:
    """Return ``count`` baselines and an equal run."""
    return make_runs(generator, [LAUNCHES] * (count + 1), between=between, within=within)


def compared(cases: Sequence[Sequence[Floats]]) -> list[Comparison]:
    """Compare each case's last run with those before it."""
    return compare_family(
        [(np.concatenate(runs[:-1]), runs[-1]) for runs in cases],
        runs=[[len(run) for run in runs[:-1]] for runs in cases],
    )


def count_different(comparisons: Sequence[Comparison]) -> int:
    """Return the number of cases judged different."""
    return sum(comparison.verdict in DIFFERENT for comparison in comparisons)


def misses(comparison: Comparison) -> bool:
    """Return whether the interval excludes 1."""
    return not comparison.interval.low < 1 < comparison.interval.high


def test_runs_have_equal_weight():
    """Return the median of the runs' medians for any numbers of launches."""
    launches = [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0]
    [comparison] = compare_family([(launches, [1.0, 1.0])], runs=[[5, 1, 1]])
    assert 0.5 == comparison.ratio


def test_the_interval_is_one_of_prediction():
    """Match the formula: t times sqrt(1 + pi / 2K) standard deviations of the runs' log medians."""
    runs = [np.full(3, time) for time in (1.0, 1.1, 1.21)]
    ratio = RunRatio.of(runs, np.full(3, 1.331))
    error = math.log(1.1) * math.sqrt(1 + math.pi / 6)
    assert pytest.approx((1.21, error, error)) == (ratio.ratio, ratio.error, ratio.scatter.fixed)
    (interval,) = ratio.intervals([0.95])
    assert pytest.approx(4.303 * error, rel=1e-3) == math.log(interval.high / ratio.ratio)
    assert pytest.approx(4.303 * error, rel=1e-3) == math.log(ratio.ratio / interval.low)
    t = math.log(1.21) / error
    # Student's t with 2 degrees of freedom
    assert pytest.approx(1 - t / math.sqrt(2 + t * t)) == ratio.p_value()


def test_runs_that_agree_by_chance_are_not_taken_for_steady():
    """Keep at least the variance that launches explain, and the judged run's own if it has
    fewer.
    """
    noisy = np.asarray([0.9, 0.95, 1.0, 1.05, 1.1, 1.0])
    alike = RunRatio.of([noisy, noisy], noisy)
    assert 0.0 == alike.scatter.fixed
    assert 0.02 < alike.error < 0.06
    assert RunRatio.of([noisy, noisy], noisy[[0, -2]]).error > 1.5 * alike.error


def test_equal_times_have_no_spread():
    """Compare constant times without dividing by zero."""
    same, other = (RunRatio.of([np.ones(3)] * 3, np.full(2, time)) for time in (1.0, 1.5))
    assert pytest.approx((1.0, 0.0), abs=1e-12) == (same.p_value(), other.p_value())
    (interval,) = other.intervals([0.95])
    assert pytest.approx((1.5, 1.5)) == (interval.low, interval.high)


@pytest.mark.parametrize(
    ("counts", "between", "within"),
    [
        ([10] * 3, 0.01, 0.01),
        ([10] * 4, 0.05, 0.01),
        ([10] * 6, 0.0, 0.01),
        ([10] * 11, 0.01, 0.01),
        ([1, 1, 6], 0.02, 0.02),
        ([10, 1, 10, 3, 10], 0.02, 0.02),
        ([10, 10, 10, 10, 2], 0.02, 0.02),
    ],
)
def test_intervals_cover(counts, between, within):
    """Miss the truth in at most 5 % of cases (7 of few) from two baselines on, of any sizes."""
    generator = np.random.default_rng(8)
    cases = [
        make_runs(generator, counts, between=between, within=within)
        for _ in range(repetitions(400))
    ]
    assert np.mean([misses(compared([case])[0]) for case in cases]) <= 0.07 + slack(0.07, 400)


def test_equal_runs_are_rarely_called_different():
    """Judge any of 40 equal cases different in at most 5 % of comparisons, also if runs differ,
    launches are in two modes 40 % apart, or a run is slower as a whole.
    """
    generator = np.random.default_rng(4)
    shape = (repetitions(60), CASES, 6, LAUNCHES)
    noise = 0.01 * generator.standard_normal(shape)
    modes = (generator.random(shape) < 0.4) * math.log(1.4)
    states = 0.04 * generator.standard_normal((shape[0], 1, 6, 1))
    between = 0.04 * generator.standard_normal((*shape[:3], 1))
    for logs in (noise, (noise + between)[:, :, :4], noise / 2 + modes, noise + states):
        families = np.exp(logs).tolist()
        share = np.mean([count_different(compared(family)) > 0 for family in families])
        assert share <= 0.05 + slack(0.05, 60)


def test_a_slowdown_is_found_against_five_steady_baselines():
    """Detect a slowdown of 15 % in one of eight cases with 0.5 % spread between runs."""
    generator = np.random.default_rng(6)
    detections = wrong = 0
    for _ in range(40):
        family = [equal_case(generator, 5, between=0.005) for _ in range(8)]
        family[0][-1] = 1.15 * family[0][-1]
        first, *others = compared(family)
        detections += first.verdict == "slower"
        wrong += count_different(others)
    assert detections >= 38
    assert wrong <= 0.05 * 40 * 7


@pytest.mark.parametrize("count", [3, 10])
def test_detectable_is_found_four_times_in_five(count):
    """Detect a slowdown of the stated detectable size in 60 to 95 % of comparisons."""
    generator = np.random.default_rng((count, 9))
    runs = repetitions(60)
    families = [
        [equal_case(generator, count, between=0.02) for _ in range(10)] for _ in range(runs)
    ]
    size = float(
        np.median([comparison.detectable for family in families for comparison in compared(family)])
    )
    detections = 0
    for family in families:
        family[0][-1] = (1 + size) * family[0][-1]
        detections += compared(family)[0].verdict == "slower"
    assert 0.6 - slack(0.6, 60) <= detections / runs <= 0.95 + slack(0.95, 60)


def test_what_two_runs_cannot_show_is_not_detectable():
    """State no detectable difference if it would exceed a hundredfold."""
    generator = np.random.default_rng(10)
    comparisons = compared([equal_case(generator, 2, between=0.05) for _ in range(100)])
    sizes = set(fields_of(comparisons, "detectable"))
    assert math.inf in sizes
    assert max(sizes - {math.inf}, default=0) < 100


def test_more_launches_do_not_reduce_the_variance_between_runs():
    """Call a case noisy if the spread between runs exceeds its distance to the margin."""
    generator = np.random.default_rng(11)
    for between, forecast in ((0.05, "noisy"), (0.0, "settles")):
        *runs, b = equal_case(generator, 5, between=between, within=0.03)
        (comparison,) = compared([[*runs, 1.05 * b / RunRatio.of(runs, b).ratio]])
        assert forecast == comparison.further.forecast


def test_one_run_is_as_without_runs():
    """Compare a single baseline as without hierarchy."""
    generator = np.random.default_rng(7)
    pairs = [(*np.exp(0.01 * generator.standard_normal((2, 8))),)] * 2
    assert compare_family(pairs) == compare_family(pairs, runs=[[8], [8]])
