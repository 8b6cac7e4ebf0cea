"""Tests of the command that draws pages: where they go, what else is printed, and what is
refused.
"""

from pathlib import Path

import pytest
from builders import MIB, STEADY, make_case, make_launches
from pages import write_run

from commbench.cli import conduct as conducting
from commbench.cli.terminal import make_console
from commbench.errors import InputError
from commbench.results import load_run

TWO_SIZES = [
    record
    for size in (1024, MIB)
    for record in make_launches(STEADY, make_case(message_bytes=size))
]


@pytest.fixture
def two_runs(commbench):
    """Return the command in a directory with the runs ``monday`` and ``friday``."""
    for name in ("monday", "friday"):
        write_run(commbench.home / name, TWO_SIZES)
    return commbench


def test_report_prints_the_table_and_last_where_the_page_is(two_runs):
    """Write the page into the run, print the table and last the page's path."""
    outcome = two_runs("report monday")
    assert 0 == outcome.code
    assert "busbw" in outcome.out
    assert "Page: monday/report.html" == outcome.out.splitlines()[-1]
    assert (two_runs.home / "monday" / "report.html").is_file()
    assert list((two_runs.home / "monday" / "figures").glob("*.png"))


def test_report_of_one_run_goes_where_out_says(two_runs):
    """Write the page to --out, and nothing into the run's directory."""
    before = two_runs.files()
    assert 0 == two_runs("report monday --out pages/mine").code
    new = two_runs.files().keys() - before.keys()
    assert "pages/mine/report.html" in new
    assert all(name.startswith("pages") for name in new)


def test_several_runs_are_one_page_among_the_results(two_runs):
    """Write one page of several runs into a new directory, without a table."""
    outcome = two_runs("report monday friday")
    assert 0 == outcome.code
    page = Path(outcome.out.removeprefix("Page: ").strip())
    assert "results" == page.parts[0]
    assert "monday" in page.read_text(encoding="utf-8")
    assert "busbw" not in outcome.out


@pytest.mark.parametrize("style", ["csv", "nccl-tests", "osu"])
def test_other_formats_draw_no_page(two_runs, style):
    """Print rows and write nothing."""
    before = two_runs.files()
    assert 0 == two_runs(f"report monday --format {style}").code
    assert before == two_runs.files()


@pytest.mark.parametrize("error", [InputError("The disk is full."), ValueError("odd data")])
def test_page_that_fails_costs_bench_nothing(
    two_runs,
    monkeypatch,
    capsys,
    error,
):
    """Report a failed page in one sentence instead of raising."""

    def fail(*_: object) -> Path:
        raise error

    monkeypatch.setattr(conducting, "write_page", fail)
    conducting._draw_page(load_run(two_runs.home / "monday"), make_console())
    output = capsys.readouterr().out
    assert 1 == output.count("\n")
    assert str(error) in output


def test_page_of_a_run_that_was_moved(two_runs):
    """Title the page of a renamed run by its new name."""
    (two_runs.home / "monday").rename(two_runs.home / "tuesday")
    assert 0 == two_runs("report tuesday").code
    page = (two_runs.home / "tuesday" / "report.html").read_text(encoding="utf-8")
    assert "<h1>tuesday</h1>" in page


def test_the_facts_of_this_machine_are_tables(commbench):
    """Print the facts of the host, and versions."""
    done = commbench("env --no-mpi")
    assert (0, "") == (done.code, done.err)
    assert all(words in done.out for words in ("The host", "cpu model", "Versions", "python"))
