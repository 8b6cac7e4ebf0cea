"""The answers of ``commbench check``, as a table and its last line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from commbench.analysis.expectations import Answer, Judged, Outcome
from commbench.findings import Finding
from commbench.report.columns import Cell, Column, Table, Tone, tabulate

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
    row: Judged
    is_first: bool


def render_answers(answers: Sequence[Answer], link: Finding | None = None) -> RenderableType:
    """Render the answers for `rich.console.Console.print`: a line for each row, reasons, and the
    counts last.

    Args:
        answers: of `commbench.analysis.expectations.judge`.
        link: the link's rate; None: it is unknown.
    """
    *notes, counts = answer_sentences(answers)
    if link and any(answer.expectation.of_link for answer in answers):
        notes.append(str(link))
    return Group(answer_table(answers), Text(""), *map(Text, [*notes, counts]))


def answer_table(answers: Sequence[Answer]) -> Table:
    """Return a line for each row that an expectation covers.

    Many rows that are met are one line.
    """
    lines = []
    for answer in answers:
        for number, row in enumerate(_shortened(answer.rows)):
            lines.append(_Line(answer=answer, row=row, is_first=number == 0))
    columns: tuple[Column[_Line], ...] = (
        Column(
            "expected",
            lambda line: line.answer.expectation.text if line.is_first else "",
            can_wrap=True,
        ),
        Column("case", "row.name", can_wrap=True),
        Column("found [95 % CI]", _found_text, is_number=True),
        Column("bound", _bound_text, is_number=True),
        Column("outcome", lambda line: Cell(str(line.row.outcome), tone=_TONES[line.row.outcome])),
    )
    return tabulate(lines, columns)


def answer_sentences(answers: Sequence[Answer]) -> list[str]:
    """Return the reasons of rows that are not shown or not tested, and the number of expectations
    by outcome.
    """
    reasons = set()
    for answer in answers:
        for row in answer.rows:
            if row.reason:
                numbers = {"outcome": str(row.outcome), "reason": str(row.reason)}
                reasons.add(str(Finding("check_reason", row.name, numbers)))
    counts = Counter(answer.outcome for answer in answers)
    outcomes = tuple(
        f"{counts[outcome]} {outcome}" for outcome in reversed(Outcome) if counts[outcome]
    )
    return [
        *sorted(reasons),
        str(
            Finding("check_outcomes", numbers={"expectations": len(answers), "outcomes": outcomes})
        ),
    ]


def _shortened(rows: Sequence[Judged]) -> list[Judged]:
    """Return the rows that are not met, and the others, or their number if they are many."""
    met = [row for row in rows if row.outcome is Outcome.MET]
    others = [row for row in rows if row.outcome is not Outcome.MET]
    if len(met) > MOST_MET:
        name = f"{len(met)} other rows" if others else f"{len(met)} rows"
        met = [Judged(name=name, outcome=Outcome.MET)]
    return others + met


def _found_text(line: _Line) -> str:
    row = line.row
    if not isinstance(row.value, int | float):
        return str(row.value or "")
    text = f"{row.value:.3g} {line.answer.expectation.kind.unit}".rstrip()
    if row.low is None or row.high is None:
        return text
    return f"{text} [{row.low:.3g}, {row.high:.3g}]"


def _bound_text(line: _Line) -> str:
    expectation = line.answer.expectation
    if expectation.word:
        return f"= {expectation.word}"
    if line.row.bound is None:
        return ""
    return f"{expectation.comparison} {line.row.bound:.3g} {expectation.kind.unit}".rstrip()
