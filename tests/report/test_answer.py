"""Tests of the first answer of a run."""

from dataclasses import replace
from pathlib import Path

import pytest
from fields import fields_of
from kept import load_kept
from places import RESULTS

from commbench.cli.presentation import print_answer
from commbench.cli.terminal import make_console
from commbench.findings import Finding
from commbench.report.answer import answer_verdict, answer_warnings
from commbench.results.verdict import MOST_LINES

BENCH = RESULTS / "bench_xeon2core_20261128"


def printed(path: Path, capsys: pytest.CaptureFixture[str], width: int = 100) -> list[str]:
    """Return the lines of the first answer of a kept run."""
    print_answer(load_kept(path.name), make_console(width=width), None)
    return capsys.readouterr().out.splitlines()


def test_a_bench_fits_a_screen(capsys):
    """Answer in about 45 lines: a time of each size and library, and the best bandwidth of each."""
    lines = printed(BENCH, capsys)
    assert len(lines) <= 45
    run = load_kept(BENCH.name)
    sizes = set(fields_of(run.rows, "message_bytes"))
    head = next(number for number, line in enumerate(lines) if "8 B" in line)
    table = lines[head : head + len(sizes) + 1]
    assert {len(sizes) + 1} == {len(table)}
    assert [6] * len(sizes) == [line.count(" us") + line.count(" ms") for line in table[:-1]]
    best = max(row.busbw_GBps or 0.0 for row in run.rows if row.backend == "mpi")
    assert f"{best:.3g} GB/s" in table[-1]


def test_operations_that_do_not_fit_follow_below(capsys):
    """Keep every time on a narrow console."""
    wide, narrow = printed(BENCH, capsys), printed(BENCH, capsys, width=70)
    times = [sum(line.count(" us") + line.count(" ms") for line in each) for each in (wide, narrow)]
    assert times[0] == times[1]
    assert max(len(line.rstrip()) for line in narrow if " us" in line) <= 70


@pytest.mark.parametrize(
    "file", sorted(RESULTS.glob("*/recommendation.json")), ids=lambda file: file.parent.name
)
def test_a_verdict_is_short(file):
    """Conclude in at most four lines, with what to paste below only for a change."""
    run = load_kept(file.parent.name)
    lines = answer_verdict(run)
    told = [line for line in lines if not line.startswith("    ") and not line.endswith(":")]
    assert 1 <= len(told) <= MOST_LINES
    is_change = run.recommendation is not None and run.recommendation.verdict == "change"
    assert is_change == (len(told) < len(lines))
    assert len(answer_warnings(run)) <= 2


def test_few_launches_have_no_interval(capsys):
    """Show a speedup of one launch without an interval."""
    lines = printed(RESULTS / "train_hooks_1gbit_xeon2core_20261128", capsys)
    [line] = [line for line in lines if line.startswith("fp16")]
    assert "[" not in line


def test_columns_of_many_environments_are_readable(capsys):
    """Print each environment of an operation in full, in further tables if they do not fit."""
    path = RESULTS / "env_links_200mbit_xeon2core_20261128"
    text = "\n".join(printed(path, capsys, width=80))
    assert all(row.env in text for row in load_kept(path.name).rows)


def test_an_empty_run_says_so(capsys):
    """State that nothing has been measured, in place of tables and a verdict."""
    empty = replace(load_kept(BENCH.name), records=(), training_records=(), recommendation=None)
    print_answer(empty, make_console(), None)
    said, _, where = capsys.readouterr().out.splitlines()
    assert str(Finding("run_empty")) == said
    assert str(BENCH) in where
