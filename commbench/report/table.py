"""Tables of results and of scaling studies for a terminal or a log, and the warnings below them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from commbench.analysis.scaling import Growth, order_of
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import pattern_order
from commbench.engine.flags import FLAGS, NOISE, join_flags, split_flags
from commbench.engine.records import OverlapRow, Row
from commbench.findings import shared_cause
from commbench.report.columns import (
    Cell,
    Column,
    Flagged,
    Table,
    number,
    plain_table,
    printed,
    size_column,
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
from commbench.results.info import MachineStates, RunInfo, measures_interconnect
from commbench.results.overhead import Overhead
from commbench.results.tables import rows_by
from commbench.stats import median
from commbench.stats.budgets import BUDGETS
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


def render_table(rows: Sequence[Row], *, width: int, hosts: Sequence[str] = ()) -> RenderableType:
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
    omitted_rows = len(rows) - sum(map(len, visible_groups))
    more = (
        [
            Text(
                f"\n{_count(omitted_rows, len(rows))} are not shown: see collectives.csv.",
                style="bold",
            )
        ]
        if omitted_rows
        else []
    )
    return Group(
        *(part for group in visible_groups for part in _render_group(group, width, hosts)),
        *more,
        *legend(rows),
    )


def render_overlap(rows: Sequence[OverlapRow]) -> RenderableType:
    """Return non-blocking collectives as OSU prints them: overall, computing, pure communication
    and overlap.
    """
    return printed(tabulate(rows, _OVERLAP, title="Overlap with computing (OSU's definition)"))


def render_overheads(overheads: Sequence[Overhead]) -> RenderableType:
    """Return the time that a framework's call adds to the library's call, for each case."""
    table = printed(tabulate(overheads, _OVERHEADS, title="What torch.distributed adds to NCCL"))
    return (
        table
        if all(map(measures_interconnect, overheads))
        else Group(Text(TIME_SLICES, style="yellow"), table)
    )


def _times(**headings: str) -> list[Column[Any]]:
    """Return columns of times in microseconds: headings by field."""
    return [number(heading, name, text_of=microseconds) for name, heading in headings.items()]


_OVERLAP: tuple[Column[OverlapRow], ...] = (
    Column("backend", "backend"),
    Column("operation", "operation"),
    size_column(lambda row: row.message_bytes or 0),
    *_times(overall_us="overall", compute_us="compute", pure_us="pure comm."),
    number("overlap", "overlap_percent", text_of="{:.0f} %".format),
)
_OVERHEADS: tuple[Column[Overhead], ...] = (
    Column("operation", "operation"),
    Column("pattern", "pattern"),
    size_column(lambda row: row.message_bytes or None),
    *_times(direct_us="NCCL alone", through_us="through torch"),
    number("added", "added_us", text_of="{:.1f} us".format),
    number("share", "share", text_of=percent),
)


def _table_key(row: Row) -> tuple[object, ...]:
    return (row.operation, row.pattern, row.dtype, row.redop, row.in_place, row.root)


def _table_order(row: Row) -> tuple[object, ...]:
    _, _, *others = _table_key(row)
    ordered = (list(OPERATIONS).index(row.operation), pattern_order(row.pattern))
    return (*ordered, *((other is not None, other) for other in others))


def _render_group(rows: Sequence[Row], width: int, hosts: Sequence[str]) -> list[RenderableType]:
    """Return the tables of one group under one heading, and the reasons for missing results."""
    groups = len(groups_in(rows))
    columns = columns_of(rows, lambda row: (row.message_bytes, row.group if groups > 1 else ""))
    tables = (_build_table(part, groups) for part in _fitting(columns, width, groups))
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


def _fitting(columns: Columns, width: int, groups: int) -> Iterable[Columns]:
    """Split the columns, in order, into tables that fit the width.

    A single column is never split.
    """
    names = list(columns)
    while names:
        count = len(names)
        while (
            count > 1 and _measure({name: columns[name] for name in names[:count]}, groups) > width
        ):
            count -= 1
        yield {name: columns[name] for name in names[:count]}
        names = names[count:]


def _measure(columns: Columns, groups: int) -> int:
    unlimited = Console(width=10_000, force_terminal=False, markup=False, emoji=False)
    return unlimited.measure(printed(_build_table(columns, groups))).maximum


def _build_table(columns: Columns, groups: int) -> Table:
    has_rates = any(row.algbw_GBps is not None for column in columns.values() for row in column)
    printed_columns: list[Column[Any]] = [
        number("\nsize", ""),
        *([Column("\ngroup")] if groups > 1 else []),
    ]
    for name in columns:
        printed_columns.append(Column(f"{name}\ntime [95 % CI]"))
        printed_columns += [number(f"{rate}\nGB/s", "") for rate in ("algbw", "busbw") if has_rates]
        printed_columns.append(Column("\n"))
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


# --------------------------------------------------------------------------- precision and warnings


def precision_of(
    rows: Iterable[Row], info: RunInfo, states: Mapping[str, MachineStates]
) -> list[str]:
    """Return sentences on the precision of the rows; none without intervals.

    They state how many rows of each backend have an interval within the target, with the median
    half-width, and in which state of the machine rows were measured if there were two.
    """
    target = float(info.get("relative_half_width") or BUDGETS["quick"].relative_half_width)
    widths: dict[str, list[float]] = {}
    for row in rows:
        if (
            row.status == "ok"
            and row.time_us
            and row.time_us_ci_low is not None
            and row.time_us_ci_high is not None
        ):
            half_width = (row.time_us_ci_high - row.time_us_ci_low) / 2 / row.time_us
            widths.setdefault(row.backend, []).append(half_width)
    parts = [
        f"{backend} {sum(width <= target for width in of_backend)} of"
        f" {counted(len(of_backend), 'row')} (median {_half_width(median(of_backend))})"
        for backend, of_backend in widths.items()
    ]
    sentences = (
        [f"Intervals within {100 * target:g} % either way: {', '.join(parts)}."] if parts else []
    )
    for backend, levels in states.items():
        ratio = levels["slow_us"] / levels["fast_us"]
        sentences.append(
            f"The machine was in two states: over {backend} {100 * levels['fast_share']:.0f} % of"
            f" visits met the fast one; in the slow one the probe took {ratio:.2f} times as long."
            " The table shows the fast state, collectives.csv both."
        )
    return sentences


def _half_width(share: float) -> str:
    """Return a relative half-width in per cent; from 100 % on it says nothing but that."""
    return f"{100 * share:.2g} %" if share < 1 else "over 100 %"


def unlike_peers(rows: Iterable[Row], info: RunInfo) -> list[str]:
    """Return a sentence on the operations that ran in place, unlike in OSU and IMB.

    None for imported rows.
    """
    own = (
        [] if info.get("imported") else [row for row in rows if row.status == "ok" and row.in_place]
    )
    names = sorted({row.operation for row in own if OPERATIONS[row.operation].default_in_place})
    if not names:
        return []
    others = (
        "OSU and IMB use a second buffer, as --in-place out does over MPI; nccl-tests prints both"
    )
    return [f"In place: {', '.join(names)}. {others}."]


class Things(NamedTuple):
    """Singular and plural of the noun for counted rows."""

    one: str
    several: str


ROWS = Things("row", "rows")


def warnings_for(rows: Sequence[Flagged], info: RunInfo, *, things: Things = ROWS) -> list[str]:
    """Return the warnings about rows, each once: the observation with its count, then the remedy.

    Args:
        rows: the rows of a run.
        info: the content of ``run.json``; ``relative_half_width`` and ``budget`` (a name, or an
            object with ``name``) keep remedies from proposing an option that is already in use.
        things: the nouns for the rows.
    """
    return [warning.text for warning in warned(rows, info, things=things)]


class Warned(NamedTuple):
    """A warning about rows."""

    priority: int
    """Its rank on a first screen, the lowest first; failures -1."""
    rows: str
    """The number of rows and the noun."""
    observation: str
    """The observation, as the predicate of a sentence."""
    remedy: str = ""
    """The remedy."""

    @property
    def text(self) -> str:
        """The whole sentence."""
        sentence = f"{self.rows} {self.observation}{f': {self.remedy}' if self.remedy else ''}"
        return f"{sentence[:1].upper()}{sentence[1:]}"


def warned(rows: Sequence[Flagged], info: RunInfo, *, things: Things) -> list[Warned]:
    """Return the warnings of `warnings_for` in parts: failures, then one for each flag.

    Flags of noise share one.
    """
    flags_by_row = [split_flags(row.flags) for row in rows]
    counts = Counter(flag.name for flags in flags_by_row for flag in flags)
    target = info.get("relative_half_width")
    values = {"more_launches": _more_launches(info)}
    values |= {"target": f"{100 * float(target):g} %"} if target else {}
    noises = [flag for name, flag in FLAGS.items() if counts[name] and flag.is_noise]
    noise = []
    if len(noises) > 1:
        noisy = sum(any(flag.is_noise for flag in flags) for flags in flags_by_row)
        observation = (
            f"are noisy ({', '.join(f'{counts[flag.name]} {flag.name}' for flag in noises)})"
        )
        priority = min(flag.priority for flag in noises)
        noise = [
            Warned(
                priority, _count(noisy, len(rows), things), observation, NOISE.remedy_with(**values)
            )
        ]
    flagged = (
        Warned(
            flag.priority,
            _count(counts[name], len(rows), things),
            flag.warning_with(**values),
            flag.remedy_with(**values),
        )
        for name, flag in FLAGS.items()
        if counts[name] and not (noise and flag.is_noise)
    )
    return [*_failed(rows, len(rows), things), *flagged, *noise]


def budget_of(info: RunInfo) -> str | None:
    """Return the name of the run's budget; None if unknown."""
    plan = info.get("plan")
    budget = info.get("budget") or (plan.get("budget") if isinstance(plan, Mapping) else None)
    name = budget.get("name") if isinstance(budget, Mapping) else budget
    return str(name) if name else None


def _count(count: int, rows: int, things: Things = ROWS) -> str:
    if count == rows > 1:
        return f"all {rows} {things.several}"
    return f"{count} of {rows} {things.one if rows == 1 else things.several}"


def failures(rows: Sequence[Flagged], total: int) -> list[str]:
    """Return a warning for each status without a result, with its count out of ``total`` rows."""
    return [warning.text for warning in _failed(rows, total, ROWS)]


def _failed(rows: Sequence[Flagged], total: int, things: Things) -> list[Warned]:
    by_status = rows_by(rows, lambda row: row.status)
    return [
        Warned(
            -1,
            _count(len(by_status[status]), total, things),
            f"{text}{_example(by_status[status])}",
        )
        for status, text in _STATUS.items()
        if status in by_status
    ]


_STATUS = {
    "wrong": (
        "hold wrong data and no bandwidth: do not trust this library and transport with these sizes"
    ),
    "hung": "hung: the same command measures them again",
    "failed": "failed: the same command measures them again",
    "unsupported": "are not supported by their backend",
}


def _example(rows: Sequence[Flagged]) -> str:
    by_cause: dict[str, str] = {}
    for row in rows:
        if row.reason:
            sentence = row.reason.rstrip(".")
            by_cause.setdefault(shared_cause(row.reason_code, sentence), sentence)
    reasons = list(by_cause.values())
    if not reasons:
        return ""
    return f" ({reasons[0]}{f'; and {len(reasons) - 1} other reasons' if len(reasons) > 1 else ''})"


def _more_launches(info: RunInfo) -> str:
    """Return the next larger budget with more launches; none above the largest."""
    names = list(BUDGETS)
    budget = budget_of(info)
    if budget == names[-1]:
        return f"--budget {budget} is in use already, so add launches"
    following = names[names.index(budget) + 1] if budget in names else names[-1]
    return f"try --budget {following} with a new --out"


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
    return with_interval(growth.ratio, low, high, 2, most=math.inf)
