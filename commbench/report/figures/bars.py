"""Rows of one value a setting: the energy of a step, and the bytes that a rank sends."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.ddp.plan.cases import setting_name
from commbench.ddp.plan.records import TrainingRow
from commbench.report.figures.charts import MOST_ROWS, Chart, Limit, Panel, Series
from commbench.report.figures.drawing import slug
from commbench.report.figures.words import Group, groups
from commbench.report.state import counted_energy
from commbench.report.training import hook_label
from commbench.results import Run
from commbench.words import Estimate

_TRAFFIC_READING = (
    "Bytes that a rank sent in a step, as measured (MB = 1e6), the mean over ranks; fewer is better"
    " only if the time saved exceeds the time for compressing."
)
_ENERGY_READING = f"The least is best; of more than {MOST_ROWS} settings they are shown."


def traffic_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the bytes that a rank sends in a step of each workload, a row for each hook."""
    charts = []
    for group in groups(runs):
        panel = _sent(group)
        if panel.series:
            chart = Chart(
                name=slug("traffic", group.key),
                section="training",
                title=f"Sent per step: {group.name}",
                reading=_TRAFFIC_READING,
                panels=[panel],
            )
            charts.append(chart)
    return charts


def _sent(group: Group) -> Panel:
    """Return the megabytes of each hook, with the bucket size that sends most: few depend on it."""
    most: dict[str, TrainingRow] = {}
    for trial in group.trials:
        for row in sorted(trial.ok, key=lambda row: row.sent_MB_per_step or 0.0, reverse=True):
            if row.sent_MB_per_step:
                most.setdefault(trial.prefix + hook_label(row), row)
    limits = {row.dense_MB_per_step for row in most.values() if row.dense_MB_per_step}
    return _panel(
        [_row(name, row.sent_MB_per_step or 0.0) for name, row in most.items()],
        "traffic of a rank in a step",
        "MB",
        [Limit(dense, "dense all-reduce") for dense in sorted(limits)],
    )


def energy_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the energy of a step of each workload, separately for each kind of counter."""
    charts = []
    for group in groups(runs):
        rows: dict[str, list[Series]] = {}
        limits = []
        for trial in group.trials:
            if trial.default is not None and trial.default.energy_J is not None:
                limits.append(Limit(trial.default.energy_J, f"{trial.prefix}the default"))
            for row in sorted(trial.ok, key=lambda row: row.energy_J or 0.0):
                if row.energy_J is not None:
                    name = trial.prefix + setting_name(row)
                    rows.setdefault(row.energy_of, []).append(_row(name, row.energy_J))
        for counters, of_counters in rows.items():
            quantity = f"energy of a step, of {counted_energy(counters)}"
            chart = Chart(
                name=slug("energy", group.key or group.trials[0].rows[0].workload, counters),
                section="training",
                title=f"Energy of a step: {group.name}",
                reading=_ENERGY_READING,
                panels=[_panel(of_counters, quantity, "J", limits)],
            )
            charts.append(chart)
    return charts


def _row(name: str, value: float) -> Series:
    return Series(name=name, points={0.0: Estimate(value)}, colour=0)


def _panel(rows: Sequence[Series], quantity: str, unit: str, limits: Sequence[Limit]) -> Panel:
    return Panel(
        series=rows[:MOST_ROWS],
        quantity=quantity,
        unit=unit,
        has_zero=True,
        x="rows",
        limits=limits,
    )
