"""A comparison on the terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from commbench.analysis.comparison.verdicts import ComparedCase, ComparisonTable
from commbench.analysis.comparison.words import (
    beyond,
    closing,
    detectable_of,
    further_of,
    heading,
    name_of,
    names_of,
    ratio_of,
    summary,
    times_of,
)
from commbench.report.columns import Column, printed, tabulate, verdict_cell


def case_columns(table: ComparisonTable) -> tuple[Column[ComparedCase], ...]:
    """Return the columns of a comparison, for the terminal and the page."""
    names = names_of(table)
    return (
        Column("case", lambda case: name_of(case, names), can_wrap=True),
        Column("A", lambda case: times_of(case)[0], is_number=True),
        Column("B", lambda case: times_of(case)[1], is_number=True),
        Column("B / A [CI]", lambda case: ratio_of(case.comparison)),
        Column("verdict", lambda case: verdict_cell(case.comparison.verdict)),
        Column("detectable", lambda case: detectable_of(case.comparison), is_number=True),
        Column("more", lambda case: further_of(case.comparison.further), is_number=True),
    )


def render_comparison(table: ComparisonTable, threshold: float | None = None) -> RenderableType:
    """Render a comparison for `rich.console.Console.print`: answer, unlike conditions, a line for each case, hints.

    Args:
        table: the comparison.
        threshold: name last the cases that are slower by more than this share, which sets the exit code.
    """
    parts: list[RenderableType] = [Text(summary(table)), Text("\n".join(heading(table))), Text("")]
    if table.cases:
        parts += [printed(tabulate(table.cases, case_columns(table))), Text("")]
    last = [] if threshold is None else [beyond(table, threshold)]
    return Group(*parts, *map(Text, [*closing(table), *last]))
