"""A scaling study as a table: time on each number of ranks, and the growth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from commbench.analysis.scaling import Growth, order_of
from commbench.report.columns import plain_table, printed
from commbench.report.formats import microseconds, with_interval
from commbench.units import format_size


def render_growths(growths: Sequence[Growth]) -> list[RenderableType]:
    """The table of a scaling study; empty for other runs."""
    if not growths:
        return []
    ranks = sorted({number for growth in growths for number in growth.rows})
    headings = ("backend", "operation", "size", *(f"n = {n}" for n in ranks), "growth [95 % CI]", "grows with")
    lines = [
        (
            growth.case.backend,
            f"{growth.case.operation}{'' if growth.case.pattern == 'flat' else f' {growth.case.pattern}'}",
            format_size(growth.case.message_bytes) if growth.case.dtype else "-",
            *(microseconds(growth.rows[n].time_us) if n in growth.rows else "-" for n in ranks),
            growth_text(growth),
            growth.law or "-",
        )
        for growth in sorted(growths, key=order_of)
    ]
    table = printed(plain_table(headings, lines, words=2))
    table.columns[-1].justify = "left"
    title = "Scaling: time on the first n ranks; the last column is time on the most ranks over time on the fewest"
    return [Text(f"\n{title}", style="bold"), table]


def growth_text(growth: Growth) -> str:
    """The growth with its interval: ``1.84 [1.80, 1.88]``."""
    low, high = (growth.interval.low, growth.interval.high) if growth.interval else (None, None)
    return with_interval(growth.ratio, low, high, 2, most=math.inf)
