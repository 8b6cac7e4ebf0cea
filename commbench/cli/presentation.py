"""The output of commands about a run: rows, warnings, advice, time shares."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from commbench.analysis.env import variable_findings
from commbench.analysis.prediction.fits import LEAST_SIZES
from commbench.cli.terminal import make_console
from commbench.errors import check_choice
from commbench.findings import Finding
from commbench.report.advice import advise_run
from commbench.report.answer import (
    answer_settings,
    answer_times,
    answer_verdict,
    answer_warnings,
)
from commbench.report.collectives import (
    collective_tables,
    group_sentences,
    growth_tables,
    overlap_tables,
)
from commbench.report.env import env_tables
from commbench.report.findings import (
    model_error,
    origins,
    precision,
    section_warnings,
    setting,
    soak,
    stragglers,
    time_spent,
    unfinished,
    watched,
)
from commbench.report.matrix import render_matrices
from commbench.report.model import model_tables
from commbench.report.text_formats import STYLES, render
from commbench.report.training import training_tables, tuning_cost, watched_tables
from commbench.results import Run
from commbench.results.tables import table_csv
from commbench.results.verdict import paste_lines


def print_run(run_: Run, style: str, console: Console, *, hint: bool = False) -> None:
    """Print rows in the given style; with tables also warnings, time shares and advice.

    ``hint``: also print the command that draws a page.
    """
    if style != "table":
        sys.stdout.write(_text(run_, style))
        return
    parts = []
    if run_.records or not run_.training_records:
        parts += _collectives(run_)
    if run_.training_records:
        parts += _training(run_)
    parts += map(str, variable_findings(run_.info))
    parts += [f"- {advice.in_full}" for advice in advise_run(run_.info)]
    parts += map(str, [*time_spent(run_), *origins(run_)])
    for part in parts:
        console.print(part)
    command = shlex.join(["commbench", "report", str(run_.path)])
    page_hint = f"; `{command}` draws a page of them" if hint else ""
    console.print(f"Results: {run_.path}{page_hint}", soft_wrap=True)
    for part in _conclusion(run_):
        console.print(part)


def print_answer(run_: Run, console: Console, page: Path | None) -> None:
    """Print the first answer of a run: times, compared settings, warnings, verdict, where the rest
    is.
    """
    parts = [*answer_times(run_, console.width), *answer_settings(run_)]
    if not parts:
        parts = [Text(str(Finding("run_empty")))]
    for part in parts:
        console.print(part)
    lines = [f"! {warning.in_full}" for warning in answer_warnings(run_)]
    lines += answer_verdict(run_)
    if lines:
        console.print("", *lines, sep="\n", soft_wrap=True)
    command = shlex.join(["commbench", "report", str(run_.path)])
    where = f"Results: {run_.path} (tables and a page of figures: {command})"
    if page is not None:
        where = f"Results: {page} (tables: {command})"
    console.print(f"\n{where}", soft_wrap=True)


def _conclusion(run_: Run) -> list[str]:
    """Return the recommendation, what to paste and the cost, or why there is none yet."""
    lines = list(_lines(setting(run_)))
    if run_.decision:
        lines = ["", *lines, *paste_lines(run_.decision), *map(str, tuning_cost(run_))]
    return lines


def _text(run_: Run, style: str) -> str:
    """Return one table of a run as text: its collectives, else as CSV its training.

    A message on stderr says where rows of training are that the table leaves out.
    """
    has_collectives = run_.records or not run_.training_records
    if style == "csv" and not has_collectives:
        return table_csv(run_.ddp)
    if run_.training_records:
        message = f"The rows of training are not in this table; {run_.path / 'ddp.csv'} has them."
        make_console(sys.stderr).print(message, soft_wrap=True)
    if not has_collectives:
        return ""
    if style == "csv":
        return table_csv(run_.collectives)
    return render(run_.rows, style, means="as" in run_.info.get("plan", {}))


def _collectives(run_: Run) -> list[RenderableType]:
    runs = [run_]
    parts = [
        *collective_tables(runs),
        *growth_tables(runs),
        *overlap_tables(runs),
        *env_tables(runs),
        *render_matrices(run_),
    ]
    if not parts:
        parts = [str(Finding("run_empty"))]
    parts += map(str, [*group_sentences(run_), *precision(run_)])
    parts += _warnings(run_, "collectives", "pairs")
    parts += [each.in_full for each in [*stragglers(run_), *model_error(run_)]]
    return [*parts, *_lines(soak(run_))]


def _training(run_: Run) -> list[RenderableType]:
    runs = [run_]
    return [
        *training_tables(runs),
        *env_tables(runs, of_training=True),
        *watched_tables(runs),
        *_lines(watched(run_)),
        *_warnings(run_, "training"),
    ]


def _lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the sentences of findings and of their details, one by one."""
    for finding in findings:
        yield from map(str, [finding, *finding.details])


def _warnings(run_: Run, *sections: str) -> list[str]:
    return [f"! {warning.in_full}" for warning in section_warnings(run_, *sections)]


def print_model(run_: Run, console: Console) -> None:
    """Print the network model of a run, or why there is none."""
    tables = model_tables([run_])
    for table in tables:
        console.print(table)
    if not tables:
        console.print(str(Finding("model_none", numbers={"sizes": LEAST_SIZES})))


def print_unfinished(run_: Run, console: Console) -> None:
    """Print why a run is incomplete and how to resume it; nothing for a complete run."""
    for finding in unfinished(run_):
        console.print(str(finding), soft_wrap=True)


def check_style(style: str) -> None:
    """Raise `InputError` unless rows can be printed in ``style``."""
    check_choice("format", style, ("table", *STYLES, "csv"))
