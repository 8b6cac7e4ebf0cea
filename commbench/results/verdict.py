"""What a recommendation says: findings, in the order in which people read them, and what to
paste.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from commbench.findings import Finding, Numbers, Value
from commbench.results.recommendation import (
    Bounds,
    Choice,
    Cost,
    Difference,
    Recommendation,
    alters_learning,
    setting_of,
)
from commbench.units import counted
from commbench.words import Estimate

#: The most lines of a verdict in a first answer.
MOST_LINES = 4


def verdict_findings(recommendation: Recommendation) -> list[Finding]:
    """Return what to do, the reason, which settings are withheld and why, and what would decide."""
    headline = _headline(recommendation)
    return [headline, *headline.details]


def verdict_lines(recommendation: Recommendation) -> list[str]:
    """Return `verdict_findings` in at most `MOST_LINES` lines, and below them what to paste for a
    change.
    """
    headline, *details = verdict_findings(recommendation)
    lines = [str(headline)]
    for finding in details[: MOST_LINES - 1]:
        lines.append(f"  {finding}")
    return [*lines, *paste_lines(recommendation)]


def paste_lines(recommendation: Recommendation) -> Iterator[str]:
    """Yield the lines to paste for a change, indented, below their titles."""
    if recommendation.verdict != "change":
        return
    for title, text in snippets(recommendation):
        yield f"{title}:"
        for line in text.splitlines():
            if line:
                yield f"    {line}"


def recommendation_findings(recommendation: Recommendation) -> Iterator[Finding]:
    """Yield all that a recommendation says.

    First what to do, with the reason, the settings that are withheld and what would decide as its
    details. Then the gains of others; what changes in learning; how the choice was limited and
    found; and warnings.
    """
    yield _headline(recommendation)
    yield from _stated("env_chosen", recommendation.env_reason)
    yield from _altering(recommendation, are_withheld=False)
    yield from _over_half(recommendation)
    yield from _learning(recommendation)
    yield from _accuracy(recommendation)
    if search := recommendation.search:
        code = "search_of_some" if search.untried else "search"
        yield Finding(code, numbers=vars(search))
    for warning in recommendation.warnings:
        yield Finding("limit", numbers={"sentence": warning}, level="warning")


def paragraph(recommendation: Recommendation) -> str:
    """Return all that a recommendation says, as text."""
    return " ".join(finding.in_full for finding in recommendation_findings(recommendation))


def snippets(recommendation: Recommendation) -> list[tuple[str, str]]:
    """Return what to paste, each with a title: the same gradients come first."""
    safe, best = recommendation.safe, recommendation.best
    if recommendation.verdict != "change" or not alters_learning(best, recommendation.baseline):
        return [("To paste", recommendation.snippet)]
    texts = []
    if safe.verdict == "change":
        texts.append(("To paste, same gradients", safe.snippet))
    for each in recommendation.altering:
        if each.snippet and setting_of(each) != setting_of(best):
            texts.append((f"To paste, {recommendation.named(each)}", each.snippet))
    return [*texts, ("To paste, changed gradients", recommendation.snippet)]


def _headline(recommendation: Recommendation) -> Finding:
    advice = recommendation
    code = f"setting_{advice.verdict}"
    if not advice.has_baseline:
        code = "setting_none"
    elif advice.verdict == "change" and alters_learning(advice.best, advice.baseline):
        code = "setting_change_altering"
        if advice.safe.verdict == "change":
            code = "setting_change_either"
    numbers = {
        "baseline": advice.baseline_name,
        "safe": advice.named(advice.safe),
        "setting": advice.named(advice.best),
    }
    subject = f"{advice.workload} on {counted(advice.world_size, 'rank')}"
    details = [
        *_stated("reason", advice.reason),
        *_safe(advice),
        *_altering(advice, are_withheld=True),
        *_stated("decide", advice.further_launches),
    ]
    return Finding(code, subject, numbers, "verdict", details=tuple(details))


def _stated(code: str, sentence: str) -> Iterator[Finding]:
    """Yield what the decision has put in words already; nothing without."""
    if sentence:
        yield Finding(code, numbers={"sentence": sentence})


def _safe(recommendation: Recommendation) -> Iterator[Finding]:
    """Yield the fastest setting that leaves learning as it is, if the best alters it."""
    safe = recommendation.safe
    if not alters_learning(recommendation.best, recommendation.baseline):
        return
    code = "fastest_safe"
    if setting_of(safe) == setting_of(recommendation.baseline):
        code = "fastest_safe_none"
    elif safe.speedup is None:
        code = "fastest_safe_unmeasured"
    yield _fastest(code, safe, recommendation, verdict=safe.verdict)


def _fastest(
    code: str, choice: Choice, recommendation: Recommendation, **numbers: Value
) -> Finding:
    """Return the gain of a setting over the baseline."""
    numbers["speedup"] = _estimate(choice.speedup, choice.speedup_ci)
    numbers["baseline"] = recommendation.baseline_name
    return Finding(code, recommendation.named(choice), numbers)


def _estimate(value: float | None, ends: Bounds | None) -> Estimate:
    if value is None:
        value = math.nan
    return Estimate(value, *(ends or (None, None)))


def _altering(recommendation: Recommendation, *, are_withheld: bool) -> Iterator[Finding]:
    """Yield the gain of each setting that alters learning, and of withheld ones that may gain
    what it takes to have them recommended. The reason states the gain of the best.
    """
    proofs = "--max-accuracy-loss or --accept-loss"
    if recommendation.live:
        proofs = "--accept-loss"
    for choice in recommendation.altering:
        is_best = setting_of(choice) == setting_of(recommendation.best)
        if is_best or bool(choice.withheld) != are_withheld:
            continue
        code = f"fastest_{choice.effect}".replace(" ", "_")
        if choice.withheld and choice.verdict != "keep":
            code = f"withheld_{choice.effect}_{choice.withheld}".replace(" ", "_")
        yield _fastest(code, choice, recommendation, verdict=choice.verdict, proofs=proofs)


def _over_half(recommendation: Recommendation) -> Iterator[Finding]:
    """Yield the gain of a lossy setting over the fastest in half precision."""
    by_effect = {choice.effect: choice for choice in recommendation.altering}
    half, lossy = by_effect.get("half precision"), by_effect.get("lossy")
    if half is not None and lossy is not None and lossy.speedup_half is not None:
        numbers: Numbers = {"half": recommendation.named(half)}
        numbers["speedup"] = _estimate(lossy.speedup_half, lossy.speedup_half_ci)
        yield Finding("fastest_over_half", recommendation.named(lossy), numbers)


def _learning(recommendation: Recommendation) -> Iterator[Finding]:
    """Yield the effect on learning of the best setting, and of the fastest lossy one."""
    best, baseline = recommendation.best, recommendation.baseline
    judged = []
    if alters_learning(best, baseline):
        judged.append((best, recommendation.cost))
    for lossy in recommendation.altering:
        if lossy.effect == "lossy" and setting_of(lossy) != setting_of(best):
            judged.append((lossy, lossy.cost))
    for choice, cost in judged:
        yield from _cost(choice, cost, recommendation)
    steps = [cost.steps for _, cost in judged if cost]
    if steps:
        yield Finding("learning_few_steps", numbers={"steps": max(steps)})
    if best.accumulation != baseline.accumulation:
        yield Finding("learning_of_other_batch")


def _cost(choice: Choice, cost: Cost | None, recommendation: Recommendation) -> Iterator[Finding]:
    """Yield losses and metric beside the baseline's, or why they are unknown."""
    subject = recommendation.named(choice)
    if cost is None:
        code = "learning_unmeasured"
        if recommendation.live:
            code = "learning_unmeasured_live"
        yield Finding(code, subject)
        return
    losses = _compared("loss", cost.loss_equal_steps)
    losses |= _compared("equal_time", cost.loss_equal_time)
    yield Finding("learning_loss", subject, {"steps": cost.steps, **losses})
    if cost.metric is not None:
        metric = _compared("value", cost.metric)
        yield Finding("learning_metric", subject, {"metric": cost.metric_name, **metric})
    if cost.loss_equal_time.difference >= 0:
        yield Finding("learning_no_more", subject, {"baseline": recommendation.baseline_name})


def _compared(name: str, compared: Difference) -> Numbers:
    """Return a quantity, the baseline's, and the median of launches' differences, which may differ
    in sign from the difference of the medians.
    """
    return {
        name: compared.best,
        f"{name}_baseline": compared.baseline,
        f"{name}_difference": _estimate(compared.difference, compared.difference_ci),
    }


def _accuracy(recommendation: Recommendation) -> Iterator[Finding]:
    """Yield what --max-accuracy-loss left out; nothing where it was not given."""
    limit, left_out = recommendation.max_accuracy_loss, recommendation.accuracy_failed
    if limit is None:
        return
    code = "accuracy_limit"
    if not left_out:
        code = "accuracy_limit_met"
    yield Finding(code, numbers={"limit": limit, "settings": left_out})
