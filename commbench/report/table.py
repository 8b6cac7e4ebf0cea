"""Tables of results and of scaling studies for a terminal or a log, and the warnings below them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
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
    printed,
    size_column,
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
from commbench.results import SUMMARY, files
from commbench.results.info import measures_interconnect
from commbench.results.overhead import Overhead
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
    by_table: dict[tuple[object, ...], list[Row]] = {}
    for row in sorted(rows, key=_table_order):
        by_table.setdefault(_table_key(row), []).append(row)
    parts = []
    shown = 0
    for of_table in list(by_table.values())[:MOST_TABLES]:
        parts += _render_group(of_table[:MOST_ROWS], width, hosts)
        shown += len(of_table[:MOST_ROWS])
    if shown < len(rows):
        numbers: dict[str, Value] = {
            "hidden": len(rows) - shown,
            "rows": len(rows),
            "file": SUMMARY,
        }
        parts.append(Text(f"\n{Finding('rows_hidden', numbers=numbers)}", style="bold"))
    return Group(*parts, *legend(rows))


OVERLAP_TITLE = "Overlap with computing (OSU's definition)"
OVERLAP: TableSpec[OverlapRow] = TableSpec(
    file=files.OVERLAP,
    columns=(
        *declared(OverlapRow, "operation backend message_bytes"),
        *declared(OverlapRow, "overall_us compute_us pure_us", terminal_text=microseconds),
        *declared(OverlapRow, "overlap_percent", terminal_text="{:.0f} %".format),
        interval("overlap_percent", OverlapRow, is_bounded=True),
    ),
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
GROWTH_TITLE = "Scaling: time on the first n ranks"


def growth_spec(growths: Sequence[Growth]) -> TableSpec[Growth]:
    """Return the table of a scaling study, with a column for each number of ranks."""
    columns: list[Column[Growth]] = [
        Column("operation", _growth_name),
        Column("backend", "case.backend"),
        Column("dtype", "case.dtype"),
        size_column(_growth_size),
    ]
    for ranks in sorted({ranks for growth in growths for ranks in growth.rows}):
        time_of = partial(_time_on, ranks=ranks)
        columns.append(number(f"n = {ranks}", time_of, unit="us", terminal_text=microseconds))
    about = "time on the most ranks over time on the fewest, with its 95 % interval"
    columns += [
        Column("growth", _growth_cell, about=about, is_number=True),
        Column("grows with", "law"),
    ]
    return TableSpec(file=SUMMARY, columns=columns)


def _growth_name(growth: Growth) -> str:
    words = [growth.case.operation]
    if growth.case.pattern != "flat":
        words.append(growth.case.pattern)
    if growth.case.env:
        words.append(growth.case.env)
    return " ".join(words)


def _growth_size(growth: Growth) -> int | None:
    return growth.case.message_bytes if growth.case.dtype else None


def _time_on(growth: Growth, *, ranks: int) -> float | None:
    return growth.rows[ranks].time_us if ranks in growth.rows else None


def _growth_cell(growth: Growth) -> Cell:
    """Return the growth with its interval, e.g. ``1.84 [1.80, 1.88]``."""
    low = high = None
    if growth.interval is not None:
        low, high = growth.interval.low, growth.interval.high
    text = with_interval(growth.ratio, low, high, 2, should_bound=False)
    return Cell(text, value=growth.ratio)


def render_overlap(rows: Sequence[OverlapRow]) -> RenderableType:
    """Return non-blocking collectives as OSU prints them: overall, computing, pure communication
    and overlap.
    """
    return printed(tabulate(rows, OVERLAP.on_terminal, title=OVERLAP_TITLE))


def render_overheads(overheads: Sequence[Overhead]) -> RenderableType:
    """Return the time that a framework's call adds to the library's call, for each case."""
    table = printed(tabulate(overheads, OVERHEADS.on_terminal, title=OVERHEADS_TITLE))
    if all(map(measures_interconnect, overheads)):
        return table
    return Group(Text(TIME_SLICES, style="yellow"), table)


def render_growths(growths: Sequence[Growth]) -> list[RenderableType]:
    """Return the table of a scaling study; empty for other runs."""
    if not growths:
        return []
    columns = growth_spec(growths).on_terminal
    table = tabulate(sorted(growths, key=order_of), columns, title=GROWTH_TITLE)
    return [Text(""), printed(table)]


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
    unique = ("message_bytes", "group") if groups > 1 else ("message_bytes",)
    columns = columns_of(rows, attrgetter(*unique))

    def table_of(names: Sequence[str]) -> Table:
        return _build_table({name: columns[name] for name in names}, groups)

    parts: list[RenderableType] = [Text(f"\n{title_of(rows)}", style="bold")]
    for names in split_to_fit(columns, width, table_of):
        parts += [Text(""), printed(table_of(names))]
    if groups > 1:
        parts += [Text(str(finding)) for finding in name_slowest(columns, hosts)]
    parts += reasons((name, row) for name, column in columns.items() for row in column)
    return parts


def columns_of(rows: Iterable[Row], unique: Callable[[Row], object]) -> Columns:
    """Split rows by backend, and by further fields until ``unique`` distinguishes the rows of a
    column.
    """
    rows = list(rows)
    columns: Columns = {}
    for details in _DETAILS:
        columns = {}
        for row in rows:
            words = [getattr(row, name) for name in details]
            columns.setdefault(" ".join(str(word) for word in words if word), []).append(row)
        if all(len(set(map(unique, column))) == len(column) for column in columns.values()):
            break
    return columns


def _build_table(columns: Columns, groups: int) -> Table:
    """Return a table with a line for each size, or for each group that is shown of it."""
    rows = [row for column in columns.values() for row in column]
    has_rates = any(row.algbw_GBps is not None for row in rows)
    shown: list[Column[Any]] = [number("size", "")]
    if groups > 1:
        shown.append(Column("group"))
    for name in columns:
        shown.append(Column(f"{name}\ntime [95 % CI]"))
        if has_rates:
            shown += [number("algbw\nGB/s", ""), number("busbw\nGB/s", "")]
        shown.append(Column(""))  # marks
    lines: list[list[Cell]] = []
    for size in sorted({row.message_bytes for row in rows}, key=lambda size: size or 0):
        label = "-" if size is None else format_size(size)
        at_size = []
        for column in columns.values():
            at_size.append([row for row in column if row.message_bytes == size])
        if groups > 1:
            of_size = _group_lines(at_size, groups, has_rates=has_rates)
            labels = [label, *[""] * (len(of_size) - 1)]
        else:
            of_size = _lines(at_size, has_rates=has_rates)
            labels = [label] * len(of_size)
        lines += [[Cell(label), *line] for label, line in zip(labels, of_size, strict=True)]
    return Table(columns=shown, lines=lines)


def _lines(at_size: Sequence[Sequence[Row]], *, has_rates: bool) -> list[list[Cell]]:
    """Return the cells of one size: one line, or several if no field distinguishes two rows of a
    column.
    """
    lines = []
    for rows in itertools.zip_longest(*at_size):
        cells: list[Cell] = []
        for row in rows:
            cells += _cells(row, has_rates=has_rates)
        lines.append(cells)
    return lines


def _group_lines(
    at_size: Sequence[Sequence[Row]], groups: int, *, has_rates: bool
) -> list[list[Cell]]:
    """Return the cells of one size for several groups: a line for each group shown, then their
    combined rate.
    """
    rows_by_label = [chosen(rows, groups) for rows in at_size]
    lines = []
    for label in dict.fromkeys(label for by_label in rows_by_label for label in by_label):
        cells = [Cell(label)]
        for by_label in rows_by_label:
            row = by_label.get(label)
            cells += _cells(row, has_rates=has_rates, has_group=groups > MOST_SHOWN)
        lines.append(cells)
    rates = [rates_together(rows, groups) for rows in at_size]
    if any(algbw is not None for algbw, _ in rates):
        cells = [Cell(f"all {groups}", tone="quiet")]
        for algbw, busbw in rates:
            both = [Cell(short(rate), tone="quiet") for rate in (algbw, busbw)]
            cells += [Cell(""), *both, Cell("")]
        lines.append(cells)
    return lines


def _cells(row: Row | None, *, has_rates: bool, has_group: bool = False) -> list[Cell]:
    """Return time, group if the line does not name it, bandwidths if the table has them, and flag
    marks.
    """
    if row is None:
        return [Cell("")] * (4 if has_rates else 2)
    time = _time(row)
    if has_group and row.group:
        time = f"{time} ({brief(row.group)})"
    cells = [Cell(time, tone=tone_of(row.status))]
    if has_rates and row.status == "ok":
        cells += [Cell(short(row.algbw_GBps)), Cell(short(row.busbw_GBps))]
    elif has_rates:
        cells += [Cell(""), Cell("")]
    return [*cells, Cell(marks_of(row), tone="warning")]


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
    """Return the heading of rows of one operation: operation, type, pattern, ranks and launches.

    A column in which the rows differ, or that does not apply, is left out.
    """
    first = rows[0]
    words = [first.operation]
    if _is_common(rows, "dtype"):
        words.append(str(first.dtype))
    if _is_common(rows, "redop"):
        words.append(str(first.redop))
    if _is_common(rows, "in_place"):
        words.append("in place" if first.in_place else "out of place")
    if _is_common(rows, "root"):
        words.append(f"root {first.root}")
    if _is_common(rows, "pattern") and first.pattern != "flat":
        words.append(f"{first.pattern}{name_groups(rows)}")
    return f"{', '.join(words)}{_setting(rows)}"


def _is_common(rows: Iterable[Row], name: str) -> bool:
    """Return whether all rows have the same value in a column, and have one."""
    values = {getattr(row, name) for row in rows}
    return len(values) == 1 and None not in values


def _setting(rows: Sequence[Row]) -> str:
    """Return the numbers of ranks, hosts and launches."""
    first = rows[0]
    parts = []
    if first.world_size:
        ranks = f"{first.world_size} ranks"
        if first.nodes:
            ranks = f"{ranks} on {counted(first.nodes, 'host')}"
        parts.append(ranks)
    launches = launches_of(row.launches for row in rows)
    if launches:
        parts.append(launches)
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
