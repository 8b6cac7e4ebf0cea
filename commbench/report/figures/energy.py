"""Figures of the energy of an operation and of a training step, if it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commbench.collectives.operations import OPERATIONS
from commbench.ddp.plan.cases import setting_name
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.records import Row
from commbench.report.figures.drawing import (
    MOST_SERIES,
    Drawing,
    Estimate,
    byte_axis,
    legend,
    legend_height_in,
    log_axis,
    look,
    plot_series,
    slug,
)
from commbench.report.figures.words import (
    Group,
    groups,
    left_out,
    prefixes,
    sentences,
)
from commbench.report.formats import listed
from commbench.report.state import counted_energy
from commbench.results import Run
from commbench.units import format_size, three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_BARS = 16

Curves = dict[str, dict[int, float]]
"""Joules of one operation by size, for each series."""
Bars = dict[str, TrainingRow]
"""Settings by name."""


def energy_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return one figure for each operation and workload with energy, separately for each kind of
    counter.
    """
    of_operations = [
        _of_operation(operation, energy_of, curves)
        for operation in OPERATIONS
        for energy_of, curves in curves_of(runs, operation).items()
    ]
    return of_operations + [
        _of_training(group, energy_of, bars)
        for group in groups(runs)
        for energy_of, bars in bars_of(group).items()
    ]


# -------------------------------------------------------------------------------------- collectives


def curves_of(runs: Sequence[Run], operation: str) -> dict[str, Curves]:
    """Return the energy of an operation over its size, by counters, run, backend, pattern and data
    type.
    """
    curves_by_counter: dict[str, Curves] = {}
    for run, prefix in zip(runs, prefixes(runs), strict=True):
        for row in run.rows:
            if (
                row.operation == operation
                and row.status == "ok"
                and row.energy_J is not None
                and row.message_bytes
            ):
                curves = curves_by_counter.setdefault(row.energy_of, {})
                curves.setdefault(prefix + _name(row), {})[row.message_bytes] = row.energy_J
    return curves_by_counter


def _name(row: Row) -> str:
    words = (
        row.backend,
        row.pattern if row.pattern != "flat" else "",
        row.group if row.pattern != "flat" else "",
    )
    return " ".join(filter(None, (*words, row.dtype or "", row.env)))


def _of_operation(operation: str, energy_of: str, curves: Curves) -> Drawing:
    visible_curves = dict(list(curves.items())[:MOST_SERIES])
    value, size, name = min(
        (value, size, name) for name, points in curves.items() for size, value in points.items()
    )
    return Drawing(
        paint=lambda figure: paint_curves(figure, visible_curves, energy_of),
        name=slug("energy", operation, energy_of),
        section="energy",
        title=f"Energy of {operation} over message size",
        caption=sentences(
            f"Energy of one operation, of {counted_energy(energy_of)} (lower is better).",
            f"Least: {three_digits(value)} J at {format_size(size)} ({name}).",
            left_out(list(curves), MOST_SERIES),
        ),
        alt=(
            f"Energy of one {operation} over message size for"
            f" {listed(visible_curves, MOST_SERIES)}."
        ),
        height_in=2.8 + legend_height_in(list(visible_curves)),
    )


def paint_curves(figure: Figure, curves: Curves, energy_of: str) -> None:
    """Draw one line for each series on logarithmic axes."""
    axes = figure.subplots()
    for place, (name, points) in enumerate(curves.items()):
        plot_series(
            axes, {size: Estimate(value=value) for size, value in points.items()}, name, look(place)
        )
    byte_axis(axes, [size for points in curves.values() for size in points])
    log_axis(axes.yaxis)
    axes.set(xlabel="message size", ylabel=f"energy, of {counted_energy(energy_of)}, J")
    legend(figure, axes)


# ----------------------------------------------------------------------------------------- training


def bars_of(group: Group) -> dict[str, Bars]:
    """Return the settings with a known energy of a step, by counters."""
    bars_by_counter: dict[str, Bars] = {}
    for trial in group.trials:
        for row in trial.ok:
            if row.energy_J is not None:
                bars_by_counter.setdefault(row.energy_of, {})[trial.prefix + setting_name(row)] = (
                    row
                )
    return bars_by_counter


def _of_training(group: Group, energy_of: str, bars: Bars) -> Drawing:
    ranked = dict(sorted(bars.items(), key=lambda bar: bar[1].energy_J or 0.0)[:_MOST_BARS])
    least = next(iter(ranked))
    rows = list(bars.values())
    default = next(
        (t.default.energy_J for t in group.trials if t.default and t.default in rows), None
    )
    joules = ranked[least].energy_J or 0.0
    share = f", {100 * joules / default:.0f} % of the default's" if default else ""
    return Drawing(
        paint=lambda figure: paint_bars(figure, ranked, energy_of),
        name=slug("energy", group.key or group.trials[0].rows[0].workload, energy_of),
        section="energy",
        title=f"Energy of a step: {group.name}",
        caption=sentences(
            f"Energy of one training step, of {counted_energy(energy_of)} (lower is better).",
            f"Least: {least} with {three_digits(joules)} J{share}.",
            (
                f"Shown are the {len(ranked)} with the lowest energy of {len(bars)}."
                if len(bars) > len(ranked)
                else ""
            ),
        ),
        alt="Joules of a step: "
        + ", ".join(f"{name} {three_digits(row.energy_J or 0.0)}" for name, row in ranked.items()),
        height_in=0.75 + 0.27 * len(ranked),
    )


def paint_bars(figure: Figure, bars: Bars, energy_of: str) -> None:
    """Draw one bar for each setting, the lowest energy first."""
    axes = figure.subplots()
    for place, row in enumerate(bars.values()):
        axes.barh([place], [row.energy_J or 0.0], height=0.6, color=look(0).colour)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlabel(f"energy of a step, of {counted_energy(energy_of)}, J")
    axes.grid(visible=False, axis="y")
