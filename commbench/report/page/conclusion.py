"""The first screen of a page: places what its runs say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from commbench.findings import Finding
from commbench.report.columns import Tone
from commbench.report.findings import (
    bandwidths,
    grave_warnings,
    latencies,
    pairs,
    precision,
    setting,
    soak,
    stragglers,
    unfinished,
    watched,
)
from commbench.report.page.parts import Code, Entry, named
from commbench.results import Run
from commbench.results.info import environment_of
from commbench.results.verdict import snippets
from commbench.system.environment import differing

#: The most warnings about a run on the first screen.
MOST_WARNINGS = 3
#: Tones, the mildest first.
_SEVERITY: Sequence[Tone] = ("", "good", "warning", "bad")
#: The tone of an entry, by the code of a finding; warnings have their own.
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
    find: Callable[[Run], Iterable[Finding]]
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
    entries = []
    names = differing([environment_of(run.info) for run in runs])
    if names:
        unlike = Finding(code="runs_unlike", numbers={"conditions": ", ".join(names)})
        more = ("runs", "What each of them states")
        entries.append(Entry("Conditions", [str(unlike)], tone="warning", more=more))
    has_lead = len(runs) > 1
    for group in GROUPS:
        findings = {run.name: list(group.find(run)) for run in runs}
        levels = {finding.level for of_run in findings.values() for finding in of_run}
        if levels:
            entry = _entry(group, findings, has_verdict="verdict" in levels)
            if "verdict" in levels and not has_lead:
                has_lead = True
                entry = replace(entry, is_lead=True)
            changes = [run for run in runs if run.decision and run.decision.verdict == "change"]
            if group.find is setting and len(runs) == len(changes) == 1:
                entry = replace(entry, codes=snippet_codes(runs[0])[:1])
            entries.append(entry)
    entries += _warnings(runs)
    if entries:
        return entries
    return [Entry("Result", [str(Finding(code="run_empty"))], is_lead=True)]


def _entry(group: Group, findings: Mapping[str, Sequence[Finding]], *, has_verdict: bool) -> Entry:
    """Place the findings of one group: verdicts, their details in small print, others folded.

    Args:
        group: of the findings.
        findings: by name of run.
        has_verdict: whether one of them is a verdict.
    """
    texts, details, folded = [], [], []
    tones: set[Tone] = {""}
    for name, of_run in findings.items():
        heads = [each for each in of_run if each.level == "verdict" or not has_verdict]
        others = [other.in_full for other in of_run if other not in heads]
        texts.append((name, map(str, heads)))
        details.append((name, [str(detail) for head in heads for detail in head.details]))
        folded.append((name, others))
        for head in heads:
            tone: Tone = group.tone if has_verdict else ""
            if head.level == "warning":
                tone = "warning"
            tones.add(_TONES.get(head.code, tone))
    return Entry(
        group.label,
        named(texts),
        details=named(details),
        folded=named(folded),
        tone=max(tones, key=_SEVERITY.index),
        more=group.more,
    )


def snippet_codes(run: Run, prefix: str = "") -> list[Code]:
    """Return the lines to paste of a recommendation, with a prefix of their titles."""
    codes = []
    if run.decision is not None and run.decision.has_baseline:
        for title, text in snippets(run.decision):
            if text:
                lines = filter(None, text.splitlines())
                codes.append(Code(title=f"{prefix}{title}", text="\n".join(lines)))
    return codes


def _warnings(runs: Sequence[Run]) -> Iterator[Entry]:
    """Yield the most severe warnings about each run; a link leads to all of them."""
    texts = []
    every = []
    for run in runs:
        warnings = grave_warnings(run)
        texts.append((run.name, map(str, warnings[:MOST_WARNINGS])))
        every += warnings
    if every:
        more = (every[0].section, "All warnings, and what to try")
        yield Entry("Warnings", named(texts), tone="warning", more=more)
