"""Learning of settings: loss and metric over steps and over time, mean and range over launches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from commbench.ddp.plan.cases import CONFIRM, SWEEP, setting_name
from commbench.ddp.plan.records import TrainingRecord, TrainingRow
from commbench.report.figures.charts import Chart, Limit, Panel, Series
from commbench.report.figures.drawing import slug
from commbench.report.figures.words import Group, Trial, groups
from commbench.report.training import hook_label
from commbench.results import Run
from commbench.results.trained import trained
from commbench.stats import median
from commbench.words import Estimate

_READING = (
    "Lines are the mean over confirmation launches, bands their range; fewer than 50 steps show"
    " little about a whole training. Without confirmation launches those of the sweep are shown,"
    " each hook with one bucket size: another one learns differently only with hooks that select"
    " over a bucket."
)
#: The most points of a curve; each is the mean of a window of steps.
_POINTS = 60

Curve = Mapping[float, float]
"""A loss or metric by step."""
Learned = tuple[Series, float]
"""The curve of a setting over steps, and the seconds of a step."""


def learning_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    """Yield the loss and the metric of each workload."""
    for group in groups(runs):
        for quantity in ("loss", "metric"):
            learned = []
            for trial in group.trials:
                learned += learned_of(trial, quantity)
            if learned:
                yield _chart(group, quantity, learned)


def learned_of(trial: Trial, quantity: str) -> list[Learned]:
    """Return what each setting of the confirmation launches learned; without these, of the sweep
    one for each hook.
    """
    learned: list[Learned] = []
    for phase, rows in ((CONFIRM, trial.ok), (SWEEP, _one_a_hook(trial))):
        settings = trained(trial.run.training_records, phase)
        learned = []
        for case, row in trial.run.keyed_training_rows.items():
            setting = settings.get(dataclasses.replace(case, phase=phase).key)
            if setting is not None and row in rows:
                curves = [_curve(record, quantity) for record in setting.timed.values()]
                if any(curves):
                    name = trial.prefix + setting_name(row)
                    series = Series(name=name, points=windows_of(curves))
                    learned.append((series, median(list(setting.steps_ms.values())) / 1e3))
        if len(learned) > 1:
            break
    return learned


def _one_a_hook(trial: Trial) -> list[TrainingRow]:
    """Return the default, the recommended row, and of each other hook the fastest row."""
    shown = {}
    if trial.default is not None:
        shown[hook_label(trial.default)] = trial.default
    for row in trial.fastest:
        shown.setdefault(hook_label(row), row)
    return [row for row in trial.ok if row in shown.values() or trial.is_chosen(row)]


def _curve(record: TrainingRecord, quantity: str) -> Curve:
    pairs = enumerate(record.losses, start=1) if quantity == "loss" else record.metrics
    return {float(step): float(value) for step, value in pairs if math.isfinite(value)}


def windows_of(launches: Sequence[Curve]) -> dict[float, Estimate]:
    """Return mean and range over launches by the last step of windows of equal length."""
    steps = sorted(set().union(*launches))
    width = max(1, len(steps) // _POINTS)
    points = {}
    for start in range(0, len(steps), width):
        window = steps[start : start + width]
        means = []
        for launch in launches:
            values = [launch[step] for step in window if step in launch]
            if values:
                means.append(fmean(values))
        points[window[-1]] = Estimate(fmean(means), min(means), max(means))
    return points


def _chart(group: Group, quantity: str, learned: Sequence[Learned]) -> Chart:
    label = "training loss"
    limits = []
    if quantity == "metric":
        label = quantity
        for trial in group.trials:
            for record in trial.run.training_records:
                if record.case.workload == trial.rows[0].workload:
                    label = record.metric_name or label
                    if record.target is not None:
                        limits = [Limit(record.target, "target")]
    over_steps = []
    over_time = []
    for series, step_s in learned:
        points = {step * step_s: point for step, point in series.points.items()}
        over_steps.append(series)
        over_time.append(dataclasses.replace(series, points=points))
    panels = []
    for shown, x_label in ((over_steps, "steps"), (over_time, "seconds")):
        panel = Panel(series=shown, x="number", x_label=x_label, quantity=label, limits=limits)
        panels.append(panel)
    return Chart(
        name=slug(quantity, group.key),
        section="training",
        title=f"{label[0].upper()}{label[1:]} over steps and over time: {group.name}",
        reading=_READING,
        panels=panels,
    )
