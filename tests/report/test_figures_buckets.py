"""Tests of the figure of step time over bucket size."""

from typing import Any

import pytest
from drawings import marked, painted, points_of, recommendation_of, training_run_of
from training_builders import (
    launches_of,
    make_training_case,
    make_training_launches,
    make_training_record,
)
from tuning_world import default_play, default_world

from commbench.ddp.plan.records import TrainingRecord
from commbench.report.figures.buckets import (
    Line,
    bucket_figures,
    limits_of,
    lines_of,
    paint_lines,
)
from commbench.report.figures.words import groups
from commbench.results import Run
from commbench.results.record_types import collective_records, training_records
from commbench.tuner.predictions import predictions

STEPS = {
    ("none", "default"): 20.0,
    ("none", "1"): 24.0,
    ("none", "25"): 18.0,
    ("fp16", "25"): 10.0,
    ("none", "1+25"): 19.0,
}
BEST = {"hook": "fp16", "bucket_cap_mb": "25"}


def sweep(steps: dict[tuple[str, str], float] | None = None) -> list[TrainingRecord]:
    """Return six launches of each setting with little noise."""
    return [
        record
        for (hook, cap), step_ms in (steps or STEPS).items()
        for record in launches_of(step_ms, make_training_case(hook, cap))
    ]


def lines(run: Run) -> dict[str, Line]:
    """Return the lines of a run by name."""
    (group,) = groups([run])
    return {line.name: line for line in lines_of(group.trials[0])}


def test_lines_join_numbers_only() -> None:
    """Draw the default and lists as separate points."""
    run = training_run_of(sweep())
    lines_by_name = lines(run)
    axes = painted(paint_lines, list(lines_by_name.values())).axes[0]

    assert {"default": 20.0, "1": 24.0, "25": 18.0, "1+25": 19.0} == {
        cap: point.value for cap, point in lines_by_name["none"].measured.items()
    }
    assert [24.0, 18.0] == [y for _, y in points_of(axes, "none")]
    assert ["default", "1", "25", "1+\n25"] == [
        label.get_text() for label in axes.get_xticklabels()
    ]


@pytest.mark.parametrize(
    ("changes", "info", "ringed"),
    [
        ({}, {}, [10.0]),
        ({"verdict": "keep"}, {}, [20.0]),
        ({"verdict": "inconclusive"}, {}, [20.0]),
        ({"verdict": "inconclusive", "launches": 0, "speedup_ci": None}, {}, []),
        ({"launches": 2}, {"status": "partial", "first_look": 4}, []),
        ({"workload": "other"}, {}, []),
    ],
)
def test_the_recommended_setting_is_ringed(
    changes: dict[str, Any], info: dict[str, Any], ringed: list[float]
) -> None:
    """Ring what is recommended, or the default, but nothing before the first look."""
    run = training_run_of(sweep(), recommendation=recommendation_of(BEST, **changes), **info)
    axes = painted(paint_lines, list(lines(run).values())).axes[0]
    assert ringed == [y for _, y in marked(axes, "chosen")]


def test_predictions_are_hollow() -> None:
    """Draw predictions as hollow points, also without measurements."""
    line = Line(
        name="none",
        measured=lines(training_run_of(sweep()))["none"].measured,
        predicted={"25": 17.0, "50": 16.0},
    )
    axes = painted(paint_lines, [line]).axes[0]
    hollow = [drawn for drawn in axes.get_lines() if drawn.get_gid() == "predicted"]

    assert [17.0, 16.0] == [y for _, y in marked(axes, "predicted")]
    assert ["none"] == [drawn.get_markerfacecolor() for drawn in hollow]


def test_a_tuning_shows_its_predictions_beside_what_it_measured() -> None:
    """Draw each prediction of a tuning on its hook's line."""
    info, records = default_world().plan.info, default_play().records
    run = training_run_of(
        training_records(records),
        collectives=collective_records(records),
        **{**info, "world_size": 2},
    )
    expected: dict[str, dict[str, float | None]] = {"none": {}, "fp16": {}, "topk:0.01": {}}
    for row in predictions(run):
        name = "topk:0.01" if row.hook == "topk" else row.hook
        expected[name][row.bucket_cap_mb] = row.predicted_step_ms
    assert expected == {name: line.predicted for name, line in lines(run).items()}


def test_failures_are_crosses() -> None:
    """Draw failed settings as crosses."""
    case = make_training_case(cap="100")
    failed = make_training_record(case, status="failed", reason="Out of memory.")
    run = training_run_of([*sweep(), failed])
    axes = painted(paint_lines, list(lines(run).values())).axes[0]
    assert 1 == len(marked(axes, "crosses"))


def test_wide_intervals_leave_the_frame() -> None:
    """Clip very wide intervals."""
    five = make_training_case(cap="25")
    records = [*make_training_launches([20.0, 30.0]), *make_training_launches([21.0, 22.0], five)]
    limits = limits_of(list(lines(training_run_of(records)).values()))
    assert limits is not None
    assert limits[1] < 40


def test_a_single_setting_is_no_curve() -> None:
    """Draw nothing for one setting or none."""
    assert [] == bucket_figures([training_run_of(launches_of(20.0))])
    assert [] == bucket_figures([training_run_of([])])


def test_workloads_have_figures_of_their_own() -> None:
    """Draw a figure per workload."""
    cases = [
        make_training_case(cap=cap, workload=workload)
        for workload in ("mlp", "<b>$other$")
        for cap in ("default", "25")
    ]
    records = [record for case in cases for record in launches_of(10.0, case)]
    drawings = bucket_figures([training_run_of(records)])
    assert 2 == len({drawing.name for drawing in drawings})
