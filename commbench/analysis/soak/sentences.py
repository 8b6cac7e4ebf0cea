"""The conclusion of a soak in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.analysis.soak import Soak
from commbench.analysis.soak.rows import DriftRow, EventRow
from commbench.units import counted, format_duration

#: The most events that a sentence each is for.
MOST_NAMED = 10


def soak_sentences(soak: Soak) -> list[str]:
    """Return the conclusion of a soak: its extent, events with their times, and drift."""
    launches = len({row.launch for row in soak.timeline})
    extent = f"{counted(launches, 'launch')} and {counted(len(soak.timeline), 'visit')}"
    head = f"Soak of {format_duration(soak.seconds)}, {extent}: {_count(soak.events)}."
    more = len(soak.events) - MOST_NAMED
    return [
        head,
        *(event_sentence(event) for event in soak.events[:MOST_NAMED]),
        *([f"{more} more events are in events.csv."] if more > 0 else []),
        *_drift_sentences(soak.drifts),
    ]


def _count(events: Sequence[EventRow]) -> str:
    spikes = sum(event.kind == "spike" for event in events)
    failures = len(events) - spikes
    parts = [counted(spikes, "spike")] if spikes else []
    parts += [f"{counted(failures, 'launch')} that failed or hung"] if failures else []
    return " and ".join(parts) or "no spike, no failure"


def event_sentence(event: EventRow) -> str:
    """Return when an event began, how long it lasted, who caused it, and the evidence."""
    when = f"{clock_time(event.time)} UTC, {duration_text(event.duration_s or 0.0)}"
    if event.kind != "spike":
        return f"{when}: launch {(event.launch or 0) + 1} {event.kind}: {event.reason}."
    return f"{when}: {cause_of(event)} ({event.reason}), during {event.case}."


def cause_of(event: EventRow) -> str:
    """Return ``rank 2 on host n1``, or ``system-wide``."""
    if not event.ranks:
        return "system-wide"
    ranks = f"{'rank' if event.scope == 'rank' else 'ranks'} {event.ranks}"
    return f"{ranks} on host {event.host}" if event.host else ranks


def clock_time(time: str) -> str:
    """Return a time such as ``2026-11-25T04:31:07.123Z`` as ``2026-11-25 04:31:07.123``."""
    return time.replace("T", " ").removesuffix("Z")


def duration_text(seconds: float) -> str:
    """Return ``0.052 s``, ``10.2 s`` or ``1 min 05 s``."""
    return format_duration(seconds) if seconds >= 60 else f"{seconds:.3g} s"  # noqa: PLR2004 - a minute


def _drift_sentences(drifts: Sequence[DriftRow]) -> list[str]:
    drifting = [row for row in drifts if row.verdict in {"slower", "faster"}]
    named = [
        f"Drift: {row.case} became {abs(row.change_percent or 0.0):.1f} % {row.verdict} from the"
        f" first launch to the last (interval {row.change_percent_ci_low:+.1f} to"
        f" {row.change_percent_ci_high:+.1f} %)."
        for row in drifting
    ]
    same = sum(row.verdict == "same" for row in drifts)
    unclear = len(drifts) - len(drifting) - same
    rest = [f"{counted(same, 'case')} stayed within 2 %"] if same else []
    rest += (
        [f"{counted(unclear, 'case')}: too few launches, or too wide an interval, to tell"]
        if unclear
        else []
    )
    return [
        *named,
        *([f"Drift of {'the others' if named else 'cases'}: {'; '.join(rest)}."] if rest else []),
    ]
