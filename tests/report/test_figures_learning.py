"""Tests of the charts of learning."""

import pytest
from drawings import recommendation_of, training_run_of, values_of
from training_builders import launches_of, make_training_case, make_training_record

from commbench.report.figures.charts import Chart
from commbench.report.figures.learning import learning_charts, windows_of
from commbench.results import Run


def run_with_losses(
    losses: dict[str, list[list[float]]], step_ms: dict[str, float] | None = None
) -> Run:
    """Return a run with the losses of each launch by hook."""
    records = []
    for hook, launches in losses.items():
        own_ms = (step_ms or {}).get(hook, 20.0)
        for launch, values in enumerate(launches):
            case = make_training_case(hook)
            record = make_training_record(case, launch=launch, losses=values, step_ms=own_ms)
            records.append(record)
    return training_run_of(records)


def chart_of(run: Run) -> Chart:
    """Return the only chart of a run."""
    (chart,) = learning_charts([run])
    return chart


def test_curves_are_the_mean_over_launches_and_bands_the_range() -> None:
    """Draw mean and range over launches that have values, over steps and over time."""
    run = run_with_losses({"none": [[4.0, 2.0, 1.0], [6.0, 4.0, 1.0], [float("nan")]]})
    by_steps, by_time = chart_of(run).panels
    assert {"default buckets": {1.0: 5.0, 2.0: 3.0, 3.0: 1.0}} == values_of(by_steps)
    assert (4.0, 6.0) == by_steps.series[0].points[1.0].bounds
    assert [0.02, 0.04, 0.06] == [pytest.approx(x) for x in by_time.series[0].points]


def test_many_steps_are_averaged() -> None:
    """Average many steps in windows."""
    points = windows_of([{float(step): float(step) for step in range(1, 1201)}])
    assert (60, 20.0, 1200.0) == (len(points), min(points), max(points))
    assert 10.5 == points[20.0].value


def test_one_bucket_size_stands_for_each_hook() -> None:
    """Draw the default, each other hook's fastest setting, and the recommended one."""
    steps = {
        ("none", "default"): 20.0,
        ("none", "25"): 18.0,
        ("fp16", "5"): 12.0,
        ("fp16", "25"): 10.0,
    }
    records = []
    for (hook, cap), step_ms in steps.items():
        records += launches_of(step_ms, make_training_case(hook, cap), losses=[2.0, 1.0])
    chosen = recommendation_of({"bucket_cap_mb": "25"})
    shown = ["default buckets", "fp16 with 25 MiB buckets"]
    assert shown == chart_of(training_run_of(records)).names
    shown.insert(1, "25 MiB buckets")
    assert shown == chart_of(training_run_of(records, recommendation=chosen)).names


def test_fresh_launches_stand_where_there_are_any() -> None:
    """Draw all settings of the confirmation instead of the sweep."""
    settings = {("none", "default"): 3.0, ("none", "25"): 2.9, ("fp16", "25"): 2.0}
    records = []
    for (hook, cap), loss in settings.items():
        fresh = make_training_case(hook, cap, phase="confirm")
        records += launches_of(20.0, make_training_case(hook, cap), losses=[9 * loss])
        records += launches_of(20.0, fresh, losses=[loss])
    values = values_of(chart_of(training_run_of(records)).panels[0]).values()
    assert [{1.0: 3.0}, {1.0: 2.9}, {1.0: 2.0}] == list(values)


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
    captions = [chart_of(run_with_losses(losses)).caption for losses in (paired, few, noisy)]
    assert [True, False, False] == ["2.00 [2.00, 2.00]" in caption for caption in captions]
    assert "11.5 with default" in captions[0]
    assert "9.50 with fp16" in captions[0]


def test_equal_time_is_when_the_first_is_through() -> None:
    """Compare settings when the fastest ends."""
    falling = [float(value) for value in range(100, 0, -1)]
    losses = {"none": [falling] * 6, "fp16": [falling] * 6}
    caption = chart_of(run_with_losses(losses, {"none": 20.0, "fp16": 10.0})).caption
    for words in ("55.5 with default", "5.50 with fp16", "50.0 [50.0, 50.0]"):
        assert words in caption


def test_metrics_have_a_figure_with_their_target() -> None:
    """Draw evaluated metrics and the target."""
    metrics = [(10, 0.5), (20, 0.75)]
    records = launches_of(20.0, metrics=metrics, metric_name="accuracy", target=0.7)
    panel, _ = chart_of(training_run_of(records)).panels
    assert {"default buckets": {10.0: 0.5, 20.0: 0.75}} == values_of(panel)
    assert ("accuracy", [0.7]) == (panel.label, [limit.value for limit in panel.limits])


def test_no_losses_no_figure() -> None:
    """Draw nothing without finite losses."""
    assert [] == learning_charts([training_run_of(launches_of(20.0))])
    assert [] == learning_charts([run_with_losses({"none": [[float("nan")] * 3]})])
