"""A scaling study as a table: time on each number of ranks, and the growth."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from commbench.analysis.scaling import Growth, order_of
from commbench.report.table import format_time_us
from commbench.units import format_size


def render_growths(growths: Sequence[Growth]) -> list[RenderableType]:
    """The table of a scaling study; empty for other runs."""
    if not growths:
        return []
    ranks = sorted({number for growth in growths for number in growth.rows})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("backend", "operation"):
        table.add_column(heading)
    for heading in ("size", *(f"n = {number}" for number in ranks), "growth [95 % CI]"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("grows with")
    for growth in sorted(growths, key=order_of):
        times = (format_time_us(growth.rows[n]).partition(" [")[0] if n in growth.rows else "-" for n in ranks)
        pattern = "" if growth.case.pattern == "flat" else f" {growth.case.pattern}"
        size = format_size(growth.case.message_bytes) if growth.case.dtype else "-"
        table.add_row(
            growth.case.backend, f"{growth.case.operation}{pattern}", size, *times, _ratio(growth), growth.law or "-"
        )
    said = "Scaling: time on the first n ranks; the last column is time on the most ranks over time on the fewest"
    return [Text(f"\n{said}", style="bold"), table]


def _ratio(growth: Growth) -> str:
    interval = growth.interval
    return f"{growth.ratio:.2f}{f' [{interval.low:.2f}, {interval.high:.2f}]' if interval else ''}"
