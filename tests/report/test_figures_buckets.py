"""Tests of the figure of step time over bucket size."""

from typing import Any

import pytest
from drawings import marked, painted, points_of, recommendation_of, texts_of, training_run_of
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
    caption_of,
    limits_of,
    lines_of,
    paint_lines,
    places_of,
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


def test_places_are_logarithmic_between_the_default_and_the_lists() -> None:
    """Place sizes logarithmically, the default before and lists after them."""
    places = places_of(["1", "default", "1+25", "4", "16", "1+5+25"])

    assert ["default", "1", "4", "16", "1+25", "1+5+25"] == sorted(
        places, key=lambda cap: places[cap]
    )
    assert pytest.approx(places["16"] - places["4"]) == places["4"] - places["1"]
    assert {"5": pytest.approx(1.3)} == places_of(["5"])
    assert 6 == len(set(places.values()))


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


def test_the_recommended_setting_is_ringed() -> None:
    """Ring the recommended setting, and state its gain in confirmation launches."""
    run = training_run_of(sweep(), recommendation=recommendation_of(BEST))
    axes = painted(paint_lines, list(lines(run).values())).axes[0]
    (drawing,) = bucket_figures([run])

    assert [10.0] == [y for _, y in marked(axes, "chosen")]
    assert (
        "Recommended (ringed): fp16 with 25 MiB buckets, 2.00 [1.90, 2.10] times as fast"
        in drawing.caption
    )
    assert "Fastest in the sweep: fp16, 25 MiB buckets, 10.0 ms" in drawing.caption


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [("keep", "nothing gained more than 2 %"), ("inconclusive", "too wide to decide")],
)
def test_the_default_is_ringed_where_nothing_is_shown_to_be_faster(
    verdict: str, sentence: str
) -> None:
    """Ring the default if it is recommended."""
    run = training_run_of(sweep(), recommendation=recommendation_of(BEST, verdict=verdict))
    axes = painted(paint_lines, list(lines(run).values())).axes[0]

    assert [20.0] == [y for _, y in marked(axes, "chosen")]
    assert sentence in bucket_figures([run])[0].caption


@pytest.mark.parametrize(
    "info", [{"launches": 0}, {"launches": 2, "status": "partial", "first_look": 4}]
)
def test_nothing_is_ringed_before_fresh_launches_have_compared(info: dict[str, Any]) -> None:
    """Ring nothing without confirmation launches or before the first look."""
    launches = info.pop("launches")
    lines_by_name = recommendation_of(
        BEST, verdict="inconclusive", launches=launches, speedup=None, speedup_ci=None
    )
    run = training_run_of(sweep(), recommendation=lines_by_name, **info)
    axes = painted(paint_lines, list(lines(run).values())).axes[0]
    (drawing,) = bucket_figures([run])

    assert [] == marked(axes, "chosen")
    assert "Recommended" not in drawing.caption
    assert ("No recommendation yet" in drawing.caption) == (not launches)


def test_one_fresh_launch_has_no_interval() -> None:
    """Mention no interval for one confirmation launch."""
    lines_by_name = recommendation_of(BEST, verdict="inconclusive", launches=1, speedup_ci=None)
    (drawing,) = bucket_figures([training_run_of(sweep(), recommendation=lines_by_name)])
    assert "the default for now, as one fresh launch cannot decide." in drawing.caption


def test_another_workloads_recommendation_rings_nothing() -> None:
    """Ring nothing for another workload's recommendation."""
    run = training_run_of(sweep(), recommendation=recommendation_of(BEST, workload="other"))
    assert [None, None] == [line.chosen for line in lines(run).values()]
    assert "Recommended" not in bucket_figures([run])[0].caption


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
    world, records = default_world(), default_play().records
    run = training_run_of(
        training_records(records),
        collectives=collective_records(records),
        **{**world.plan.info, "world_size": 2},
    )
    lines_by_name = lines(run)
    rows = {(row.hook, row.bucket_cap_mb): row.predicted_step_ms for row in predictions(run)}

    assert {"none", "fp16", "topk:0.01"} == set(lines_by_name)
    assert rows["fp16", "default"] == lines_by_name["fp16"].predicted["default"]
    assert len(rows) == sum(len(line.predicted) for line in lines_by_name.values())
    assert "Hollow marks on dotted lines are predictions." in bucket_figures([run])[0].caption


def test_failures_are_crosses() -> None:
    """Draw failed settings as crosses."""
    failed = make_training_record(
        make_training_case(cap="100"), status="failed", reason="Out of memory."
    )
    run = training_run_of([*sweep(), failed])
    axes = painted(paint_lines, list(lines(run).values())).axes[0]
    (drawing,) = bucket_figures([run])

    assert 1 == len(marked(axes, "crosses"))
    assert "Crosses have no result: none 100 failed." in drawing.caption


def test_nothing_but_failures_is_said() -> None:
    """Draw an empty frame that reports failures only."""
    records = [
        make_training_record(make_training_case(cap=cap), status="hung", reason="Rank 1 is hung.")
        for cap in ("1", "25")
    ]
    (drawing,) = bucket_figures([training_run_of(records)])
    assert "no setting has a time" in texts_of(drawing.svg)
    assert "nothing was timed" in drawing.caption


def test_wide_intervals_leave_the_frame_and_that_is_said() -> None:
    """Clip very wide intervals, and report it."""
    records = [
        *make_training_launches([20.0, 30.0]),
        *make_training_launches([21.0, 22.0], make_training_case(cap="25")),
    ]
    run = training_run_of(records)
    limits = limits_of(list(lines(run).values()))

    assert limits is not None
    assert limits[1] < 40
    assert "Intervals cut by the frame" in bucket_figures([run])[0].caption
    assert "Intervals cut by the frame" not in bucket_figures([training_run_of(sweep())])[0].caption


def test_a_single_setting_is_no_curve() -> None:
    """Draw nothing for one setting or none."""
    assert [] == bucket_figures([training_run_of(launches_of(20.0))])
    assert [] == bucket_figures([training_run_of([])])


def test_runs_overlay_and_many_lines_are_cut() -> None:
    """Overlay the same workload of several runs, with at most eight lines."""
    steps: dict[tuple[str, str], float] = {
        (hook, cap): 10.0
        for hook in ("none", "fp16", "bf16", "topk:0.01", "topk:0.1")
        for cap in ("default", "25")
    }
    runs = [training_run_of(sweep(steps), name) for name in ("old", "new")]
    (drawing,) = bucket_figures(runs)

    assert "Not drawn" in drawing.caption
    assert {"old: none", "new: fp16"} <= set(texts_of(drawing.svg))
    assert "new: topk:0.1" not in texts_of(drawing.svg)


def test_workloads_have_figures_of_their_own() -> None:
    """Draw a figure per workload."""
    changes: list[dict[str, Any]] = [{}, {"workload": "<b>$other$"}]
    records = [
        record
        for change in changes
        for cap in ("default", "25")
        for record in launches_of(10.0, make_training_case(cap=cap, **change))
    ]
    drawings = bucket_figures([training_run_of(records)])
    assert 2 == len({drawing.name for drawing in drawings})
    assert 2 == len({drawing.title for drawing in drawings})


def test_the_caption_states_the_interval_of_the_gain() -> None:
    """State the sweep's gain with its interval."""
    (group,) = groups([training_run_of(sweep())])
    caption = caption_of(group, lines_of(group.trials[0]))
    assert "2.00 times [2.00, 2.00] as fast as the default." in caption
