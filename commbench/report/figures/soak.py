"""The time line of a soak: medians, longest interruptions, the slowest rank, and events over
wall-clock time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from commbench.analysis.runs import soak_results
from commbench.analysis.soak import Soak
from commbench.analysis.soak.rows import DriftRow, EventRow, TimelineRow
from commbench.report.figures.drawing import BAD, MUTED, SERIES, Drawing, log_axis, slug
from commbench.report.figures.words import prefixes, sentences
from commbench.results import Run
from commbench.results.tables import rows_by
from commbench.units import counted, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The most cases of a run that are drawn: those with the largest drift.
_MOST_CASES = 6
_HEIGHT_IN = 4.0
#: Colours of events by whose they are.
_SYSTEM, _RANK = BAD, SERIES[1]
_OPACITY = 0.35


def soak_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return a time line for each case of each soak."""
    drawings = []
    for run, prefix in zip(runs, prefixes(runs), strict=True):
        if soak := soak_results(run):
            cases = rows_by(soak.timeline, lambda row: row.case)
            chosen = sorted(soak.drifts, key=_drift_size, reverse=True)[:_MOST_CASES]
            left_out = len(soak.drifts) - len(chosen)
            drawings += [
                _drawing(soak, cases[drift.case], drift, prefix, left_out=left_out)
                for drift in chosen
            ]
    return drawings


def _drift_size(drift: DriftRow) -> float:
    return abs(drift.change_percent or 0.0)


def _drawing(
    soak: Soak, rows: Sequence[TimelineRow], drift: DriftRow, prefix: str, *, left_out: int
) -> Drawing:
    change = drift.change_percent
    trend = (
        ""
        if change is None
        else f"From the first launch to the last the time changed by {change:+.1f} %."
    )
    return Drawing(
        paint=lambda figure: paint_timeline(figure, rows, soak.events),
        name=slug("soak", prefix, drift.case),
        section="soak",
        title=f"Time line: {prefix}{drift.case}",
        caption=sentences(
            "Above: each dot is the median of a visit; grey dots are the longest wait for a"
            " repetition to end. Shaded are events: red of the whole system or a failed launch,"
            " orange of ranks for which the others waited.",
            f"Below: the rank that was the slowest most often. {counted(len(soak.events), 'event')}"
            f" in {format_duration(soak.seconds)}.",
            trend,
            (
                f"Shown are the cases with the largest change; {left_out} others are in"
                " timeline.csv."
                if left_out
                else ""
            ),
        ),
        alt=(
            f"Times of {drift.case} over wall-clock time in {counted(len(rows), 'visit')}, with"
            " events."
        ),
        height_in=_HEIGHT_IN,
    )


def paint_timeline(figure: Figure, rows: Sequence[TimelineRow], events: Sequence[EventRow]) -> None:
    """Draw times above and the slowest rank below, over the time of day in UTC."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import MaxNLocator

    times, ranks = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    moments = [_moment(row.time) for row in rows]
    longest = [1e3 * (row.longest_ms or 0.0) for row in rows]
    times.plot(moments, longest, ".", color=MUTED, markersize=3, label="longest")
    times.plot(
        moments,
        [row.median_us or 0.0 for row in rows],
        "o",
        color=SERIES[0],
        markersize=3,
        label="median",
    )
    times.set_ylabel("time")
    log_axis(times.yaxis, unit="us")
    ranks.plot(
        moments,
        [row.slowest_rank or 0 for row in rows],
        "s",
        color=SERIES[0],
        markersize=2.5,
        label="slowest",
    )
    ranks.set_ylabel("slowest\nrank")
    ranks.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    locator = AutoDateLocator(maxticks=6)
    ranks.xaxis.set_major_locator(locator)
    ranks.xaxis.set_major_formatter(
        ConciseDateFormatter(locator, tz=timezone.utc, show_offset=False)
    )
    ranks.set_xlabel("time of day, UTC")
    for event in events:
        for axes in (times, ranks):
            _shade(axes, event)


def _shade(axes: Axes, event: EventRow) -> None:
    """Shade an event; its edge shows one that is too short to be seen."""
    colours: Mapping[bool, str] = {True: _RANK, False: _SYSTEM}
    colour = colours[event.kind == "spike" and bool(event.ranks)]
    begun = _moment(event.time)
    ended = datetime.fromtimestamp(begun.timestamp() + (event.duration_s or 0.0), tz=timezone.utc)
    axes.axvspan(begun, ended, color=colour, alpha=_OPACITY, linewidth=1, gid="event")  # type: ignore[arg-type] # dates are numbers to matplotlib


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
