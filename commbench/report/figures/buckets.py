"""Step time over bucket size: a line for each hook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from commbench.ddp.plan.cases import DEFAULT_CAP
from commbench.ddp.plan.records import TrainingRow
from commbench.report.figures.charts import Chart, Panel, Series
from commbench.report.figures.drawing import slug
from commbench.report.figures.words import Group, Trial, groups
from commbench.report.training import hook_label
from commbench.results import Run
from commbench.results.tables import rows_by
from commbench.words import Estimate

_READING = (
    "Median step of the slowest rank (lower is better) with 95 % intervals, which the frame may"
    " cut; DDP's default buckets stand by themselves. Crosses have no result, and the recommended"
    " setting is ringed."
)


def bucket_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    """Yield a chart for each workload; none if one hook with one bucket size was measured."""
    for group in groups(runs):
        panel = _panel(group)
        if sum(len(series.points) + len(series.failed) for series in panel.series) > 1:
            yield Chart(
                name=slug("buckets", group.key),
                section="training",
                title=f"Step over bucket size: {group.name}",
                reading=_READING,
                panels=[panel],
                moments={"": 0.5} if DEFAULT_CAP in panel.places.values() else {},
            )


def _panel(group: Group) -> Panel:
    caps = set()
    for trial in group.trials:
        caps |= {row.bucket_cap_mb for row in trial.rows}
    places = {cap: float(place) for place, cap in enumerate(sorted(caps, key=_order))}
    series = []
    for trial in group.trials:
        for rows in rows_by(trial.rows, _line).values():
            series.append(_measured(trial, rows, places))
    return Panel(
        series=series,
        quantity="step",
        unit="ms",
        x="place",
        x_label="bucket_cap_mb, MiB",
        places={place: cap.replace("+", "+\n") for cap, place in places.items()},
        curves_height_in=2.7,
    )


def _order(cap: str) -> tuple[int, float, str]:
    """Return a sort key: the default, numbers, lists."""
    if _is_number(cap):
        return 1, float(cap), ""
    return 2 if "+" in cap else 0, 0.0, cap


def _is_number(cap: str) -> bool:
    return cap != DEFAULT_CAP and "+" not in cap


def _line(row: TrainingRow) -> tuple[str, bool]:
    """Return the name of a row's series, and whether it is on a line: the default is not."""
    return hook_label(row), _is_number(row.bucket_cap_mb)


def _measured(trial: Trial, rows: Sequence[TrainingRow], places: Mapping[str, float]) -> Series:
    points = {}
    failed = []
    ringed = None
    for row in rows:
        place = places[row.bucket_cap_mb]
        if row.status == "ok" and row.step_ms is not None:
            points[place] = Estimate(row.step_ms, row.step_ms_ci_low, row.step_ms_ci_high)
            if trial.is_chosen(row):
                ringed = place
        elif row.status not in {"ok", "unsupported"}:
            failed.append(place)
    label, is_joined = _line(rows[0])
    return Series(
        name=trial.prefix + label,
        points=points,
        failed=failed,
        ringed=ringed,
        is_joined=is_joined,
    )
