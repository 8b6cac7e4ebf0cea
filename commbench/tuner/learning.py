"""Effects on learning: which settings may be recommended, and which ``--max-accuracy-loss`` leaves
out, and why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from commbench import stats
from commbench.ddp.plan.cases import TrainingCase
from commbench.findings import Finding
from commbench.results.info import RunInfo
from commbench.results.recommendation import (
    Cost,
    Difference,
    Withheld,
    alters_learning,
    effect_of,
)
from commbench.results.trained import (
    EqualLosses,
    Trained,
    common_launches,
    falls,
)
from commbench.stats import bounds_of, median

#: The losses of a setting and of the baseline in each launch that has both.
PairedLosses: TypeAlias = Sequence[tuple[EqualLosses, EqualLosses]]


def withheld(case: TrainingCase, baseline: TrainingCase, info: RunInfo) -> Withheld:
    """Return why a setting may not be recommended, however fast it is; empty if it may be.

    A setting that leaves learning unchanged may be. A hook that rounds to half precision must be
    named by the user. A lossy hook must be named, and its accuracy limited by
    ``--max-accuracy-loss`` or its loss accepted. Precision and accumulation change only where the
    user names them.
    """
    effect = effect_of(case, baseline)
    named_hooks = info.get("named_hooks")
    if named_hooks is None or effect in {"none", "compiled", "buffers", "batch"}:
        return ""
    if case.hook != baseline.hook and not case.is_plain and case.hook_name not in named_hooks:
        return "not_allowed"
    is_judged = info.get("max_accuracy_loss") is not None or info.get("accepts_loss", False)
    if effect == "lossy" and not is_judged:
        return "not_validated"
    return ""


def accuracy_warning(
    candidate: Trained,
    base: Trained,
    losses: PairedLosses,
    allowed: float,
    *,
    is_decision: bool,
) -> Finding | None:
    """Return why a setting may lose more accuracy than allowed, as a clause; None if it may not.

    The accuracy loss of a launch is the difference of the held-out metric at the end of the first
    block from the baseline's. Without a metric it is the relative difference of the loss after
    equal steps. A different bucket size alone does not alter learning and is not judged. To select
    candidates, the median over launches is compared with the limit. To decide, the upper end of its
    95 % interval is, so that a setting with too few launches is not recommended.

    Args:
        candidate: the setting.
        base: the baseline, trained with the same data in the same launches.
        losses: of both.
        allowed: largest accuracy loss, in the metric's unit or, for a loss, as a share.
        is_decision: whether these launches decide, or only select candidates.
    """
    if not alters_learning(candidate.case, base.case):
        return None
    quantity, accuracy_losses = _accuracy_losses(candidate, base, losses)
    if not accuracy_losses:
        return Finding(code="accuracy_unknown")
    if not all(map(math.isfinite, accuracy_losses)):
        return Finding(code="accuracy_not_finite", subject=quantity)
    worst, verb = median(accuracy_losses), "is"
    if is_decision:
        highest = _highest(accuracy_losses)
        if highest is None:
            return Finding(code="accuracy_unbounded", subject=quantity)
        worst, verb = highest, "may_be"
    if worst <= allowed:
        return None
    numbers = {"worst": worst, "allowed": allowed}
    direction = "lower"
    if falls(quantity):
        direction = "higher"
    if not _has_metric(base):
        direction = "costlier"
        numbers = {"worst": 100 * worst, "allowed": 100 * allowed}
    return Finding(code=f"accuracy_{verb}_{direction}", subject=quantity, numbers=numbers)


def _has_metric(candidate: Trained) -> bool:
    return any(len(record.metrics) for record in candidate.timed.values())


def _accuracy_losses(
    candidate: Trained, base: Trained, losses: PairedLosses
) -> tuple[str, list[float]]:
    """Return the name of the judged quantity, and its loss in each launch that has it."""
    accuracy_losses = []
    if not _has_metric(base):
        for own, theirs in losses:
            if theirs.steps:
                accuracy_losses.append((own.steps - theirs.steps) / abs(theirs.steps))
        return "loss after equal steps", accuracy_losses
    name = next(iter(base.timed.values())).metric_name
    for own_metric, base_metric in _final_metrics(candidate, base):
        if falls(name):
            accuracy_losses.append(own_metric - base_metric)
        else:
            accuracy_losses.append(base_metric - own_metric)
    return name, accuracy_losses


def _final_metrics(configuration: Trained, base: Trained) -> list[tuple[float, float]]:
    """Return the last metric of both in each launch that has both."""
    pairs = []
    for launch in common_launches(configuration, base):
        own, theirs = configuration.timed[launch].metrics, base.timed[launch].metrics
        if len(own) and len(theirs):
            pairs.append((own[-1][1], theirs[-1][1]))
    return pairs


def cost_of(configuration: Trained, base: Trained, losses: PairedLosses) -> Cost | None:
    """Return what a setting changes in learning, in the launches that have both.

    None without losses, or if none is finite.
    """
    at_steps, at_time, counts = [], [], []
    for own, theirs in losses:
        if all(map(math.isfinite, (own.steps, own.time, theirs.steps, theirs.time))):
            at_steps.append((own.steps, theirs.steps))
            at_time.append((own.time, theirs.time))
            counts.append(own.count)
    if not counts:
        return None
    metrics = [
        pair for pair in _final_metrics(configuration, base) if all(map(math.isfinite, pair))
    ]
    name, metric = "", None
    if metrics:
        name = configuration.timed[common_launches(configuration, base)[-1]].metric_name
        metric = _difference(metrics)
    return Cost(
        steps=min(counts),
        loss_equal_steps=_difference(at_steps),
        loss_equal_time=_difference(at_time),
        metric_name=name,
        metric=metric,
    )


def _difference(pairs: Sequence[tuple[float, float]]) -> Difference:
    own, theirs = np.transpose(np.asarray(pairs, dtype=float))
    bounds = bounds_of(stats.median_interval(own - theirs))
    return Difference(
        baseline=median(theirs),
        best=median(own),
        difference=median(own - theirs),
        difference_ci=bounds,
    )


def _highest(differences: Sequence[float]) -> float | None:
    """Return the upper end of the 95 % interval of the median of launches' differences; None for
    fewer than two.

    It is the interval of `commbench.stats.launch_interval` on exp(difference): order statistics are
    invariant, and Student's t on logarithms becomes Student's t on the differences.
    """
    scale = max(map(abs, differences)) or 1.0
    interval = stats.launch_interval(np.exp(np.asarray(differences) / scale))
    if interval is None:
        return None
    return scale * math.log(interval.high)
