"""Tests of the candidates of a tuning: predicted settings, excluded hooks, lists of bucket
sizes.
"""

import dataclasses

import pytest
from tuning_world import World, default_world, make_plan, play

from commbench.errors import InputError
from commbench.results.record_types import AnyRecord, collective_records, training_records
from commbench.tuner.choice import Chooser, fit_steps


def calibrated(world: World) -> list[AnyRecord]:
    """Return the records of calibration and network."""
    return play(world, stages=2).records


def chooser(world: World, **options: bool) -> Chooser:
    """Return the candidates that the world's plan offers."""
    plan = world.plan
    return Chooser(facts=plan.facts, candidates=plan.candidates, info=plan.info, **options)


def test_predictions_come_near_a_world_without_surprises() -> None:
    """Predict every candidate within a few percent from one launch of each hook's default."""
    world = World(plan=make_plan(), misfit=0.0)
    records = calibrated(world)
    predicted = chooser(world).predict(collective_records(records), training_records(records))
    assert list(world.plan.candidates) == list(predicted)
    for case, one in predicted.items():
        assert world.true_ms(case) == pytest.approx(one.step_ms, rel=0.15)  # launches differ by 3 %


def test_a_hook_that_did_harm_when_calibrated_is_not_predicted() -> None:
    """Exclude a hook whose ranks ended with different parameters."""
    world = default_world()
    records = calibrated(world)
    harmed = [
        dataclasses.replace(r, ranks_agree=r.case.hook != "fp16") for r in training_records(records)
    ]
    predicted = chooser(world).predict(collective_records(records), harmed)
    assert {"none", "topk:0.01"} == {case.hook_name for case in predicted}


def test_there_is_no_model_without_the_default() -> None:
    """Predict nothing without the default or the local step."""
    world = default_world()
    records = calibrated(world)
    for missing in ("none", "local"):
        trained = [r for r in training_records(records) if r.case.hook != missing]
        assert (
            fit_steps(world.plan.facts, world.plan.baseline, collective_records(records), trained)
            is None
        )
        assert {} == chooser(world).predict(collective_records(records), trained)


def test_a_network_that_was_not_timed_is_refused() -> None:
    """Name the missing measurement of the network."""
    world = default_world()
    with pytest.raises(InputError, match="gloo"):
        fit_steps(world.plan.facts, world.plan.baseline, [], training_records(calibrated(world)))
