"""Tests of the timeline of a step."""

from collections.abc import Sequence

import pytest
from drawings import painted, recommendation_of, texts_of, training_run_of
from matplotlib.colors import to_hex
from training_builders import launches_of, make_bucket, make_training_case, make_training_record

from commbench.ddp.plan.records import TrainingRecord
from commbench.report.figures.timeline import (
    COMMUNICATE,
    COMPRESS,
    WAIT,
    paint_steps,
    steps_of,
    timeline_figures,
)
from commbench.report.figures.words import Trial, groups

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


def trial(**changes: object) -> Trial:
    """Return the only trial of these records."""
    (group,) = groups([training_run_of(records(), **changes)])  # type: ignore[arg-type] # fields of a run
    return group.trials[0]


def bars(records: Sequence[TrainingRecord], colour: str) -> list[float]:
    """Return start and end of each bar of a colour in the first panel, in milliseconds."""
    (group,) = groups([training_run_of(records)])
    axes = painted(paint_steps, steps_of(group.trials[0])).axes[0]
    ends = []
    for patch in axes.patches:
        if to_hex(patch.get_facecolor()) == colour and patch.get_width():
            ends += [patch.get_x(), patch.get_x() + patch.get_width()]
    return ends


def test_the_default_stands_above_the_recommended_setting() -> None:
    """Draw the default above the recommended or else the fastest setting."""
    keep = recommendation_of({"hook": "fp16", "bucket_cap_mb": "25"}, verdict="keep")
    assert ["default buckets", "fp16 with 25 MiB buckets"] == [
        step.name for step in steps_of(trial())
    ]
    assert ["default buckets"] == [step.name for step in steps_of(trial(recommendation=keep))]


def test_buckets_wait_compress_and_communicate() -> None:
    """Draw a bucket from ready to done: waiting, compression, communication, decompression."""
    # ready, start, done are 4, 5, 9 of the first bucket without compressing, and 6, 8, 14 of the
    # second with 1.5 ms
    assert pytest.approx([4.0, 5.0, 6.0, 6.5]) == bars(records(), WAIT)
    assert pytest.approx([6.5, 8.0]) == bars(records(), COMPRESS)
    assert pytest.approx([5.0, 9.0, 8.0, 14.0]) == bars(records(), COMMUNICATE)


def test_compressing_that_does_not_fit_before_the_start_comes_last() -> None:
    """Draw compression beyond the start at the bucket's end."""
    bucket = make_bucket(ready_ms=1.0, start_ms=2.0, done_ms=8.0, compress_ms=3.0)
    assert [1.0, 2.0, 6.0, 8.0] == bars(launches_of(20.0, buckets=[bucket]), COMPRESS)


def test_the_exposed_part_is_at_the_end_of_the_backward_pass() -> None:
    """Shade the exposed communication at the end of the backward pass."""
    default = steps_of(trial())[0]
    # backward is 0.6 of the step: 12 ms with DDP, 4.8 without
    assert pytest.approx((4.8, 12.0)) == default.exposed


def test_the_caption_counts_buckets_and_states_what_is_exposed() -> None:
    """State buckets, exposed shares and their difference."""
    (drawing,) = timeline_figures([training_run_of(records())])
    for words in ("2 buckets", "20.0 ms", "7.20 ms (36 %)", "6.00 ms"):
        assert words in drawing.caption
    assert {"1.00 MB", "2.00 MB"} <= {text.strip() for text in texts_of(drawing.svg)}


def test_a_lone_setting_is_named_where_the_default_failed() -> None:
    """Draw the setting that remains if the default failed."""
    failed = make_training_record(status="failed", reason="No memory.")
    other = launches_of(10.0, make_training_case("fp16", "25"), buckets=BUCKETS[:1])
    (group,) = groups([training_run_of([failed, *other])])
    assert ["fp16 with 25 MiB buckets"] == [step.name for step in steps_of(group.trials[0])]


def test_without_times_there_is_no_timeline() -> None:
    """Draw nothing without backward times or training."""
    assert [] == timeline_figures([training_run_of(launches_of(20.0, backward_ms=None))])
    assert [] == timeline_figures([training_run_of([])])
