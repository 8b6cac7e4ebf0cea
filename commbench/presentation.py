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
from commbench.report.table import render_overlap, render_table, warnings_for
from commbench.store import SAMPLES, SUMMARY, Run
from commbench.units import format_duration


def print_run(run_: Run, style: str, console: Console) -> None:
    """Rows in the style asked for; with the table also doubts, and where the time went."""
    if style != "table":
        sys.stdout.write(render(run_.rows, style))
        return
    console.print(render_table(run_.rows, width=console.width))
    if run_.overlaps:
        console.print(render_overlap(run_.overlaps))
    for warning in warnings_for(run_.rows, run_.info):
        console.print(f"! {warning}", markup=False)
    for advice in _advice(run_.info):
        console.print(f"- {advice}", markup=False)
    _print_time(run_, console)
    file = SUMMARY if (run_.path / SUMMARY).exists() else SAMPLES  # a run that was killed has no summary
    console.print(f"Results: {run_.path / file}", markup=False, soft_wrap=True)


def print_unfinished(run_: Run, console: Console) -> None:
    """Say why a run is not complete and how to go on; nothing where it is."""
    status = run_.info.get("status", "complete")
    if status == "complete":
        return
    why = run_.info.get("reason") or ("it is running, or was killed" if status == "running" else status)
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
    return list(dict.fromkeys(str(advice) for advices in per_host for advice in advices))


def _print_time(run_: Run, console: Console) -> None:
    launches = run_.info.get("launches") or []
    total = sum(launch["seconds"] for launch in launches)
    if not total:
        return
    hung = any(launch.get("status") == "hung" for launch in launches)
    parts = {
        "starting ranks": sum(launch["startup_s"] for launch in launches),
        "measuring": sum(launch["measuring_s"] for launch in launches),
        f"buffers, verification{', waiting for the hung rank' if hung else ''} and collecting samples": sum(
            launch["other_s"] for launch in launches
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
