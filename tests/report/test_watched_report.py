"""The texts, the figures and the page of a training that was watched."""

import dataclasses
from pathlib import Path

import pytest
from live_builders import OWN, make_blocks, make_options, open_run
from pages import read
from terminals import line_with

from commbench.cli.presentation import print_run
from commbench.cli.terminal import make_console
from commbench.report.figures.live import live_charts
from commbench.report.findings import time_spent
from commbench.report.training import own_setting
from commbench.results import load_run


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Return a watched training of two ranks that has ended in order."""
    out = tmp_path_factory.mktemp("runs") / "mine"
    make_watched_run(out)
    return load_run(out)


def make_watched_run(out: Path, *, ending: str = "watched") -> None:
    """Write the directory of a watched training."""
    record = dataclasses.replace(
        make_blocks(OWN, [100.0] * 7),
        forward_ms=30.0,
        backward_ms=60.0,
        exposed_comm_ms=20.0,
        optimizer_ms=6.0,
        computing_ms=[[60.0, 80.0]] * 20,
    )
    run = open_run(out, options=make_options(out, mode="watch"))
    run.append(record)
    run._opened_s -= 9.0
    run.conclude(ending)
    run.close()
    run.wait()


def test_a_terminal_says_where_the_steps_go(watched, capsys):
    """Print the parts below the row; compare with nothing, and conclude nothing about settings."""
    print_run(watched, "table", make_console(width=200))
    text = capsys.readouterr().out
    assert ["20.0", "20.0"] == line_with(text, "exposed communication of gradients  ").split()[-2:]
    assert "commbench tune -- torchrun train.py" in text
    assert not list(own_setting(watched))
    assert watched.recommendation is None
    assert [("time_watched", 9.0)] == [
        (each.code, pytest.approx(each.numbers["seconds"], abs=1.0)) for each in time_spent(watched)
    ]


def test_the_page_has_the_parts_and_the_ranks(watched):
    """Lead with the exposed share.

    Show the parts and the ranks as tables, and no settings over time.
    """
    page = read(watched)
    assert not page.faults
    assert any(
        "20\N{NO-BREAK SPACE}% of a step is exposed communication of gradients." in text
        for text in page.texts
    )
    assert any(
        "A step takes 100\N{NO-BREAK SPACE}ms on average over 21 steps" in text
        for text in page.texts
    )
    parts = next(table for table in page.tables if table[0][0].startswith("part"))
    assert ["30.0", "40.0", "20.0", "6.00", "4.00"] == [line[1] for line in parts[1:]]
    ranks = next(table for table in page.tables if table[0][0].startswith("rank"))
    assert [["0", "60.0"], ["1", "80.0"]] == [[line[0], line[-1]] for line in ranks[1:]]
    assert not list(live_charts([watched]))


def test_a_training_that_ends_early_says_so(tmp_path):
    """Keep what was watched, and give the reason as of watching."""
    make_watched_run(tmp_path / "mine", ending="ended")
    info = load_run(tmp_path / "mine").info
    assert ("cut", "the training ended too early") == (
        info["status"],
        info["reason"],
    )
