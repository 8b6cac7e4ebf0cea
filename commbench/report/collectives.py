"""The tables of collectives: times, scaling, pairs, overlap."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from commbench.analysis.scaling import Growth, all_rank_rows, growths
from commbench.collectives.algorithms import AUTO
from commbench.collectives.composed import MATRIX
from commbench.collectives.patterns import makes_groups, ranks_of
from commbench.engine.flags import split_flags
from commbench.engine.records import OverlapRow, Row
from commbench.findings import Finding
from commbench.report.columns import (
    ENERGY_OF,
    MOST_LINES,
    Cell,
    Column,
    Table,
    declared,
    flag_column,
    interval,
    make_table,
    make_tables,
    number,
    outcome,
    prefixes,
    tabulate,
)
from commbench.report.formats import launches_of, ranks_on_hosts, with_interval
from commbench.results import PAIRS, SUMMARY, Run, files
from commbench.results.info import host_by_rank
from commbench.results.pairs import Matrix, PairRow, pair_table
from commbench.results.summary import order_of_row
from commbench.results.tables import rows_by, rows_of
from commbench.stats import bounds_of
from commbench.units import format_size
from commbench.words import Estimate, phrase

#: Fields that split the rows of one backend, in order, until each is alone at its size.
_DETAILS: tuple[tuple[str, ...], ...] = (
    ("backend",),
    ("backend", "env"),
    ("backend", "algorithm_requested"),
    ("backend", "loop"),
    ("backend", "algorithm_requested", "loop", "sync", "cadence", "buffers", "group", "env"),
)
#: Fields that distinguish two lines of a table, besides the backend and the method of measuring.
_UNIQUE = ("message_bytes", "group", "dtype", "redop", "in_place", "root", "env")
_unique = attrgetter(*_UNIQUE)
#: How values of a field are spoken, if not by themselves.
_SPOKEN = {
    "root": "root {}",
    "world_size": "{:rank}",
    "sync": "sync {}",
    "loop": "{} loop",
    "algorithm": "by {}",
    "env": "under {}",
}
#: Values with other words.
_WORDS: Mapping[tuple[str, object], str] = {
    ("in_place", True): "in place",
    ("in_place", False): "out of place",
    ("world_size", None): "all ranks",
    ("algorithm", AUTO): "own choice",
    ("env", ""): "unchanged",
}
#: Columns of the method of measuring, for lines that these do not distinguish.
_METHOD = "algorithm_requested loop sync cadence buffers"
#: A group on more hosts than this is named without them.
MOST_HOSTS = 3
#: A group of non-adjacent ranks with at most this many ranks is named in full.
MOST_RANKS = 4
#: Groups are compared where these fields agree.
_CASE = ("message_bytes", "dtype", "redop", "in_place", "root", "env")
#: What the times of our own runs are.
_TIME = "median over launches of the slowest rank's median"


def columns_of(rows: Iterable[Row], unique: Callable[[Row], object]) -> dict[str, list[Row]]:
    """Split rows by backend, and by further fields until ``unique`` distinguishes the rows of a
    column.
    """
    rows = list(rows)
    columns: dict[str, list[Row]] = {}
    for details in _DETAILS:
        columns = {}
        for row in rows:
            words = [getattr(row, name) for name in details]
            columns.setdefault(" ".join(str(word) for word in words if word), []).append(row)
        if all(len(set(map(unique, column))) == len(column) for column in columns.values()):
            break
    return columns


def collective_tables(runs: Sequence[Run]) -> Iterator[Table]:
    """Tabulate each operation and pattern, all runs together: sizes down, backends and runs side by
    side.

    Matrices get tables of their pairs: a median over different pairs is not the time of any pair.
    """
    rows = [(run.name, row) for run in runs for row in all_rank_rows(run) if row.pattern != MATRIX]
    rows.sort(key=lambda named_row: order_of_row(named_row[1]))
    by_table = rows_by(rows, lambda named_row: (named_row[1].operation, named_row[1].pattern))
    for of_table in by_table.values():
        keys = {(name, row.backend, *_unique(row)) for name, row in of_table}
        distinguishing = " ".join(_UNIQUE[1:])
        if len(keys) < len(of_table):
            distinguishing = f"{_METHOD} {distinguishing}"
        columns = [
            *declared(Row, "message_bytes backend"),
            *declared(Row, distinguishing, should_vary=True),
            outcome("time_us", Row, explain_time(runs)),
            interval("time_us", Row),
            *declared(Row, "time_us_p95", drop_order=1),
            *declared(Row, "algbw_GBps busbw_GBps"),
            *declared(Row, "harness_us framework_us energy_J", drop_order=2),
            ENERGY_OF,
            flag_column(),
        ]
        title = title_of([row for _, row in of_table])
        if len({name for name, _ in of_table}) > 1:  # the notes below are about the first run only
            title = title.partition(" (")[0]
        yield make_table(title, of_table, columns, rest_in=SUMMARY)


def explain_time(runs: Iterable[Run]) -> str:
    """Return the definition of the times; imported runs have their tool's definition."""
    definitions = set()
    for run in runs:
        for record in run.records:
            definition = _TIME
            if record.stated:
                definition = f"median over launches of the {record.stated.time}"
            definitions.add(definition)
    return " or ".join(sorted(definitions)) or _TIME


def title_of(rows: Sequence[Row]) -> str:
    """Return the heading of rows of one operation: operation, type, pattern, ranks and launches.

    A column in which the rows differ, or that does not apply, is left out.
    """
    first = rows[0]
    words = [first.operation]
    for name in ("dtype", "redop", "in_place", "root"):
        values = {getattr(row, name) for row in rows}
        if len(values) == 1 and None not in values:
            words.append(spoken(name, values.pop()))
    if first.pattern != "flat":
        words.append(first.pattern)
    ranks = ranks_on_hosts(first.world_size, first.nodes)
    launches = launches_of(rows)
    where = ", ".join(filter(None, (ranks, launches)))
    title = ", ".join(words)
    return f"{title} ({where})" if where else title


def spoken(name: str, value: object) -> str:
    """Return the value of a field of a case, as it is spoken where cases are told apart."""
    if (name, value) in _WORDS:
        return _WORDS[name, value]
    return phrase(_SPOKEN.get(name, "{}"), value)


def group_sentences(run: Run) -> Iterator[Finding]:
    """Yield the slowest group of each pattern that makes groups, and their rate together."""
    grouped = [row for row in all_rank_rows(run) if makes_groups(row.pattern)]
    by_pattern = rows_by(grouped, attrgetter("operation", "pattern"))
    for (operation, pattern), rows in by_pattern.items():
        columns = columns_of(rows, _unique)
        named = {f"{operation}, {pattern}, {name}": of for name, of in columns.items()}
        yield from group_findings(named, host_by_rank(run.info))


def group_findings(
    columns: Mapping[str, Sequence[Row]], hosts: Mapping[int, str]
) -> Iterator[Finding]:
    """Yield for each column the group that is most often slowest beyond noise, by how much, and
    the bus bandwidth of all groups together at the largest size.

    Args:
        columns: rows of several groups, by name of the column; groups of one case are compared.
        hosts: the host of each rank; empty if unknown.
    """
    for name, rows in columns.items():
        timed = [row for row in rows if row.time_us]
        by_case = rows_by(timed, attrgetter(*_CASE))
        compared = [of_case for of_case in by_case.values() if len(of_case) > 1]
        if compared:
            yield _slowest(name, compared, hosts)
            largest = max(compared, key=lambda rows: rows[0].message_bytes or 0)
            rates = [row.busbw_GBps for row in largest if row.busbw_GBps is not None]
            if len(rates) == len(largest):
                rate, size = Estimate(sum(rates)), largest[0].message_bytes or 0
                yield Finding(
                    "groups_together", name, {"rate": rate, "groups": len(rates), "size": size}
                )


def _slowest(name: str, cases: Sequence[Sequence[Row]], hosts: Mapping[int, str]) -> Finding:
    slow_groups = []
    for of_case in cases:
        median_us = statistics.median_low(row.time_us or 0.0 for row in of_case)
        for row in of_case:
            if "slowest_group" in split_flags(row.flags):
                slow_groups.append(((row.time_us or 0.0) / median_us, row))
    if not slow_groups:
        return Finding("groups_even", name)
    often = Counter(row.group for _, row in slow_groups)
    ratio, worst = max(slow_groups, key=lambda pair: (often[pair[1].group], pair[0]))
    group, parts = worst.group, worst.group.split(",")
    if len(parts) > MOST_RANKS:  # of many, the first two and the last
        group = f"{parts[0]},{parts[1]},..,{parts[-1]}"
    names = list(dict.fromkeys(hosts[rank] for rank in ranks_of(worst.group) if rank in hosts))
    if 0 < len(names) <= MOST_HOSTS:
        group = f"{group} on {', '.join(names)}"
    at = f"{format_size(worst.message_bytes or 0)} {worst.dtype or ''}".rstrip()
    counts = {"often": often[worst.group], "cases": len(cases)}
    return Finding("groups_slowest", name, {"group": group, "ratio": ratio, "at": at, **counts})


# ------------------------------------------------------------------------------------- other tables


def growth_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate time against the number of ranks: a line for each case."""
    columns: list[Column[Growth]] = [Column("case", "case")]
    worlds = {ranks for run in runs for growth in growths(run) for ranks in growth.rows}
    for ranks in sorted(worlds):
        columns.append(number(f"n = {ranks}", partial(_time_on, ranks=ranks), unit="us"))
    about = "time on the most ranks over time on the fewest, with its 95 % interval"
    columns += [
        Column("growth", _growth_cell, about=about, is_number=True),
        Column("grows with", "law"),
    ]
    return make_tables(
        "Scaling: time on the first n ranks",
        runs,
        growths,
        columns,
        rest_in=SUMMARY,
    )


def _time_on(growth: Growth, *, ranks: int) -> float | None:
    return growth.rows[ranks].time_us if ranks in growth.rows else None


def _growth_cell(growth: Growth) -> Cell:
    """Return the growth with its interval, e.g. ``1.84 [1.80, 1.88]``."""
    low, high = bounds_of(growth.interval) or (None, None)
    text = with_interval(growth.ratio, low, high, 2)
    return Cell(text, value=growth.ratio)


def overlap_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate non-blocking collectives, as OSU prints them."""
    columns = [
        *declared(
            OverlapRow,
            "operation backend message_bytes overall_us compute_us pure_us overlap_percent",
        ),
        interval("overlap_percent", OverlapRow, is_bounded=True),
    ]
    title = "Overlap with computing (OSU's definition)"
    return make_tables(title, runs, attrgetter("overlaps"), columns, rest_in=files.OVERLAP)


def pair_tables(runs: Sequence[Run]) -> Iterator[Table]:
    """Tabulate the pairs of each matrix."""
    for run, prefix in prefixes(runs):
        for matrix in run.matrices:
            table = pairs_table(run, matrix)
            yield replace(table, title=f"{prefix}{table.title}")


def pairs_table(run: Run, matrix: Matrix, most: int = MOST_LINES) -> Table:
    """Tabulate the pairs of a matrix, the slowest relative to the typical pair first."""
    slowest = pair_table([matrix], run.info).sort_values(
        "ratio_to_typical", ascending=False, na_position="first", kind="stable"
    )
    notes = []
    if most < len(slowest):
        counts = {"shown": most, "lines": len(slowest)}
        notes.append(str(Finding("pairs_hidden", numbers={"file": PAIRS, **counts})))
    case = matrix.case
    title = f"{case.operation} {format_size(case.message_bytes)}, {case.backend}: pairs of ranks"
    return tabulate(rows_of(slowest[:most]), _PAIR_COLUMNS, title=title, notes=notes)


_PAIR_COLUMNS: list[Column[PairRow]] = [
    number("from", "source", about="rank that sends", text_of=str),
    *declared(PairRow, "source_host"),
    number("to", "target", about="rank that receives", text_of=str),
    *declared(PairRow, "target_host"),
    *declared(PairRow, "time_us"),
    interval("time_us", PairRow),
    *declared(PairRow, "time_us_p95 algbw_GBps ratio_to_typical"),
    Column("status", "status", should_vary=True),
    flag_column(),
]
