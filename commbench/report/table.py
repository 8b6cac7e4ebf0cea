"""Tables of results and of scaling studies for a terminal or a log, and the warnings below them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from commbench.analysis.scaling import Growth, order_of
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import pattern_order
from commbench.engine.flags import FLAGS, join_flags, split_flags
from commbench.engine.records import OverlapRow, Row
from commbench.findings import Finding, Value, shared_cause
from commbench.report.columns import (
    Cell,
    Column,
    Flagged,
    Table,
    TableSpec,
    declared,
    interval,
    number,
    plain_table,
    printed,
    split_to_fit,
    tabulate,
    tone_of,
)
from commbench.report.formats import (
    launches_of,
    microseconds,
    percent,
    short,
    time_with_interval,
    with_interval,
)
from commbench.report.groups import (
    MOST_SHOWN,
    brief,
    chosen,
    groups_in,
    name_groups,
    name_slowest,
    rates_together,
)
from commbench.results import SUMMARY
from commbench.results.info import measures_interconnect
from commbench.results.overhead import Overhead
from commbench.results.tables import rows_by
from commbench.units import counted, format_size

#: Fields that split the columns of one backend, in order, until every cell holds one row.
_DETAILS: tuple[tuple[str, ...], ...] = (
    ("backend",),
    ("backend", "env"),
    ("backend", "algorithm_requested"),
    ("backend", "loop"),
    ("backend", "algorithm_requested", "loop", "sync", "cadence", "buffers", "group", "env"),
)

Columns = dict[str, list[Row]]
FlaggedT = TypeVar("FlaggedT", bound=Flagged)


#: The most tables, and the most rows in each, on a terminal.
MOST_TABLES, MOST_ROWS = 60, 600

#: Shown above the overhead of a framework if ranks shared a GPU.
TIME_SLICES = (
    "Ranks shared a GPU: these times include its time slices and TCP, and do not hold for one rank"
    " per GPU."
)

# ------------------------------------------------------------------------------------------- tables


def render_table(
    rows: Sequence[Row], *, width: int, hosts: Mapping[int, str] = MappingProxyType({})
) -> RenderableType:
    """Return rows as tables for `rich.console.Console.print`: sizes down, backends side by side.

    One table for each operation, pattern, dtype, redop, in_place and root. Backends that do not fit
    into ``width`` characters follow below. A cell without a result states ``unsupported``,
    ``failed``, ``hung`` or ``wrong``. A pattern with several groups has a line for each (of more
    than 8 for the slowest, the median and the fastest) and one with their combined rate; the
    slowest group is named, with its host if ``hosts`` gives it by rank.
    """
    if not rows:
        return Text("Nothing has been measured yet.")
    rows = without_shared_flags(rows)
    groups = [
        list(group)
        for _, group in itertools.groupby(sorted(rows, key=_table_order), key=_table_key)
    ]
    visible_groups = [group[:MOST_ROWS] for group in groups[:MOST_TABLES]]
    parts = []
    for group in visible_groups:
        parts += _render_group(group, width, hosts)
    hidden = len(rows) - sum(map(len, visible_groups))
    if hidden:
        numbers: dict[str, Value] = {"hidden": hidden, "rows": len(rows), "file": SUMMARY}
        parts.append(Text(f"\n{Finding('rows_hidden', numbers=numbers)}", style="bold"))
    return Group(*parts, *legend(rows))


def render_overlap(rows: Sequence[OverlapRow]) -> RenderableType:
    """Return non-blocking collectives as OSU prints them: overall, computing, pure communication
    and overlap.
    """
    return printed(tabulate(rows, _OVERLAP, title="Overlap with computing (OSU's definition)"))


def render_overheads(overheads: Sequence[Overhead]) -> RenderableType:
    """Return the time that a framework's call adds to the library's call, for each case."""
    table = printed(tabulate(overheads, OVERHEADS.on_terminal, title=OVERHEADS_TITLE))
    return (
        table
        if all(map(measures_interconnect, overheads))
        else Group(Text(TIME_SLICES, style="yellow"), table)
    )


_OVERLAP: tuple[Column[OverlapRow], ...] = (
    *declared(OverlapRow, "backend operation message_bytes"),
    *declared(OverlapRow, "overall_us compute_us pure_us", text_of=microseconds),
    number("overlap", "overlap_percent", text_of="{:.0f} %".format),
)
OVERHEADS_TITLE = "What torch.distributed adds to NCCL"
OVERHEADS: TableSpec[Overhead] = TableSpec(
    file=SUMMARY,
    columns=(
        *declared(Overhead, "operation"),
        *declared(Overhead, "pattern", should_vary=True),
        *declared(Overhead, "message_bytes"),
        *declared(Overhead, "direct_us through_us", terminal_text=microseconds),
        *declared(Overhead, "added_us", terminal_text="{:.1f} us".format),
        interval("added_us", Overhead),
        number("share", "share", text_of=percent, shown="terminal"),
    ),
)


def _table_key(row: Row) -> tuple[object, ...]:
    return (row.operation, row.pattern, row.dtype, row.redop, row.in_place, row.root)


def _table_order(row: Row) -> tuple[object, ...]:
    _, _, *others = _table_key(row)
    ordered = (list(OPERATIONS).index(row.operation), pattern_order(row.pattern))
    return (*ordered, *((other is not None, other) for other in others))


def _render_group(
    rows: Sequence[Row], width: int, hosts: Mapping[int, str]
) -> list[RenderableType]:
    """Return the tables of one group under one heading, and the reasons for missing results."""
    groups = len(groups_in(rows))
    columns = columns_of(rows, lambda row: (row.message_bytes, row.group if groups > 1 else ""))

    def table_of(names: Sequence[str]) -> Table:
        return _build_table({name: columns[name] for name in names}, groups)

    tables = map(table_of, split_to_fit(columns, width, table_of))
    slowest = name_slowest(columns, hosts) if groups > 1 else []
    return [
        Text(f"\n{title_of(rows)}", style="bold"),
        *(part for table in tables for part in (Text(""), printed(table))),
        *(Text(str(finding)) for finding in slowest),
        *reasons((name, row) for name, column in columns.items() for row in column),
    ]


def columns_of(rows: Iterable[Row], unique: Callable[[Row], object]) -> Columns:
    """Split rows by backend, and by further fields until ``unique`` distinguishes the rows of a
    column.
    """
    rows = list(rows)
    columns: Columns = {}
    for details in _DETAILS:
        columns = rows_by(
            rows,
            lambda row: " ".join(str(value) for name in details if (value := getattr(row, name))),  # noqa: B023 - called at once
        )
        if all(len({unique(row) for row in column}) == len(column) for column in columns.values()):
            break
    return columns


def _build_table(columns: Columns, groups: int) -> Table:
    has_rates = any(row.algbw_GBps is not None for column in columns.values() for row in column)
    printed_columns: list[Column[Any]] = [
        number("size", ""),
        *([Column("group")] if groups > 1 else []),
    ]
    for name in columns:
        printed_columns.append(Column(f"{name}\ntime [95 % CI]"))
        printed_columns += [number(f"{rate}\nGB/s", "") for rate in ("algbw", "busbw") if has_rates]
        printed_columns.append(Column(""))
    sizes = sorted(
        {row.message_bytes for column in columns.values() for row in column},
        key=lambda size: size or 0,
    )
    lines: list[list[Cell]] = []
    for size in sizes:
        at_size = [
            [row for row in column if row.message_bytes == size] for column in columns.values()
        ]
        label = "-" if size is None else format_size(size)
        for line in (
            _group_lines(at_size, groups, has_rates=has_rates)
            if groups > 1
            else _lines(at_size, has_rates=has_rates)
        ):
            lines.append([Cell(label), *line])
            label = label if groups <= 1 else ""
    return Table(columns=printed_columns, lines=lines)


def _lines(at_size: Sequence[Sequence[Row]], *, has_rates: bool) -> Iterable[list[Cell]]:
    """Return the cells of one size: one line, or several if no field distinguishes two rows of a
    column.
    """
    for line in itertools.zip_longest(*at_size):
        yield [cell for row in line for cell in _cells(row, has_rates=has_rates)]


def _group_lines(
    at_size: Sequence[Sequence[Row]], groups: int, *, has_rates: bool
) -> Iterable[list[Cell]]:
    """Return the cells of one size for several groups: a line for each group shown, then their
    combined rate.
    """
    rows_by_label = [chosen(rows, groups) for rows in at_size]
    for label in dict.fromkeys(label for by_label in rows_by_label for label in by_label):
        line = [by_label.get(label) for by_label in rows_by_label]
        yield [
            Cell(label),
            *(
                cell
                for row in line
                for cell in _cells(row, has_rates=has_rates, has_group=groups > MOST_SHOWN)
            ),
        ]
    sums = [rates_together(rows, groups) for rows in at_size]
    if any(algbw is not None for algbw, _ in sums):
        rates = (
            [Cell(""), *(Cell(short(rate), tone="quiet") for rate in pair), Cell("")]
            for pair in sums
        )
        yield [Cell(f"all {groups}", tone="quiet"), *(cell for cells in rates for cell in cells)]


def _cells(row: Row | None, *, has_rates: bool, has_group: bool = False) -> list[Cell]:
    """Return time, group if the line does not name it, bandwidths if the table has them, and flag
    marks.
    """
    if row is None:
        return [Cell("")] * (4 if has_rates else 2)
    group = f" ({brief(row.group)})" if has_group and row.group else ""
    is_shown = row.status == "ok"
    rates = (
        [Cell(short(rate) if is_shown else "") for rate in (row.algbw_GBps, row.busbw_GBps)]
        if has_rates
        else []
    )
    return [
        Cell(_time(row) + group, tone=tone_of(row.status)),
        *rates,
        Cell(marks_of(row), tone="warning"),
    ]


def _time(row: Row) -> str:
    """Return the time with its interval, or the status of a row without a time."""
    if row.status == "ok":
        return format_time_us(row) or "no time"
    if row.status == "wrong":
        return f"wrong ({row.wrong} elements)" if row.wrong else "not timed"
    return row.status


def format_time_us(row: Row) -> str:
    """Return the row's time with its interval in one unit, e.g.

    ``1.23 us [1.20, 1.31]``; empty without a time.
    """
    return time_with_interval(row.time_us, row.time_us_ci_low, row.time_us_ci_high)


def title_of(rows: Sequence[Row]) -> str:
    """Return the heading of rows of one operation: operation, type, pattern, ranks and launches."""
    first = rows[0]
    words: list[object] = [first.operation, *_common(rows, "dtype"), *_common(rows, "redop")]
    words += ["in place" if in_place else "out of place" for in_place in _common(rows, "in_place")]
    words += [f"root {root}" for root in _common(rows, "root")]
    words += [
        f"{pattern}{name_groups(rows)}" for pattern in _common(rows, "pattern") if pattern != "flat"
    ]
    return f"{', '.join(map(str, words))}{_setting(rows)}"


def _common(rows: Iterable[Row], name: str) -> list[Any]:
    """Return the common value of a column in a list.

    An empty list if rows differ or the column does not apply.
    """
    values = {getattr(row, name) for row in rows}
    return [value for value in values if len(values) == 1 and value is not None]


def _setting(rows: Sequence[Row]) -> str:
    """Return the numbers of ranks, hosts and launches."""
    first = rows[0]
    hosts = f" on {counted(first.nodes, 'host')}" if first.nodes else ""
    ranks = f"{first.world_size} ranks{hosts}" if first.world_size else ""
    parts = [part for part in (ranks, launches_of(row.launches for row in rows)) if part]
    return f" ({', '.join(parts)})" if parts else ""


def reasons(outcomes: Iterable[tuple[str, Flagged]]) -> list[RenderableType]:
    """Return each cause of a missing result once, with the name, the status and the reason of its
    first row.
    """
    texts: dict[tuple[str, str, str], str] = {}
    for name, row in outcomes:
        if row.status != "ok" and row.reason:
            cause = shared_cause(row.reason_code, row.reason)
            texts.setdefault((name, row.status, cause), f"{name}: {row.status}: {row.reason}")
    return [Padding(Text(text, style="dim"), (0, 0, 0, 2)) for text in texts.values()]


def marks_of(row: Flagged) -> str:
    """Return the marks of the row's flags."""
    return "".join(flag.mark for flag in split_flags(row.flags))


def without_shared_flags(rows: Sequence[FlaggedT]) -> list[FlaggedT]:
    """Return rows without the flags that all of them have: a warning below the table states these
    once.
    """
    names = [{flag.name for flag in split_flags(row.flags)} for row in rows]
    shared = set.intersection(*names) if len(rows) > 1 else set()
    if not shared:
        return list(rows)
    return [
        replace(row, flags=join_flags(flag_names - shared))  # type: ignore[type-var]  # rows are dataclasses
        for row, flag_names in zip(rows, names, strict=True)
    ]


def legend(rows: Sequence[Flagged]) -> list[RenderableType]:
    """Explain the marks in use, in one line."""
    flags_in_use = {flag.name for row in rows for flag in split_flags(row.flags)}
    explained = [f"{flag.mark} {flag.name}" for flag in FLAGS.values() if flag.name in flags_in_use]
    return [Text("\nmarks: " + ", ".join(explained), style="yellow")] if explained else []


def render_growths(growths: Sequence[Growth]) -> list[RenderableType]:
    """Return the table of a scaling study; empty for other runs."""
    if not growths:
        return []
    ranks = sorted({number for growth in growths for number in growth.rows})
    headings = (
        "backend",
        "operation",
        "size",
        *(f"n = {n}" for n in ranks),
        "growth [95 % CI]",
        "grows with",
    )
    lines = [
        (
            growth.case.backend,
            " ".join(
                filter(
                    None,
                    (
                        growth.case.operation,
                        growth.case.pattern.replace("flat", ""),
                        growth.case.env,
                    ),
                )
            ),
            format_size(growth.case.message_bytes) if growth.case.dtype else "-",
            *(microseconds(growth.rows[n].time_us) if n in growth.rows else "-" for n in ranks),
            growth_text(growth),
            growth.law or "-",
        )
        for growth in sorted(growths, key=order_of)
    ]
    table = printed(plain_table(headings, lines, words=2))
    table.columns[-1].justify = "left"
    title = (
        "Scaling: time on the first n ranks; the last column is time on the most ranks over time on"
        " the fewest"
    )
    return [Text(f"\n{title}", style="bold"), table]


def growth_text(growth: Growth) -> str:
    """Return the growth with its interval, e.g. ``1.84 [1.80, 1.88]``."""
    low, high = (growth.interval.low, growth.interval.high) if growth.interval else (None, None)
    return with_interval(growth.ratio, low, high, 2, should_bound=False)
