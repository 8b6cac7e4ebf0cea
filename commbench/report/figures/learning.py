"""What settings do to learning: loss and metric over steps and over time, the mean over launches with its range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from commbench.report.figures.axes import MOST_SERIES, legend, legend_height_in, log_axis, look
from commbench.report.figures.drawing import BAND_ALPHA, MUTED, Drawing, draw, slug
from commbench.report.figures.settings import Group, Trial, case_of, groups, setting_name
from commbench.report.figures.words import digits, left_out, listed, sentences
from commbench.report.training import hook_label
from commbench.store import Run
from commbench.training.records import TrainingRecord, TrainingRow
from commbench.training.trained import LOSS_WINDOW, Trained, falls, median, trained
from commbench.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

#: Losses that fall by a larger ratio get a logarithmic axis.
_WIDE = 20.0
#: A curve is drawn through at most about so many points, each the mean of a window.
_POINTS = 60


@dataclass(frozen=True, kw_only=True)
class Learned:
    """One setting's loss or metric."""

    name: str
    row: TrainingRow
    steps: Floats
    """Steps made, (points,)."""
    values: Floats
    """(launches, points), NaN where a launch has no value."""
    step_s: float
    """Of one step, the median over launches."""

    @property
    def mean(self) -> Floats:
        """Over launches, (points,)."""
        return np.asarray(np.nanmean(self.values, axis=0))

    @property
    def seconds(self) -> Floats:
        """When these steps are made, (points,)."""
        return self.steps * self.step_s


def learning_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Loss and metric of each workload that has them, of the fastest setting of each hook and of the default."""
    made = []
    for group in groups(runs):
        for what, read in (("loss", loss_of), ("metric", metric_of)):
            learned = [one for trial in group.trials for one in learned_of(trial, read)]
            if learned:
                made.append(_drawing(group, what, learned))
    return made


Read = Callable[[TrainingRecord], Sequence[tuple[int, float]]]


def loss_of(record: TrainingRecord) -> list[tuple[int, float]]:
    """The loss after each step."""
    return [(step, float(loss)) for step, loss in enumerate(record.losses, start=1)]


def metric_of(record: TrainingRecord) -> list[tuple[int, float]]:
    """The metric at the steps where it was evaluated."""
    return [(step, float(value)) for step, value in record.metrics]


def learned_of(trial: Trial, read: Read) -> list[Learned]:
    """The default, and of each hook the recommended setting or else the fastest: buckets do not alter learning."""
    known = {str(one.case.key): one for one in trained(trial.run.training_records).values()}
    found = []
    for row in _settings(trial):
        one = known.get(case_of(row).key)
        curve = _curve(one, read) if one is not None else None
        if one is not None and curve is not None:
            step_s = median(list(one.steps_ms.values())) / 1e3
            name = trial.prefix + setting_name(row)
            found.append(Learned(name=name, row=row, steps=curve[0], values=curve[1], step_s=step_s))
    return found


def _settings(trial: Trial) -> list[TrainingRow]:
    """One row for each hook and precision, in the order of the rows; one more where two of a hook matter."""
    ranked = sorted(trial.ok, key=lambda row: (not trial.is_chosen(row), -(row.samples_per_s or 0.0)))
    by_hook: dict[str, TrainingRow] = {}
    for row in trial.ok:
        best = next(other for other in ranked if hook_label(other) == hook_label(row))
        by_hook.setdefault(hook_label(row), row if row is trial.default else best)
    chosen = [row for row in ranked[:1] if trial.is_chosen(row) and row not in by_hook.values()]
    return [*by_hook.values(), *chosen]


def _curve(one: Trained, read: Read) -> tuple[Floats, Floats] | None:
    """Steps and values by launch; many steps are averaged in windows of equal length."""
    launches = [values for record in one.timed.values() if (values := read(record))]
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
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


# -------------------------------------------------------------------------------------------------------- painting


def _drawing(group: Group, what: str, learned: Sequence[Learned]) -> Drawing:
    shown = learned[:MOST_SERIES]
    name = _label(what, learned)
    return draw(
        lambda figure: paint_learning(figure, shown, name, _target(what, group)),
        name=slug(what, group.key),
        section="learning",
        title=f"{name[0].upper()}{name[1:]} over steps and over time: {group.name}",
        caption=caption_of(what, name, learned),
        alt=f"{name} over steps and over seconds for {listed([one.name for one in shown], MOST_SERIES)}.",
        height_in=4.6 + legend_height_in([one.name for one in shown]),
    )


def _label(what: str, learned: Sequence[Learned]) -> str:
    names = [one.row.metric_name for one in learned if one.row.metric_name]
    return "training loss" if what == "loss" else names[0] if names else "metric"


def _target(what: str, group: Group) -> float | None:
    records = (record for trial in group.trials for record in trial.run.training_records)
    aims = (r.target for r in records if r.target is not None and r.case.workload == group.trials[0].rows[0].workload)
    return next(aims, None) if what == "metric" else None


def paint_learning(figure: Figure, learned: Sequence[Learned], label: str, target: float | None = None) -> None:
    """The same values twice: above over steps, below over the seconds that these steps take."""
    by_steps, by_time = figure.subplots(2, 1)
    for axes, over in ((by_steps, "steps"), (by_time, "seconds")):
        for place, one in enumerate(learned):
            _paint_one(axes, getattr(one, over), one, place)
        if target is not None:
            axes.axhline(target, color=MUTED, linewidth=1.0, linestyle=(0, (6, 3)))
            at = ("axes fraction", "data")
            axes.annotate("target", (0, target), xycoords=at, color=MUTED, fontsize=9, va="bottom")
        axes.set(ylabel=label, xlabel=over)
        axes.set_xlim(left=0.0)
        values = np.concatenate([one.mean for one in learned])
        if label == "training loss" and np.nanmin(values) > 0 and np.nanmax(values) > _WIDE * np.nanmin(values):
            log_axis(axes.yaxis)
    legend(figure, by_steps)


def _paint_one(axes: Axes, x: Floats, one: Learned, place: int) -> None:
    looks_as = look(place)
    every = max(1, len(x) // 8)  # markers on every point would hide the line
    style = {"color": looks_as.colour, "linestyle": looks_as.dash, "marker": looks_as.marker, "markevery": every}
    axes.plot(x, one.mean, label=one.name, **style)
    if len(one.values) > 1:
        low, high = np.nanmin(one.values, axis=0), np.nanmax(one.values, axis=0)
        axes.fill_between(x, low, high, color=looks_as.colour, alpha=BAND_ALPHA, linewidth=0)


# ---------------------------------------------------------------------------------------------------------- caption


def caption_of(what: str, name: str, learned: Sequence[Learned]) -> str:
    """How to read it, and where each setting has come to after equal steps and after equal time."""
    launches = max(len(one.values) for one in learned)
    of = "the launch" if launches == 1 else f"{counted(launches, 'launch')}, bands their range"
    return sentences(
        f"Lines are the mean of {of}; buckets alone do not alter learning, so each hook stands with one bucket size.",
        _after_equal_steps(what, learned),
        _after_equal_time(what, learned),
        f"So few steps show little of what a whole training does to the {name}." if _is_short(learned) else "",
        left_out([one.name for one in learned], MOST_SERIES),
    )


def _is_short(learned: Sequence[Learned]) -> bool:
    few = 50
    return max(float(one.steps[-1]) for one in learned) < few


def _after_equal_steps(what: str, learned: Sequence[Learned]) -> str:
    until = min(float(one.steps[-1]) for one in learned)
    said = [f"{digits(float(np.nanmean(_at(one, one.steps, until, what))))} with {one.name}" for one in learned]
    return f"After {until:.0f} steps: {listed(said, MOST_SERIES)}."


def _after_equal_time(what: str, learned: Sequence[Learned]) -> str:
    """Which is ahead when the first is through, if the range of its launches lies beyond those of all others."""
    until = min(float(one.seconds[-1]) for one in learned)
    reached = {one.name: _at(one, one.seconds, until, what) for one in learned if one.seconds[0] <= until * (1 + 1e-9)}
    if len(reached) < 2:  # noqa: PLR2004 - nothing to compare
        return ""
    sign = 1.0 if what == "loss" or falls(learned[0].row.metric_name) else -1.0
    first, second = sorted(reached, key=lambda name: float(np.nanmean(sign * reached[name])))[:2]
    mean = digits(float(np.nanmean(reached[first])))
    ahead = np.nanmax(sign * reached[first]) < min(np.nanmin(sign * reached[o]) for o in reached if o != first)
    if not ahead or any(len(values) < 2 for values in reached.values()):  # noqa: PLR2004 - one launch has no range
        return f"After {until:.3g} s none is ahead of all others beyond the range of its launches."
    next_mean = digits(float(np.nanmean(reached[second])))
    return f"After {until:.3g} s {first} is ahead with {mean}, before {second} with {next_mean}."


def _at(one: Learned, x: Floats, until: float, what: str) -> Floats:
    """Each launch's mean over the last tenth before ``until``, of a metric its last value; (launches,)."""
    end = max(1, int(np.searchsorted(x, until * (1 + 1e-9), side="right")))
    width = max(1, end // LOSS_WINDOW) if what == "loss" else 1
    return np.array([_mean(line[max(0, end - width) : end]) for line in one.values])
