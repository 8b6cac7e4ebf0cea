"""Tests of the chart of a live tuning."""

import dataclasses
import itertools
from pathlib import Path

import pytest
from fields import fields_of
from live_builders import OWN, STEPS_MS, make_blocks, make_live_run, open_run, with_cap

from commbench.ddp.plan.cases import CONFIRM
from commbench.report.figures.charts import Chart
from commbench.report.figures.live import live_charts
from commbench.results import Run, load_run


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return a complete live tuning of two launches, of which the last is drawn."""
    out = tmp_path_factory.mktemp("runs") / "mine"
    make_live_run(out, launches=2)
    return load_run(out)


def chart_of(run: Run) -> Chart:
    """Return the chart of a live tuning."""
    (chart,) = live_charts([run])
    return chart


def test_spans_follow_the_blocks_of_the_last_launch(tuned):
    """Draw each block at its time, with its median; mark the first of the confirmation."""
    chart = chart_of(tuned)
    spans = sorted(span for row in chart.panels[0].series for span in row.spans)
    assert all(one.end <= other.begin for one, other in itertools.pairwise(spans))
    last = [record for record in tuned.training_records if record.launch == 1]
    assert {begin for record in last for begin in record.block_at} == set(fields_of(spans, "begin"))
    medians = chart.panels[1].series[0].points
    assert len(chart.panels[0].series[0].spans) == len(medians)
    assert pytest.approx(STEPS_MS["default"], rel=0.1) == next(iter(medians.values())).value
    fresh = [record.block_at[0] for record in last if record.case.phase == CONFIRM]
    assert {"confirmation": fresh[0]} == chart.moments


def test_the_script_s_own_setting_comes_first(tuned, tmp_path):
    """List the script's own setting first, then the fastest, in rows and steps."""
    own = with_cap("25")
    run = open_run(tmp_path / "mine", own=own)
    run.append(make_blocks(own, [100.0, 101.0]))
    run.append(make_blocks(OWN, [80.0, 81.0], first=10))
    run.conclude("steps")
    run.close()
    run.wait()
    chart = chart_of(load_run(tmp_path / "mine"))
    assert ["25 MiB buckets", "default buckets"] == chart.names
    assert not chart.moments
    rows, steps, _ = chart_of(tuned).panels
    names = fields_of(rows.series, "name")
    assert ["default buckets", "5 MiB buckets"] == names[:2]
    assert "100 MiB buckets" == names[-1]
    assert names == fields_of(steps.series, "name")


def test_the_loss_is_drawn_below_if_it_was_recorded(tuned):
    """Draw the losses of the last launch, each in a window of steps."""
    (losses,) = chart_of(tuned).panels[2].series
    steps = [loss.step for loss in tuned.losses if loss.launch == 1]
    assert {max(steps)} <= set(losses.points) <= set(steps)
    assert 2 == len(chart_of(dataclasses.replace(tuned, path=Path("/nowhere"))).panels)


def test_other_runs_have_no_such_figures(tuned):
    """Draw nothing for other trainings or without blocks."""
    info = {**tuned.info, "plan": {**tuned.info["plan"], "live": False}}
    for changes in ({"info": info}, {"training_records": ()}):
        assert [] == list(live_charts([dataclasses.replace(tuned, **changes)]))
