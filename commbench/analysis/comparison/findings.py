"""What a comparison shows, as findings: the answer, what is beyond a threshold, and advice."""

import math
from collections import Counter

from commbench.analysis.comparison.verdicts import (
    ENOUGH_BASELINES,
    ComparisonTable,
)
from commbench.findings import Finding, Numbers
from commbench.stats import Verdict
from commbench.stats.ratios import MOST_LAUNCHES


def answer(table: ComparisonTable) -> list[Finding]:
    """Return the slower cases, the slowest first, and how many other verdicts there are."""
    slower = [each for each in table.cases if each.comparison.verdict is Verdict.SLOWER]
    slower.sort(key=lambda compared: compared.severity, reverse=True)
    changes = []
    for each in slower:
        change = {"change": each.comparison.estimate}
        changes.append(Finding("compare_change", table.name_of(each), change))
    numbers: Numbers = {
        **table.counts,
        "cases": len(table.cases),
        "changes": tuple(changes),
        "margin": 100 * table.margin,
    }
    findings = [Finding("compare_slower" if slower else "compare_none", numbers=numbers)]
    lost = sum(broken.is_regression for broken in table.broken)
    if lost:
        findings.append(Finding("compare_lost", numbers={"cases": lost}))
    findings.append(Finding("compare_others", numbers=numbers))
    if not table.is_complete:
        missing = sum(broken.status_b == "missing" for broken in table.broken)
        missing += len(table.only_in_a)
        findings.append(Finding("compare_incomplete", numbers={"cases": missing}))
    if table.is_forced:
        findings.append(Finding("compare_forced"))
    return findings


def regressions(table: ComparisonTable, threshold: float) -> tuple[list[str], list[str]]:
    """Return the names of the cases slower beyond the threshold, and of the lost cases."""
    slower = [table.name_of(case) for case in table.cases if case.is_beyond(threshold)]
    return slower, [table.name_of(case) for case in table.broken if case.is_regression]


def beyond(table: ComparisonTable, threshold: float) -> list[Finding]:
    """Return what explains the exit code."""
    slower, lost = regressions(table, threshold)
    numbers: Numbers = {"limit": 100 * threshold, "cases": tuple(slower)}
    code = "compare_beyond" if slower else "compare_none_beyond"
    sizes = sorted(case.comparison.detectable for case in table.cases)
    if sizes and not slower and not lost:
        typical = sizes[(len(sizes) - 1) // 2]
        numbers["slowdown"] = 100 * typical
        code = "compare_none_seen" if math.isfinite(typical) else "compare_none_visible"
    findings = [Finding(code, numbers=numbers)]
    if lost:
        findings.append(Finding("compare_lost_cases", numbers={"cases": tuple(lost)}))
    return findings


def closing(table: ComparisonTable) -> list[Finding]:
    """Return the cases that could not be compared, and advice."""
    findings = []
    for broken in table.broken:
        statuses = {"status_a": broken.status_a, "status_b": broken.status_b}
        findings.append(Finding("compare_broken", table.name_of(broken), statuses))
    only = (("compare_only_a", table.only_in_a), ("compare_only_b", table.only_in_b))
    for code, cases in only:
        if cases:
            findings.append(Finding(code, numbers={"cases": tuple(map(str, cases))}))
    baselines = len(table.names_a)
    if 1 < baselines < ENOUGH_BASELINES:
        numbers = {"baselines": baselines, "enough": ENOUGH_BASELINES}
        findings.append(Finding("compare_few_baselines", numbers=numbers))
    if table.has_too_few_launches:
        findings.append(Finding("compare_few_launches", numbers={"cases": len(table.cases)}))
    return findings + _inconclusive(table)


def _inconclusive(table: ComparisonTable) -> list[Finding]:
    """Return how many more launches would settle the inconclusive cases."""
    efforts = [case.comparison.further for case in table.cases if case.comparison.further]
    settled = [effort for effort in efforts if effort.forecast == "settles"]
    counts = Counter(effort.forecast for effort in efforts)
    findings = []
    if settled:
        numbers = {"cases": len(settled), "low": min(effort.low for effort in settled)}
        findings.append(Finding("compare_settled", numbers=numbers))
    if counts["near"]:
        findings.append(Finding("compare_near", numbers={"cases": counts["near"]}))
    if counts["noisy"]:
        noisy = {"cases": counts["noisy"], "launches": MOST_LAUNCHES}
        findings.append(Finding("compare_noisy", numbers=noisy))
    return findings
