"""Tests of the figure of bytes sent per step."""

from drawings import painted, training_run_of
from training_builders import launches_of, make_training_case

from commbench.ddp.plan.records import TrainingRecord
from commbench.report.figures.traffic import bars_of, paint_bars, traffic_figures
from commbench.report.figures.words import groups


def records(sent: dict[str, float]) -> list[TrainingRecord]:
    """Return launches of each hook with the given bytes; dense gradients have 40 MB."""
    return [
        record
        for hook, sent_bytes in sent.items()
        for record in launches_of(
            10.0,
            make_training_case(hook),
            sent_bytes=sent_bytes,
            expected_bytes=sent_bytes,
            dense_bytes=40e6,
        )
    ]


def test_bars_are_megabytes_beside_the_dense_ones() -> None:
    """Draw a bar per hook from zero, and a line for the dense all-reduce."""
    (group,) = groups([training_run_of(records({"none": 40e6, "fp16": 20e6}))])
    axes = painted(paint_bars, bars_of(group)).axes[0]

    assert [40.0, 20.0] == [patch.get_width() for patch in axes.patches]
    assert [40.0, 40.0] == list(axes.get_lines()[-1].get_xdata())
    assert ["none", "fp16"] == [label.get_text() for label in axes.get_yticklabels()]


def test_a_wide_range_is_dots_on_a_logarithmic_axis() -> None:
    """Draw dots on a logarithmic axis for a wide range."""
    (group,) = groups([training_run_of(records({"none": 40e6, "topk:0.01": 0.8e6}))])
    axes = painted(paint_bars, bars_of(group)).axes[0]
    assert ("log", 0) == (axes.get_xscale(), len(axes.patches))


def test_the_most_frugal_is_named_with_its_share() -> None:
    """Name the hook with the fewest bytes and its share."""
    (drawing,) = traffic_figures([training_run_of(records({"none": 40e6, "topk:0.01": 0.8e6}))])
    for words in ("topk:0.01", "0.800 MB", "2 %", "40.0 MB"):
        assert words in drawing.caption


def test_unknown_bytes_are_not_drawn() -> None:
    """Draw nothing without counted bytes."""
    assert [] == traffic_figures([training_run_of(launches_of(10.0, sent_bytes=None))])
    assert [] == traffic_figures([training_run_of([])])
