"""Tests of the figures of learning."""

import numpy as np
import pytest
from drawings import painted, points_of, recommendation_of, texts_of, training_run_of
from training_builders import launches_of, make_training_case, make_training_record

from commbench.report.figures.learning import (
    Learned,
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


def learned(run: Run) -> list[Learned]:
    """Return the curves of a run's losses."""
    (group,) = groups([run])
    return learned_of(group.trials[0], loss_of)


def test_curves_are_the_mean_over_launches_and_bands_the_range() -> None:
    """Draw mean and range over launches, over steps and over time."""
    run = run_with_losses({"none": [[4.0, 2.0, 1.0], [6.0, 4.0, 1.0], [float("nan")]]})
    by_steps, by_time = painted(paint_learning, learned(run), "training loss").axes
    band = by_steps.collections[0].get_paths()[0].vertices[:, 1]
    assert [(1.0, 5.0), (2.0, 3.0), (3.0, 1.0)] == points_of(by_steps, "default buckets")
    times = [x for x, _ in points_of(by_time, "default buckets")]
    assert pytest.approx([0.02, 0.04, 0.06]) == times
    assert (1.0, 6.0) == (band.min(), band.max())


def test_many_steps_are_averaged() -> None:
    """Average many steps in windows."""
    losses = [float(step) for step in range(1, 1201)]
    (one,) = learned(run_with_losses({"none": [losses]}))
    assert (60, 20.0, 1200.0) == (len(one.steps), one.steps[0], one.steps[-1])
    assert pytest.approx(np.mean(losses[:20])) == one.mean[0]


def test_one_bucket_size_stands_for_each_hook() -> None:
    """Draw the default, each hook's fastest setting, and the recommended one."""
    steps = {
        ("none", "default"): 20.0,
        ("none", "25"): 18.0,
        ("fp16", "5"): 12.0,
        ("fp16", "25"): 10.0,
    }
    records = [
        record
        for (hook, cap), step_ms in steps.items()
        for record in launches_of(step_ms, make_training_case(hook, cap), losses=[2.0, 1.0])
    ]
    chosen = recommendation_of({"bucket_cap_mb": "25"})
    plain, other = (
        [one.name for one in learned(training_run_of(records, recommendation=recommendation))]
        for recommendation in (None, chosen)
    )
    assert ["default buckets", "fp16 with 25 MiB buckets"] == plain
    assert "25 MiB buckets" in other


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
    assert [True, False, False] == ["2.00 [2.00, 2.00]" in caption for caption in captions]
    assert "11.5 with default buckets" in captions[0]
    assert "9.50 with fp16" in captions[0]


def test_fresh_launches_stand_where_there_are_any() -> None:
    """Draw all settings of the confirmation instead of the sweep."""
    settings = {("none", "default"): 3.0, ("none", "25"): 2.9, ("fp16", "25"): 2.0}
    records = []
    for (hook, cap), loss in settings.items():
        fresh = make_training_case(hook, cap, phase="confirm")
        records += launches_of(20.0, make_training_case(hook, cap), losses=[9 * loss])
        records += launches_of(20.0, fresh, losses=[loss])
    curves = learned(training_run_of(records))
    assert [3.0, 2.9, 2.0] == [one.mean[0] for one in curves]


def test_equal_time_is_when_the_first_is_through() -> None:
    """Compare settings when the fastest ends."""
    falling = [float(value) for value in range(100, 0, -1)]
    losses = {"none": [falling] * 6, "fp16": [falling] * 6}
    run = run_with_losses(losses, {"none": 20.0, "fp16": 10.0})
    caption = learning_figures([run])[0].caption
    for words in ("After 1 s", "53.0 with default buckets", "5.50 with fp16", "47.5 [47.5, 47.5]"):
        assert words in caption


def test_metrics_have_a_figure_with_their_target() -> None:
    """Draw evaluated metrics and the target."""
    metrics = [(10, 0.5), (20, 0.75)]
    records = launches_of(20.0, metrics=metrics, metric_name="accuracy", target=0.7)
    (group,) = groups([training_run_of(records)])
    measured = learned_of(group.trials[0], metric_of)
    axes = painted(paint_learning, measured, "accuracy", 0.7).axes[0]
    assert [(10.0, 0.5), (20.0, 0.75)] == points_of(axes, "default buckets")
    (drawing,) = learning_figures([training_run_of(records)])
    assert {"accuracy", "target"} <= set(texts_of(drawing.svg))


@pytest.mark.parametrize(("last", "scale"), [(0.001, "log"), (1.0, "linear"), (-1.0, "linear")])
def test_losses_that_fall_far_are_logarithmic(last: float, scale: str) -> None:
    """Use a logarithmic axis for widely falling positive losses."""
    curves = learned(run_with_losses({"none": [[2.0, last]]}))
    assert scale == painted(paint_learning, curves, "training loss").axes[0].get_yscale()


def test_no_losses_no_figure() -> None:
    """Draw nothing without finite losses."""
    assert [] == learning_figures([training_run_of(launches_of(20.0))])
    assert [] == learning_figures([run_with_losses({"none": [[float("nan")] * 3]})])
