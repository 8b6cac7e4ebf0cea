"""Tests of dividing the time limit, with simulated clocks."""

import math
from dataclasses import replace

import pytest
from builders import make_case

from commbench.engine.matrix import LEAST_SHARE, MOST_SHARE, SLICES, time_slices
from commbench.launch.schedule import LEAVING_S, SHORTEST_SLICE_S, TimePlan
from commbench.results.plan import OTHER_S, STARTUP_S, RunRequest, dry_run_estimate, launch_times
from commbench.stats.budgets import BUDGETS

QUICK = BUDGETS["quick"]


def make_plan(limit_s: float | None, **options: object) -> TimePlan:
    """Return a plan that began at 100 s."""
    request = RunRequest(cases=[make_case()], ranks=2, seed=1, budget=QUICK, time_limit_s=limit_s)
    return TimePlan(request=replace(request, **options), begun=100.0)


def test_the_estimate_counts_starts_and_slices():
    """Multiply launches by start and slice times."""
    assert pytest.approx(6 * (STARTUP_S + 10 * (QUICK.slice_s + OTHER_S))) == dry_run_estimate(
        10, QUICK, 6
    )
    longer = replace(QUICK, energy_s=2.0)
    assert pytest.approx(6 * 10 * 2.0) == dry_run_estimate(10, longer, 6) - dry_run_estimate(
        10, QUICK, 6
    )
    plans = [make_plan(None, budget=budget) for budget in (QUICK, longer)]
    plain_s, longer_s = (plan.eta_s(100.0, slices=10, launches=1) for plan in plans)
    assert pytest.approx(10 * 2.0) == longer_s - plain_s


def test_slices_shrink_so_that_all_launches_fit():
    """Shrink slices so that starts, slices and the rest equal the limit."""
    plan = make_plan(21.0 + LEAVING_S)
    slice_s = plan.slice_s(100, slices=100, launches=2)
    assert pytest.approx(21.0) == 2 * STARTUP_S + 100 * (slice_s + OTHER_S)


def test_slices_stay_between_the_shortest_and_the_budgets():
    """Keep slices between the minimum and the budget's, which is kept without a limit."""
    assert QUICK.slice_s == make_plan(1000).slice_s(100, slices=1, launches=1)
    assert SHORTEST_SLICE_S == make_plan(10).slice_s(100, slices=10_000, launches=9)
    plan = make_plan(None)
    assert QUICK.slice_s == plan.slice_s(100, slices=10, launches=2)
    assert math.inf == plan.left_s(100) == plan.deadline_s(math.inf)
    assert plan.fits(math.inf, slices=10**6)


def test_what_launches_take_is_learned():
    """Replace assumed durations by the medians of all launches, which one slow launch does not
    move.
    """
    plan = make_plan(10.0 + LEAVING_S)
    for startup_s, measuring_s, beside_s in ((1.0, 0.6, 0.4), (1.0, 0.6, 0.4), (9.0, 5.0, 4.0)):
        seconds = startup_s + measuring_s + beside_s
        entry = launch_times(seconds=seconds, startup_s=startup_s, measuring_s=measuring_s)
        plan.learn(entry, 10)
    assert pytest.approx(8.0) == 1.0 + 80 * (plan.slice_s(102, slices=80, launches=1) + 0.04)
    assert pytest.approx(3.0) == plan.eta_s(102, slices=20, launches=1)


@pytest.mark.parametrize("slice_s", [None, 12.0])
def test_a_launch_beyond_the_limit_does_not_fit(slice_s):
    """Compare the remaining time with a start and slices, minimal or of a fixed length."""
    plan = make_plan(100.0 + LEAVING_S)
    needed = STARTUP_S + 5 * ((slice_s or SHORTEST_SLICE_S) + OTHER_S)
    assert pytest.approx(100.0) == plan.left_s(100)
    assert plan.fits(needed + 0.01, slices=5, slice_s=slice_s)
    assert not plan.fits(needed - 0.01, slices=5, slice_s=slice_s)


def test_the_whole_limit_may_be_used():
    """Use the whole limit on request."""
    plan = make_plan(5.0 + LEAVING_S, whole_limit_s=21.0 + LEAVING_S)
    assert [5.0, 21.0] == [plan.left_s(100, whole=whole) for whole in (False, True)]


def test_the_deadline_is_counted_from_when_ranks_have_come_together():
    """Exclude the start from the deadline, which is never negative; estimate an end within it."""
    plan = make_plan(10.0 + LEAVING_S)
    assert 10.0 - STARTUP_S == plan.deadline_s(10.0)
    assert 0.0 == plan.deadline_s(1.0)
    assert 5.0 == plan.eta_s(105, slices=10_000, launches=5)


def test_a_matrix_counts_as_several_time_slices():
    """Count the turns of a matrix, and one slice for other cases."""
    assert 1.0 == time_slices(make_case(operation="all_reduce"), 1000)
    assert 1.0 == time_slices(make_case(operation="all_reduce", pattern="matrix"), 1000)
    matrix = make_case(operation="bandwidth", pattern="matrix")
    assert 6 * MOST_SHARE == time_slices(matrix, 4)  # 3 rounds in both directions
    assert SLICES == pytest.approx(time_slices(matrix, 30))
    assert 1998 * LEAST_SHARE == pytest.approx(time_slices(matrix, 1000))
    assert 999 * LEAST_SHARE == pytest.approx(
        time_slices(make_case(operation="latency", pattern="matrix"), 1000)
    )
