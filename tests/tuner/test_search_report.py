"""Tests of what a recommendation states about its search."""

import json

from tuning_world import World, default_play, default_world

from commbench.ddp.plan.cases import CONFIRM, SWEEP
from commbench.results.recommendation import Recommendation
from commbench.results.record_types import AnyRecord, collective_records, training_records
from commbench.results.verdict import recommendation_findings
from commbench.tuner.decision import recommend
from commbench.tuner.predictions import with_search


def conclude(world: World, records: list[AnyRecord]) -> Recommendation:
    """Return the recommendation of a tuning with these records."""
    info, trainings = {"run_id": "r", **world.plan.info}, training_records(records)
    recommendation = recommend(trainings, info)
    assert recommendation is not None
    return with_search(recommendation, collective_records(records), trainings, info)


def test_counts_match_the_run() -> None:
    """Count settings confirmed, measured in rounds, and predicted."""
    world, records = default_world(), default_play().records
    recommendation = conclude(world, records)
    assert recommendation.search is not None
    measured = {
        phase: {
            (r.case.hook, r.case.bucket_cap_mb)
            for r in training_records(records)
            if r.case.phase == phase and r.case.uses_ddp
        }
        - {("none", "default")}
        for phase in (CONFIRM, SWEEP)
    }
    assert len(world.plan.candidates) - 1 == recommendation.search.settings
    assert len(measured[CONFIRM]) == recommendation.search.afresh
    assert len(measured[SWEEP] - measured[CONFIRM]) == recommendation.search.in_rounds > 0
    counts = recommendation.search
    assert counts.settings == counts.afresh + counts.in_rounds + counts.predicted
    (stated,) = (each for each in recommendation_findings(recommendation) if each.code == "search")
    assert (counts.afresh, 100 * (counts.speedup_error or 0.0)) == (
        stated.numbers["afresh"],
        stated.numbers["error"],
    )
    assert recommendation == Recommendation.from_json(
        json.loads(json.dumps(recommendation.to_json()))
    )


def test_a_sweep_was_not_searched() -> None:
    """Leave the recommendation of a sweep unchanged."""
    world, trainings = default_world(), training_records(default_play().records)
    recommendation = recommend(trainings, world.plan.info)
    assert recommendation is not None
    assert recommendation is with_search(recommendation, [], trainings, {})
