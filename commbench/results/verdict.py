"""What a recommendation says: findings, in the order in which people read them, and what to
paste.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from commbench.findings import Finding, Value
from commbench.results.recommendation import (
    Bounds,
    Choice,
    Cost,
    Difference,
    Recommendation,
    Search,
    alters_learning,
    setting_of,
)
from commbench.words import Estimate

#: The most left-out settings that a sentence names.
NAMED = 3
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
    if recommendation.verdict != "change":
        return lines
    for title, text in snippets(recommendation):
        lines.append(f"{title}:")
        for line in text.splitlines():
            if line:
                lines.append(f"    {line}")
    return lines


def recommendation_findings(recommendation: Recommendation) -> list[Finding]:
    """Return all that a recommendation says.

    First what to do, with the reason, the settings that are withheld and what would decide as its
    details. Then the gains of others; what changes in learning; how the choice was limited and
    found; and warnings.
    """
    warnings = []
    for warning in recommendation.warnings:
        numbers = {"sentence": warning}
        warnings.append(Finding(code="limit", numbers=numbers, level="warning"))
    return [
        _headline(recommendation),
        *_stated("env_chosen", recommendation.env_reason),
        *_altering(recommendation, are_withheld=False),
        *_over_half(recommendation),
        *_learning(recommendation),
        *_accuracy(recommendation),
        *_search(recommendation.search),
        *warnings,
    ]


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
    subject = f"{advice.workload} on {advice.world_size} ranks"
    details = [
        *_stated("reason", advice.reason),
        *_safe(advice),
        *_altering(advice, are_withheld=True),
        *_stated("decide", advice.launch_advice),
    ]
    return Finding(
        code=code, subject=subject, numbers=numbers, level="verdict", details=tuple(details)
    )


def _stated(code: str, sentence: str) -> list[Finding]:
    """Return what the decision has put in words already; nothing without."""
    if not sentence:
        return []
    return [Finding(code=code, numbers={"sentence": sentence})]


def _safe(recommendation: Recommendation) -> list[Finding]:
    """Return the fastest setting that leaves learning as it is, if the best alters it."""
    safe = recommendation.safe
    if not alters_learning(recommendation.best, recommendation.baseline):
        return []
    code = "fastest_safe"
    if setting_of(safe) == setting_of(recommendation.baseline):
        code = "fastest_safe_none"
    elif safe.speedup is None:
        code = "fastest_safe_unmeasured"
    return [_fastest(code, safe, recommendation, {"verdict": safe.verdict})]


def _fastest(
    code: str,
    choice: Choice,
    recommendation: Recommendation,
    numbers: Mapping[str, str],
) -> Finding:
    """Return the gain of a setting over the baseline."""
    gain: dict[str, Value] = {
        "speedup": _estimate(choice.speedup, choice.speedup_ci),
        "baseline": recommendation.baseline_name,
    }
    return Finding(
        code=code,
        subject=recommendation.named(choice),
        numbers={**gain, **numbers},
    )


def _estimate(value: float | None, ends: Bounds | None) -> Estimate:
    if value is None:
        value = math.nan
    return Estimate(value, *(ends or (None, None)))


def _altering(recommendation: Recommendation, *, are_withheld: bool) -> list[Finding]:
    """Return the gain of each setting that alters learning, and of withheld ones that may gain
    what it takes to have them recommended. The reason states the gain of the best.
    """
    findings = []
    for choice in recommendation.altering:
        is_best = setting_of(choice) == setting_of(recommendation.best)
        if is_best or bool(choice.withheld) != are_withheld:
            continue
        code = f"fastest_{choice.effect}".replace(" ", "_")
        numbers = {"verdict": choice.verdict, "proofs": "--max-accuracy-loss or --accept-loss"}
        if choice.withheld and choice.verdict != "keep":
            code = f"withheld_{choice.effect}_{choice.withheld}".replace(" ", "_")
        if recommendation.is_live:
            numbers["proofs"] = "--accept-loss"
        findings.append(_fastest(code, choice, recommendation, numbers))
    return findings


def _over_half(recommendation: Recommendation) -> list[Finding]:
    """Return the gain of a lossy setting over the fastest in half precision."""
    by_effect = {choice.effect: choice for choice in recommendation.altering}
    half, lossy = by_effect.get("half precision"), by_effect.get("lossy")
    if half is None or lossy is None or lossy.speedup_half is None:
        return []
    numbers: dict[str, Value] = {
        "speedup": _estimate(lossy.speedup_half, lossy.speedup_half_ci),
        "half": recommendation.named(half),
    }
    subject = recommendation.named(lossy)
    return [Finding(code="fastest_over_half", subject=subject, numbers=numbers)]


def _learning(recommendation: Recommendation) -> list[Finding]:
    """Return the effect on learning of the best setting, and of the fastest lossy one."""
    best, baseline = recommendation.best, recommendation.baseline
    judged: list[tuple[Choice, Cost | None]] = []
    if alters_learning(best, baseline):
        judged.append((best, recommendation.cost))
    for lossy in recommendation.altering:
        if lossy.effect == "lossy" and setting_of(lossy) != setting_of(best):
            judged.append((lossy, lossy.cost))
    findings = []
    for choice, cost in judged:
        findings += _cost(choice, cost, recommendation)
    steps = [cost.steps for _, cost in judged if cost]
    if steps:
        findings.append(Finding(code="learning_few_steps", numbers={"steps": max(steps)}))
    if best.accumulation != baseline.accumulation:
        findings.append(Finding(code="learning_of_other_batch"))
    return findings


def _cost(choice: Choice, cost: Cost | None, recommendation: Recommendation) -> list[Finding]:
    """Return losses and metric beside the baseline's, or why they are unknown."""
    subject = recommendation.named(choice)
    if cost is None:
        code = "learning_unmeasured"
        if recommendation.is_live:
            code = "learning_unmeasured_live"
        return [Finding(code=code, subject=subject)]
    steps, time = cost.loss_equal_steps, cost.loss_equal_time
    losses = {
        "steps": cost.steps,
        **_compared("loss", steps),
        **_compared("equal_time", time),
    }
    findings = [Finding(code="learning_loss", subject=subject, numbers=losses)]
    if cost.metric is not None:
        metric = {"metric": cost.metric_name, **_compared("value", cost.metric)}
        findings.append(Finding(code="learning_metric", subject=subject, numbers=metric))
    if time.difference >= 0:
        numbers = {"baseline": recommendation.baseline_name}
        findings.append(Finding(code="learning_no_more", subject=subject, numbers=numbers))
    return findings


def _compared(name: str, compared: Difference) -> dict[str, Value]:
    """Return a quantity, the baseline's, and the median of launches' differences, which may differ
    in sign from the difference of the medians.
    """
    return {
        name: compared.best,
        f"{name}_baseline": compared.baseline,
        f"{name}_difference": _estimate(compared.difference, compared.difference_ci),
    }


def _accuracy(recommendation: Recommendation) -> list[Finding]:
    """Return what --max-accuracy-loss left out; nothing where it was not given."""
    limit, left_out = recommendation.max_accuracy_loss, recommendation.too_costly
    if limit is None:
        return []
    numbers: dict[str, Value] = {"limit": limit, "settings": "; ".join(left_out[:NAMED])}
    code = "accuracy_limit"
    if not left_out:
        code = "accuracy_limit_met"
    elif len(left_out) > NAMED:
        code = "accuracy_limit_more"
        numbers["more"] = len(left_out) - NAMED
    return [Finding(code=code, numbers=numbers)]


def _search(search: Search | None) -> list[Finding]:
    """Return how a tuning selected its choice; nothing for a sweep."""
    if search is None:
        return []
    code = "search"
    if search.untried:
        code = "search_of_some"
    return [Finding(code=code, numbers=vars(search))]
