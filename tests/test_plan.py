"""Tests of what a launch is to do and what a run still lacks."""

import pytest
from builders import make_case, make_record
from launching import make_request

from commbench.budgets import BUDGETS
from commbench.cases import shuffled
from commbench.errors import InputError
from commbench.launch.plan import (
    LaunchPlan,
    PlannedCase,
    RunRequest,
    frozen_values,
    launch_entry,
    missing_cases,
    next_launch,
    plan_launch,
)
from commbench.records import Frozen

CASES = [make_case(message_bytes=1024 * size) for size in range(1, 9)]


def test_a_plan_comes_back_as_it_went() -> None:
    """Carry a plan in one line of JSON."""
    planned = [PlannedCase(case=CASES[0], frozen=Frozen(warmups=3, batch=8)), PlannedCase(case=make_case("barrier"))]
    plan = LaunchPlan(launch=2, budget=BUDGETS["quick"], cases=planned, case_timeout_s=5, deadline_s=7.5)
    assert plan == LaunchPlan.from_json(plan.to_json())
    assert "\n" not in plan.to_json()


def test_missing_cases_keep_the_order_of_their_launch() -> None:
    """Leave out what is done and shuffle by seed and launch, so that a resumed launch goes on in its own order."""
    request = make_request(CASES)
    order = shuffled(CASES, 1, 1)
    done = [make_record(order[0], launch=1), make_record(order[3], launch=1), make_record(order[1], launch=0)]
    assert [case for case in order if case not in {order[0], order[3]}] == missing_cases(request, done, 1)
    assert order != shuffled(CASES, 1, 0)


@pytest.mark.parametrize(
    ("status", "again"), [("ok", False), ("unsupported", False), ("wrong", False), ("failed", True), ("hung", True)]
)
def test_only_failures_are_tried_again(status: str, again: bool) -> None:
    """Repeat what failed or hung; what cannot be done or was wrong stays so."""
    request = make_request(CASES[:1])
    assert again == bool(missing_cases(request, [make_record(CASES[0], status=status)], 0))


def test_the_lowest_launch_that_measured_a_case_fixes_it() -> None:
    """Freeze per case, from whichever launch measured it first by number, not by time."""
    records = [
        make_record(CASES[0], launch=2, warmups=9, batch=9),
        make_record(CASES[0], launch=1, warmups=4, batch=2),
        make_record(CASES[1], launch=2, warmups=5, batch=1),
        make_record(CASES[2], launch=0, status="failed"),
    ]
    expected = {CASES[0].key: Frozen(warmups=4, batch=2), CASES[1].key: Frozen(warmups=5, batch=1)}
    assert expected == frozen_values(records)


def test_a_planned_launch_has_the_slice_and_what_is_frozen() -> None:
    """Put together what ranks need to know."""
    request = make_request(CASES[:2], case_timeout_s=9)
    records = [make_record(CASES[0], launch=0, warmups=4, batch=2)]
    plan = plan_launch(request, records, 1, slice_s=0.01, deadline_s=3.0)
    assert {CASES[0]: Frozen(warmups=4, batch=2), CASES[1]: None} == {p.case: p.frozen for p in plan.cases}
    assert (1, 0.01, 9, 3.0) == (plan.launch, plan.budget.slice_s, plan.case_timeout_s, plan.deadline_s)
    assert request.budget == plan_launch(request, [], 0).budget


def test_an_invocation_completes_before_it_adds() -> None:
    """Choose the lowest unfinished launch, else a new one."""
    request = make_request(CASES[:2])
    assert 0 == next_launch(request, [])
    first = [make_record(case, launch=0) for case in CASES[:2]]
    assert 1 == next_launch(request, first)
    assert 0 == next_launch(request, first[:1])
    assert 0 == next_launch(request, [*first[:1], make_record(CASES[0], launch=1)])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"ranks": 0}, "0 ranks"), ({"case_timeout_s": 0.0}, "case timeout"), ({"time_limit_s": -1.0}, "time limit")],
)
def test_requests_that_cannot_be_met_are_refused(options: dict[str, float], sentence: str) -> None:
    """Name the value that is impossible."""
    with pytest.raises(InputError, match=sentence):
        make_request(CASES, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="nothing to measure"):
        make_request([])


def test_a_launch_entry_adds_up() -> None:
    """Share a launch's time between starting, measuring and the rest."""
    entry = launch_entry(launch=3, started="t", seconds=5.0, startup_s=1.5, measuring_s=3.0, status="ok")
    assert 0.5 == entry["other_s"]


def test_what_another_run_has_fixed_goes_before_what_this_one_found() -> None:
    """Batch and warm up as the run does that this one is to be compared with."""
    case = make_case()
    request = RunRequest(
        cases=[case], ranks=2, seed=1, budget=BUDGETS["quick"], frozen={case.key: Frozen(warmups=9, batch=4)}
    )
    (planned,) = plan_launch(request, [make_record(case, launch=0, warmups=5, batch=2)], 1).cases
    assert Frozen(warmups=9, batch=4) == planned.frozen
