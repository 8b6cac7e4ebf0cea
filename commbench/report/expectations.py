"""The answers of ``commbench check``, as a table and its last line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from commbench.analysis.expectations import Answer, Finding, Outcome
from commbench.report.columns import Cell, Column, Table, Tone, printed, tabulate
from commbench.units import counted

_TONES: Mapping[Outcome, Tone] = {
    Outcome.MET: "good",
    Outcome.NOT_MET: "bad",
    Outcome.NOT_SHOWN: "warning",
    Outcome.NOT_TESTED: "warning",
}


#: More rows of an expectation that are met are one line.
MOST_MET = 4


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A row of the table."""

    answer: Answer
    finding: Finding
    is_first: bool


def render_answers(answers: Sequence[Answer], link: str = "") -> RenderableType:
    """Render the answers for `rich.console.Console.print`: a line for each row, reasons, and the
    counts last.

    Args:
        answers: of `commbench.analysis.expectations.judge`.
        link: a clause on the link's rate; empty: it is unknown.
    """
    *notes, counts = answer_sentences(answers)
    if link and any(answer.expectation.of_link for answer in answers):
        notes.append(f"{link[:1].upper()}{link[1:]}.")
    return Group(printed(answer_table(answers)), Text(""), *map(Text, [*notes, counts]))


def answer_table(answers: Sequence[Answer]) -> Table:
    """Return a line for each row that an expectation covers.

    Many rows that are met are one line.
    """
    lines = [
        _Line(answer=answer, finding=finding, is_first=number == 0)
        for answer in answers
        for number, finding in enumerate(_shortened(answer.findings))
    ]
    columns: tuple[Column[_Line], ...] = (
        Column(
            "expected",
            lambda line: line.answer.expectation.text if line.is_first else "",
            can_wrap=True,
        ),
        Column("case", lambda line: line.finding.name, can_wrap=True),
        Column("found [95 % CI]", _found_text, is_number=True),
        Column("bound", _bound_text, is_number=True),
        Column(
            "outcome",
            lambda line: Cell(str(line.finding.outcome), tone=_TONES[line.finding.outcome]),
        ),
    )
    return tabulate(lines, columns)


def answer_sentences(answers: Sequence[Answer]) -> list[str]:
    """Return the reasons of rows that are not shown or not tested, and the number of expectations
    by outcome.
    """
    findings = [finding for answer in answers for finding in answer.findings if finding.reason]
    reasons = {f"{finding.name}: {finding.outcome}. {finding.reason}" for finding in findings}
    counts = [
        f"{sum(answer.outcome is outcome for answer in answers)} {outcome}"
        for outcome in reversed(Outcome)
        if any(answer.outcome is outcome for answer in answers)
    ]
    return [*sorted(reasons), f"{counted(len(answers), 'expectation')}: {', '.join(counts)}."]


def _shortened(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that are not met, and the others, or their number if they are many."""
    met_findings = [finding for finding in findings if finding.outcome is Outcome.MET]
    others = [finding for finding in findings if finding.outcome is not Outcome.MET]
    if len(met_findings) > MOST_MET:
        met_findings = [
            Finding(
                name=f"{len(met_findings)} {'other ' if others else ''}rows", outcome=Outcome.MET
            )
        ]
    return [*others, *met_findings]


def _found_text(line: _Line) -> str:
    finding = line.finding
    if not isinstance(finding.value, int | float):
        return str(finding.value or "")
    interval = (
        ""
        if finding.low is None or finding.high is None
        else f" [{finding.low:.3g}, {finding.high:.3g}]"
    )
    return f"{finding.value:.3g} {line.answer.expectation.kind.unit}".rstrip() + interval


def _bound_text(line: _Line) -> str:
    expectation = line.answer.expectation
    if expectation.word:
        return f"= {expectation.word}"
    if line.finding.bound is None:
        return ""
    return f"{expectation.comparison} {line.finding.bound:.3g} {expectation.kind.unit}".rstrip()
