"""A comparison on the terminal."""

from typing import TYPE_CHECKING

from commbench.analysis.comparison.verdicts import ComparisonTable
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
from commbench.stats import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {Verdict.SLOWER: "red", Verdict.FASTER: "green", Verdict.SAME: "", Verdict.INCONCLUSIVE: "yellow"}


def render_comparison(table: ComparisonTable, threshold: float | None = None) -> "RenderableType":
    """Render a comparison for `rich.console.Console.print`: answer, unlike conditions, a line for each case, hints.

    Args:
        table: the comparison.
        threshold: name last the cases that are slower by more than this share, which sets the exit code.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(summary(table)), Text("\n".join(heading(table))), Text("")]
    if table.cases:
        parts += [_build_table(table), Text("")]
    last = [] if threshold is None else [beyond(table, threshold)]
    return Group(*parts, *map(Text, [*closing(table), *last]))


def _build_table(table: ComparisonTable) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    names = names_of(table)
    built = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    built.add_column("case")
    for name in ("A", "B"):
        built.add_column(name, justify="right", no_wrap=True)
    built.add_column("B / A [CI]", no_wrap=True)
    built.add_column("verdict", no_wrap=True)
    built.add_column("detectable", justify="right", no_wrap=True)
    shows_further = any(one.comparison.further for one in table.cases)
    if shows_further:
        built.add_column("more", justify="right", no_wrap=True)
    for one in table.cases:
        comparison = one.comparison
        cells = [
            Text(name_of(one, names)),
            *map(Text, times_of(one)),
            Text(ratio_of(comparison)),
            Text(str(comparison.verdict), style=_STYLES[comparison.verdict]),
            Text(detectable_of(comparison)),
        ]
        built.add_row(*cells, *([Text(further_of(comparison.further))] if shows_further else []))
    return built
