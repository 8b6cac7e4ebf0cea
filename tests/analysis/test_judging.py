"""Tests of how one family of comparisons is judged."""

import itertools
import math

import numpy as np
import pytest
from effort import repetitions, slack

from commbench.analysis.stragglers.judging import ALPHA, judge, launches_needed, rank_sum_p
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
def test_rank_sum_counts_orders(ranks: int, launches: int) -> None:
    """Return the p-value that counting all rank orders gives."""
    sums = [sum(line) for line in itertools.product(range(1, ranks + 1), repeat=launches)]
    for total in range(launches, launches * (ranks + 1) // 2):
        assert pytest.approx(sum(s <= total for s in sums) / len(sums)) == rank_sum_p(
            total, ranks, launches
        )


def test_launches_needed() -> None:
    """Return the fewest launches that can name one of four units at 1 % and one of two at 5 %."""
    assert (4, 5) == (launches_needed(3, 0.01), launches_needed(1, 0.05))


def test_slow_unit_is_named_with_its_factor() -> None:
    """Name a unit slower by half, with an interval around the factor."""
    values = equals(8, 6, seed=1)
    values[:, 5] += math.log(1.5)
    judgement = judge(values, alpha=ALPHA)
    assert [5] == judgement.slow
    interval = judgement.interval(5)
    assert interval is not None
    assert interval.low < math.exp(judgement.effects[5]) < interval.high
    assert pytest.approx(1.5, rel=0.1) == math.exp(judgement.effects[5])


def test_two_slow_units_do_not_hide_each_other() -> None:
    """Name two slow units of four, the worse first."""
    values = equals(4, 8, seed=2)
    values[:, (0, 3)] += math.log(3.0), math.log(2.0)
    assert [0, 3] == judge(values, alpha=ALPHA).slow


def test_fast_unit_makes_no_one_slow() -> None:
    """Compare with the typical unit, so that a fast one makes no other slow."""
    values = equals(5, 8, seed=3)
    values[:, 2] -= math.log(3.0)
    assert [] == list(judge(values, alpha=ALPHA).slow)


def test_a_minority_may_be_slow_unless_stated_otherwise() -> None:
    """Name two thirds of the units only if most may be slow."""
    values = equals(12, 6, seed=4)
    values[:, :8] += math.log(4.0)
    assert [] == list(judge(values, alpha=ALPHA).slow)
    assert set(range(8)) == set(judge(values, alpha=ALPHA, is_minority=False).slow)


def test_small_difference_does_not_matter() -> None:
    """Name no unit that is slower by 5 %, at any significance."""
    values = equals(8, 20, seed=5) / 50
    values[:, 1] += math.log(1.05)
    assert [] == list(judge(values, alpha=ALPHA).slow)


def test_slow_in_some_launches_is_no_proof() -> None:
    """Name no unit that is slow in half of the launches."""
    values = equals(8, 6, seed=6)
    values[:3, 1] += math.log(4.0)
    assert [] == list(judge(values, alpha=ALPHA).slow)


@pytest.mark.parametrize("units", [0, 1, 2])
def test_two_units_have_no_outlier(units: int) -> None:
    """Name no unit of one or two."""
    judgement = judge(np.ones((10, units)) * np.arange(units), alpha=ALPHA)
    assert ([], math.inf) == (list(judgement.slow), judgement.detectable)


def test_one_launch_names_nothing() -> None:
    """Name no unit from one launch, and report an infinite detectable difference."""
    judgement = judge(np.array([[0.0, 0.0, 0.0, 2.0]]), alpha=ALPHA)
    assert ([], math.inf) == (list(judgement.slow), judgement.detectable)
    assert pytest.approx(2.0) == judgement.effects[3]


def test_unit_that_lacks_a_launch_is_left_out() -> None:
    """Exclude a unit that lacks a launch, and judge the others."""
    values = equals(6, 6, seed=7)
    values[:, 4] += math.log(2.0)
    values[2, 0] = math.nan
    judgement = judge(values, alpha=ALPHA)
    assert [4] == judgement.slow
    assert math.isnan(judgement.effects[0])


@pytest.mark.parametrize(("units", "modes"), [(4, 0.0), (12, 0.3), (100, 0.3)])
def test_equals_are_left_alone(units: int, modes: float) -> None:
    """Name a unit in at most 1 % of runs of equal units, with heavy tails and modes."""
    runs = repetitions(400)
    alarms = sum(
        bool(judge(equals(units, 6, seed=s, modes=modes), alpha=ALPHA, is_minority=False).slow)
        for s in range(runs)
    )
    assert (ALPHA + slack(ALPHA, 400)) * runs >= alarms


@pytest.mark.parametrize(
    ("units", "launches", "noise"), [(4, 6, 0.1), (12, 6, 0.02), (64, 10, 0.1)]
)
def test_the_detectable_difference_is_detected(units: int, launches: int, noise: float) -> None:
    """Detect the stated difference in about nine of ten runs."""
    detections, runs = 0, repetitions(200)
    for seed in range(runs):
        values = np.random.default_rng(seed).normal(0, noise, (launches, units))
        values[:, 1] += math.log(judge(values, alpha=ALPHA / 2).detectable)
        detections += 1 in judge(values, alpha=ALPHA / 2).slow
    assert (0.85 - slack(0.85, 200)) * runs <= detections
