"""The first screen of a page: places what its runs say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from commbench.findings import Finding
from commbench.report.columns import Tone
from commbench.report.findings import (
    bandwidths,
    latencies,
    pairs,
    precision,
    setting,
    soak,
    stragglers,
    unfinished,
    warnings_of,
    watched,
)
from commbench.report.page.parts import Code, Entry, named
from commbench.results import Run
from commbench.results.verdict import snippets
from commbench.system.environment import differing
from commbench.units import counted

#: The definition of bus bandwidth, for the section that shows it.
BUSBW = (
    "Bus bandwidth is size over time, times a factor of the operation and the number of ranks: so"
    " operations compare with each other and with a link's rate (nccl-tests' busbw)."
)
#: The most warnings about a run on the first screen.
MOST_WARNINGS = 3
#: The tone of an entry, by the code of a finding, the first that occurs; warnings have their own.
_TONES: Mapping[str, Tone] = {
    "run_unfinished": "bad",
    "run_unfinished_live": "bad",
    "setting_none": "bad",
    "run_undecided": "warning",
    "setting_change": "good",
    "setting_change_altering": "good",
    "setting_change_either": "good",
}


class Group(NamedTuple):
    """Findings that make one entry."""

    label: str
    find: Callable[[Run], list[Finding]]
    more: tuple[str, str] | None = None
    """The id of the section with more about it, and the text of the link."""
    tone: Tone = ""
    """Of a verdict; `_TONES` has those of single codes."""


#: Entries in their order; the first with a verdict leads the page.
GROUPS = (
    Group("State", unfinished),
    Group("DDP settings", setting, ("training", "What it costs, and all that was tried")),
    Group("Steps", watched, ("training", "The parts of a step, and each rank")),
    Group("Soak", soak, ("soak", "The time line, and every event")),
    Group("Stragglers", stragglers, tone="bad"),
    Group("Bandwidth", bandwidths),
    Group("Pairs of ranks", pairs, ("pairs", "Every pair of ranks")),
    Group("Latency", latencies),
    Group("Precision", precision),
)


def find_conclusion(runs: Sequence[Run]) -> list[Entry]:
    """Return the conclusion in order: conditions that differ, `GROUPS`, warnings."""
    entries = _conditions(runs)
    has_lead = len(runs) > 1
    for group in GROUPS:
        findings = {run.name: group.find(run) for run in runs}
        flat = [finding for of_run in findings.values() for finding in of_run]
        if not flat:
            continue
        is_lead = not has_lead and any(finding.level == "verdict" for finding in flat)
        has_lead = has_lead or is_lead
        entry = _entry(group, findings, is_lead=is_lead)
        if group.find is setting and len(runs) == 1:
            entry = replace(entry, codes=_code(runs[0]))
        entries.append(entry)
    entries += _warnings(runs)
    if entries:
        return entries
    return [Entry(label="Result", texts=[str(Finding(code="run_empty"))], is_lead=True)]


def _entry(group: Group, findings: Mapping[str, Sequence[Finding]], *, is_lead: bool) -> Entry:
    """Place the findings of one group: verdicts, their details in small print, others folded.

    Args:
        group: of the findings.
        findings: by name of run.
        is_lead: whether it leads the page.
    """
    flat = [finding for of_run in findings.values() for finding in of_run]
    has_verdict = any(finding.level == "verdict" for finding in flat)
    texts, details, folded = [], [], []
    tones: list[Tone] = []
    for name, of_run in findings.items():
        heads, others = list(of_run), []
        if has_verdict:
            heads = [finding for finding in of_run if finding.level == "verdict"]
            others = [finding for finding in of_run if finding.level != "verdict"]
        texts.append((name, map(str, heads)))
        details.append((name, [str(detail) for head in heads for detail in head.details]))
        folded.append((name, [other.in_full for other in others]))
        for head in heads:
            tone = group.tone if has_verdict else ""
            if head.level == "warning":
                tone = "warning"
            tones.append(_TONES.get(head.code, tone))
    return Entry(
        label=group.label,
        texts=named(texts),
        details=named(details),
        folded=named(folded),
        tone=next((tone for tone in _TONES.values() if tone in tones), ""),
        is_lead=is_lead,
        more=group.more,
    )


def _code(run: Run) -> list[Code]:
    """Return the lines of a recommended change."""
    advice = run.decision
    if advice is None or advice.verdict != "change":
        return []
    title, text = snippets(advice)[0]
    return [Code(title=title, text="\n".join(filter(None, text.splitlines())))]


def _conditions(runs: Sequence[Run]) -> list[Entry]:
    """Warn if the runs were measured under different conditions."""
    names = differing([run.info.get("environment") or {} for run in runs])
    if not names:
        return []
    unlike = Finding(code="runs_unlike", numbers={"conditions": ", ".join(names)})
    more = ("runs", "What each of them states")
    return [Entry(label="Conditions", texts=[str(unlike)], tone="warning", more=more)]


def _warnings(runs: Sequence[Run]) -> list[Entry]:
    """Return the most severe warnings about each run; a link leads to the others."""
    warnings = {run.name: warnings_of(run) for run in runs}
    flat = [warning for of_run in warnings.values() for warning in of_run]
    hidden = [warning for of_run in warnings.values() for warning in of_run[MOST_WARNINGS:]]
    if not flat:
        return []
    texts = [(name, map(str, of_run[:MOST_WARNINGS])) for name, of_run in warnings.items()]
    more = None
    if hidden:
        more = (hidden[0].section, f"{counted(len(hidden), 'more warning')}, and what to try")
    elif any(warning.details for warning in flat):
        more = (flat[0].section, "What to try")
    return [Entry(label="Warnings", texts=named(texts), tone="warning", more=more)]
