"""The effect of settings on learning: loss and metric over steps and over time, mean and range over
launches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commbench import stats
from commbench.ddp.plan.cases import CONFIRM, SWEEP, setting_name
from commbench.ddp.plan.records import TrainingRecord, TrainingRow
from commbench.hooks.registry import find_hook
from commbench.report.figures.drawing import (
    BAND_ALPHA,
    MOST_SERIES,
    MUTED,
    Drawing,
    legend,
    legend_height_in,
    log_axis,
    look,
    slug,
)
from commbench.report.figures.words import (
    Group,
    Trial,
    case_of,
    groups,
    left_out,
    sentences,
)
from commbench.report.formats import listed
from commbench.report.training import hook_label
from commbench.results import Run
from commbench.results.trained import LOSS_WINDOW, falls, median, trained
from commbench.stats import Floats
from commbench.units import counted, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: A loss that falls by a larger ratio gets a logarithmic axis.
_WIDE = 20.0
#: The most points of a curve; each is the mean of a window of steps.
_POINTS = 60


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The loss or metric of one setting."""

    name: str
    row: TrainingRow
    steps: Floats
    """Step numbers, (points,)."""
    values: Floats
    """(launches, points), NaN where a launch has no value."""
    launches: Sequence[int]
    """Launch numbers; launches of the same number trained with the same data."""
    step_s: float
    """Step time, median over launches."""
    is_fresh: bool = False
    """Whether these are the launches of the confirmation, not of the sweep."""

    @property
    def mean(self) -> Floats:
        """Mean over launches, (points,)."""
        return np.asarray(np.nanmean(self.values, axis=0))

    @property
    def seconds(self) -> Floats:
        """Time at each step number, (points,)."""
        return self.steps * self.step_s


def learning_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return figures of the loss and the metric of each workload."""
    drawings = []
    for group in groups(runs):
        for quantity, read in (("loss", loss_of), ("metric", metric_of)):
            learned = [curve for trial in group.trials for curve in learned_of(trial, read)]
            if learned:
                drawings.append(_drawing(group, quantity, learned))
    return drawings


Read = Callable[[TrainingRecord], Sequence[tuple[int, float]]]


def loss_of(record: TrainingRecord) -> list[tuple[int, float]]:
    """Return the loss after each step."""
    return [(step, float(loss)) for step, loss in enumerate(record.losses, start=1)]


def metric_of(record: TrainingRecord) -> list[tuple[int, float]]:
    """Return the metric at the steps where it was evaluated."""
    return [(step, float(value)) for step, value in record.metrics]


def learned_of(trial: Trial, read: Read) -> list[Learned]:
    """Return the settings measured in fresh launches; without these, one setting for each hook.

    From the sweep: the default, and for each hook the recommended setting or else the fastest.
    """
    fresh = _learned(trial, trial.ok, CONFIRM, read)
    return fresh if len(fresh) > 1 else _learned(trial, _settings(trial), SWEEP, read)


def _learned(trial: Trial, rows: Iterable[TrainingRow], phase: str, read: Read) -> list[Learned]:
    """Return the curves of the rows' settings in one phase."""
    settings = trained(trial.run.training_records, phase)
    learned = []
    for row in rows:
        setting = settings.get(dataclasses.replace(case_of(row), phase=phase).key)
        values = (
            {launch: values for launch, record in setting.timed.items() if (values := read(record))}
            if setting
            else {}
        )
        curve = _curve(list(values.values()))
        if setting is not None and curve is not None:
            learned.append(
                Learned(
                    name=trial.prefix + setting_name(row),
                    row=row,
                    steps=curve[0],
                    values=curve[1],
                    launches=list(values),
                    step_s=median(list(setting.steps_ms.values())) / 1e3,
                    is_fresh=phase == CONFIRM,
                )
            )
    return learned


def _settings(trial: Trial) -> list[TrainingRow]:
    """Return one row for each hook and precision, in row order.

    Two if two rows of a hook matter.
    """
    ranked = sorted(
        trial.ok, key=lambda row: (not trial.is_chosen(row), -(row.samples_per_s or 0.0))
    )
    by_hook: dict[str, TrainingRow] = {}
    for row in trial.ok:
        best = next(other for other in ranked if hook_label(other) == hook_label(row))
        by_hook.setdefault(hook_label(row), row if row is trial.default else best)
    recommended = [
        row for row in ranked[:1] if trial.is_chosen(row) and row not in by_hook.values()
    ]
    return [*by_hook.values(), *recommended]


def _curve(launches: Sequence[Sequence[tuple[int, float]]]) -> tuple[Floats, Floats] | None:
    """Return steps and values by launch; of many steps, averages over windows of equal length."""
    if not launches:
        return None
    steps = sorted({step for values in launches for step, _ in values})
    table = np.full((len(launches), len(steps)), np.nan)
    place = {step: number for number, step in enumerate(steps)}
    for line, values in zip(table, launches, strict=True):
        for step, value in values:
            line[place[step]] = value if np.isfinite(value) else np.nan
    if not np.isfinite(table).any():
        return None
    return _windowed(np.array(steps, dtype=np.float64), table)


def _windowed(steps: Floats, values: Floats) -> tuple[Floats, Floats]:
    width = max(1, len(steps) // _POINTS)
    ends = [slice(start, start + width) for start in range(0, len(steps), width)]
    columns = [part for part in ends if np.isfinite(values[:, part]).any()]
    means = [[_mean(line[part]) for part in columns] for line in values]
    return np.array([steps[part][-1] for part in columns]), np.array(means)


def _mean(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


# ----------------------------------------------------------------------------------------- painting


def _drawing(group: Group, quantity: str, learned: Sequence[Learned]) -> Drawing:
    visible_curves = learned[:MOST_SERIES]
    name = _label(quantity, learned)
    return Drawing(
        paint=lambda figure: paint_learning(figure, visible_curves, name, _target(quantity, group)),
        name=slug(quantity, group.key),
        section="learning",
        title=f"{name[0].upper()}{name[1:]} over steps and over time: {group.name}",
        caption=caption_of(quantity, name, learned),
        alt=(
            f"{name} over steps and over seconds for"
            f" {listed([curve.name for curve in visible_curves], MOST_SERIES)}."
        ),
        height_in=4.6 + legend_height_in([curve.name for curve in visible_curves]),
    )


def _label(quantity: str, learned: Sequence[Learned]) -> str:
    names = [curve.row.metric_name for curve in learned if curve.row.metric_name]
    return "training loss" if quantity == "loss" else names[0] if names else "metric"


def _target(quantity: str, group: Group) -> float | None:
    records = (record for trial in group.trials for record in trial.run.training_records)
    aims = (
        r.target
        for r in records
        if r.target is not None and r.case.workload == group.trials[0].rows[0].workload
    )
    return next(aims, None) if quantity == "metric" else None


def paint_learning(
    figure: Figure, learned: Sequence[Learned], label: str, target: float | None = None
) -> None:
    """Draw the same values twice: above over steps, below over seconds."""
    by_steps, by_time = figure.subplots(2, 1)
    for axes, over in ((by_steps, "steps"), (by_time, "seconds")):
        for place, curve in enumerate(learned):
            _paint_one(axes, getattr(curve, over), curve, place)
        if target is not None:
            axes.axhline(target, color=MUTED, linewidth=1.0, linestyle=(0, (6, 3)))
            at = ("axes fraction", "data")
            axes.annotate("target", (0, target), xycoords=at, color=MUTED, fontsize=9, va="bottom")
        axes.set(ylabel=label, xlabel=over)
        axes.set_xlim(left=0.0)
        values = np.concatenate([curve.mean for curve in learned])
        if (
            label == "training loss"
            and np.nanmin(values) > 0
            and np.nanmax(values) > _WIDE * np.nanmin(values)
        ):
            log_axis(axes.yaxis)
    legend(figure, by_steps)


def _paint_one(axes: Axes, x: Floats, curve: Learned, place: int) -> None:
    looks_as = look(place)
    every = max(1, len(x) // 8)  # markers on every point would hide the line
    style = {
        "color": looks_as.colour,
        "linestyle": looks_as.dash,
        "marker": looks_as.marker,
        "markevery": every,
    }
    axes.plot(x, curve.mean, label=curve.name, **style)
    if len(curve.values) > 1:
        low, high = np.nanmin(curve.values, axis=0), np.nanmax(curve.values, axis=0)
        axes.fill_between(x, low, high, color=looks_as.colour, alpha=BAND_ALPHA, linewidth=0)


# ------------------------------------------------------------------------------------------ caption


def caption_of(quantity: str, name: str, learned: Sequence[Learned]) -> str:
    """Return the caption: how to read the figure, and each setting's result after equal steps and
    equal time.
    """
    launches = max(len(curve.values) for curve in learned)
    fresh = "fresh " if learned[0].is_fresh else ""
    of = (
        f"the {fresh}launch"
        if launches == 1
        else f"{counted(launches, f'{fresh}launch')}, bands their range"
    )
    return sentences(
        f"Lines are the mean of {of}{_buckets(learned)}.",
        _after_equal_steps(quantity, learned),
        _after_equal_time(quantity, learned),
        (
            f"So few steps show little about the effect of a whole training on the {name}."
            if _is_short(learned)
            else ""
        ),
        left_out([curve.name for curve in learned], MOST_SERIES),
    )


def _buckets(learned: Sequence[Learned]) -> str:
    """State whether the result of a hook holds for its other bucket sizes."""
    selecting = dict.fromkeys(
        hook_label(curve.row) for curve in learned if _selects_over_buckets(curve.row)
    )
    one_each = "" if learned[0].is_fresh else "; each hook is shown with one bucket size"
    if selecting:
        verb = "selects" if len(selecting) == 1 else "select"
        return (
            f"{one_each}; {listed(selecting)} {verb} over a bucket, so that another bucket size"
            " learns differently"
        )
    return f"{one_each}, as buckets alone do not alter learning" if one_each else ""


def _selects_over_buckets(row: TrainingRow) -> bool:
    return find_hook(row.hook).selects_over_buckets(case_of(row).options)


def _is_short(learned: Sequence[Learned]) -> bool:
    few = 50
    return max(float(curve.steps[-1]) for curve in learned) < few


def _after_equal_steps(quantity: str, learned: Sequence[Learned]) -> str:
    until = min(float(curve.steps[-1]) for curve in learned)
    means = [
        f"{three_digits(float(np.nanmean(_at(curve, curve.steps, until, quantity))))} with"
        f" {curve.name}"
        for curve in learned
    ]
    return f"After {until:.0f} steps, mean over launches: {listed(means, MOST_SERIES)}."


def _after_equal_time(quantity: str, learned: Sequence[Learned]) -> str:
    """State the value of each setting when the first has finished, and which is ahead, if that is
    shown.
    """
    until = min(float(curve.seconds[-1]) for curve in learned)
    compared = [curve for curve in learned if curve.seconds[0] <= until * (1 + 1e-9)]
    if len(compared) < 2:  # noqa: PLR2004 - nothing to compare
        return ""
    sign = 1.0 if quantity == "loss" or falls(learned[0].row.metric_name) else -1.0
    reached = {
        curve.name: dict(
            zip(curve.launches, _at(curve, curve.seconds, until, quantity), strict=True)
        )
        for curve in compared
    }
    means = {name: float(np.nanmean(list(values.values()))) for name, values in reached.items()}
    texts = listed(
        [f"{three_digits(mean)} with {name}" for name, mean in means.items()], MOST_SERIES
    )
    return (
        f"After {until:.3g} s: {texts};"
        f" {_ahead(reached, min(means, key=lambda name: sign * means[name]), sign)}."
    )


def _ahead(reached: Mapping[str, Mapping[int, float]], first: str, sign: float) -> str:
    """State whether the first setting is ahead of all others beyond noise, by the median difference
    between launches.

    Launches of the same number train with the same data; an interval of that median needs 6 of
    them.
    """
    others = [name for name in reached if name != first]
    gains = [_gains(reached[first], reached[name], sign) for name in others]
    intervals = [stats.median_interval(gain) for gain in gains]
    if any(interval is None for interval in intervals):
        return "too few launches to show that a setting is ahead"
    if any(interval.low <= 0 for interval in intervals if interval):
        return "no setting is shown to be ahead"
    nearest = min(range(len(others)), key=lambda place: median(gains[place]))
    interval = intervals[nearest]
    ends = f" [{three_digits(interval.low)}, {three_digits(interval.high)}]" if interval else ""
    return (
        f"{first} is ahead, by {three_digits(median(gains[nearest]))}{ends} of {others[nearest]},"
        " paired by launch"
    )


def _gains(first: Mapping[int, float], second: Mapping[int, float], sign: float) -> list[float]:
    """Return the advantage of one setting over another in each launch that has both."""
    gains = [sign * (second[launch] - first[launch]) for launch in first if launch in second]
    return [gain for gain in gains if np.isfinite(gain)]


def _at(curve: Learned, x: Floats, until: float, quantity: str) -> Floats:
    """Return each launch's mean over the last tenth before ``until``, or a metric's last value;
    (launches,).
    """
    end = max(1, int(np.searchsorted(x, until * (1 + 1e-9), side="right")))
    width = max(1, end // LOSS_WINDOW) if quantity == "loss" else 1
    return np.array([_mean(line[max(0, end - width) : end]) for line in curve.values])
