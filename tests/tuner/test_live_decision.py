"""Tests of the recommendation of a live tuning and its text."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from live_builders import OWN, make_blocks, with_cap
from training_builders import make_training_case

from commbench.ddp.plan.cases import CONFIRM, TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.results.recommendation import Recommendation
from commbench.results.verdict import paragraph
from commbench.tuner.conclusion import recommend
from commbench.tuner.rules import level_of

FIVE = with_cap("5")
FP16 = make_training_case("fp16", workload="train.py")
ROUNDS = 12


def decide(
    records: Sequence[TrainingRecord], own: TrainingCase = OWN, **info: Any
) -> Recommendation:
    """Return the recommendation for records of a live tuning."""
    return recommend(records, {"plan": {"live": True}, "baseline": own.key, **info})


def fresh(
    case: TrainingCase,
    step_ms: float,
    *,
    launch: int = 0,
    rounds: int = ROUNDS,
    spread: float = 0.01,
) -> TrainingRecord:
    """Return confirmation blocks that differ by up to ``spread``."""
    medians_ms = [step_ms * (1 + spread * (number % 5) / 4) for number in range(rounds)]
    return make_blocks(dataclasses.replace(case, phase=CONFIRM), medians_ms, launch=launch)


@pytest.mark.parametrize(
    ("five", "verdict"),
    [
        (fresh(FIVE, 100), "keep"),
        (fresh(FIVE, 95, spread=0.1), "inconclusive"),
        (fresh(FIVE, 76.5), "change"),
    ],
)
def test_verdicts_name_the_script_s_own_setting(five, verdict):
    """Keep the script's setting, whatever DDP's default is; state blocks, launch and level."""
    found = decide([fresh(OWN, 100), five])
    assert verdict == found.verdict
    assert 1 == found.launches
    assert ROUNDS == found.blocks
    assert found.live is True
    assert ("keep the script as it is" in found.snippet) == (verdict != "change")
    assert found == Recommendation.from_json(found.to_json())
    text = paragraph(found)
    assert {"12", f"{100 * level_of(1, 1):.4g}"} < set(text.split())
    assert "default" not in text


def test_one_block_shows_nothing():
    """Return no interval for one block."""
    recommendation = decide([fresh(OWN, 100, rounds=1), fresh(FIVE, 50, rounds=1)])
    assert ("inconclusive", None) == (recommendation.verdict, recommendation.speedup_ci)


def test_the_screening_alone_decides_nothing():
    """Name the fastest of the screening and what is missing."""
    recommendation = decide([make_blocks(OWN, [100.0] * 8), make_blocks(FIVE, [70.0] * 8)])
    assert "inconclusive" == recommendation.verdict
    assert recommendation.speedup is None


@pytest.mark.parametrize(
    ("launches", "blocks", "level", "speedup"),
    [(3, 3 * ROUNDS, level_of(1, 5), 1.247), (4, 0, 0.95, 1.245)],
)
def test_few_launches_are_judged_over_their_blocks(launches, blocks, level, speedup):
    """Pool the blocks of three launches, at the level of the sixth look, and pair four launches at
    the level of one look; warn.
    """
    settings = ((OWN, 100.0), (FIVE, 80.0))
    records = [fresh(case, ms + n, launch=n) for n in range(launches) for case, ms in settings]
    found = decide(records)
    assert launches == found.launches
    assert blocks == found.blocks
    assert level == found.level
    assert ("change", "") == (found.verdict, found.further_launches)
    assert speedup == pytest.approx(found.speedup, abs=1e-3)
    assert 1 == len(found.warnings)


@pytest.mark.parametrize(("launches", "look"), [(4, 0), (5, 1), (8, 1), (9, 2)])
def test_whoever_adds_launches_looks_again(launches, look):
    """Widen the interval with each doubling of the launches, however few were planned."""
    settings = ((OWN, 100.0), (FIVE, 80.0))
    records = [fresh(case, ms, launch=n) for n in range(launches) for case, ms in settings]
    assert level_of(1, look) == decide(records).level


def test_alternatives_of_different_launches_are_each_compared_in_their_own():
    """Judge each alternative over the launches that measured it."""
    ten = with_cap("10")
    first, second = (fresh(OWN, 100, launch=launch) for launch in (0, 1))
    recommendation = decide([first, fresh(FIVE, 80), second, fresh(ten, 90, launch=1)])
    assert {"5": 1.25, "10": 1 / 0.9} == {
        choice.bucket_cap_mb: pytest.approx(choice.speedup)
        for choice in recommendation.alternatives
    }
    assert level_of(2, 1) == recommendation.level
    assert "5" == recommendation.best.bucket_cap_mb
