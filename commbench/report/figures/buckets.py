"""Step time over bucket size: a line for each hook, with predictions and the recommended
setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commbench.ddp.plan.cases import DEFAULT_CAP, setting_name
from commbench.report.figures.drawing import (
    INK,
    MOST_SERIES,
    Drawing,
    Estimate,
    Look,
    Style,
    estimate,
    legend,
    legend_height_in,
    look,
    nothing_here,
    plot_crosses,
    slug,
)
from commbench.report.figures.words import (
    Group,
    Trial,
    groups,
    left_out,
    number_text,
    sentences,
)
from commbench.report.formats import listed
from commbench.report.training import hook_label
from commbench.results import Run
from commbench.results.info import is_live
from commbench.results.recommendation import fresh_extent, setting_of
from commbench.tuner.predictions import predictions
from commbench.units import three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from commbench.tuner.predictions import PredictionRow


#: Horizontal offset between series at the same bucket size, and the largest total offset: intervals
#: stay readable.
_ASIDE, _ASIDE_MOST = 0.12, 0.6


@dataclass(kw_only=True)
class Line:
    """The settings of one run that differ only in their bucket sizes."""

    name: str
    measured: dict[str, Estimate] = field(default_factory=dict)
    """Milliseconds by ``bucket_cap_mb``."""
    predicted: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Status by ``bucket_cap_mb``."""
    chosen: str | None = None
    """The recommended ``bucket_cap_mb``, if it is on this line."""


def bucket_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return one drawing for each workload.

    None if one hook with the default buckets was measured alone.
    """
    drawings = []
    for group in groups(runs):
        lines = [line for trial in group.trials for line in lines_of(trial)]
        if sum(len(line.measured) + len(line.predicted) + len(line.failed) for line in lines) > 1:
            drawings.append(_drawing(group, lines))
    return drawings


def lines_of(trial: Trial) -> list[Line]:
    """Return the hooks of a run with the step time at each bucket size, in row order."""
    lines: dict[str, Line] = {}
    for row in trial.rows:
        line = lines.setdefault(hook_label(row), Line(name=trial.prefix + hook_label(row)))
        step = estimate(row.step_ms, row.step_ms_ci_low, row.step_ms_ci_high)
        if row.status == "ok" and step is not None:
            line.measured[row.bucket_cap_mb] = step
        elif row.status not in {"ok", "unsupported"}:
            line.failed[row.bucket_cap_mb] = row.status
        if trial.is_chosen(row):
            line.chosen = row.bucket_cap_mb
    for prediction in _predictions(trial):
        name = hook_label(prediction)
        if prediction.predicted_step_ms is not None:
            line = lines.setdefault(name, Line(name=trial.prefix + name))
            line.predicted[prediction.bucket_cap_mb] = prediction.predicted_step_ms
    return list(lines.values())


def _predictions(trial: Trial) -> list[PredictionRow]:
    first = trial.rows[0]
    fields = ("workload", "world_size", "batch_per_rank")
    return [
        row
        for row in predictions(trial.run)
        if all(getattr(row, name) == getattr(first, name) for name in fields)
    ]


def places_of(caps: Sequence[str]) -> dict[str, float]:
    """Return the x position of each bucket size: the default first, then numbers by their
    logarithm, lists last.
    """
    numbers = sorted((cap for cap in caps if cap != DEFAULT_CAP and "+" not in cap), key=float)
    lists = [cap for cap in dict.fromkeys(caps) if "+" in cap]
    places = {DEFAULT_CAP: 0.0} if DEFAULT_CAP in caps else {}
    if numbers:
        first, last = math.log2(float(numbers[0])), math.log2(float(numbers[-1]))
        scale = max(1.0, len(set(numbers)) - 1) / max(last - first, 1.0)
        places |= {cap: 1.3 + scale * (math.log2(float(cap)) - first) for cap in numbers}
    end = max(places.values(), default=0.0)
    return places | {cap: end + 1.3 + place for place, cap in enumerate(lists)}


# ----------------------------------------------------------------------------------------- painting


def _drawing(group: Group, lines: Sequence[Line]) -> Drawing:
    visible_lines = lines[:MOST_SERIES]
    return Drawing(
        paint=lambda figure: paint_lines(figure, visible_lines),
        name=slug("buckets", group.key),
        section="training",
        title=f"Step over bucket size: {group.name}",
        caption=caption_of(group, lines),
        alt=(
            "Step time over bucket_cap_mb for"
            f" {listed([line.name for line in visible_lines], MOST_SERIES)}."
        ),
        height_in=3.1 + legend_height_in([line.name for line in visible_lines]),
    )


def paint_lines(figure: Figure, lines: Sequence[Line]) -> None:
    """Draw lines only through numeric bucket sizes: the default and lists have no position on the
    axis.
    """
    axes = figure.subplots()
    caps = [cap for line in lines for cap in (*line.measured, *line.predicted, *line.failed)]
    places = places_of(caps)
    for place, line in enumerate(lines):
        aside = min(_ASIDE, _ASIDE_MOST / len(lines)) * (place - (len(lines) - 1) / 2)
        shifted_places = {cap: x + aside for cap, x in places.items()}
        _paint_line(axes, line, shifted_places, look(place))
    axes.set_xticks(list(places.values()), [cap.replace("+", "+\n") for cap in places])
    if DEFAULT_CAP in places and len(places) > 1:
        axes.axvline(0.65, color=INK, linewidth=0.6)
    axes.set(
        xlabel="bucket_cap_mb, MiB", ylabel="step, ms", xlim=(-0.6, max(places.values()) + 0.6)
    )
    limits = limits_of(lines)
    if limits is None:
        nothing_here(axes, "no setting has a time")
    else:
        axes.set_ylim(*limits)
    for place, line in enumerate(lines):
        plot_crosses(axes, [places[cap] for cap in line.failed], look(place))
    legend(figure, axes)


def limits_of(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Return the range of the y axis in ms: all values, and as much of the intervals as keeps the
    values readable.
    """
    values = [
        v
        for line in lines
        for v in (*(point.value for point in line.measured.values()), *line.predicted.values())
    ]
    if not values:
        return None
    bounds = [bound for line in lines for point in line.measured.values() for bound in point.bounds]
    low, high = min(values), max(values)
    room = max(0.1 * high, high - low)
    return max(0.0, low - room, min([low, *bounds]) - 0.1 * room), min(
        high + room, max([high, *bounds]) + 0.1 * room
    )


def _paint_line(axes: Axes, line: Line, places: Mapping[str, float], looks_as: Look) -> None:
    numbers = sorted((cap for cap in line.measured if _is_number(cap)), key=float)
    style: Style = {"color": looks_as.colour, "linestyle": looks_as.dash, "marker": looks_as.marker}
    axes.plot(
        [places[cap] for cap in numbers],
        [line.measured[cap].value for cap in numbers],
        label=line.name,
        **style,
    )
    for cap, point in line.measured.items():
        errors = [[error] for error in point.errors]
        axes.errorbar([places[cap]], [point.value], yerr=errors, capsize=2, elinewidth=1, **style)
    hollow: Style = {
        **style,
        "linestyle": "none",
        "markerfacecolor": "none",
        "markersize": 6.5,
        "gid": "predicted",
    }
    axes.plot([places[cap] for cap in line.predicted], list(line.predicted.values()), **hollow)
    foreseen = sorted((cap for cap in line.predicted if _is_number(cap)), key=float)
    values = [line.predicted[cap] for cap in foreseen]
    axes.plot(
        [places[cap] for cap in foreseen],
        values,
        color=looks_as.colour,
        linewidth=0.7,
        linestyle=(0, (1, 2)),
    )
    if line.chosen in line.measured:
        ring: Style = {
            "marker": "o",
            "markersize": 15,
            "markerfacecolor": "none",
            "markeredgecolor": INK,
            "linestyle": "none",
        }
        axes.plot([places[line.chosen]], [line.measured[line.chosen].value], **ring, gid="chosen")


def _is_number(cap: str) -> bool:
    return cap != DEFAULT_CAP and "+" not in cap


# ------------------------------------------------------------------------------------------ caption


def caption_of(group: Group, lines: Sequence[Line]) -> str:
    """Return the caption: how to read the figure, the fastest setting of each run, and the
    recommended setting.
    """
    failures = [
        f"{line.name} {cap} {status}" for line in lines for cap, status in line.failed.items()
    ]
    over = (
        "steps"
        if all(is_live(trial.run.info) and trial.launches == 1 for trial in group.trials)
        else "launches"
    )
    return sentences(
        f"Median step of the slowest rank (lower is better) with 95 % intervals over {over}; DDP's"
        " default buckets stand by themselves.",
        (
            "Hollow marks on dotted lines are predictions."
            if any(line.predicted for line in lines)
            else ""
        ),
        *(sentence for trial in group.trials for sentence in (_fastest(trial), _ringed(trial))),
        "Intervals cut by the frame are wider than it." if _is_cut(lines) else "",
        f"Crosses have no result: {listed(failures)}." if failures else "",
        left_out([line.name for line in lines], MOST_SERIES),
    )


def _is_cut(lines: Sequence[Line]) -> bool:
    limits = limits_of(lines[:MOST_SERIES])
    if limits is None:
        return False
    bounds = [point.bounds for line in lines for point in line.measured.values()]
    return any(low < limits[0] or high > limits[1] for low, high in bounds)


def _fastest(trial: Trial) -> str:
    rows = [row for row in trial.ok if row.samples_per_s]
    if not rows:
        return f"{trial.prefix}nothing was timed."
    best, base = max(rows, key=lambda row: row.samples_per_s or 0.0), trial.default
    step = estimate(best.step_ms, best.step_ms_ci_low, best.step_ms_ci_high)
    time = number_text(step, "ms") if step else ""
    text = f"{trial.prefix}Fastest in the {trial.stage}: {setting_name(best)}, {time}"
    if base is None or best is base or best.speedup is None:
        return text + "."
    notes = {"inconclusive": " (inconclusive)", "same": " (the same within 2 %)"}
    interval = estimate(best.speedup, best.speedup_ci_low, best.speedup_ci_high)
    ratio = number_text(interval, "times") if interval else ""
    return f"{text}, {ratio} as fast as {trial.baseline_name}{notes.get(best.verdict, '')}."


def _ringed(trial: Trial) -> str:
    advice = trial.recommendation
    if advice is None:
        return ""
    if not advice.is_compared:
        fresh = "fresh blocks" if advice.is_live else "fresh launches"
        return (
            f"{trial.prefix}No recommendation yet: {fresh} have not compared any setting with"
            f" {advice.baseline_name}."
        )
    ring = " (ringed)" if any(trial.is_chosen(row) for row in trial.ok) else ""
    fresh = (
        fresh_extent(advice.launches, advice.blocks, is_live=advice.is_live)
        if advice.launches
        else "fresh launches"
    )
    if advice.verdict == "change":
        ends = (
            f" [{three_digits(advice.speedup_ci[0])}, {three_digits(advice.speedup_ci[1])}]"
            if advice.speedup_ci
            else ""
        )
        gain = (
            f", {three_digits(advice.speedup)}{ends} times as fast in {fresh}"
            if advice.speedup
            else ""
        )
        return f"{trial.prefix}Recommended{ring}: {advice.best.name}{gain}."
    if advice.verdict == "inconclusive":
        why = "one fresh launch cannot decide"
        if advice.launches > 1 or advice.blocks:
            why = f"in {fresh} the interval is too wide to decide"
        return f"{trial.prefix}Recommended{ring}: {advice.baseline_name} for now, as {why}."
    keeps_baseline = setting_of(advice.best) == setting_of(advice.baseline)
    why = "no other was faster" if keeps_baseline else "nothing gained more than 2 %"
    return f"{trial.prefix}Recommended{ring}: {advice.baseline_name}, as in {fresh} {why}."
