"""Tests of the timeline of a step."""

import pytest
from drawings import painted, recommendation_of, texts_of, training_run_of
from training_builders import launches_of, make_bucket, make_training_case, make_training_record

from commbench.ddp.plan.records import TrainingRecord
from commbench.report.figures.drawing import PAPER
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


def bars(colour: str, panel: int = 0) -> list[tuple[float, float]]:
    """Return start and end of the bars of a colour, in milliseconds."""
    axes = painted(paint_steps, steps_of(trial())).axes[panel]
    from matplotlib.colors import to_hex

    chosen = [
        patch
        for patch in axes.patches
        if to_hex(patch.get_facecolor()) == colour and hasattr(patch, "get_width")
    ]
    spans = [
        (patch.get_x(), patch.get_x() + patch.get_width()) for patch in chosen if patch.get_width()
    ]
    return [(pytest.approx(begin), pytest.approx(end)) for begin, end in spans]


def test_the_default_stands_above_the_recommended_setting() -> None:
    """Draw the default above the recommended or else the fastest setting."""
    keep = recommendation_of({"hook": "fp16", "bucket_cap_mb": "25"}, verdict="keep")
    assert ["none, default buckets", "fp16, 25 MiB buckets"] == [
        step.name for step in steps_of(trial())
    ]
    assert ["none, default buckets"] == [step.name for step in steps_of(trial(recommendation=keep))]


def test_buckets_wait_compress_and_communicate() -> None:
    """Draw a bucket from ready to done: waiting, compression, communication, decompression."""
    # ready, start, done are 4, 5, 9 of the first bucket without compressing, and 6, 8, 14 of the
    # second with 1.5 ms
    assert [(4.0, 5.0), (6.0, 6.5)] == bars(WAIT)
    assert [(6.5, 8.0)] == bars(COMPRESS)
    assert [(5.0, 9.0), (8.0, 14.0)] == bars(COMMUNICATE)


def test_compressing_that_does_not_fit_before_the_start_comes_last() -> None:
    """Draw compression beyond the start at the bucket's end."""
    from matplotlib.colors import to_hex

    bucket = make_bucket(ready_ms=1.0, start_ms=2.0, done_ms=8.0, compress_ms=3.0)
    (group,) = groups([training_run_of(launches_of(20.0, buckets=[bucket]))])
    axes = painted(paint_steps, steps_of(group.trials[0])).axes[0]
    compress = [p for p in axes.patches if to_hex(p.get_facecolor()) == COMPRESS]
    assert [(1.0, 1.0), (6.0, 2.0)] == [(patch.get_x(), patch.get_width()) for patch in compress]


def test_the_exposed_part_is_at_the_end_of_the_backward_pass() -> None:
    """Shade the exposed communication at the end of the backward pass."""
    default = steps_of(trial())[0]
    # backward is 0.6 of the step: 12 ms with DDP, 4.8 without
    assert pytest.approx((4.8, 12.0)) == default.exposed


def test_every_colour_of_the_bars_is_explained() -> None:
    """Explain every colour, and shade behind the bars."""
    figure = painted(paint_steps, steps_of(trial()))
    shades = [patch for patch in figure.axes[0].patches if patch.get_gid() == "exposed"]
    bars_ = [patch for patch in figure.axes[0].patches if patch.get_gid() != "exposed"]
    assert 1 == len(shades)
    assert shades[0].get_zorder() < min(bar.get_zorder() for bar in bars_)
    assert contrast(WAIT, PAPER) > 3


def contrast(one: str, other: str) -> float:
    """Return the luminance ratio of two colours by WCAG 2."""
    from matplotlib.colors import to_rgb

    def luminance(colour: str) -> float:
        parts = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in to_rgb(colour)
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_caption_counts_buckets_and_states_what_is_exposed() -> None:
    """State buckets, exposed shares and their difference."""
    (drawing,) = timeline_figures([training_run_of(records())])

    assert (
        "none, default buckets: 2 buckets, step 20.0 ms, of it 7.20 ms (36 %) exposed."
        in drawing.caption
    )
    assert "The second exposes 6.00 ms less." in drawing.caption
    assert "so they may end after the pass on top, which comes from other steps." in drawing.caption
    assert "hook's own work" in texts_of(drawing.svg)
    assert {"1.00 MB", "2.00 MB", "exposed", "none, default buckets"} <= {
        text.strip() for text in texts_of(drawing.svg)
    }


def test_a_lone_setting_is_called_the_recommended_default_only_where_it_is() -> None:
    """Name a single panel's setting correctly if the default failed."""
    failed = make_training_record(status="failed", reason="No memory.")
    other = launches_of(10.0, make_training_case("fp16", "25"), buckets=BUCKETS[:1])
    keep = recommendation_of({}, verdict="keep")
    (alone,) = timeline_figures([training_run_of([failed, *other], recommendation=keep)])
    (default,) = timeline_figures([training_run_of(records(), recommendation=keep)])

    assert "fp16, 25 MiB buckets: 1 bucket" in alone.caption
    assert "is what is recommended" not in alone.caption
    assert "The default is recommended." in default.caption


def test_without_times_there_is_no_timeline() -> None:
    """Draw nothing without backward times or training."""
    assert [] == timeline_figures([training_run_of(launches_of(20.0, backward_ms=None))])
    assert [] == timeline_figures([training_run_of([])])


@pytest.mark.slow
@pytest.mark.usefixtures("with_png")
def test_very_many_buckets_stay_within_a_page() -> None:
    """Thin the labels of many buckets."""
    many = [make_bucket(1000, done_ms=6.0 + number) for number in range(200)]
    (drawing,) = timeline_figures([training_run_of(launches_of(20.0, buckets=many))])

    height = int.from_bytes(drawing.png[20:24], "big")
    assert height < 750
    assert not [text for text in texts_of(drawing.svg) if "MB" in text]
    assert "200 buckets" in drawing.caption


def test_each_run_has_its_own() -> None:
    """Draw a timeline per run."""
    drawings = timeline_figures([training_run_of(records(), name) for name in ("old", "new")])
    assert ["old: ", "new: "] == [drawing.title[:5] for drawing in drawings]
    assert 2 == len({drawing.name for drawing in drawings})
