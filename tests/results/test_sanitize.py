"""Tests of showing foreign text: no markup, no terminal commands, no spreadsheet formulas."""

import io

import pytest
from builders import make_case, make_launches, make_record
from fields import fields_of
from rich.table import Table
from rich.text import Text
from training_builders import run_of

from commbench.cli.terminal import make_console
from commbench.report.collectives import collective_tables
from commbench.report.findings import kinds_of, row_warnings

HOSTILE = "[red]x[/red] :smile: \x1b[31mred\x1b[0m \x9b2J \u202eabc"


def shown(*parts: object, terminal: bool = False) -> str:
    """Return what a console writes."""
    stream = io.StringIO()
    if terminal:
        stream.isatty = lambda: True  # what rich and we ask
    console = make_console(stream)
    for part in parts:
        console.print(part)
    return stream.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_markup_and_control_characters_are_shown(terminal):
    """Print names literally and control characters as escapes: plain, styled and in tables."""
    table = Table()
    table.add_column(HOSTILE, no_wrap=True)
    table.add_row(HOSTILE)
    text = shown(HOSTILE, Text(HOSTILE, style="bold"), table, terminal=terminal)
    assert 4 == text.count("[red]x[/red] :smile: ")
    assert 2 <= text.count(
        r"\x1b[31mred\x1b[0m \x9b2J \u202eabc"
    )  # a table may be too narrow for all of it
    assert "\x1b[31m" not in text
    assert "\x9b" not in text
    assert "\u202e" not in text


def test_rows_with_hostile_texts_are_shown_as_they_are():
    """Print a run's backends, reasons and hosts literally."""
    case = make_case(backend="[red]x[/red]")
    failed = make_record(
        make_case(backend="b", message_bytes=8),
        status="failed",
        reason="\x1b]0;title\x07 [b]no[/b]",
    )
    run = run_of([*make_launches([10.0] * 6, case), failed])
    warnings = fields_of(row_warnings(kinds_of(run), run.info), "in_full")
    text = shown(*collective_tables([run]), *warnings)
    assert "[red]x[/red]" in text
    assert "[b]no[/b]" in text
    assert r"\x1b]0;title" in text
    assert "\x1b" not in text
