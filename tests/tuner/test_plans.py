"""Tests of the stages of sweeps and tunings, with given workloads and records."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from step_builders import make_facts, true_ms
from training_builders import make_training_case, make_training_record

from commbench.ddp.plan.cases import CONFIRM, SWEEP, TrainingCase, TrainingSweep
from commbench.ddp.plan.records import TrainingRecord
from commbench.launch.schedule import next_launch
from commbench.results.plan import RunRequest, missing_cases
from commbench.results.record_types import AnyRecord
from commbench.stats.budgets import TRAINING_BUDGETS, TrainingBudget
from commbench.tuner.plans import TrainingPlan, TuningPlan
from commbench.tuner.rules import SWEEP_SHARE

QUICK = TRAINING_BUDGETS["quick"]


def make_plan(
    sweep: TrainingSweep, *mib: float, budget: TrainingBudget = QUICK, **options: Any
) -> TrainingPlan:
    """Return the plan of a sweep on 2 ranks over 10 parameters of 1 MiB, or the given sizes."""
    facts = make_facts(mib or [1.0] * 10)
    return TrainingPlan(
        sweep=sweep, facts=facts, **{"ranks": 2, "seed": 5, "budget": budget, **options}
    )


CAPS = TrainingSweep(
    workload="mlp", bucket_caps=("default", "5", "25", "100"), hooks=("none", "fp16")
)


def caps(cases: Sequence[TrainingCase], hook: str) -> list[str]:
    """Return the bucket sizes of a hook's cases."""
    return [case.bucket_cap_mb for case in cases if case.hook == hook]


def requests_of(
    plan: TrainingPlan, records: Sequence[AnyRecord]
) -> tuple[RunRequest | None, RunRequest | None]:
    """Return the requests of both stages for these records."""
    sweep, confirm = (stage(records) for stage in plan.stages())
    return sweep, confirm


def records_of(
    plan: TrainingPlan, step_ms: dict[tuple[str, str], float], launches: int = 3
) -> list[AnyRecord]:
    """Return records with step times by hook and bucket size, 20 ms by default."""
    return [
        make_training_record(
            case, launch=launch, step_ms=step_ms.get((case.hook, case.bucket_cap_mb), 20.0) + launch
        )
        for case in plan.measured
        for launch in range(launches)
    ]


def test_the_same_buckets_are_measured_once() -> None:
    """Measure one bucket size for all with the same buckets, for every hook."""
    plan = make_plan(CAPS)
    assert ["default", "5", "25", "100"] == caps(plan.cases, "fp16")
    for hook in ("none", "fp16"):
        assert ["default", "5", "25"] == caps(plan.measured, hook)
    same = {
        (case.hook, case.bucket_cap_mb): (kept.hook, kept.bucket_cap_mb)
        for case, kept in plan.same_layout.items()
    }
    assert {("none", "100"): ("none", "25"), ("fp16", "100"): ("fp16", "25")} == same
    (sentence,) = plan.left_out
    assert "mlp, 100 MiB buckets, 2 ranks, batch 32 as 25" in sentence


def test_the_sweep_leaves_time_for_the_confirmation() -> None:
    """Use the sweep's share of the remaining time."""
    plan = make_plan(CAPS, time_limit_s=100.0)
    assert 100 * SWEEP_SHARE == pytest.approx(plan.first_request().time_limit_s)
    late = make_plan(CAPS, time_limit_s=100.0, begins_s=60.0)
    assert 60 + 40 * SWEEP_SHARE == pytest.approx(late.first_request().time_limit_s)
    _, confirm = requests_of(late, records_of(late, {}))
    assert confirm is not None
    assert 100.0 == confirm.time_limit_s
    assert make_plan(CAPS).first_request().time_limit_s is None


def test_the_sweep_aims_at_a_share_of_the_time() -> None:
    """Make two launches at least, and others only within the share."""
    request = make_plan(CAPS).first_request()
    assert QUICK.aim_s is not None
    assert (SWEEP_SHARE * QUICK.aim_s, 2) == (request.aim_s, request.fewest_launches)


def test_the_winners_are_confirmed_against_the_baseline() -> None:
    """Confirm baseline and winners with more launches and blocks, on the same terms."""
    plan = make_plan(CAPS, steps=9, threads=2)
    records = records_of(plan, {("none", "5"): 15.0, ("fp16", "25"): 10.0, ("fp16", "5"): 12.0})
    sweep, confirm = requests_of(plan, records)
    assert sweep is not None
    assert confirm is not None
    cases = [case for case in confirm.cases if isinstance(case, TrainingCase)]
    assert cases[0].is_default
    assert {("none", "default"), ("none", "5"), ("fp16", "25")} == {
        (case.hook, case.bucket_cap_mb) for case in cases
    }
    assert {CONFIRM} == {case.phase for case in cases}
    assert ("confirm", QUICK.confirm_launches) == (confirm.name, confirm.budget.launches)
    assert confirm.training is not None
    assert sweep.training is not None
    assert (
        dataclasses.replace(sweep.training, blocks=QUICK.confirm_blocks, divides_blocks=True)
        == confirm.training
    )
    assert confirm.budget.slice_s == pytest.approx(QUICK.confirm_blocks * sweep.budget.slice_s)


def test_a_confirmation_that_has_begun_keeps_its_winners() -> None:
    """Keep the cases of a started confirmation."""
    plan = make_plan(
        TrainingSweep(workload="mlp", bucket_caps=("default", "5"), hooks=("none", "fp16")), 8, 8, 8
    )
    _, confirm = requests_of(plan, records_of(plan, {("fp16", "5"): 5.0}))
    assert confirm is not None
    begun = [
        make_training_record(case, step_ms=9.0)
        for case in confirm.cases[::-1]
        if isinstance(case, TrainingCase)
    ]
    _, later = requests_of(plan, [*records_of(plan, {("none", "5"): 4.0}), *begun])
    assert later is not None
    assert confirm.cases == later.cases


def test_there_is_nothing_to_confirm_without_a_baseline_or_alternative() -> None:
    """Skip confirmation without baseline or alternative."""
    plan = make_plan(CAPS)
    assert requests_of(plan, [])[1] is None
    baseline = [make_training_record(plan.measured[0], launch=launch) for launch in range(3)]
    assert requests_of(plan, baseline)[1] is None
    others = [record for record in records_of(plan, {}) if record.case != plan.measured[0]]
    assert requests_of(plan, others)[1] is None
    alone = make_plan(TrainingSweep(bucket_caps=("default",), hooks=("none",)))
    assert requests_of(alone, records_of(alone, {}))[1] is None


def test_each_environment_has_its_own_winners() -> None:
    """Confirm the baseline and the winner of every environment, also of one whose winner is
    another.
    """
    plan = make_plan(dataclasses.replace(CAPS, env=["A=1,2"]))
    envs = ("A=1", "A=1 (again)", "A=2")
    assert {case.env for case in plan.measured} == set(envs)
    records = [
        make_training_record(case, launch=launch, step_ms=10.0 if caps_of(case) == winner else 20.0)
        for case in plan.measured
        for winner in ["5" if case.env != "A=2" else "25"]
        for launch in range(3)
    ]
    sweep, confirm = requests_of(plan, records)
    assert sweep is not None
    assert confirm is not None
    assert set(envs) == set(confirm.envs)
    for env, winner in zip(envs, ("5", "5", "25"), strict=True):
        cases = [case for case in confirm.cases if case.env == env]
        assert cases[0].is_default
        assert winner in {case.bucket_cap_mb for case in cases}
    plain = make_plan(CAPS).first_request()
    assert plain.aim_s is not None
    assert sweep.aim_s == len(envs) * plain.aim_s


def caps_of(case: TrainingCase) -> str:
    """Return the bucket size of a case without a hook; empty for others."""
    return case.bucket_cap_mb if case.is_plain else ""


# ------------------------------------------------------------------------------------------ tuning


def make_tuning(**changes: Any) -> TuningPlan:
    """Return a tuning among no hook, FP16 and top-k."""
    fields: dict[str, Any] = {"hooks": ["none", "fp16", "topk:0.01"], "caps": ["1", "5"]}
    return TuningPlan(
        workload="mlp",
        facts=make_facts([1.0] * 12),
        ranks=2,
        seed=3,
        budget=TRAINING_BUDGETS["quick"],
        **{**fields, **changes},
    )


def tuned_records(plan: TuningPlan, launches: int, gain: float = 0.0) -> list[TrainingRecord]:
    """Return the records of a search and of confirmation launches of its winners.

    Args:
        plan: of the tuning.
        launches: fresh ones.
        gain: of every alternative in them; 0: the true one.
    """
    made = []
    for case in plan.cases:
        made.append(make_training_record(case, step_ms=true_ms(case)))
    request = plan.confirm_request(made)
    assert request is not None
    for launch in range(launches):
        for number, case in enumerate(request.cases):
            assert isinstance(case, TrainingCase)
            step_ms = true_ms(case)
            if gain:
                step_ms = 100.0
                if number:
                    step_ms *= (1 + 0.03 * (-1) ** launch) / (1 + gain)
            made.append(make_training_record(case, launch=launch, step_ms=step_ms))
    return made


def test_the_winners_of_the_search_are_confirmed() -> None:
    """Confirm the default, the fastest of each effect on learning, and the fastest plain one."""
    plan = make_tuning()
    made = tuned_records(plan, 1)
    fresh = {(r.case.hook_name, r.case.bucket_cap_mb) for r in made if r.case.phase == CONFIRM}
    assert {("none", "default"), ("none", "5"), ("fp16", "5"), ("topk:0.01", "5")} == fresh
    request = plan.confirm_request(made)
    assert request is not None
    assert 6 == request.budget.launches == plan.first_look


@pytest.mark.parametrize(("slower", "blocks"), [(0.05, 3), (1.0, 1), (0.25, 2)])
def test_slow_steps_have_fewer_blocks_in_a_fresh_launch(slower: float, blocks: int) -> None:
    """Make as many blocks as fit into the budget's time, one at least."""
    plan = make_tuning()
    made = [make_training_record(case, step_ms=slower * true_ms(case)) for case in plan.cases]
    request = plan.confirm_request(made)
    assert request is not None
    assert request.training is not None
    assert blocks == request.training.blocks


@pytest.mark.parametrize(("gain", "more"), [(0.5, False), (0.03, True)])
def test_a_second_look_follows_an_undecided_first_one(gain: float, more: bool) -> None:
    """Make as many launches again, once, unless the first ones decide or are given."""
    plan = make_tuning()
    second = plan.second_look_request(tuned_records(plan, 6, gain))
    assert more == (second is not None)
    if second is not None:
        assert (6, 12) == (second.first_launch, second.budget.launches)
    given = make_tuning(confirm_launches=6)
    assert given.second_look_request(tuned_records(given, 6, gain)) is None


def test_a_search_is_over_when_the_default_has_its_record() -> None:
    """Miss no setting that the search has left out; repeat a search that was interrupted."""
    request = make_tuning().first_request()
    assert request.searches
    assert 1 == request.budget.launches
    default = request.cases[0]
    assert isinstance(default, TrainingCase)
    dropped = make_training_record(make_training_case("topk:0.01", "5"), step_ms=20.0)
    assert list(request.cases) == missing_cases(request, [dropped], 0)
    assert 0 == next_launch(request, [dropped])
    done = [dropped, make_training_record(default, step_ms=100.0)]
    assert [] == missing_cases(request, done, 0)
    assert 1 == next_launch(request, done)
    assert {SWEEP} == {record.case.phase for record in done}


def test_a_time_limit_shortens_the_search() -> None:
    """Give half of the time to the search."""
    request = make_tuning(time_limit_s=30.0).first_request()
    assert request.training is not None
    assert 15.0 == request.training.search_s == request.time_limit_s
