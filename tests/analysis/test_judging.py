"""Tests of how one family of comparisons is judged."""

import itertools
import math

import numpy as np
import pytest
from effort import repetitions, slack

from commbench.analysis.stragglers.judging import ALPHA, judge, rank_sum_p
from commbench.stats import Floats


def equals(units: int, launches: int, seed: int, *, modes: float = 0.0) -> Floats:
    """Return logarithms of equal units: 5 % noise, 1 % outliers, launch effects, a share ``modes``
    in a slow mode.
    """
    random = np.random.default_rng(seed)
    values = random.normal(0, 0.05, (launches, units)) + random.normal(0, 0.1, (launches, 1))
    values += (random.random(values.shape) < 0.01) * random.exponential(1.0, values.shape)
    return np.asarray(values + (random.random(values.shape) < modes) * math.log(0.95 / 0.64))


@pytest.mark.parametrize(("ranks", "launches"), [(2, 3), (4, 6), (7, 4)])
def test_rank_sum_counts_orders(ranks, launches):
    """Return the p-value that counting all rank orders gives."""
    sums = [sum(line) for line in itertools.product(range(1, ranks + 1), repeat=launches)]
    for total in range(launches, launches * (ranks + 1) // 2):
        assert pytest.approx(sum(s <= total for s in sums) / len(sums)) == rank_sum_p(
            total, ranks, launches
        )


def test_many_launches_are_approximated_closely(monkeypatch):
    """Return nearly the counted probability."""
    sums = [(270, 2), (291, 2), (720, 7), (776, 7)]
    exact = [rank_sum_p(total, ranks, 200) for total, ranks in sums]
    monkeypatch.setattr("commbench.analysis.stragglers.judging.EXACT_LAUNCHES", 100)
    assert pytest.approx(exact, rel=0.2) == [rank_sum_p(total, ranks, 200) for total, ranks in sums]


@pytest.mark.parametrize(
    ("units", "launches", "factors", "slow"),
    [
        (8, 6, {5: 1.5}, [5]),
        (4, 8, {0: 3.0, 3: 2.0}, [0, 3]),  # two slow units do not hide each other
        (5, 8, {2: 1 / 3}, []),  # a fast unit makes no one slow
        (12, 6, dict.fromkeys(range(8), 4.0), []),  # most units
    ],
)
def test_slow_units_are_named(units, launches, factors, slow):
    """Name the units that are slower than the typical one, the slowest first; most of them only if
    that is stated.
    """
    values = equals(units, launches, seed=1)
    for unit, factor in factors.items():
        values[:, unit] += math.log(factor)
    judgement = judge(values, alpha=ALPHA)
    assert slow == judgement.slow
    for unit in slow:
        assert pytest.approx(factors[unit], rel=0.1) == math.exp(judgement.effects[unit])
    if len(factors) > units / 2:
        assert factors.keys() == set(judge(values, alpha=ALPHA, is_minority=False).slow)


def test_small_or_unsteady_differences_are_no_proof():
    """Name no unit that is slower by 5 %, or in half of the launches."""
    small, unsteady = equals(8, 20, seed=5) / 50, equals(8, 6, seed=6)
    small[:, 1] += math.log(1.05)
    unsteady[:3, 1] += math.log(4.0)
    assert [] == judge(small, alpha=ALPHA).slow + judge(unsteady, alpha=ALPHA).slow


@pytest.mark.parametrize(("launches", "units"), [(10, 0), (10, 1), (10, 2), (1, 4)])
def test_too_few_have_no_outlier(launches, units):
    """Name no unit of two, nor from one launch."""
    judgement = judge(np.ones((launches, units)) * np.arange(units), alpha=ALPHA)
    assert ([], math.inf) == (judgement.slow, judgement.detectable)


@pytest.mark.parametrize(("units", "modes"), [(4, 0.0), (12, 0.3), (100, 0.3)])
def test_equals_are_left_alone(units, modes):
    """Name a unit in at most 1 % of runs of equal units, with heavy tails and modes."""
    alarms, runs = 0, repetitions(400)
    for seed in range(runs):
        values = equals(units, 6, seed, modes=modes)
        alarms += bool(judge(values, alpha=ALPHA, is_minority=False).slow)
    assert (ALPHA + slack(ALPHA, 400)) * runs >= alarms


@pytest.mark.parametrize(
    ("units", "launches", "noise"), [(4, 6, 0.1), (12, 6, 0.02), (64, 10, 0.1)]
)
def test_the_detectable_difference_is_detected(units, launches, noise):
    """Detect the stated difference in about nine of ten runs."""
    detections, runs = 0, repetitions(200)
    for seed in range(runs):
        values = np.random.default_rng(seed).normal(0, noise, (launches, units))
        values[:, 1] += math.log(judge(values, alpha=ALPHA / 2).detectable)
        detections += 1 in judge(values, alpha=ALPHA / 2).slow
    assert (0.85 - slack(0.85, 200)) * runs <= detections
