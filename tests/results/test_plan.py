"""Tests of the plan of a launch and of what a run still lacks."""

import dataclasses
import math
from collections.abc import Sequence

import pytest
from builders import make_case, make_record
from launching import make_request

from commbench.collectives.cases import shuffled
from commbench.ddp.plan.cases import TrainingCase, TrainingSweep
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.terms import Terms
from commbench.engine.records import FixedSettings
from commbench.results.plan import (
    LaunchPlan,
    RunRequest,
    fixed_settings,
    missing_cases,
    plan_launch,
    slice_seconds,
    steps_of_blocks,
)
from commbench.stats.budgets import BUDGETS

TRAINED = TrainingSweep(bucket_caps=["default"], accumulations=[1, 2]).cases(ranks=2, batch=8)
TERMS = Terms(seed=1, block_s=0.5, blocks=2)
CASES = [make_case(message_bytes=1024 * size) for size in range(1, 9)]


def make_training_request() -> RunRequest:
    """Return a request to train."""
    return dataclasses.replace(make_request(TRAINED), training=TERMS, name="sweep")


def make_trained(
    case: TrainingCase, launch: int = 0, block_lengths: Sequence[int] = (5, 5)
) -> TrainingRecord:
    """Return a record of blocks with two discarded steps."""
    steps = 2 + block_lengths[0]
    return TrainingRecord(
        case=case, launch=launch, block_steps=steps, discarded=2, block_lengths=block_lengths
    )


@pytest.mark.parametrize("terms", [None, TERMS])
def test_a_plan_comes_back_as_it_went(terms):
    """Read a plan back from one line of JSON."""
    plan = LaunchPlan(
        launch=2,
        budget=BUDGETS["quick"],
        collectives=[] if terms else CASES,
        trainings=TRAINED if terms else [],
        fixed={CASES[0].key: FixedSettings(warmups=3, batch=8)},
        training=terms,
        deadline_s=7.5 if terms else math.inf,
    )
    text = plan.to_json()
    assert plan == LaunchPlan.from_json(text)
    assert "\n" not in text


def test_training_keeps_the_order_of_the_request():
    """Keep the order of training cases, and repeat all but failed ones if any is missing."""
    request = make_training_request()
    assert [missing_cases(request, [], launch) for launch in range(3)] == [TRAINED] * 3
    assert TRAINED == missing_cases(request, [make_trained(TRAINED[0], launch=1)], 1)
    assert [] == missing_cases(request, [make_trained(case, launch=1) for case in TRAINED], 1)
    assert TRAINED[:-1] == missing_cases(request, [], 1, {TRAINED[-1].key})
    assert not plan_launch(request, [make_trained(TRAINED[0])], 1).fixed


def test_all_launches_make_as_many_steps_as_the_first():
    """Use the steps of the first ok record unless the request fixes them."""
    request = make_training_request()
    failed = dataclasses.replace(make_trained(TRAINED[0], block_lengths=[9]), status="failed")
    records = [
        make_record(),
        failed,
        make_trained(TRAINED[1]),
        make_trained(TRAINED[0], block_lengths=[8]),
    ]
    assert [None, None, 7] == [steps_of_blocks(records[:count]) for count in range(1, 4)]
    assert [TERMS, dataclasses.replace(TERMS, steps=7)] == [
        plan_launch(request, known, 1).training for known in ([], records)
    ]
    fixed = dataclasses.replace(request, training=dataclasses.replace(TERMS, steps=3))
    assert fixed.training == plan_launch(fixed, records, 1).training
    assert plan_launch(make_request(CASES), records, 1).training is None


def test_short_time_shortens_the_blocks_of_the_first_launch_only():
    """Shorten blocks only until their steps are fixed."""
    request = make_training_request()
    slice_s = request.budget.slice_s
    first = plan_launch(request, [], 0, slice_s=slice_s / 4)
    later = plan_launch(request, [make_trained(TRAINED[0])], 1, slice_s=slice_s / 4)
    assert TERMS.block_s / 4 == (first.training and first.training.block_s)
    assert slice_s / 4 == first.budget.slice_s
    assert TERMS.block_s == (later.training and later.training.block_s)
    assert slice_s == later.budget.slice_s


def test_blocks_that_were_made_tell_how_long_others_take():
    """Plan the mean time of measured blocks for each further block."""
    request = make_training_request()
    once = dataclasses.replace(request, training=dataclasses.replace(TERMS, blocks=1))
    records = [
        dataclasses.replace(make_trained(TRAINED[0], block_lengths=[8, 8]), measuring_s=6.0),
        dataclasses.replace(make_trained(TRAINED[1], block_lengths=[8]), measuring_s=5.0),
        dataclasses.replace(make_trained(TRAINED[1]), measuring_s=99.0, status="failed"),
    ]
    assert [8.0, 4.0] == [
        plan_launch(asked, records, 1).budget.slice_s for asked in (request, once)
    ]
    assert slice_seconds(request, []) is None
    assert slice_seconds(make_request(CASES), records) is None


def test_cases_that_fail_come_last_in_their_launch():
    """Measure cases that only failed so far last, in later launches too."""
    request = make_request(CASES)
    order = shuffled(CASES, 1, 0)
    failed = make_record(order[0], launch=0, status="failed")
    assert [*order[1:], order[0]] == missing_cases(request, [failed], 0)
    later = [case for case in shuffled(CASES, 1, 1) if case != order[0]]
    assert [*later, order[0]] == missing_cases(request, [failed], 1)
    assert shuffled(CASES, 1, 1) == missing_cases(
        request, [failed, make_record(order[0], launch=2)], 1
    )


@pytest.mark.parametrize(
    ("status", "again"),
    [("ok", False), ("unsupported", False), ("wrong", False), ("failed", True), ("hung", True)],
)
def test_only_failures_are_tried_again(status, again):
    """Repeat failed and hung cases, but not unsupported or wrong ones."""
    request = make_request(CASES[:1])
    assert again == bool(missing_cases(request, [make_record(CASES[0], status=status)], 0))


def test_the_lowest_launch_that_measured_a_case_fixes_it():
    """Fix a case's settings by the lowest launch number that measured it."""
    records = [
        make_record(CASES[0], launch=2, warmups=9, batch=9),
        make_record(CASES[0], launch=1, warmups=4, batch=2),
        make_record(CASES[1], launch=2, warmups=5, batch=1),
        make_record(CASES[2], launch=0, status="failed"),
    ]
    expected = {
        CASES[0].key: FixedSettings(warmups=4, batch=2, sync="round-time", visits=1),
        CASES[1].key: FixedSettings(warmups=5, batch=1, sync="round-time", visits=1),
    }
    assert expected == fixed_settings(records, BUDGETS["quick"])


def test_a_planned_launch_has_the_time_slice_and_fixed_settings():
    """Include time slice and fixed settings in the plan."""
    request = make_request(CASES[:2], case_timeout_s=9)
    records = [make_record(CASES[0], launch=0, warmups=4, batch=2)]
    plan = plan_launch(request, records, 1, slice_s=0.01, deadline_s=3.0)
    fixed = FixedSettings(warmups=4, batch=2, sync="round-time", visits=1)
    assert {CASES[0].key: fixed} == plan.fixed
    assert set(request.cases) == set(plan.cases)
    assert (1, 9, 3.0) == (plan.launch, plan.case_timeout_s, plan.deadline_s)
    assert 0.01 == plan.budget.slice_s
    assert request.budget == plan_launch(request, [], 0).budget
