"""Sentences and cells that all output formats of a comparison share."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from commbench.analysis.comparison.sides import AnyCase
from commbench.analysis.comparison.verdicts import (
    ENOUGH_BASELINES,
    BrokenCase,
    ComparedCase,
    ComparisonTable,
)
from commbench.ddp.plan.cases import TrainingCase
from commbench.stats import Comparison, Effort, Verdict
from commbench.stats.ratios import MOST_LAUNCHES
from commbench.units import counted, format_time

#: Number of slower cases in the summary, and of other cases in a list.
_NAMED, _LISTED = 5, 8


def summary(table: ComparisonTable) -> str:
    """Return the result in a sentence or two."""
    total = len(table.cases)
    slower = [compared for compared in table.cases if compared.comparison.verdict is Verdict.SLOWER]
    worst = sorted(slower, key=lambda compared: compared.severity, reverse=True)
    names = names_of(table)
    details = "; ".join(
        f"{name_of(compared, names)} {percent_of(compared.comparison)}"
        for compared in worst[:_NAMED]
    )
    more = f"; and {len(slower) - _NAMED} more" if len(slower) > _NAMED else ""
    others = ", ".join(
        f"{count} {verdict}" for verdict, count in table.counts.items() if verdict != Verdict.SLOWER
    )
    cases = "case" if total == 1 else "cases"
    lost = sum(compared.is_regression for compared in table.broken)
    text = f"{len(slower)} of {total} {cases} slower{': ' + details + more if slower else ''}."
    text += f" {counted(lost, 'case')} lost: ok in A and not in B." if lost else ""
    unlike = " A and B were measured under different conditions." if table.is_forced else ""
    return (
        f"{text} {others}, with a margin of {100 * table.margin:g} %.{_on_the_end(table)}{unlike}"
    )


def _on_the_end(table: ComparisonTable) -> str:
    """Return a sentence if B was not measured to its end, with the number of missing cases."""
    if table.is_complete:
        return ""
    count = len(table.only_in_a) + sum(broken.status_b == "missing" for broken in table.broken)
    return (
        f" B is not complete: {counted(count, 'case')} of A {'was' if count == 1 else 'were'} not"
        " measured."
    )


def regressions(table: ComparisonTable, threshold: float) -> tuple[list[str], list[str]]:
    """Return the names of the cases slower beyond the threshold, and of the lost cases."""
    names = names_of(table)
    slower = [name_of(case, names) for case in table.cases if case.is_beyond(threshold)]
    return slower, [name_of(case, names) for case in table.broken if case.is_regression]


def beyond(table: ComparisonTable, threshold: float) -> str:
    """Return the sentences that explain the exit code."""
    limit = f"{100 * threshold:g} %"
    slower, lost = regressions(table, threshold)
    if slower or lost:
        text = f"Beyond {limit}: {_listed(slower)}." if slower else f"None beyond {limit}."
        return text + (f" Lost: {_listed(lost)}." if lost else "")
    sizes = sorted(case.comparison.detectable for case in table.cases)
    if not sizes:
        return f"None beyond {limit}."
    typical = sizes[(len(sizes) - 1) // 2]
    median_slowdown = f"+{100 * typical:.1f} %" if math.isfinite(typical) else "no slowdown"
    return f"None beyond {limit}; half of the cases would have shown {median_slowdown}."


def heading(table: ComparisonTable) -> list[str]:
    """Return lines that name the runs and the conditions in which they differ."""
    lines = [f"A: {name}" for name in table.names_a] + [f"B: {table.name_b}"]
    unsound = [difference for difference in table.differences if difference.is_unsound]
    timed = [difference for difference in table.differences if difference.is_of_cases]
    notes = [difference for difference in table.differences if not difference.reason]
    if unsound:
        lines.append(
            "A and B differ in these conditions, which could explain a difference of times:"
        )
        lines += [
            f"unlike conditions: {difference} - {difference.reason}" for difference in unsound
        ]
    lines += [
        f"no verdict where timed unlike: {difference} - {difference.reason}" for difference in timed
    ]
    return lines + [f"differs, to be known: {difference}" for difference in notes]


def short_name(path: str) -> str:
    """Return the name of a run's directory."""
    return Path(path).name or path


def names_of(table: ComparisonTable) -> dict[AnyCase, str]:
    """Return each case's short name; its full name if several cases share the short one."""
    cases = list(
        dict.fromkeys([*(case.case for case in table.cases), *(case.case for case in table.broken)])
    )
    short = Counter(map(str, cases))
    return {case: str(case) if short[str(case)] == 1 else _in_full(case) for case in cases}


def _in_full(case: AnyCase) -> str:
    if isinstance(case, TrainingCase):
        return str(case)
    return (
        f"{case} ({case.pattern}, sync {case.sync}, loop {case.loop}, buffers"
        f" {case.buffers or 'unknown'})"
    )


def name_of(case: ComparedCase | BrokenCase, names: Mapping[AnyCase, str]) -> str:
    """Return the case's name, with its group if there is one."""
    name = names[case.case]
    return f"{name} group {case.group}" if case.group else name


def times_of(case: ComparedCase) -> tuple[str, str]:
    """Return the times of A and B; of training those of a step."""
    return format_time(case.time_a_us * 1e-6), format_time(case.time_b_us * 1e-6)


def ratio_of(comparison: Comparison) -> str:
    """Return B over A with its adjusted interval."""
    interval = comparison.interval
    bounds = f" [{interval.low:.3f}, {interval.high:.3f}]" if interval else ""
    return f"{comparison.ratio:.3f}{bounds}"


def percent_of(comparison: Comparison) -> str:
    """Return the change in percent, with its interval."""
    interval = comparison.interval
    bounds = f" [{_percent(interval.low)}, {_percent(interval.high)}]" if interval else ""
    return f"{_percent(comparison.ratio)} %{bounds}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.3g}" if abs(ratio - 1) < 10 else f"{100 * (ratio - 1):+.0f}"  # noqa: PLR2004 - no exponent


def detectable_of(comparison: Comparison) -> str:
    """Return the smallest slowdown that these launches would detect."""
    return (
        f"+{100 * comparison.detectable:.1f} %" if math.isfinite(comparison.detectable) else "none"
    )


def further_of(effort: Effort | None) -> str:
    """Return the number of launches of each run that would settle it: ``4-12``, ``16+``, or why
    none would.
    """
    if effort is None:
        return ""
    if effort.forecast != "settles":
        return effort.forecast
    if effort.high is None:
        return f"{effort.low}+"
    return f"{effort.low}" if effort.low == effort.high else f"{effort.low}-{effort.high}"


def closing(table: ComparisonTable) -> list[str]:
    """Return lines on the cases that could not be compared, and advice."""
    names = names_of(table)
    lines = [
        f"Not compared: {name_of(broken, names)} is {broken.status_a} in A and {broken.status_b}"
        " in B."
        for broken in table.broken
    ]
    for name, cases in (("A", table.only_in_a), ("B", table.only_in_b)):
        if cases:
            lines.append(f"Only in {name}: {_listed(cases)}.")
    lines += _on_few_baselines(table)
    if table.has_too_few_launches:
        lines.append(
            f"A single changed case among {len(table.cases)} could not be detected with so few"
            " launches, however large the change: measure with more launches (--budget standard or"
            " rigorous) or compare fewer cases."
        )
    return lines + _on_inconclusive(table)


def _on_few_baselines(table: ComparisonTable) -> list[str]:
    count = len(table.names_a)
    if not 1 < count < ENOUGH_BASELINES:
        return []
    few = f"{count} baselines leave the variance between runs uncertain, so intervals are wide"
    return [f"{few}, and the wider the more cases there are: keep {ENOUGH_BASELINES}."]


def _on_inconclusive(table: ComparisonTable) -> list[str]:
    """Return how many more launches would settle the inconclusive cases."""
    efforts = [case.comparison.further for case in table.cases if case.comparison.further]
    settled = [effort for effort in efforts if effort.forecast == "settles"]
    counts = Counter(effort.forecast for effort in efforts)
    lines = []
    if settled:
        low, high = (
            min(effort.low for effort in settled),
            max(effort.high or effort.low for effort in settled),
        )
        number = counted(high, "more launch") if low == high else f"{low} to {high} more launches"
        open_end = " or more" if any(effort.high is None for effort in settled) else ""
        lines.append(
            f"{counted(len(settled), 'inconclusive case')} would be settled by {number}{open_end}"
            " of each run (column more), if the estimates hold: the commands that made the runs"
            " add them, with a larger --launches and the same --out."
        )
    if counts["near"]:
        lines.append(
            f"{counted(counts['near'], 'case')} so near the margin that no number of launches would"
            " tell."
        )
    if counts["noisy"]:
        lines.append(
            f"{counted(counts['noisy'], 'case')} too noisy for {MOST_LAUNCHES} launches to tell: a"
            f" quieter machine {'or more baselines help' if len(table.names_a) > 1 else 'helps'}"
            " more than further launches."
        )
    return lines


def _listed(cases: Sequence[AnyCase | str]) -> str:
    more = f" and {len(cases) - _LISTED} more" if len(cases) > _LISTED else ""
    return ", ".join(map(str, cases[:_LISTED])) + more
