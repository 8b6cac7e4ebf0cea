"""The time line of a soak: medians, longest interruptions, the slowest rank, and events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from commbench.analysis.soak import soak_results
from commbench.analysis.soak.rows import DriftRow, EventRow, TimelineRow
from commbench.report.columns import prefixes
from commbench.report.figures.charts import MICROSECONDS, Chart, Panel, Series, Shade
from commbench.report.figures.drawing import BAD, SERIES, slug
from commbench.results import Run
from commbench.results.tables import rows_by
from commbench.words import Estimate

#: The most cases of a run that are drawn: those with the largest drift.
_MOST_CASES = 6
_READING = (
    "Above: the median of each sample, and its longest wait for a repetition to end. Shaded are"
    " events: red of the whole system or a failed launch, orange of ranks for which the others"
    " waited. Below: the rank that was the slowest most often. Shown are the"
    f" {_MOST_CASES} cases with the largest change; all are in timeline.csv."
)


def soak_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    """Yield a time line for each case of each soak."""
    for run, prefix in prefixes(runs):
        soak = soak_results(run)
        if not soak:
            continue
        visits = rows_by(soak.timeline, attrgetter("case"))
        shades = [_shade(event) for event in soak.events]
        for drift in sorted(soak.drifts, key=_drift_size, reverse=True)[:_MOST_CASES]:
            yield Chart(
                name=slug("soak", prefix, drift.case),
                section="soak",
                title=f"Time line: {prefix}{drift.case}",
                reading=_READING,
                panels=_panels(visits[drift.case]),
                shades=shades,
            )


def _drift_size(drift: DriftRow) -> float:
    return abs(drift.change_percent or 0.0)


def _panels(rows: Sequence[TimelineRow]) -> list[Panel]:
    medians = {}
    longest = {}
    slowest = {}
    for row in rows:
        minute = _minutes(row.elapsed_s)
        medians[minute] = Estimate(row.median_us or 0.0)
        longest[minute] = Estimate(1e3 * (row.longest_ms or 0.0))
        slowest[minute] = Estimate(row.slowest_rank or 0)
    times = [
        Series(name="median", points=medians, is_joined=False),
        Series(name="longest", points=longest, is_joined=False),
    ]
    ranks = [Series(name="slowest rank", points=slowest, is_joined=False)]
    label = "minutes since the first sample"
    return [
        Panel(series=times, quantity="time", unit=MICROSECONDS, x="number", x_label=label),
        Panel(
            series=ranks,
            quantity="rank",
            includes=(-0.5,),
            x="number",
            x_label=label,
            curves_height_in=0.8,
        ),
    ]


def _shade(event: EventRow) -> Shade:
    is_of_ranks = event.kind == "spike" and bool(event.ranks)
    begin = _minutes(event.elapsed_s)
    end = begin + _minutes(event.duration_s)
    return Shade(begin, end, SERIES[1] if is_of_ranks else BAD)


def _minutes(seconds: float | None) -> float:
    return (seconds or 0.0) / 60
