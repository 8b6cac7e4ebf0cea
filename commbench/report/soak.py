"""Events and drift of a soak as sentences and tables, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterable

from commbench.analysis.runs import soak_results
from commbench.analysis.soak.rows import DriftRow, EventRow
from commbench.analysis.soak.sentences import cause_of, clock_time, duration_text, soak_sentences
from commbench.report.columns import Cell, Column, Table, ends, make_tables, number, verdict_cell
from commbench.results import Run
from commbench.results.files import DRIFT, EVENTS

_EVENTS: list[Column[EventRow]] = [
    Column("began, UTC", lambda row: clock_time(row.time)),
    number(
        "lasted",
        lambda row: Cell(duration_text(row.duration_s or 0.0), value=row.duration_s),
        EventRow,
    ),
    Column("what", lambda row: Cell(row.kind, tone="warning" if row.kind == "spike" else "bad")),
    Column(
        "who", cause_of, about="ranks for which the others waited; system-wide: none stands out"
    ),
    Column("case", "case"),
    Column("evidence", "reason", can_wrap=True),
]
_DRIFT: list[Column[DriftRow]] = [
    Column("case", "case"),
    number("launches", "launches", DriftRow),
    number("change", "change_percent", DriftRow, unit="%", text_of="{:+.1f}".format),
    ends(
        lambda row: (row.change_percent_ci_low, row.change_percent_ci_high),
        unit="%",
        about="of the change; 95 % for all cases together",
    ),
    Column("verdict", lambda row: verdict_cell(row.verdict), DriftRow),
]


def describe_soak(run: Run) -> list[str]:
    """Return the conclusion of a soak in sentences; empty for another run."""
    soak = soak_results(run)
    return soak_sentences(soak) if soak else []


def soak_tables(runs: Iterable[Run]) -> list[Table]:
    """Return the tables of events and of drift; empty without a soak."""
    soaks = [(run, soak) for run in runs if (soak := soak_results(run))]
    results = {run.path: soak for run, soak in soaks}
    soaked = [run for run, _ in soaks]
    return [
        *make_tables(
            "Events", soaked, lambda run: results[run.path].events, _EVENTS, rest_in=EVENTS
        ),
        *make_tables("Drift", soaked, lambda run: results[run.path].drifts, _DRIFT, rest_in=DRIFT),
    ]
