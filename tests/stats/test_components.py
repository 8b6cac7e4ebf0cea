"""Tests of variance components, of the visits planned from them, and of the interval over launches
of visits.
"""

import math

import numpy as np
import pytest
from effort import repetitions

from commbench.stats import Floats, student_interval
from commbench.stats.budgets import BUDGETS
from commbench.stats.components import (
    FEWEST_REPETITIONS,
    FEWEST_VISITS,
    Components,
    components_of,
    plan_visits,
)

LAUNCHES, VISITS = 6, 8


def draw(noise: str, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return noise of unit scale from the named distribution."""
    if noise == "normal":
        return random.standard_normal(shape)
    if noise == "exponential":
        return random.exponential(1.0, shape)
    disturbed = random.random(shape) < 0.15
    return np.where(disturbed, random.exponential(4.0, shape), 0.5 * random.standard_normal(shape))


def launch_values(
    random: np.random.Generator, noise: str, launch: float, visit: float, count: int
) -> Floats:
    """Return the values of ``count`` launches: medians of their visits."""
    shape = (count, VISITS)
    logs = launch * draw(noise, random, (count, 1)) + visit * draw(noise, random, shape)
    return np.exp(0.1 * np.median(logs, axis=1))


@pytest.mark.parametrize(
    ("noise", "launch", "visit"),
    [
        ("skewed", 0.0, 1.0),
        ("normal", 0.35, 1.0),
        ("exponential", 1.0, 1.0),
        ("skewed", 1.0, 0.0),
    ],
)
def test_the_interval_over_launches_covers(noise, launch, visit):
    """Cover the median launch in 92 to 98 % of runs, whichever component dominates."""
    random = np.random.default_rng(5)
    truth = float(np.median(launch_values(random, noise, launch, visit, 40_000)))
    runs = repetitions(2000)
    covered = 0
    for _ in range(runs):
        interval = student_interval(launch_values(random, noise, launch, visit, LAUNCHES).tolist())
        covered += interval.low <= truth <= interval.high
    error = 3 * math.sqrt(0.95 * 0.05 / runs)
    assert 0.92 - error <= covered / runs <= 0.98 + error


def planted(
    launch: float, visit: float, repetition: float, launches: int = 60
) -> list[list[Floats]]:
    """Return times whose logarithms have the given standard deviations per level."""
    random = np.random.default_rng(11)
    return [
        [
            np.exp(
                shift + visit * random.standard_normal() + repetition * random.standard_normal(50)
            )
            for _ in range(VISITS)
        ]
        for shift in launch * random.standard_normal(launches)
    ]


@pytest.mark.parametrize(
    ("launch", "visit", "repetition"), [(0.2, 0.05, 0.1), (0.02, 0.2, 0.1), (0.05, 0.05, 0.4)]
)
def test_planted_components_are_found(launch, visit, repetition):
    """Estimate the dominating standard deviation within a quarter, and call no other one larger."""
    estimates = components_of(planted(launch, visit, repetition))
    assert repetition == pytest.approx(estimates.repetition, rel=0.25)
    assert estimates.visit == pytest.approx(visit, rel=0.25, abs=0.02)
    assert estimates.launch == pytest.approx(launch, rel=0.25, abs=0.03)


def test_components_need_several_of_their_level():
    """Estimate no component from one visit or one launch."""
    assert components_of([[[1.0, 2.0, 3.0]]]) == Components(
        repetition=pytest.approx(0.4073, rel=0.01), visit=None, launch=None
    )


def plan_of(components: Components, **changes: float) -> tuple[int, int]:
    """Return visits and repetitions within 0.1 s, the quick budget's share."""
    costs = {"visit_s": 0.002, "repetition_s": 0.0002, **changes}
    return plan_visits(components, BUDGETS["quick"], **costs, most_repetitions=500)


def test_repetitions_follow_from_costs_and_components():
    """Repeat by the square root of the cost ratio times the component ratio (Kalibera and
    Jones).
    """
    _, repetitions_made = plan_of(Components(repetition=0.3, visit=0.15, launch=None))
    assert int(math.sqrt(10 * math.pi / 2 * 4)) == repetitions_made
    assert FEWEST_REPETITIONS == plan_of(Components(repetition=0.01, visit=0.3, launch=None))[1]


def test_visits_follow_from_the_precision_within_the_slice():
    """Plan few visits if they agree, and as many as the slice allows if they differ."""
    assert FEWEST_VISITS == plan_of(Components(repetition=0.05, visit=0.005, launch=None))[0]
    visits, repetitions_made = plan_of(Components(repetition=0.1, visit=0.3, launch=None))
    assert visits == min(24, int(0.1 / (0.002 + 0.0002 * repetitions_made)))
    assert (
        FEWEST_VISITS
        == plan_of(Components(repetition=0.1, visit=0.3, launch=None), repetition_s=0.05)[0]
    )
