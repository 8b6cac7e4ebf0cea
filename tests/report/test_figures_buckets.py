"""Tests of the chart of step time over bucket size."""

from typing import Any

import pytest
from drawings import recommendation_of, training_run_of
from training_builders import launches_of, make_training_case, make_training_record

from commbench.ddp.plan.records import TrainingRecord
from commbench.report.figures.buckets import bucket_charts
from commbench.report.figures.charts import Panel
from commbench.results import Run

STEPS = {
    ("none", "default"): 20.0,
    ("none", "1"): 24.0,
    ("none", "25"): 18.0,
    ("fp16", "25"): 10.0,
    ("none", "1+25"): 19.0,
}
BEST = {"hook": "fp16", "bucket_cap_mb": "25"}


def sweep() -> list[TrainingRecord]:
    """Return six launches of each setting with little noise."""
    records = []
    for (hook, cap), step_ms in STEPS.items():
        records += launches_of(step_ms, make_training_case(hook, cap))
    return records


def panel_of(run: Run) -> Panel:
    """Return the only panel of a run."""
    (chart,) = bucket_charts([run])
    (panel,) = chart.panels
    return panel


def test_lines_join_numbers_only() -> None:
    """Join numeric sizes by a line; the default and lists stand by themselves, before and after."""
    panel = panel_of(training_run_of(sweep()))
    steps: dict[bool, dict[str, float]] = {True: {}, False: {}}
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
def test_the_recommended_setting_is_ringed(
    changes: dict[str, Any], info: dict[str, Any], ringed: list[str]
) -> None:
    """Ring what is recommended, or the default, but nothing before the first look."""
    recommendation = recommendation_of(BEST, **changes)
    panel = panel_of(training_run_of(sweep(), recommendation=recommendation, **info))
    found = [one.ringed for one in panel.series if one.ringed is not None]
    assert ringed == [panel.places[x] for x in found]


def test_failures_are_crosses() -> None:
    """Keep failed settings apart, and name the fastest of the others."""
    case = make_training_case(cap="100")
    failed = make_training_record(case, status="failed", reason="Out of memory.")
    (chart,) = bucket_charts([training_run_of([*sweep(), failed])])
    assert [3.0] == [x for series in chart.panels[0].series for x in series.failed]
    assert "fp16 at 25" in chart.caption


def test_a_single_setting_is_no_curve() -> None:
    """Draw nothing for one setting or none."""
    assert [] == bucket_charts([training_run_of(launches_of(20.0))])
    assert [] == bucket_charts([training_run_of([])])


def test_workloads_have_figures_of_their_own() -> None:
    """Draw a figure per workload, with the series of every run."""
    records = []
    for workload in ("mlp", "<b>$other$"):
        for cap in ("default", "25"):
            records += launches_of(10.0, make_training_case(cap=cap, workload=workload))
    charts = bucket_charts([training_run_of(records, name) for name in ("old", "new")])
    assert 2 == len({chart.name for chart in charts})
    assert [["old: none", "new: none"]] * 2 == [chart.names for chart in charts]
