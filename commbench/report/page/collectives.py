"""The tables of collectives on a page: times, scaling, pairs, overlap."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from commbench.analysis.runs import all_rank_rows, growths, straggler_findings
from commbench.analysis.scaling import order_of
from commbench.analysis.stragglers.judging import Straggler
from commbench.collectives.composed import MATRIX
from commbench.collectives.patterns import makes_groups
from commbench.engine.records import Row
from commbench.findings import Finding, Value
from commbench.report.columns import (
    MOST_LINES,
    Column,
    Table,
    declared,
    ends,
    energy_column,
    flag_column,
    interval,
    make_table,
    make_tables,
    number,
    outcome,
    status_cell,
)
from commbench.report.groups import groups_in, name_slowest
from commbench.report.state import explain_time
from commbench.report.table import (
    GROWTH_TITLE,
    OVERHEADS,
    OVERHEADS_TITLE,
    OVERLAP,
    OVERLAP_TITLE,
    TIME_SLICES,
    columns_of,
    growth_spec,
    title_of,
)
from commbench.results import PAIRS, SUMMARY, Run
from commbench.results.info import host_by_rank, measures_interconnect
from commbench.results.overhead import overheads
from commbench.results.pairs import PairRow, pair_table
from commbench.results.summary import order_of_row
from commbench.results.tables import rows_by, rows_of
from commbench.units import format_size

#: Fields that distinguish two lines of a table, besides the backend and the method of measuring.
_UNIQUE = ("message_bytes", "group", "dtype", "redop", "in_place", "root", "env")
_unique = attrgetter(*_UNIQUE)
#: Columns of the method of measuring, for lines that these do not distinguish.
_METHOD = "algorithm_requested loop sync cadence buffers"


def collective_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate each operation and pattern, all runs together: sizes down, backends and runs side by
    side.

    Matrices get tables of their pairs: a median over different pairs is not the time of any pair.
    """
    rows = [(run.name, row) for run in runs for row in all_rank_rows(run) if row.pattern != MATRIX]
    rows.sort(key=lambda named_row: order_of_row(named_row[1]))
    by_table = rows_by(rows, lambda named_row: (named_row[1].operation, named_row[1].pattern))
    tables = []
    for of_table in by_table.values():
        keys = {(name, row.backend, *_unique(row)) for name, row in of_table}
        distinguishing = " ".join(_UNIQUE[1:])
        if len(keys) < len(of_table):
            distinguishing = f"{_METHOD} {distinguishing}"
        columns: list[Column[Row]] = [
            *declared(Row, "message_bytes backend"),
            *declared(Row, distinguishing, should_vary=True),
            outcome("time_us", Row, explain_time(runs)),
            interval("time_us", Row),
            *declared(Row, "time_us_p95 algbw_GBps busbw_GBps harness_us framework_us energy_J"),
            energy_column(),
            number("energy a byte", _nanojoule, unit="nJ"),
            flag_column(),
        ]
        title = title_of([row for _, row in of_table])
        if len({name for name, _ in of_table}) > 1:  # the notes below are about the first run only
            title = title.partition(" (")[0]
        tables.append(make_table(title, of_table, columns, rest_in=SUMMARY))
    return tables


def collective_sentences(run: Run) -> list[Finding]:
    """Return what bus bandwidth means, and the slowest group of each pattern that makes groups."""
    rows = [row for row in all_rank_rows(run) if row.pattern != MATRIX]
    findings = []
    if any(row.busbw_GBps is not None for row in rows):
        findings.append(Finding("busbw_meaning"))
    grouped = rows_by(rows, lambda row: (row.operation, row.pattern))
    for (operation, pattern), of_pattern in grouped.items():
        if makes_groups(pattern) and len(groups_in(of_pattern)) > 1:
            columns = columns_of(of_pattern, _unique)
            named = {f"{operation}, {pattern}, {name}": of for name, of in columns.items()}
            findings += name_slowest(named, host_by_rank(run.info))
    return findings


# ------------------------------------------------------------------------------------- other tables


def growth_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate time against the number of ranks: a line for each case."""
    spec = growth_spec([growth for run in runs for growth in growths(run)])
    return make_tables(
        GROWTH_TITLE,
        runs,
        lambda run: sorted(growths(run), key=order_of),
        spec.on_page,
        rest_in=spec.file,
    )


def overlap_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate non-blocking collectives, as OSU prints them."""
    return make_tables(
        OVERLAP_TITLE, runs, lambda run: run.overlaps, OVERLAP.on_page, rest_in=OVERLAP.file
    )


def overhead_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate the time that a framework's call adds to the library's call."""
    overheads_by_run = {run.name: overheads(all_rank_rows(run)) for run in runs}
    notes = []
    if not all(measures_interconnect(row) for rows in overheads_by_run.values() for row in rows):
        notes.append(TIME_SLICES)
    return make_tables(
        OVERHEADS_TITLE,
        runs,
        lambda run: overheads_by_run[run.name],
        OVERHEADS.on_page,
        notes=notes,
    )


def straggler_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate the stragglers."""
    columns: list[Column[Straggler]] = [
        Column("what", "kind"),
        Column("name", "name"),
        number("times as long", "factor", about="time relative to its typical peer"),
        ends(lambda straggler: (*straggler.ci, straggler.factor) if straggler.ci else (None, None)),
        Column("seen in", "evidence"),
    ]
    return make_tables(
        "Slower than their peers",
        runs,
        lambda run: straggler_findings(run).stragglers,
        columns,
        rest_in="run.json",
    )


def pair_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate the pairs of each matrix, the slowest relative to the typical pair first."""
    tables = []
    for run in runs:
        for matrix in run.matrices:
            slowest = pair_table([matrix], run.info).sort_values(
                "ratio_to_typical", ascending=False, na_position="first", kind="stable"
            )
            rows = [(run.name, row) for row in rows_of(slowest[:MOST_LINES])]
            case = matrix.case
            size = format_size(case.message_bytes)
            title = f"{case.operation} {size}, {case.backend}: pairs of ranks"
            if len(runs) > 1:
                title = f"{title} of {run.name}"
            notes = []
            if len(rows) < len(matrix.source):
                numbers: dict[str, Value] = {
                    "shown": len(rows),
                    "lines": len(matrix.source),
                    "file": PAIRS,
                }
                notes.append(str(Finding("pairs_hidden", numbers=numbers)))
            tables.append(make_table(title, rows, _PAIR_COLUMNS, notes=notes))
    return tables


_PAIR_COLUMNS: list[Column[PairRow]] = [
    number("from", "source", about="rank that sends", text_of=str),
    Column("host", "source_host", PairRow),
    number("to", "target", about="rank that receives", text_of=str),
    Column("host", "target_host", PairRow),
    *declared(PairRow, "time_us"),
    interval("time_us", PairRow),
    *declared(PairRow, "time_us_p95 algbw_GBps ratio_to_typical"),
    Column("status", lambda row: status_cell(row.status), should_vary=True),
    flag_column(),
]


def _nanojoule(row: Row) -> float | None:
    if row.energy_J is None or not row.message_bytes:
        return None
    return 1e9 * row.energy_J / row.message_bytes
