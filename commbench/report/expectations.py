"""The answers of ``commbench check``, as a table and its last line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType

from commbench.analysis.expectations import Answer, Expectation, Judged, Outcome
from commbench.findings import Finding
from commbench.report.columns import Table, plain_table
from commbench.words import Estimate, interval_text

#: More rows of an expectation that are met are one line.
MOST_MET = 4


def render_answers(answers: Sequence[Answer]) -> RenderableType:
    """Render the answers for `rich.console.Console.print`: a line for each row, reasons, and the
    counts last.
    """
    return Group(answer_table(answers), "", *answer_sentences(answers))


def answer_table(answers: Sequence[Answer]) -> Table:
    """Return a line for each row that an expectation covers.

    Many rows that are met are one line.
    """
    lines = []
    for answer in answers:
        expected = answer.expectation.text
        for row in _shortened(answer.rows):
            found = _found_text(answer.expectation, row)
            bound = _bound_text(answer.expectation, row)
            lines.append([expected, row.name, str(row.outcome), found, bound])
            expected = ""
    headings = ("expected", "case", "outcome", "found [95 % CI]", "bound")
    return plain_table(headings, lines, words=3)


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


def _found_text(expectation: Expectation, row: Judged) -> str:
    if not isinstance(row.value, int | float):
        return str(row.value or "")
    unit = f" {expectation.kind.unit}".rstrip()
    return interval_text(Estimate(row.value, row.low, row.high), "{:.3g}".format, unit)


def _bound_text(expectation: Expectation, row: Judged) -> str:
    if expectation.word:
        return f"= {expectation.word}"
    if row.bound is None:
        return ""
    return f"{expectation.comparison} {row.bound:.3g} {expectation.kind.unit}".rstrip()
