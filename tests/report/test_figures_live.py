"""Tests of the figures and texts of a live tuning."""

import dataclasses
import itertools
from pathlib import Path

import pytest
from drawings import marked, painted
from live_builders import OWN, STEPS_MS, make_blocks, make_live_run, open_run, simulate, with_cap

from commbench.ddp.plan.cases import CONFIRM
from commbench.report.figures.live import (
    Course,
    course_of,
    live_figures,
    paint_loss,
    paint_timeline,
)
from commbench.results import Run, load_run


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a complete live tuning of one launch."""
    out = tmp_path_factory.mktemp("runs") / "mine"
    make_live_run(out)
    return load_run(out)


def course(run: Run) -> Course:
    """Return the drawn course of a live tuning."""
    drawn = course_of(run)
    assert drawn is not None
    return drawn


def test_spans_follow_the_blocks(tuned: Run) -> None:
    """Draw each block at its time, with its median."""
    spans = course(tuned).spans
    records, _ = simulate()
    assert sum(len(record.block_at) for record in tuned_records(tuned)) == len(spans)
    assert all(one.end <= other.begin for one, other in itertools.pairwise(spans))
    last = records[-1]
    assert (last.block_at[-1], last.block_at[-1] + last.block_steps) == (
        spans[-1].begin,
        spans[-1].end,
    )
    assert 0.9 * STEPS_MS["default"] < spans[0].step_ms < 1.1 * STEPS_MS["default"]


def tuned_records(run: Run) -> list[object]:
    """Return the last record of each setting and phase."""
    return list({record.case: record for record in run.training_records}.values())


def test_the_script_s_own_setting_comes_first(tuned: Run, tmp_path: Path) -> None:
    """List the script's own setting first, then the fastest."""
    own = with_cap("25")
    run = open_run(tmp_path / "mine", own=own)
    run.append(make_blocks(own, [100.0, 101.0]))
    run.append(make_blocks(OWN, [80.0, 81.0], first=10))
    run.conclude("steps")
    run.close()
    run.wait()
    loaded = load_run(tmp_path / "mine")
    assert ["25 MiB buckets", "default buckets"] == list(course(loaded).names)
    assert ["default buckets", "5 MiB buckets"] == list(course(tuned).names[:2])
    assert "100 MiB buckets" == course(tuned).names[-1]


def test_timeline_has_a_line_for_each_setting(tuned: Run) -> None:
    """Draw one span per block, and mark the start of the confirmation."""
    drawn = course(tuned)
    above, below = painted(paint_timeline, drawn).axes
    assert list(drawn.names) == [label.get_text() for label in above.get_yticklabels()]
    assert len(drawn.spans) == sum(len(bars.get_paths()) for bars in above.collections)
    medians = marked(below, "median")[::2]
    assert [(span.begin, span.step_ms) for span in drawn.spans] == medians
    confirming = [record for record in tuned.training_records if record.case.phase == CONFIRM]
    assert confirming[0].block_at[0] == drawn.begins_confirmation


def test_every_change_is_marked_below_the_loss(tuned: Run) -> None:
    """Mark every change of setting, and draw each loss."""
    drawn = course(tuned)
    (axes,) = painted(paint_loss, drawn).axes
    changes = []
    before = "default buckets"
    for span in drawn.spans:
        if span.name != before:
            changes.append(span.begin)
        before = span.name
    assert changes == [x for x, _ in marked(axes, "switch")[::2]]
    assert len(tuned.losses) == len(axes.get_lines()[0].get_xdata())


def test_the_last_of_several_launches_is_drawn(tmp_path: Path) -> None:
    """Draw the last launch, and name it."""
    make_live_run(tmp_path / "mine", launches=2)
    drawn = course(load_run(tmp_path / "mine"))
    assert (1, 2) == (drawn.launch, drawn.launches)
    assert {1} == {loss.launch for loss in drawn.losses}


def test_other_runs_have_no_such_figures(tuned: Run) -> None:
    """Draw nothing for other trainings or without blocks, and no loss without losses."""
    info = {**tuned.info, "plan": {**tuned.info["plan"], "live": False}}
    assert [] == live_figures([dataclasses.replace(tuned, info=info)])
    assert [] == live_figures([dataclasses.replace(tuned, training_records=())])
    (drawing,) = live_figures([dataclasses.replace(tuned, path=Path("/nowhere"))])
    assert "live" == drawing.name
