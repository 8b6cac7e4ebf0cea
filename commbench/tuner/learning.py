"""Whether a setting learns well enough to be recommended: what ``--max-accuracy-loss`` leaves out, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from commbench import stats
from commbench.results.recommendation import alters_learning
from commbench.results.trained import EqualLosses, Trained, falls, median, paired_losses
from commbench.stats import Interval


def accuracy_warning(
    one: Trained, base: Trained, losses: Mapping[tuple[str, int], EqualLosses], allowed: float, *, decides: bool
) -> str:
    """Why a setting may lose more accuracy than is allowed, as a clause; empty if it may not.

    What is lost is, in each launch that has both, the held-out metric at the end of the first block against the
    baseline's; without a metric the loss after equal steps, as a share of the baseline's. Another bucket size alone
    does not alter learning and is not judged. While candidates are sought the median over launches counts; when it is
    decided, the upper end of its 95 % interval: what few launches cannot bound is not recommended.

    Args:
        one: the setting.
        base: the baseline, which trained with the same data in the same launches.
        losses: of both, by case key and launch.
        allowed: how much may be lost, in the metric's own unit or, of a loss, as a share.
        decides: whether these launches decide, not merely seek.
    """
    if not alters_learning(one.case, base.case):
        return ""
    what, lost = _lost(one, base, losses)
    if not lost:
        return "no launch shows what it does to learning: there is neither a metric nor a loss"
    if not all(map(math.isfinite, lost)):
        return f"its {what} or the default's is not finite"
    interval = difference_interval(lost) if decides else None
    if decides and interval is None:
        return f"a single launch cannot bound what it does to its {what}"
    worst = interval.high if interval else median(lost)
    if worst <= allowed:
        return ""
    is_loss = not _has_metric(base)
    number = "{:.2g} %".format if is_loss else "{:.3g}".format
    factor, direction = (100, "higher") if is_loss else (1, "higher" if falls(what) else "lower")
    verb = "may be" if interval else "is"
    return f"its {what} {verb} {number(factor * worst)} {direction} and {number(factor * allowed)} is allowed"


def _has_metric(one: Trained) -> bool:
    return any(len(record.metrics) for record in one.timed.values())


def _lost(one: Trained, base: Trained, losses: Mapping[tuple[str, int], EqualLosses]) -> tuple[str, list[float]]:
    """What is judged, and what of it is lost in each launch that tells."""
    if not _has_metric(base):
        pairs = [(own.steps, theirs.steps) for own, theirs in paired_losses(one, base, losses)]
        return "loss after equal steps", [(own - theirs) / abs(theirs) for own, theirs in pairs if theirs]
    launches = sorted(one.timed.keys() & base.timed.keys())
    both = [(one.timed[launch], base.timed[launch]) for launch in launches]
    name = next(iter(base.timed.values())).metric_name
    sign = 1.0 if falls(name) else -1.0
    told = [(own.metrics, theirs.metrics) for own, theirs in both if len(own.metrics) and len(theirs.metrics)]
    return name, [sign * (own[-1][1] - theirs[-1][1]) for own, theirs in told]


def difference_interval(differences: Sequence[float]) -> Interval | None:
    """The 95 % interval of the median of launches' differences, of either sign; None for fewer than two.

    It is that of `commbench.stats.launch_interval` on exp(difference): its order statistics are the differences' own,
    and Student's t on logarithms is Student's t on the differences.
    """
    scale = max(map(abs, differences)) or 1.0
    interval = stats.launch_interval(np.exp(np.asarray(differences) / scale))
    if interval is None:
        return None
    return Interval(low=scale * math.log(interval.low), high=scale * math.log(interval.high), level=interval.level)
