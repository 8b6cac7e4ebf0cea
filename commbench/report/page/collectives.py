"""The tables of collectives on a page: times, scaling, pairs, overlap, energy."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from commbench.analysis.runs import all_rank_rows, growths, straggler_findings
from commbench.analysis.scaling import Growth, order_of
from commbench.analysis.stragglers.findings import Straggler
from commbench.collectives.composed import MATRIX
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import makes_groups, pattern_order
from commbench.engine.records import OverlapRow, Row
from commbench.report.columns import (
    MOST_LINES,
    Column,
    Named,
    Table,
    flag_column,
    interval,
    make_table,
    number,
    tone_of,
    words,
)
from commbench.report.formats import between, digits
from commbench.report.groups import groups_in, name_slowest
from commbench.report.scaling import growth_text
from commbench.report.state import counted_energy, explain_time
from commbench.report.table import TIME_SLICES, columns_of, title_of
from commbench.results import PAIRS, SUMMARY, Run
from commbench.results.overhead import Overhead, overheads
from commbench.results.pairs import PairRow, pair_table
from commbench.results.sharing import measures_interconnect
from commbench.results.tables import rows_of
from commbench.units import format_size

#: Fields that distinguish two lines of a table, besides the backend and the method of measuring.
_UNIQUE = ("message_bytes", "group", "dtype", "redop", "in_place", "root")


def _time(row: Row) -> str:
    """Return the time in microseconds, or one word that says why there is none."""
    return row.status if row.status != "ok" else digits(row.time_us) or "no time"


def _size_column(kind: type[Any]) -> Column[Any]:
    return Column(
        "size",
        about=kind.__dataclass_fields__["message_bytes"].metadata["about"],
        text=lambda row: "" if row.message_bytes is None else format_size(row.message_bytes),
        value=lambda row: row.message_bytes,
    )


def _time_column(about: str) -> Column[Row]:
    return Column(
        "time", unit="us", about=about, text=_time, value=lambda row: row.time_us, tone=lambda row: tone_of(row.status)
    )


def collective_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for each operation and pattern, all runs together; sizes down, backends and runs side by side.

    Matrices have tables of their pairs: a median over unlike pairs is the time of no pair.
    """
    rows = [(run.name, row) for run in runs for row in all_rank_rows(run) if row.pattern != MATRIX]
    about = explain_time(runs)
    groups = itertools.groupby(sorted(rows, key=_order), key=_table_of)
    return [_collective_table(list(group), about) for _, group in groups]


def _table_of(named: Named[Row]) -> tuple[str, str]:
    return named[1].operation, named[1].pattern


def _order(named: Named[Row]) -> tuple[Any, ...]:
    row = named[1]
    others = (row.dtype, row.redop, row.in_place, row.root, row.message_bytes, row.backend)
    place = (list(OPERATIONS).index(row.operation), pattern_order(row.pattern))
    return (*place, *((other is not None, other) for other in others))


def _collective_table(rows: Sequence[Named[Row]], about_time: str) -> Table:
    names = _backend_names(rows)
    columns: list[Column[Row]] = [
        _size_column(Row),
        Column("backend", lambda row: names[id(row)]),
        *(words(name.replace("_", " "), name, Row, if_varied=True) for name in ("group", "dtype", "redop")),
        *(words(name.replace("_", " "), name, Row, if_varied=True) for name in ("in_place", "root")),
        _time_column(about_time),
        interval("time_us", Row, unit="us"),
        number("p95", "time_us_p95", Row, unit="us"),
        number("algbw", "algbw_GBps", Row, unit="GB/s"),
        number("busbw", "busbw_GBps", Row, unit="GB/s"),
        number("overhead", "harness_us", Row, unit="us"),
        number("energy", "energy_J", Row, unit="J"),
        flag_column(),
    ]
    own = [row for _, row in rows]
    title = title_of(own)
    if len({name for name, _ in rows}) > 1:  # the notes below are about the first run only
        title = title.partition(" (")[0]
    return make_table(title, rows, columns, rest_in=SUMMARY)


def _backend_names(rows: Sequence[Named[Row]]) -> dict[int, str]:
    """Name each row's backend, with the methods of measuring that differ between the rows of a run."""
    names: dict[int, str] = {}
    for of_run in _by_run(rows):
        columns = columns_of(of_run, lambda row: tuple(getattr(row, name) for name in _UNIQUE))
        names |= {id(row): name for name, column in columns.items() for row in column}
    return names


def _by_run(rows: Iterable[Named[Row]]) -> Iterable[list[Row]]:
    by_run: dict[str, list[Row]] = {}
    for name, row in rows:
        by_run.setdefault(name, []).append(row)
    return by_run.values()


def slowest_groups(run: Run) -> list[str]:
    """Name the slowest group of each pattern that makes groups, in one sentence for each backend."""
    hosts = [rank["host"] for rank in sorted(run.info.get("ranks") or [], key=lambda rank: rank["rank"])]
    grouped = [row for row in all_rank_rows(run) if makes_groups(row.pattern)]
    found = []
    for (operation, pattern), members in itertools.groupby(grouped, key=lambda row: (row.operation, row.pattern)):
        rows = list(members)
        if len(groups_in(rows)) > 1:
            columns = columns_of(rows, lambda row: tuple(getattr(row, name) for name in _UNIQUE))
            found += [f"{operation}, {pattern}, {sentence}" for sentence in name_slowest(columns, hosts)]
    return found


# --------------------------------------------------------------------------------------------------- other tables


def growth_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate time against the number of ranks: a line for each case and number of ranks."""
    lines = [
        (run.name, (growth, ranks))
        for run in runs
        for growth in sorted(growths(run), key=order_of)
        for ranks in growth.rows
    ]
    row_of: Callable[[tuple[Growth, int]], Row] = lambda line: line[0].rows[line[1]]  # noqa: E731 - typed
    columns: list[Column[tuple[Growth, int]]] = [
        Column("operation", lambda line: line[0].case.operation),
        Column("pattern", lambda line: line[0].case.pattern, if_varied=True),
        Column("backend", lambda line: line[0].case.backend),
        Column(
            "size",
            lambda line: format_size(line[0].case.message_bytes) if line[0].case.dtype else "",
            value=lambda line: line[0].case.message_bytes,
        ),
        Column("ranks", lambda line: str(line[1]), value=lambda line: line[1]),
        Column("time", unit="us", text=lambda line: _time(row_of(line)), value=lambda line: row_of(line).time_us),
        Column(
            "growth",
            about="time on the most ranks over time on the fewest, with its 95 % interval",
            text=lambda line: growth_text(line[0]),
            value=lambda line: line[0].ratio,
        ),
        Column("grows with", lambda line: line[0].law),
    ]
    return [make_table("Time over the number of ranks", lines, columns, rest_in=SUMMARY)] if lines else []


def overlap_tables(runs: Sequence[Run]) -> list[Table]:
    """Non-blocking collectives, as OSU prints them."""
    lines = [(run.name, row) for run in runs for row in run.overlaps]
    columns: list[Column[OverlapRow]] = [
        words("operation", "operation", OverlapRow),
        words("backend", "backend", OverlapRow),
        _size_column(OverlapRow),
        number("overall", "overall_us", OverlapRow, unit="us"),
        number("compute", "compute_us", OverlapRow, unit="us"),
        number("pure comm.", "pure_us", OverlapRow, unit="us"),
        number("overlap", "overlap_percent", OverlapRow, unit="%"),
        interval("overlap_percent", OverlapRow, unit="%", is_bounded=True),
    ]
    return [make_table("Overlap with computing (OSU's definition)", lines, columns)] if lines else []


def overhead_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate the time that a framework's call adds to the library's call."""
    lines = [(run.name, one) for run in runs for one in overheads(all_rank_rows(run))]
    columns: list[Column[Overhead]] = [
        words("operation", "operation", Overhead),
        words("pattern", "pattern", Overhead, if_varied=True),
        _size_column(Overhead),
        number("NCCL alone", "direct_us", Overhead, unit="us"),
        number("through torch", "through_us", Overhead, unit="us"),
        number("added", "added_us", Overhead, unit="us"),
        interval("added_us", Overhead, unit="us"),
    ]
    notes = [] if all(measures_interconnect(one) for _, one in lines) else [TIME_SLICES]
    return [make_table("What torch.distributed adds to NCCL", lines, columns, notes=notes)] if lines else []


def straggler_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate the stragglers."""
    lines = [(run.name, straggler) for run in runs for straggler in straggler_findings(run).stragglers]
    columns: list[Column[Straggler]] = [
        Column("what", lambda straggler: straggler.kind),
        Column("name", lambda straggler: straggler.name),
        Column(
            "times as long",
            about="time relative to its typical peer",
            text=lambda straggler: digits(straggler.factor),
            value=lambda straggler: straggler.factor,
        ),
        Column(
            "95 % CI",
            lambda straggler: between(*straggler.ci, straggler.factor) if straggler.ci else "",
            value=lambda straggler: straggler.ci[0] if straggler.ci else None,
        ),
        Column("seen in", lambda straggler: straggler.evidence),
    ]
    return [make_table("Slower than their peers", lines, columns, rest_in="run.json")] if lines else []


def pair_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for each matrix: its pairs, the slowest relative to the typical pair first."""
    tables = []
    for run in runs:
        for matrix in run.matrices:
            slowest = pair_table([matrix], run.info).sort_values(
                "ratio_to_typical", ascending=False, na_position="first", kind="stable"
            )
            rows = [(run.name, row) for row in rows_of(slowest[:MOST_LINES])]
            case = matrix.case
            title = f"{case.operation} {format_size(case.message_bytes)}, {case.backend}: pairs of ranks"
            title += f" of {run.name}" if len(runs) > 1 else ""
            table = make_table(title, rows, _PAIR_COLUMNS, rest_in=PAIRS)
            total = len(matrix.source)
            left = (
                [f"The slowest {len(rows)} of {total} pairs; all of them are in {PAIRS}."] if total > len(rows) else []
            )
            tables.append(dataclasses.replace(table, notes=left))
    return tables


_PAIR_COLUMNS: list[Column[PairRow]] = [
    Column("from", about="rank that sends", text=lambda row: str(row.source), value=lambda row: row.source),
    words("host", "source_host", PairRow),
    Column("to", about="rank that receives", text=lambda row: str(row.target), value=lambda row: row.target),
    words("host", "target_host", PairRow),
    number("time", "time_us", PairRow, unit="us"),
    interval("time_us", PairRow, unit="us"),
    number("p95", "time_us_p95", PairRow, unit="us"),
    number("bandwidth", "algbw_GBps", PairRow, unit="GB/s"),
    number("over the typical", "ratio_to_typical", PairRow),
    Column("status", lambda row: row.status, if_varied=True, tone=lambda row: tone_of(row.status)),
    flag_column(),
]


def energy_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate the energy of operations and steps that have one."""
    timed = [(run.name, row) for run in runs for row in run.rows if row.energy_J is not None]
    columns: list[Column[Row]] = [
        words("operation", "operation", Row),
        words("pattern", "pattern", Row, if_varied=True),
        words("backend", "backend", Row),
        _size_column(Row),
        _time_column(explain_time(runs)),
        number("energy", "energy_J", Row, unit="J"),
        energy_column(runs),
        Column("energy a byte", unit="nJ", text=lambda row: digits(_nanojoule(row)), value=_nanojoule),
    ]
    return [make_table("Energy of one operation", timed, columns, rest_in=SUMMARY)] if timed else []


def energy_column(runs: Iterable[Run]) -> Column[Any]:
    """Name what the energy of a row counts."""
    counts = {row: counted_energy(energy_of) for run in runs for row, energy_of in run.energy_of.items()}
    return Column(
        "energy of",
        about="what is counted: idle GPUs and other programs there, too",
        text=lambda row: counts.get(row, ""),
    )


def _nanojoule(row: Row) -> float | None:
    return 1e9 * row.energy_J / row.message_bytes if row.energy_J is not None and row.message_bytes else None
