"""Tests of confirmation launches added after a first look: error rates by simulation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
from effort import repetitions, slack
from training_builders import make_training_case, make_training_info, make_training_record

from commbench.ddp.plan.cases import CONFIRM
from commbench.ddp.plan.records import TrainingRecord
from commbench.results.recommendation import Recommendation
from commbench.stats import MARGIN
from commbench.tuner.decision import recommend

BASE, OTHER = make_training_case(phase=CONFIRM), make_training_case(cap="5", phase=CONFIRM)
#: Simulated tunings for each number of launches.
RUNS = 400


def launches_of(ratios: Sequence[float]) -> list[TrainingRecord]:
    """Return launches in which the other setting has a given speedup."""
    return [
        record
        for launch, ratio in enumerate(ratios)
        for record in (
            make_training_record(BASE, launch=launch, step_ms=20.0),
            make_training_record(OTHER, launch=launch, step_ms=20.0 / ratio),
        )
    ]


def decide(ratios: Sequence[float], first: int) -> Recommendation:
    """Return the decision of launches with a first look after some of them."""
    recommendation = recommend(launches_of(ratios), make_training_info(first_look=first))
    assert recommendation is not None
    return recommendation


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Error counts of simulated tunings."""

    changes: float
    """Share that call for a change."""
    misses: float
    """Share whose final interval does not hold the true speedup."""
    second: float
    """Share that needed the second look."""


def simulate(gain: float, first: int, *, spread: float = 0.02, seed: int = 5) -> Outcome:
    """Decide after ``first`` launches, or after twice as many if inconclusive."""
    generator = np.random.default_rng(seed)
    changes = misses = second = 0
    runs = repetitions(RUNS)
    for _ in range(runs):
        ratios = (gain * np.exp(spread * generator.standard_normal(2 * first))).tolist()
        recommendation = decide(ratios[:first], first)
        if recommendation.verdict == "inconclusive":
            second += 1
            recommendation = decide(ratios, first)
        (alternative,) = recommendation.alternatives
        assert alternative.speedup_ci is not None
        changes += recommendation.verdict == "change"
        misses += not alternative.speedup_ci[0] <= gain <= alternative.speedup_ci[1]
    return Outcome(changes=changes / runs, misses=misses / runs, second=second / runs)


@pytest.mark.parametrize(
    "first",
    [4, 6, pytest.param(10, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.slow)],
)
def test_two_looks_together_err_seldom(first: int) -> None:
    """Recommend a change at a marginal gain in at most 5 %, with 90 % coverage."""
    at_margin = simulate(1 + MARGIN, first)
    assert at_margin.second > 0.5
    assert at_margin.changes <= 0.05 + slack(0.05, RUNS)
    assert at_margin.misses <= 0.10 + slack(0.1, RUNS)


@pytest.mark.parametrize("alternatives", [1, 2])
@pytest.mark.parametrize("looks", [(4, 2), (6, 6), (10, 3)])
def test_looks_of_any_size_at_one_or_two_alternatives_err_seldom(
    load_benchmark: Callable[[str], ModuleType], looks: tuple[int, int], alternatives: int
) -> None:
    """Recommend a change at a marginal gain in at most 4.5 %, with 92 % coverage."""
    simulated = load_benchmark("looks").simulate(
        1 + MARGIN, looks, alternatives, runs=repetitions(2000)
    )
    assert simulated.second > 0.9
    assert simulated.changes <= 0.045 + slack(0.045, 2000)
    assert simulated.misses <= 0.08 + slack(0.08, 2000)


def test_equal_settings_rarely_get_the_verdict_change() -> None:
    """Keep the default at no gain."""
    assert simulate(1.0, 6).changes <= 0.01 + slack(0.01, RUNS)


def test_a_second_look_increases_power() -> None:
    """Detect a gain of 5 % more often with a second look."""
    generator = np.random.default_rng(8)
    runs = [(1.05 * np.exp(0.025 * generator.standard_normal(12))).tolist() for _ in range(100)]
    first = [decide(ratios[:6], 6).verdict for ratios in runs]
    both = [
        v if v != "inconclusive" else decide(ratios, 6).verdict
        for v, ratios in zip(first, runs, strict=True)
    ]
    assert first.count("change") + 10 < both.count("change")
