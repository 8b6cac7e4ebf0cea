"""Tests of the timeline of a step."""

import pytest
from drawings import recommendation_of, training_run_of
from training_builders import launches_of, make_bucket, make_training_case, make_training_record

from commbench.ddp.plan.records import TrainingRecord
from commbench.report.figures.charts import Chart
from commbench.report.figures.timeline import timeline_charts
from commbench.results import Run

BUCKETS = [
    make_bucket(1_000_000, done_ms=9.0, compress_ms=0.0),
    make_bucket(2_000_000, ready_ms=6.0, start_ms=8.0, done_ms=14.0, compress_ms=1.5),
]


def records() -> list[TrainingRecord]:
    """Return the default, a faster setting, and the step without DDP."""
    return [
        *launches_of(20.0, buckets=BUCKETS),
        *launches_of(10.0, make_training_case("fp16", "25"), buckets=BUCKETS[:1]),
        *launches_of(8.0, make_training_case("local")),
    ]


def chart_of(run: Run) -> Chart:
    """Return the only chart of a run."""
    (chart,) = timeline_charts([run])
    return chart


def bars(chart: Chart, part: str) -> list[float]:
    """Return begin and end of each bar of a colour in the first panel, in milliseconds."""
    ends: list[float] = []
    for series in chart.panels[0].series:
        for begin, end, colour in series.spans:
            if colour == chart.key[part] and begin < end:
                ends += [begin, end]
    return ends


def test_the_default_stands_above_the_recommended_setting() -> None:
    """Draw the default above the recommended or else the fastest setting."""
    keep = recommendation_of({"hook": "fp16", "bucket_cap_mb": "25"}, verdict="keep")
    both = chart_of(training_run_of(records()))
    alone = chart_of(training_run_of(records(), recommendation=keep))
    default = "default buckets"
    assert [default, "fp16 with 25 MiB buckets"] == [panel.title for panel in both.panels]
    assert [default] == [panel.title for panel in alone.panels]


def test_buckets_wait_compress_and_communicate() -> None:
    """Draw a bucket from ready to done: waiting, compression, communication, decompression."""
    chart = chart_of(training_run_of(records()))
    # ready, start, done are 4, 5, 9 of the first bucket without compressing, and 6, 8, 14 of the
    # second with 1.5 ms
    assert pytest.approx([4.0, 5.0, 6.0, 6.5]) == bars(chart, "waits")
    assert pytest.approx([6.5, 8.0]) == bars(chart, "hook's own work")
    assert pytest.approx([5.0, 9.0, 8.0, 14.0]) == bars(chart, "communicate")
    assert ["0: 1.00 MB", "1: 2.00 MB"] == chart.names[2:]


def test_compressing_that_does_not_fit_before_the_start_comes_last() -> None:
    """Draw compression beyond the start at the bucket's end."""
    bucket = make_bucket(ready_ms=1.0, start_ms=2.0, done_ms=8.0, compress_ms=3.0)
    chart = chart_of(training_run_of(launches_of(20.0, buckets=[bucket])))
    assert [1.0, 2.0, 6.0, 8.0] == bars(chart, "hook's own work")


def test_the_exposed_part_is_at_the_end_of_the_backward_pass() -> None:
    """Draw the exposed communication at the end of the backward pass, and state its share."""
    chart = chart_of(training_run_of(records()))
    # backward is 0.6 of the step: 12 ms with DDP, 4.8 without
    assert pytest.approx([4.8, 12.0]) == bars(chart, "exposed")
    for words in ("20.0 ms", "7.20 ms (36 %)"):
        assert words in chart.caption


def test_a_lone_setting_is_named_where_the_default_failed() -> None:
    """Draw the setting that remains if the default failed."""
    failed = make_training_record(status="failed", reason="No memory.")
    other = launches_of(10.0, make_training_case("fp16", "25"), buckets=BUCKETS[:1])
    chart = chart_of(training_run_of([failed, *other]))
    assert ["fp16 with 25 MiB buckets"] == [panel.title for panel in chart.panels]


def test_without_times_there_is_no_timeline() -> None:
    """Draw nothing without backward times or training."""
    assert [] == timeline_charts([training_run_of(launches_of(20.0, backward_ms=None))])
    assert [] == timeline_charts([training_run_of([])])
