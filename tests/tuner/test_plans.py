"""Tests of the stages of sweeps and tunings, with given workloads and records."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from fields import fields_of
from step_builders import make_facts, true_ms
from training_builders import (
    make_training_case,
    make_training_launches,
    make_training_record,
)

from commbench.ddp.plan.cases import CONFIRM, TrainingSweep
from commbench.ddp.plan.records import TrainingRecord
from commbench.launch.schedule import next_launch
from commbench.results.plan import RunRequest, missing_cases
from commbench.stats.budgets import TRAINING_BUDGETS
from commbench.tuner.plans import TrainingPlan, candidate_sweep
from commbench.tuner.rules import TRAIN, TUNE

QUICK = TRAINING_BUDGETS["quick"]
CAPS = TrainingSweep(bucket_caps=("default", "5", "25", "100"), hooks=("none", "fp16"))
FACTS = make_facts([1.0] * 10)


def make_plan(sweep: TrainingSweep = CAPS, **options: Any) -> TrainingPlan:
    """Return the plan of a sweep on 2 ranks over 10 parameters of 1 MiB."""
    fields = {"sweep": sweep, "facts": FACTS, "ranks": 2, "seed": 5, "budget": QUICK}
    return TrainingPlan(**{**fields, **options})


def make_tuning(**changes: Any) -> TrainingPlan:
    """Return a tuning among no hook, FP16 and top-k."""
    sweep = TrainingSweep(hooks=("none", "fp16", "topk:0.01"), bucket_caps=("1", "5"))
    return make_plan(candidate_sweep(sweep, FACTS), **{"schedule": TUNE, **changes})


def names(cases: Sequence[Any]) -> list[tuple[str, str]]:
    """Return hook and bucket size of each case."""
    return fields_of(cases, "hook_name", "bucket_cap_mb")


def swept(plan: TrainingPlan, step_ms: dict[tuple[str, str], float]) -> list[TrainingRecord]:
    """Return the records of a sweep with step times by hook and bucket size, 20 ms by default."""
    records = []
    for case, name in zip(plan.measured, names(plan.measured), strict=True):
        ms = step_ms.get(name, 20.0)
        records += make_training_launches([ms, ms + 1, ms + 2], case)
    return records


def confirmation(plan: TrainingPlan, records: Sequence[TrainingRecord]) -> RunRequest:
    """Return the request for the confirmation, which there is."""
    request = plan.stages()[1](records)
    assert {CONFIRM} == {getattr(case, "phase", "") for case in request.cases}
    return request


def test_the_same_buckets_are_measured_once():
    """Measure one bucket size for all with the same buckets, for every hook."""
    plan = make_plan()
    sizes = ["default", "5", "25"]
    expected = [(hook, cap) for hook in ("none", "fp16") for cap in sizes]
    assert [*expected, ("local", "default")] == names(plan.measured)
    same = zip(names(plan.same_layout), names(list(plan.same_layout.values())), strict=True)
    assert {(hook, "100"): (hook, "25") for hook in ("none", "fp16")} == dict(same)
    (sentence,) = plan.left_out
    assert "mlp, 100 MiB buckets, 2 ranks, batch 32 as 25" in sentence
    assert 9 == len(make_tuning().info["candidates"])


def test_the_sweep_leaves_time_for_the_confirmation():
    """Use the sweep's share of the remaining time and of the target; make two launches at least."""
    assert 100 * TRAIN.share == pytest.approx(
        make_plan(time_limit_s=100).first_request().time_limit_s
    )
    late = make_plan(time_limit_s=100.0, begins_s=60.0)
    assert 60 + 40 * TRAIN.share == pytest.approx(late.first_request().time_limit_s)
    assert 100.0 == confirmation(late, swept(late, {})).time_limit_s
    request = make_plan().first_request()
    assert request.time_limit_s is None
    assert TRAIN.share * QUICK.aim_s == request.aim_s
    assert 2 == request.fewest_launches


def test_the_winners_are_confirmed_against_the_baseline():
    """Confirm baseline and winners with more launches and blocks, on the same terms; keep them."""
    plan = make_plan(steps=9, threads=2)
    step_ms = {("none", "5"): 15.0, ("fp16", "25"): 10.0, ("fp16", "5"): 12.0}
    request, sweep = confirmation(plan, swept(plan, step_ms)), plan.first_request()
    assert ("none", "default") == names(request.cases)[0]
    assert {("none", "5"), ("fp16", "25")} == set(names(request.cases)[1:])
    assert ("confirm", QUICK.confirm_launches) == (request.name, request.budget.launches)
    assert request.training == dataclasses.replace(sweep.training, blocks=QUICK.confirm_blocks)
    assert request.budget.slice_s == pytest.approx(QUICK.confirm_blocks * sweep.budget.slice_s)
    begun = [make_training_record(case) for case in request.cases[::-1]]
    later = confirmation(plan, [*swept(plan, {("none", "25"): 4.0}), *begun])
    assert set(request.cases) == set(later.cases)
    assert request.cases[0] == later.cases[0]


def test_there_is_nothing_to_confirm_without_a_baseline_or_alternative():
    """Skip confirmation without baseline or alternative."""
    plan = make_plan()
    records = swept(plan, {})
    baseline = [record for record in records if record.case == plan.measured[0]]
    for some in ([], baseline, records[len(baseline) :]):
        assert plan.confirm_request(some) is None


def test_each_environment_has_its_own_winners():
    """Confirm the baseline and the winner of every environment, also of one whose winner is
    another.
    """
    plan = make_plan(dataclasses.replace(CAPS, env=["A=1,2"]))
    winner = {"A=1": "5", "A=1 (again)": "5", "A=2": "25"}
    records = []
    for case in plan.measured:
        is_best = case.is_plain and case.bucket_cap_mb == winner[case.env]
        records += make_training_launches([10.0 if is_best else 20.0] * 3, case)
    cases = confirmation(plan, records).cases
    for env, cap in winner.items():
        own = names([case for case in cases if case.env == env])
        assert ("none", "default") == own[0]
        assert ("none", cap) in own
    aims = [each.first_request().aim_s or 0.0 for each in (plan, make_plan())]
    assert aims[0] == len(winner) * aims[1] > 0


# ------------------------------------------------------------------------------------------ tuning


def tuned(plan: TrainingPlan, launches: int, gain: float) -> list[TrainingRecord]:
    """Return the records of a search and of confirmation launches in which every alternative has a
    gain.
    """
    made = [make_training_record(case, step_ms=true_ms(case)) for case in plan.cases]
    for number, case in enumerate(confirmation(plan, made).cases):
        for launch in range(launches):
            step_ms = 100.0
            if number:
                step_ms *= (1 + 0.03 * (-1) ** launch) / (1 + gain)
            made.append(make_training_record(case, launch=launch, step_ms=step_ms))
    return made


@pytest.mark.parametrize(("slower", "blocks"), [(0.05, 3), (1.0, 2), (0.5, 2)])
def test_the_winners_of_the_search_are_confirmed(slower, blocks):
    """Confirm the default, the fastest of each effect on learning, and the fastest plain one, in as
    many blocks as fit into twice the budget's time, two at least.
    """
    plan = make_tuning()
    made = [make_training_record(case, step_ms=slower * true_ms(case)) for case in plan.cases]
    request = confirmation(plan, made)
    fresh = {("none", "default"), ("none", "5"), ("fp16", "5"), ("topk:0.01", "5")}
    assert fresh == set(names(request.cases))
    assert (6, blocks) == (request.budget.launches, request.training.blocks)


def test_a_workload_of_few_steps_is_confirmed():
    """Plan a confirmation where a block has no more steps than are not timed; a search has more."""
    plan = make_tuning()
    few = {"block_steps": 3, "discarded": 3}
    made = [make_training_record(case, step_ms=true_ms(case), **few) for case in plan.cases]
    assert confirmation(plan, made).training.blocks


@pytest.mark.parametrize(("gain", "launches"), [(0.5, None), (0.03, (6, 12))])
def test_a_second_look_follows_an_undecided_first_one(gain, launches):
    """Make as many launches again, once, unless the first ones decide or were not all made."""
    plan = make_tuning()
    assert 3 == len(plan.stages())
    found = []
    for made in (6, 5):
        second = plan.stages()[2](tuned(plan, made, gain))
        found.append(second and (second.first_launch, second.budget.launches))
    assert [launches, None] == found


def test_a_search_is_over_when_the_default_has_its_record():
    """Miss no setting that the search has left out; repeat a search that was interrupted."""
    request = make_tuning().first_request()
    assert request.searches
    assert 1 == request.budget.launches
    default = request.cases[0]
    dropped = make_training_record(make_training_case("topk:0.01", "5"), step_ms=20.0)
    assert list(request.cases) == missing_cases(request, [dropped], 0)
    assert 0 == next_launch(request, [dropped])
    done = [dropped, make_training_record(default, step_ms=100.0)]
    assert [] == missing_cases(request, done, 0)
    assert 1 == next_launch(request, done)


def test_a_time_limit_shortens_the_search():
    """Give half of the time to the search."""
    request = make_tuning(time_limit_s=30.0).first_request()
    assert 15.0 == request.training.search_s == request.time_limit_s
