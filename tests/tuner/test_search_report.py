"""Tests of what a recommendation states about its search."""

import dataclasses
import json

import pytest
from tuning_world import Link, World, default_play, default_world, make_facts, make_plan, play

from commbench.ddp.plan.cases import CONFIRM, SWEEP
from commbench.report.training import prediction_title
from commbench.results.recommendation import Recommendation, paragraph
from commbench.results.record_types import AnyRecord, collective_records, training_records
from commbench.tuner import predictions as searched
from commbench.tuner.decision import recommend
from commbench.tuner.predictions import PredictionRow, prediction_rows, with_search


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
    assert recommendation.search.sentence in paragraph(recommendation)
    assert f"{100 * (counts.speedup_error or 0):.1f} %" in recommendation.search.sentence
    assert recommendation == Recommendation.from_json(
        json.loads(json.dumps(recommendation.to_json()))
    )


def test_a_round_without_the_default_leaves_a_readable_recommendation() -> None:
    """State no unknown error of speedups."""
    world = default_world()
    records = [r for r in play(world, stages=3).records if r.case != world.plan.baseline]
    recommendation = conclude(world, records)
    assert recommendation.search is not None
    assert (None, True) == (recommendation.search.speedup_error, recommendation.search.held_out > 0)
    assert "(of unknown error)" in recommendation.search.sentence
    assert recommendation == Recommendation.from_json(
        json.loads(json.dumps(recommendation.to_json()))
    )
    rows = prediction_rows(collective_records(records), training_records(records), world.plan.info)
    title = prediction_title(rows)
    assert "step ±" in title
    assert "speedup" not in title


def test_a_sweep_was_not_searched() -> None:
    """Leave the recommendation of a sweep unchanged."""
    world, trainings = default_world(), training_records(default_play().records)
    recommendation = recommend(trainings, world.plan.info)
    assert recommendation is not None
    assert recommendation is with_search(recommendation, [], trainings, {})


def test_no_warning_where_communication_does_not_matter() -> None:
    """Give no warning if even perfect overlap would gain nothing."""
    world = World(plan=make_plan(make_facts(4, 0.05)), link=Link(latency_us=10.0, gbit=100.0))
    recommendation = conclude(world, play(world).records)
    assert recommendation.search is not None
    assert recommendation.search.predicted
    assert not [warning for warning in recommendation.warnings if "predicted" in warning]


@pytest.fixture(scope="module")
def misfitted() -> tuple[World, list[AnyRecord]]:
    """Return a cluster with wrong predictions, and the records of a tuning on it."""
    world = World(plan=make_plan(), misfit=0.2)
    return world, play(world).records


@pytest.mark.parametrize(("shortfall", "is_raised"), [(0.999, True), (0.5, False)])
def test_a_predicted_setting_within_the_error_gives_a_warning(
    misfitted: tuple[World, list[AnyRecord]],
    monkeypatch: pytest.MonkeyPatch,
    shortfall: float,
    *,
    is_raised: bool,
) -> None:
    """Warn only if a predicted setting may be faster than the recommended one."""
    world, records = misfitted
    first = conclude(world, records)
    own = dataclasses.replace(first.best)

    def moved(*args: object) -> list[PredictionRow]:
        rows = prediction_rows(*args)  # type: ignore[arg-type] # as they came
        chosen = next(r for r in rows if (r.hook, r.bucket_cap_mb) == (own.hook, own.bucket_cap_mb))
        assert chosen.predicted_step_ms is not None
        changes = {
            "predicted_step_ms": chosen.predicted_step_ms / shortfall,
            "predicted_overlapped_ms": 1.0,
        }
        return [dataclasses.replace(r, **changes) if r.used == "not_measured" else r for r in rows]

    monkeypatch.setattr(searched, "prediction_rows", moved)
    recommendation = conclude(world, records)
    assert recommendation.search is not None
    assert (recommendation.search.speedup_error or 0) > 0.022
    assert is_raised == any("only predicted" in warning for warning in recommendation.warnings)
