"""The bytes that a rank sends in a step for each hook, beside a dense all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commbench.ddp.plan.records import TrainingRow
from commbench.engine.flags import has_flag
from commbench.report.figures.drawing import Drawing, log_axis, look, mark_limit, slug
from commbench.report.figures.words import Group, groups, sentences
from commbench.report.training import hook_label
from commbench.results import Run
from commbench.units import three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A larger ratio between hooks gets a logarithmic axis.
_WIDE = 20.0
_MOST_BARS = 16


def traffic_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return one drawing for each workload with known bytes."""
    return [_drawing(group, bars) for group in groups(runs) if (bars := bars_of(group))]


def bars_of(group: Group) -> dict[str, TrainingRow]:
    """Return one row for each hook and run, with the bucket size that sends most: the bytes hardly
    depend on it.
    """
    row_by_name: dict[str, TrainingRow] = {}
    for trial in group.trials:
        for row in trial.ok:
            name = trial.prefix + hook_label(row)
            if row.sent_MB_per_step and row.sent_MB_per_step > _sent(row_by_name.get(name)):
                row_by_name[name] = row
    return row_by_name


def _sent(row: TrainingRow | None) -> float:
    return row.sent_MB_per_step or 0.0 if row else 0.0


def _drawing(group: Group, bars: dict[str, TrainingRow]) -> Drawing:
    visible_bars = dict(list(bars.items())[:_MOST_BARS])
    return Drawing(
        paint=lambda figure: paint_bars(figure, visible_bars),
        name=slug("traffic", group.key),
        section="training",
        title=f"Sent per step: {group.name}",
        caption=caption_of(bars),
        alt="Megabytes that a rank sends in a step: "
        + ", ".join(
            f"{name} {three_digits(row.sent_MB_per_step or 0.0)}"
            for name, row in visible_bars.items()
        ),
        height_in=0.85 + 0.3 * len(visible_bars),
    )


def paint_bars(figure: Figure, bars: dict[str, TrainingRow]) -> None:
    """Draw a bar for each hook; on a logarithmic axis, which has no origin, a dot."""
    axes = figure.subplots()
    values = [row.sent_MB_per_step or 0.0 for row in bars.values()]
    is_wide = max(values) > _WIDE * min(values)
    for place, value in enumerate(values):
        if is_wide:
            axes.plot(
                [value], [place], marker=look(place).marker, color=look(place).colour, markersize=7
            )
        else:
            axes.barh([place], [value], height=0.6, color=look(place).colour)
    dense = _dense(bars)
    if dense is not None:
        mark_limit(axes, dense, "dense all-reduce", vertical=True)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.set_ylim(len(bars) - 0.4, -1.0)
    axes.set_xlabel("sent by a rank in a step, MB")
    axes.grid(visible=False, axis="y")
    if is_wide:
        log_axis(axes.xaxis)


def _dense(bars: dict[str, TrainingRow]) -> float | None:
    return next((row.dense_MB_per_step for row in bars.values() if row.dense_MB_per_step), None)


def caption_of(bars: dict[str, TrainingRow]) -> str:
    """Return the caption: how to read the figure, and how much the hook that sends least saves."""
    dense, least = _dense(bars), min(bars, key=lambda name: bars[name].sent_MB_per_step or 0.0)
    row = bars[least]
    megabytes = row.sent_MB_per_step or 0.0
    savings = f"{least} sends least: {three_digits(megabytes)} MB a step"
    if dense:
        savings += (
            f", {100 * megabytes / dense:.3g} % of the {three_digits(dense)} MB of a dense"
            " all-reduce in float32"
        )
    deviating = [name for name, row in bars.items() if has_flag(row.flags, "traffic")]
    return sentences(
        "Bytes that a rank sent in a step, as measured (MB = 1e6), the mean over ranks; fewer is"
        " better only if the time saved exceeds the time for compressing.",
        f"{savings}.",
        (
            f"The bytes of {', '.join(deviating)} differ from theory by more than 5 %."
            if deviating
            else ""
        ),
    )
