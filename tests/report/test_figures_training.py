"""Tests of the charts of training: buckets, learning, and the timeline of a step."""

from typing import Any

import pytest
from drawings import recommendation_of, values_of
from fields import fields_of
from training_builders import (
    launches_of,
    make_bucket,
    make_training_case,
    make_training_record,
    run_of,
)

from commbench.ddp.plan.records import TrainingRecord
from commbench.report.figures.buckets import bucket_charts
from commbench.report.figures.charts import Chart
from commbench.report.figures.learning import learning_charts, windows_of
from commbench.report.figures.timeline import timeline_charts
from commbench.results import Run

STEPS = {
    ("none", "default"): 20.0,
    ("none", "1"): 24.0,
    ("none", "25"): 18.0,
    ("fp16", "25"): 10.0,
    ("none", "1+25"): 19.0,
}
BEST = {"hook": "fp16", "bucket_cap_mb": "25"}
DEFAULT, FP16 = "default buckets", "fp16 with 25 MiB buckets"


def sweep(**changes: Any) -> list[TrainingRecord]:
    """Return six launches of each setting with little noise."""
    records = []
    for (hook, cap), step_ms in STEPS.items():
        records += launches_of(step_ms, make_training_case(hook, cap), **changes)
    return records


@pytest.mark.parametrize("charts_of", [bucket_charts, learning_charts, timeline_charts])
def test_without_data_there_is_no_chart(charts_of):
    """Draw nothing for no setting, or for a single one without bytes, losses and times of
    passes.
    """
    bare = launches_of(20.0, sent_bytes=None, backward_ms=None, losses=[float("nan")])
    assert [] == list(charts_of([run_of(training=[]), run_of(training=bare)]))


# ----------------------------------------------------------------------------------------- buckets


def test_lines_join_numbers_only():
    """Join numeric sizes by a line; the default and lists stand by themselves, before and after."""
    (chart,) = bucket_charts([run_of(training=sweep())])
    (panel,) = chart.panels
    steps = {True: {}, False: {}}
    for series in panel.series:
        if series.name == "none":
            for x, step in series.points.items():
                steps[series.is_joined][panel.places[x]] = step.value
    assert {"1": 24.0, "25": 18.0} == steps[True]
    assert {"default": 20.0, "1+\n25": 19.0} == steps[False]
    assert ["default", "1", "25", "1+\n25"] == list(panel.places.values())


@pytest.mark.parametrize(
    ("changes", "info", "ringed"),
    [
        ({}, {}, ["25"]),
        ({"verdict": "keep"}, {}, ["default"]),
        ({"verdict": "inconclusive"}, {}, ["default"]),
        ({"verdict": "inconclusive", "launches": 0, "speedup_ci": None}, {}, []),
        ({"launches": 2}, {"status": "partial", "first_look": 4}, []),
        ({"workload": "other"}, {}, []),
    ],
)
def test_the_recommended_setting_is_ringed(changes, info, ringed):
    """Ring what is recommended, or the default, but nothing before the first look; failures are
    crosses.
    """
    failed = make_training_record(make_training_case(cap="100"), status="failed", reason="Killed.")
    advice = recommendation_of(BEST, **changes)
    run = run_of(training=[*sweep(), failed], recommendation=advice, **info)
    (panel,) = next(bucket_charts([run])).panels
    found = [one.ringed for one in panel.series if one.ringed is not None]
    assert ringed == [panel.places[x] for x in found]
    assert ["100"] == [panel.places[x] for one in panel.series for x in one.failed]


def test_workloads_have_figures_of_their_own():
    """Draw a figure per workload, with the series of every run."""
    records = []
    for workload in ("mlp", "<b>$other$"):
        for cap in ("default", "25"):
            records += launches_of(10.0, make_training_case(cap=cap, workload=workload))
    runs = [run_of(name=name, training=records) for name in ("old", "new")]
    charts = list(bucket_charts(runs))
    assert 2 == len(set(fields_of(charts, "name")))
    assert [["old: none", "new: none"]] * 2 == fields_of(charts, "names")


# ---------------------------------------------------------------------------------------- learning


def learned(records: list[TrainingRecord], **changes: Any) -> Chart:
    """Return the only chart of learning."""
    (chart,) = learning_charts([run_of(training=records, **changes)])
    return chart


def test_curves_are_the_mean_over_launches_and_bands_the_range():
    """Draw mean and range over launches that have values, over steps and over time."""
    records = []
    for launch, losses in enumerate([[4.0, 2.0, 1.0], [6.0, 4.0, 1.0], [float("nan")]]):
        records.append(make_training_record(launch=launch, losses=losses, step_ms=20.0))
    by_steps, by_time = learned(records).panels
    assert {DEFAULT: {1.0: 5.0, 2.0: 3.0, 3.0: 1.0}} == values_of(by_steps)
    assert (4.0, 6.0) == by_steps.series[0].points[1.0].bounds
    assert [0.02, 0.04, 0.06] == [pytest.approx(x) for x in by_time.series[0].points]


def test_many_steps_are_averaged():
    """Average many steps in windows."""
    points = windows_of([{float(step): float(step) for step in range(1, 1201)}])
    assert 60 == len(points)
    assert 20.0 == min(points)
    assert 1200.0 == max(points)
    assert 10.5 == points[20.0].value


def test_one_bucket_size_stands_for_each_hook():
    """Draw the default, each other hook's fastest setting, and the recommended one."""
    records = sweep(losses=[2.0, 1.0])
    chosen = recommendation_of({"bucket_cap_mb": "25"})
    assert [DEFAULT, FP16] == learned(records).names
    assert [DEFAULT, "25 MiB buckets", FP16] == learned(records, recommendation=chosen).names


def test_fresh_launches_stand_where_there_are_any():
    """Draw all settings of the confirmation instead of the sweep."""
    records = sweep(losses=[9.0])
    for cap in ("default", "25"):
        records += launches_of(20.0, make_training_case("none", cap, phase="confirm"), losses=[3.0])
    expected = {DEFAULT: {1.0: 3.0}, "25 MiB buckets": {1.0: 3.0}}
    assert expected == values_of(learned(records).panels[0])


def test_metrics_have_a_figure_with_their_target():
    """Draw evaluated metrics and the target."""
    metrics = [(10, 0.5), (20, 0.75)]
    records = launches_of(20.0, metrics=metrics, metric_name="accuracy", target=0.7)
    panel, _ = learned(records).panels
    assert {DEFAULT: {10.0: 0.5, 20.0: 0.75}} == values_of(panel)
    assert "accuracy" == panel.label
    assert [0.7] == fields_of(panel.limits, "value")


# ------------------------------------------------------------------------------- timeline of a step

#: Ready, started and done at 4, 5, 9 ms without compressing, and at 6, 8, 14 ms with 1.5 ms of it.
BUCKETS = [
    make_bucket(1_000_000, done_ms=9.0, compress_ms=0.0),
    make_bucket(2_000_000, ready_ms=6.0, start_ms=8.0, done_ms=14.0, compress_ms=1.5),
]
COMPRESSED = launches_of(10.0, make_training_case("fp16", "25"), buckets=BUCKETS[:1])
LOCAL = launches_of(8.0, make_training_case("local"))


def timeline(run: Run) -> Chart:
    """Return the only timeline."""
    (chart,) = timeline_charts([run])
    return chart


def bars(chart: Chart, part: str) -> list[float]:
    """Return begin and end of each bar of a colour in the first panel, in milliseconds."""
    ends = []
    for series in chart.panels[0].series:
        for begin, end, colour in series.spans:
            if colour == chart.key[part] and begin < end:
                ends += [begin, end]
    return ends


@pytest.mark.parametrize(
    ("default", "verdict", "titles"),
    [
        (launches_of(20.0, buckets=BUCKETS), "", [DEFAULT, FP16]),
        (launches_of(20.0, buckets=BUCKETS), "keep", [DEFAULT]),
        ([make_training_record(status="failed", reason="No memory.")], "", [FP16]),
    ],
)
def test_the_default_stands_above_the_recommended_setting(default, verdict, titles):
    """Draw the default, unless it failed, above the recommended or else the fastest setting."""
    advice = recommendation_of(BEST, verdict=verdict) if verdict else None
    chart = timeline(run_of(training=[*default, *COMPRESSED, *LOCAL], recommendation=advice))
    assert titles == fields_of(chart.panels, "title")


def test_buckets_wait_compress_and_communicate():
    """Draw a bucket from ready to done: waiting, compression, communication; above them what is
    exposed, at the end of the backward pass.
    """
    chart = timeline(run_of(training=[*launches_of(20.0, buckets=BUCKETS), *LOCAL]))
    assert pytest.approx([4.0, 5.0, 6.0, 6.5]) == bars(chart, "waits")
    assert pytest.approx([6.5, 8.0]) == bars(chart, "hook's own work")
    assert pytest.approx([5.0, 9.0, 8.0, 14.0]) == bars(chart, "communicate")
    assert ["0: 1.00 MB", "1: 2.00 MB"] == chart.names[2:]
    # backward is 0.6 of the step: 12 ms with DDP, 4.8 without
    assert pytest.approx([4.8, 12.0]) == bars(chart, "exposed")


def test_compressing_that_does_not_fit_before_the_start_comes_last():
    """Draw compression beyond the start at the bucket's end."""
    bucket = make_bucket(ready_ms=1.0, start_ms=2.0, done_ms=8.0, compress_ms=3.0)
    chart = timeline(run_of(training=launches_of(20.0, buckets=[bucket])))
    assert [1.0, 2.0, 6.0, 8.0] == bars(chart, "hook's own work")
