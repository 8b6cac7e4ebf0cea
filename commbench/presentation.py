"""What commands print of a run: rows, doubts, advice, and where the time went."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commbench.advice import advise
from commbench.errors import InputError
from commbench.parameters import listed
from commbench.report.formats import STYLES, render
from commbench.report.matrix import conclude, render_matrices
from commbench.report.model import conclude_model
from commbench.report.scaling import render_growths
from commbench.report.table import render_overlap, render_table, warnings_for
from commbench.report.training import render_recommendation, render_training
from commbench.report.tuning import render_cost, render_predictions
from commbench.scaling import growths, whole_rows
from commbench.store import DDP, PAIRS, PREDICTIONS, SAMPLES, SUMMARY, Run
from commbench.tables import csv_text
from commbench.training.records import DDP_COLUMNS
from commbench.units import counted, format_duration


def print_run(run_: Run, style: str, console: Console) -> None:
    """Rows in the style asked for; with the table also doubts, where the time went, and last what to do."""
    if style != "table":
        sys.stdout.write("\n".join(_texts(run_, style)))
        return
    if run_.prediction_rows:  # what was timed of the network is an ingredient: a line is enough
        console.print(conclude_model(run_.model), markup=False)
    elif run_.records or not run_.training_records:
        _print_collectives(run_, console)
    if run_.training_records:
        for part in [*render_training(run_), *render_predictions(run_.prediction_rows)]:
            console.print(part)
    if run_.info.get("candidates"):
        _print_conclusion(run_, console)
    for advice in _advice(run_.info):
        console.print(f"- {advice}", markup=False)
    _print_time(run_, console)
    for line in _origins(run_.info):
        console.print(line, soft_wrap=True)
    console.print(f"Results: {', '.join(_results_files(run_))}", markup=False, soft_wrap=True)
    if not run_.info.get("candidates"):
        _print_conclusion(run_, console)


def _origins(info: Mapping[str, Any]) -> list[str]:
    """Which other tools measured an imported run."""
    files: dict[str, list[str]] = {}
    for output in info.get("imported") or ():
        files.setdefault(f"{output['tool']} {output['version'].removeprefix('OSU ')}".strip(), []).append(
            output["file"]
        )
    return [f"Measured by {tool}, imported from {', '.join(names)}." for tool, names in files.items()]


def _print_conclusion(run_: Run, console: Console) -> None:
    """What is recommended and what it cost; of a tuning nothing before its first look is complete."""
    found, planned = run_.recommendation, run_.info.get("first_look") or 0
    if not found:
        return
    if run_.info.get("status") == "partial" and found["launches"] < planned:
        console.print(f"No verdict yet: {found['launches']} of {counted(planned, 'fresh launch')} made.")
        return
    for part in render_recommendation(found):
        console.print(part)
    if run_.prediction_rows:
        console.print(render_cost(found, run_.info.get("launches") or ()))


def _texts(run_: Run, style: str) -> list[str]:
    """What there is of each kind, as text that ends in a newline."""
    collectives = [render(run_.rows, style)] if run_.records or not run_.training_records else []
    if not run_.training_records:
        return collectives
    if style == "csv":
        return [*collectives, csv_text(run_.training_rows, DDP_COLUMNS)]
    return [*collectives, "# training configurations have no place in this format; use --format table or csv\n"]


def _print_collectives(run_: Run, console: Console) -> None:
    ranks = sorted(run_.info.get("ranks") or [], key=lambda rank: rank["rank"])
    rows = whole_rows(run_.records, run_.info)
    studied = growths(run_.records, run_.info)
    if rows or not studied:
        console.print(render_table(rows, width=console.width, hosts=[rank["host"] for rank in ranks]))
    for part in render_growths(studied):
        console.print(part)
    if run_.overlaps:
        console.print(render_overlap(run_.overlaps))
    for part in render_matrices(run_.matrices, run_.findings):
        console.print(part)
    for warning in warnings_for(run_.rows, run_.info):
        console.print(f"! {warning}", markup=False)
    for sentence in (conclude(run_.findings), conclude_model(run_.model)):
        if sentence:
            console.print(sentence, markup=False)


def _results_files(run_: Run) -> list[str]:
    """The table to look at first, and that of pairs where it only sums them up; a run that was killed has none."""
    tables = [SUMMARY, DDP] if run_.records and not run_.prediction_rows else [DDP, SUMMARY]
    first = next((name for name in tables if (run_.path / name).exists()), SAMPLES)
    others = [name for name in (PAIRS, PREDICTIONS) if (run_.path / name).exists()]
    return [str(run_.path / name) for name in (first, *others)]


def print_unfinished(run_: Run, console: Console) -> None:
    """Say why a run is not complete and how to go on; nothing where it is."""
    status = run_.info.get("status", "complete")
    if status == "complete":
        return
    why = run_.info.get("reason") or ("it is running, or was killed" if status == "running" else status)
    why = why.rstrip(".")
    console.print(
        f"Not finished: {why}. Everything measured is kept; the same command with --out {run_.path} goes on from "
        "there.",
        markup=False,
        soft_wrap=True,
    )


def _advice(info: Mapping[str, Any]) -> list[str]:
    """What to do about the hosts of a run: each thing once, however many hosts share it."""
    environment = info.get("environment") or {}
    per_host = (
        advise(
            host,
            ranks=info.get("ranks_per_node"),
            mpi_init_s=info.get("mpi_init_s"),
            mpi_library=environment.get("mpi_library"),
            versions=environment.get("versions"),
            variables=environment.get("variables"),
        )
        for host in environment.get("hosts", [])
    )
    told: dict[str, str] = {}  # what was seen differs in its figures from host to host
    for advice in (advice for advices in per_host for advice in advices):
        told.setdefault(advice.advice, str(advice))
    return list(told.values())


def _print_time(run_: Run, console: Console) -> None:
    launches = run_.info.get("launches") or []
    total = sum(launch.get("seconds", 0.0) for launch in launches)
    if not total:
        return
    hung = any(launch.get("status") == "hung" for launch in launches)
    kinds = {"buffers, verification": run_.records, "building models": run_.training_records}
    other = [name for name, records in kinds.items() if records] + (["waiting for the hung rank"] if hung else [])
    parts = {
        "starting ranks": sum(launch.get("startup_s", 0.0) for launch in launches),
        "measuring": sum(launch.get("measuring_s", 0.0) for launch in launches),
        " and ".join([*([", ".join(other)] if other else []), "collecting samples"]): sum(
            launch.get("other_s", 0.0) for launch in launches
        ),
    }
    shares = ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in parts.items())
    console.print(f"Where {format_duration(total)} went: {shares}.", markup=False)


def check_style(style: str) -> None:
    """Raise `InputError` unless rows can be printed in ``style``."""
    if style not in ("table", *STYLES):
        raise InputError(f"Unknown format {style!r}; choose from table, {listed(STYLES)}.")


def facts_table(title: str, facts: dict[str, Any]) -> Table:
    """Facts by name, one a line; None is unknown."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text("unknown" if value is None else str(value)))  # no markup: [mpi] is no style
    return table
