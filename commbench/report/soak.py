"""Events and drift of a soak as sentences and tables, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

from commbench.analysis.soak import soak_results
from commbench.analysis.soak.rows import DriftRow, EventRow
from commbench.report.columns import (
    Column,
    Table,
    declared,
    ends,
    make_table,
    number,
)
from commbench.results import Run
from commbench.results.files import DRIFT, EVENTS
from commbench.units import clock_time, format_seconds

_EVENTS: list[Column[EventRow]] = [
    Column("began, UTC", "time", text_of=clock_time),
    number("lasted", "duration_s", text_of=format_seconds),
    Column("what", "kind"),
    Column("who", "who", about="ranks for which the others waited; system-wide: none stands out"),
    Column("case", "case"),
    Column("evidence", "reason", can_wrap=True),
]
_DRIFT: list[Column[DriftRow]] = [
    Column("case", "case"),
    *declared(DriftRow, "launches"),
    *declared(DriftRow, "change_percent", text_of="{:+.1f}".format),
    ends(
        attrgetter("change_percent_ci_low", "change_percent_ci_high"),
        unit="%",
        about="of the change; 95 % for all cases together",
    ),
    *declared(DriftRow, "verdict"),
]


def soak_tables(runs: Iterable[Run]) -> Iterator[Table]:
    """Yield the tables of events and of drift; empty without a soak."""
    events = []
    drifts = []
    for run in runs:
        if soak := soak_results(run):
            events += [(run.name, row) for row in soak.events]
            drifts += [(run.name, row) for row in soak.drifts]
    if events:
        yield make_table("Events", events, _EVENTS, rest_in=EVENTS)
    if drifts:
        yield make_table("Drift", drifts, _DRIFT, rest_in=DRIFT)
