"""Tests of the figures of learning."""

import numpy as np
import pytest
from drawings import painted, points_of, recommendation_of, texts_of, training_run_of
from training_builders import launches_of, make_training_case, make_training_record

from commbench.report.figures.learning import (
    learned_of,
    learning_figures,
    loss_of,
    metric_of,
    paint_learning,
)
from commbench.report.figures.words import groups
from commbench.results import Run


def run_with_losses(
    losses: dict[str, list[list[float]]], step_ms: dict[str, float] | None = None
) -> Run:
    """Return a run with the losses of each launch by hook."""
    records = [
        make_training_record(
            make_training_case(hook),
            launch=launch,
            losses=values,
            step_ms=(step_ms or {}).get(hook, 20.0),
        )
        for hook, launches in losses.items()
        for launch, values in enumerate(launches)
    ]
    return training_run_of(records)


def test_curves_are_the_mean_over_launches_and_bands_the_range() -> None:
    """Draw mean and range over launches, over steps and over time."""
    (group,) = groups([run_with_losses({"none": [[4.0, 2.0, 1.0], [6.0, 4.0, 1.0]]})])
    learned = learned_of(group.trials[0], loss_of)
    by_steps, by_time = painted(paint_learning, learned, "training loss").axes
    band = by_steps.collections[0].get_paths()[0].vertices[:, 1]

    assert [(1.0, 5.0), (2.0, 3.0), (3.0, 1.0)] == points_of(by_steps, "none, default buckets")
    assert [pytest.approx(x) for x in (0.02, 0.04, 0.06)] == [
        x for x, _ in points_of(by_time, "none, default buckets")
    ]
    assert (1.0, 6.0) == (band.min(), band.max())


def test_many_steps_are_averaged() -> None:
    """Average many steps in windows."""
    losses = [float(step) for step in range(1, 1201)]
    (group,) = groups([run_with_losses({"none": [losses]})])
    (one,) = learned_of(group.trials[0], loss_of)

    assert (60, 20.0, 1200.0) == (len(one.steps), one.steps[0], one.steps[-1])
    assert pytest.approx(np.mean(losses[:20])) == one.mean[0]


def test_launches_that_lack_values_count_where_they_have_some() -> None:
    """Average the available values, without NaN."""
    (group,) = groups([run_with_losses({"none": [[4.0, 2.0], [2.0, float("nan")], []]})])
    (one,) = learned_of(group.trials[0], loss_of)
    assert [3.0, 2.0] == one.mean.tolist()


def test_one_bucket_size_stands_for_each_hook() -> None:
    """Draw the default, each hook's fastest setting, and the recommended one."""
    steps = {
        ("none", "default"): 20.0,
        ("none", "25"): 18.0,
        ("fp16", "default"): 12.0,
        ("fp16", "25"): 10.0,
    }
    records = [
        record
        for (hook, cap), step_ms in steps.items()
        for record in launches_of(step_ms, make_training_case(hook, cap), losses=[2.0, 1.0])
    ]
    plain = groups([training_run_of(records)])[0].trials[0]
    chosen = recommendation_of({"bucket_cap_mb": "25"})
    other = groups([training_run_of(records, recommendation=chosen)])[0].trials[0]

    assert ["none, default buckets", "fp16, 25 MiB buckets"] == [
        one.name for one in learned_of(plain, loss_of)
    ]
    assert "none, 25 MiB buckets" in [one.name for one in learned_of(other, loss_of)]


def test_who_is_ahead_is_said_only_beyond_noise() -> None:
    """Claim a lead only beyond the noise of paired launches."""
    data = [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]
    paired = {
        "none": [[4.0 + own] * 60 for own in data],
        "fp16": [[2.0 + own] * 60 for own in data],
    }
    few = {hook: launches[:2] for hook, launches in paired.items()}
    noisy = {
        "none": [[value] * 60 for value in (4.0, 1.0, 4.0, 1.0, 4.0, 4.0)],
        "fp16": [[2.0] * 60] * 6,
    }
    captions = [
        learning_figures([run_with_losses(losses)])[0].caption for losses in (paired, few, noisy)
    ]

    assert (
        "fp16, default buckets is ahead, by 2.00 [2.00, 2.00] of none, default buckets, paired"
        in captions[0]
    )
    assert "too few launches to show that a setting is ahead." in captions[1]
    assert "no setting is shown to be ahead." in captions[2]
    assert (
        "After 60 steps, mean over launches: 11.5 with none, default buckets and 9.50 with fp16"
        in captions[0]
    )


def test_fresh_launches_stand_where_there_are_any() -> None:
    """Draw all settings of the confirmation instead of the sweep, and say so."""
    settings = {("none", "default"): 3.0, ("none", "25"): 2.9, ("fp16", "25"): 2.0}
    sweep = [
        record
        for (hook, cap), loss in settings.items()
        for record in launches_of(20.0, make_training_case(hook, cap), losses=[9 * loss])
    ]
    fresh = [
        record
        for (hook, cap), loss in settings.items()
        for record in launches_of(
            20.0, make_training_case(hook, cap, phase="confirm"), losses=[loss]
        )
    ]
    (drawing,) = learning_figures([training_run_of([*sweep, *fresh])])
    (before,) = learning_figures([training_run_of([*sweep, *fresh[:6]])])

    assert drawing.caption.startswith(
        "Lines are the mean of 6 fresh launches, bands their range. After 1 steps"
    )
    assert (
        "3.00 with none, default buckets, 2.90 with none, 25 MiB buckets and 2.00 with fp16"
        in drawing.caption
    )
    assert (
        "each hook is shown with one bucket size, as buckets alone do not alter learning."
        in before.caption
    )
    assert "27.0 with none, default buckets" in before.caption


@pytest.mark.parametrize(
    ("hook", "selects"),
    [("topk:0.01", True), ("topk:0.01:scope=parameter", False)],
)
def test_hooks_that_select_over_a_bucket_learn_by_its_size(hook: str, selects: bool) -> None:
    """State that bucket sizes matter for hooks that select within a bucket."""
    (drawing,) = learning_figures([run_with_losses({"none": [[2.0] * 3], hook: [[2.0] * 3]})])
    assert selects == (f"{hook} selects over a bucket" in drawing.caption)
    assert selects != ("buckets alone do not alter learning" in drawing.caption)


def test_equal_time_is_when_the_first_is_through() -> None:
    """Compare settings when the fastest ends."""
    falling = [float(value) for value in range(100, 0, -1)]
    run = run_with_losses(
        {"none": [falling] * 6, "fp16": [falling] * 6}, {"none": 20.0, "fp16": 10.0}
    )
    caption = learning_figures([run])[0].caption
    assert (
        "After 1 s: 53.0 with none, default buckets and 5.50 with fp16, default buckets" in caption
    )
    assert (
        "fp16, default buckets is ahead, by 47.5 [47.5, 47.5] of none, default buckets" in caption
    )


def test_few_steps_are_said_to_show_little() -> None:
    """Warn of too few steps."""
    short, long = (run_with_losses({"none": [[2.0] * count]}) for count in (5, 200))
    assert "So few steps show little" in learning_figures([short])[0].caption
    assert "So few steps" not in learning_figures([long])[0].caption


def test_metrics_have_a_figure_with_their_target() -> None:
    """Draw evaluated metrics and the target."""
    metrics = [(10, 0.5), (20, 0.75)]
    records = launches_of(20.0, metrics=metrics, metric_name="accuracy", target=0.7)
    (group,) = groups([training_run_of(records)])
    learned = learned_of(group.trials[0], metric_of)
    axes = painted(paint_learning, learned, "accuracy", 0.7).axes[0]
    (drawing,) = learning_figures([training_run_of(records)])

    assert [(10.0, 0.5), (20.0, 0.75)] == points_of(axes, "none, default buckets")
    assert ("metric", "learning") == (drawing.name, drawing.section)
    assert {"accuracy", "target"} <= set(texts_of(drawing.svg))


def test_losses_that_fall_far_are_logarithmic() -> None:
    """Use a logarithmic axis for widely falling positive losses."""
    scales = []
    for last in (0.001, 1.0, -1.0):
        (group,) = groups([run_with_losses({"none": [[2.0, last]]})])
        figure = painted(paint_learning, learned_of(group.trials[0], loss_of), "training loss")
        scales.append(figure.axes[0].get_yscale())
    assert ["log", "linear", "linear"] == scales


def test_no_losses_no_figure() -> None:
    """Draw nothing without finite losses."""
    assert [] == learning_figures([training_run_of(launches_of(20.0))])
    assert [] == learning_figures([run_with_losses({"none": [[float("nan")] * 3]})])
