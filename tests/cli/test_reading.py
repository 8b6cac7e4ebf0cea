"""Tests of the command that draws pages: where they go, what else is printed, and what is
refused.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import MIB, STEADY, make_case, make_launches
from pages import write_run

from commbench import cli
from commbench.cli import conduct as conducting
from commbench.cli.terminal import make_console
from commbench.errors import InputError
from commbench.results import load_run

HERE = Path(__file__).parents[1]
TWO_SIZES = [
    record
    for size in (1024, MIB)
    for record in make_launches(STEADY, make_case(message_bytes=size))
]


class Outcome:
    """Exit code and output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run ``commbench`` in this process, in a directory with the runs ``monday`` and ``friday``."""
    monkeypatch.chdir(tmp_path)
    for name in ("monday", "friday"):
        write_run(tmp_path / name, TWO_SIZES)

    def command(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["commbench", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return command


def test_report_prints_the_table_and_last_where_the_page_is(run: Any, tmp_path: Path) -> None:
    """Write the page into the run, print the table and last the page's path."""
    outcome = run("report", "monday")
    assert 0 == outcome.code
    assert "busbw" in outcome.out
    assert "Page: monday/report.html" == outcome.out.splitlines()[-1]
    assert (tmp_path / "monday" / "report.html").is_file()
    assert list((tmp_path / "monday" / "figures").glob("*.png"))


def test_report_of_one_run_goes_where_out_says(run: Any, tmp_path: Path) -> None:
    """Write the page to --out, and nothing into the run's directory."""
    assert 0 == run("report", "monday", "--out", "pages/mine").code
    assert (tmp_path / "pages" / "mine" / "report.html").is_file()
    assert {"run.json", "samples.jsonl"} == {path.name for path in (tmp_path / "monday").iterdir()}


def test_several_runs_are_one_page_among_the_results(run: Any) -> None:
    """Write one page of several runs into a new directory, without a table."""
    outcome = run("report", "monday", "friday")
    assert 0 == outcome.code
    page = Path(outcome.out.removeprefix("Page: ").strip())
    assert "results" == page.parts[0]
    assert "report" in page.parts[1]
    assert "monday" in page.read_text(encoding="utf-8")
    assert "busbw" not in outcome.out


@pytest.mark.parametrize("style", ["csv", "nccl-tests", "osu"])
def test_other_formats_draw_no_page(run: Any, tmp_path: Path, style: str) -> None:
    """Print rows and write nothing."""
    assert 0 == run("report", "monday", "--format", style).code
    assert not (tmp_path / "monday" / "report.html").exists()


def test_page_that_fails_costs_bench_nothing(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Report a failed page in one sentence instead of raising."""
    del run
    finished = load_run(tmp_path / "monday")

    def fail(*_: object) -> Path:
        raise error

    monkeypatch.setattr(conducting, "write_page", fail)
    for error in (InputError("The disk is full."), ValueError("odd data"), MemoryError()):
        conducting._draw_page(finished, make_console())
        output = capsys.readouterr().out
        assert 1 == output.count("\n")
        assert output.startswith(f"No page was drawn: {error or 'MemoryError'}")


def test_reading_commands_start_without_matplotlib_and_jinja() -> None:
    """Import the command line without matplotlib, jinja2 and torch."""
    code = (
        "import sys, commbench.cli; print([m for m in ('matplotlib', 'jinja2', 'torch') if m in"
        " sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert "[]" == done.stdout.strip()


def test_page_of_a_run_that_was_moved(run: Any, tmp_path: Path) -> None:
    """Title the page of a renamed run by its new name."""
    shutil.move(tmp_path / "monday", tmp_path / "tuesday")
    assert 0 == run("report", "tuesday").code
    assert "<h1>tuesday</h1>" in (tmp_path / "tuesday" / "report.html").read_text(encoding="utf-8")
