"""Learning of settings: loss and metric over steps and over time, mean and range over launches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from commbench import stats
from commbench.ddp.plan.cases import CONFIRM, SWEEP, setting_name
from commbench.ddp.plan.records import TrainingRecord, TrainingRow
from commbench.findings import Finding
from commbench.report.figures.charts import (
    Chart,
    Limit,
    Panel,
    Series,
    number_text,
)
from commbench.report.figures.drawing import MOST_SERIES, slug
from commbench.report.figures.words import Group, Trial, case_of, groups
from commbench.report.formats import listed
from commbench.report.training import hook_label
from commbench.results import Run
from commbench.results.trained import Trained, equal_losses, median, paired_losses, trained
from commbench.units import three_digits
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


class Learned(NamedTuple):
    """The loss or metric of one setting."""

    name: str
    setting: Trained
    curves: Sequence[Curve]
    """One of each launch."""

    def series(self, step: float, limit: Limit | None) -> Series:
        """Return the curve over steps of this length."""
        windows = windows_of(self.curves)
        points = {number * step: point for number, point in windows.items()}
        return Series(name=self.name, points=points, limit=limit)


def learning_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the loss and the metric of each workload."""
    charts = []
    for group in groups(runs):
        for quantity in ("loss", "metric"):
            learned = []
            results: list[Finding] = []
            for trial in group.trials:
                of_trial = learned_of(trial, quantity)
                learned += of_trial
                if quantity == "loss":
                    results += ahead(of_trial)
            if learned:
                charts.append(_chart(group, quantity, learned, results))
    return charts


def learned_of(trial: Trial, quantity: str) -> list[Learned]:
    """Return the settings of the fresh launches; without these, of the sweep one for each hook."""
    fresh = _learned(trial, trial.ok, CONFIRM, quantity)
    if len(fresh) > 1:
        return fresh
    return _learned(trial, _one_a_hook(trial), SWEEP, quantity)


def _learned(trial: Trial, rows: Sequence[TrainingRow], phase: str, quantity: str) -> list[Learned]:
    settings = trained(trial.run.training_records, phase)
    learned = []
    for row in rows:
        setting = settings.get(dataclasses.replace(case_of(row), phase=phase).key)
        if setting is not None:
            curves = [_curve(record, quantity) for record in setting.timed.values()]
            if any(curves):
                learned.append(Learned(trial.prefix + setting_name(row), setting, curves))
    return learned


def _one_a_hook(trial: Trial) -> list[TrainingRow]:
    """Return the default, the recommended row, and of each other hook the fastest row."""
    shown: dict[str, TrainingRow] = {}
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


def _chart(
    group: Group, quantity: str, learned: Sequence[Learned], results: Sequence[Finding]
) -> Chart:
    label = "training loss"
    limit = None
    if quantity == "metric":
        label, limit = _metric(group)
    over_steps = []
    over_time = []
    for curve in learned:
        step_s = median(list(curve.setting.steps_ms.values())) / 1e3
        over_steps.append(curve.series(1.0, limit))
        over_time.append(curve.series(step_s, limit))
    return Chart(
        name=slug(quantity, group.key),
        section="learning",
        title=f"{label[0].upper()}{label[1:]} over steps and over time: {group.name}",
        reading=_READING,
        results=results,
        panels=[
            Panel(series=over_steps, x="number", x_label="steps", quantity=label),
            Panel(series=over_time, x="number", x_label="seconds", quantity=label),
        ],
    )


def _metric(group: Group) -> tuple[str, Limit | None]:
    """Return the name of the metric, and its target."""
    name, limit = "metric", None
    for trial in group.trials:
        for record in trial.run.training_records:
            if record.case.workload == trial.rows[0].workload:
                name = record.metric_name or name
                if record.target is not None:
                    limit = Limit(record.target, "target")
    return name, limit


def ahead(learned: Sequence[Learned]) -> list[Finding]:
    """Return the loss of each setting when the fastest has finished, and which one is ahead.

    A lead is the median difference between launches of the same number, of which its interval needs
    six; it has to exceed noise.
    """
    losses = equal_losses([curve.setting for curve in learned])
    means = {}
    for curve in learned:
        own = [loss.time for (key, _), loss in losses.items() if key == curve.setting.case.key]
        means[curve.name] = float(np.nanmean(own))
    if len(means) < 2:  # noqa: PLR2004 - nothing to compare
        return []
    texts = [f"{three_digits(mean)} with {name}" for name, mean in means.items()]
    reached = Finding("figure_losses", numbers={"losses": listed(texts, MOST_SERIES)})
    first, *others = sorted(learned, key=lambda curve: means[curve.name])
    leads = []
    for other in others:
        pairs = paired_losses(first.setting, other.setting, losses)
        gains = [theirs.time - own.time for own, theirs in pairs]
        interval = stats.median_interval(gains)
        if interval is None or interval.low <= 0:
            return [reached, Finding("figure_ahead_none")]
        leads.append((median(gains), interval.low, interval.high, other.name))
    gain, low, high, nearest = min(leads)
    numbers = {"lead": number_text(Estimate(gain, low, high), ""), "other": nearest}
    return [reached, Finding("figure_ahead", first.name, numbers)]
