"""Rows of one value a setting: the energy of a step, and the bytes that a rank sends."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.ddp.plan.cases import setting_name
from commbench.ddp.plan.records import TrainingRow
from commbench.report.figures.charts import (
    MOST_ROWS,
    Chart,
    Limit,
    Panel,
    Series,
    best,
)
from commbench.report.figures.drawing import slug
from commbench.report.figures.words import Group, groups
from commbench.report.state import counted_energy
from commbench.report.training import hook_label
from commbench.results import Run
from commbench.words import Estimate


def traffic_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the bytes that a rank sends in a step of each workload, a bar for each hook."""
    charts = []
    for group in groups(runs):
        rows = _sent(group)
        if rows:
            panel = _panel(rows, "traffic of a rank in a step", "MB")
            chart = Chart(
                name=slug("traffic", group.key),
                section="training",
                title=f"Sent per step: {group.name}",
                reading=(
                    "Bytes that a rank sent in a step, as measured (MB = 1e6), the mean over ranks;"
                    " fewer is better only if the time saved exceeds the time for compressing."
                ),
                results=best(panel),
                panels=[panel],
            )
            charts.append(chart)
    return charts


def _sent(group: Group) -> list[Series]:
    """Return the megabytes of each hook, with the bucket size that sends most: few depend on it."""
    most: dict[str, TrainingRow] = {}
    for trial in group.trials:
        for row in sorted(trial.ok, key=lambda row: row.sent_MB_per_step or 0.0, reverse=True):
            if row.sent_MB_per_step:
                most.setdefault(trial.prefix + hook_label(row), row)
    rows = []
    for name, row in most.items():
        limit = None
        if row.dense_MB_per_step:
            limit = Limit(row.dense_MB_per_step, "dense all-reduce")
        rows.append(_row(name, row.sent_MB_per_step or 0.0, limit))
    return rows


def energy_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the energy of a step of each workload, separately for each kind of counter."""
    charts = []
    for group in groups(runs):
        for counters, rows in _joules(group).items():
            panel = _panel(rows, f"energy of a step, of {counted_energy(counters)}", "J")
            chart = Chart(
                name=slug("energy", group.key or group.trials[0].rows[0].workload, counters),
                section="energy",
                title=f"Energy of a step: {group.name}",
                reading=f"The least is best; of more than {MOST_ROWS} settings they are shown.",
                results=best(panel),
                panels=[panel],
            )
            charts.append(chart)
    return charts


def _joules(group: Group) -> dict[str, list[Series]]:
    """Return the joules of each setting by counters, the least first."""
    rows: dict[str, list[Series]] = {}
    for trial in group.trials:
        limit = None
        if trial.default is not None and trial.default.energy_J is not None:
            limit = Limit(trial.default.energy_J, f"{trial.prefix}the default")
        for row in sorted(trial.ok, key=lambda row: row.energy_J or 0.0):
            if row.energy_J is not None:
                name = trial.prefix + setting_name(row)
                rows.setdefault(row.energy_of, []).append(_row(name, row.energy_J, limit))
    return rows


def _row(name: str, value: float, limit: Limit | None) -> Series:
    return Series(name=name, points={0.0: Estimate(value)}, limit=limit, colour=0)


def _panel(rows: Sequence[Series], quantity: str, unit: str) -> Panel:
    return Panel(series=rows[:MOST_ROWS], quantity=quantity, unit=unit, has_zero=True, x="rows")
