"""Rows in the text formats of nccl-tests and OSU, so that their parsers can read commbench."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import makes_groups
from commbench.engine.records import Row
from commbench.report.collectives import columns_of
from commbench.report.formats import launches_of
from commbench.results.tables import (
    MEANS_PRINTED,
    PRINTED_BY_COMMBENCH,
    one_line,
    rows_by,
)
from commbench.units import counted

OSU_VERSION = "v7.4"
_SIZE_WIDTH, _VALUE_WIDTH = 10, 18

#: The formats of other tools.
STYLES = ("nccl-tests", "osu")

Key = tuple[object, ...]


def render(rows: Sequence[Row], style: str, *, means: bool = False) -> str:
    """Return the rows as text that ends in a newline.

    Args:
        rows: the rows of a run, in print order.
        style: of `STYLES`: ``nccl-tests`` (one block for each backend and operation) or ``osu``
            (one block for each test).
        means: whether to print means over repetitions and ranks, as those tools do, instead of
            commbench's time in nccl-tests' format and the median of the mean over ranks in OSU's.
    """
    if means:
        rows = [_with_means(row) for row in rows]
    form = _osu if style == "osu" else _nccl
    return "\n".join(form(rows, means)) + "\n"


def _group_of(row: Row) -> str:
    """Return the group of a row if its pattern makes groups: each group has its own block."""
    return row.group if makes_groups(row.pattern) else ""


def _missing(rows: Iterable[Row]) -> Iterator[str]:
    """Yield comment lines for rows without a valid result."""
    for row in rows:
        if row.status == "ok":
            continue
        words = ["#", row.backend, row.operation]
        if row.message_bytes is not None:
            words.append(f"{row.message_bytes} B")
        if row.dtype is not None:
            words.append(row.dtype)
        yield f"{' '.join(words)}: {row.status}: {one_line(row.reason)}"


def _with_means(row: Row) -> Row:
    """Return a row whose time and rates are of the mean over repetitions and ranks.

    A row without it as it is.
    """
    mean_us = row.time_us_mean
    if not mean_us or not row.time_us:
        return row
    share = mean_us / row.time_us
    return replace(
        row,
        time_us=mean_us,
        time_us_rank_mean=mean_us,
        algbw_GBps=row.algbw_GBps and row.algbw_GBps / share,
        busbw_GBps=row.busbw_GBps and row.busbw_GBps / share,
    )


def _meaning(rows: Iterable[Row]) -> str:
    """Return the definition of the printed means, for the line that marks the text as
    commbench's.
    """
    launches = launches_of(rows)
    if launches in {"", "1 launch"}:
        return MEANS_PRINTED
    return f"{MEANS_PRINTED}, median of {launches}"


#: Columns that a block states if they have another value than the usual one.
_STATED = {
    "pattern": "flat",
    "cadence": "isolated",
    "buffers": "hot",
    "algorithm_requested": "",
    "group": "",
    "loop": "",
    "env": "",
}


def _setting(row: Row) -> str:
    ranks = row.group_size or row.world_size or "?"
    words = [f"backend {row.backend}", counted(ranks, "rank"), row.library, row.transport]
    for name, usual in _STATED.items():
        value = _group_of(row) if name == "group" else getattr(row, name)
        if value not in {"", usual}:
            words.append(f"{name.removesuffix('_requested')} {value}")
    return one_line(", ".join(filter(None, words)))


def _absent(rows: Iterable[Row], named: Iterable[Row]) -> list[str]:
    """Return the operations that a format has no place for."""
    return sorted({row.operation for row in rows} - {row.operation for row in named})


# --------------------------------------------------------------------------------------- nccl-tests

#: What the rows of a line have in common; they are out of place and in place.
_LINE = ("dtype", "redop", "root", "message_bytes")


def _nccl(rows: Sequence[Row], means: bool) -> Iterator[str]:
    named = [row for row in rows if OPERATIONS[row.operation].moves_data]
    for test in rows_by(named, _test_of).values():
        for block in columns_of(test, attrgetter(*_LINE, "in_place")).values():
            yield from _nccl_block(block, means)
    for name in _absent(rows, named):
        yield f"# {name} moves no data and has no place in this format"


def _test_of(row: Row) -> Key:
    return row.operation, row.pattern, _group_of(row)


def _nccl_block(rows: Sequence[Row], means: bool) -> Iterator[str]:
    program = OPERATIONS[rows[0].operation].nccl_program
    meaning = _meaning(rows) if means else "time is the median of the slowest rank"
    yield f"# {PRINTED_BY_COMMBENCH} nccl-tests; {meaning}"
    yield f"# Collective test starting: {program}"
    yield f"# {_setting(rows[0])}"
    yield from _NCCL_HEADER
    timed = [row for row in rows if row.time_us is not None]
    for line in rows_by(timed, attrgetter(*_LINE)).values():
        sides = {bool(row.in_place): row for row in line}
        halves = [_nccl_half(sides.get(in_place, Row())) for in_place in (False, True)]
        yield "  ".join([_nccl_case(line[0]), *halves])
    yield from _missing(rows)
    wrong = sum(row.status == "wrong" for row in rows)
    rates = [row.busbw_GBps for row in rows if row.busbw_GBps is not None] or [0.0]
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {statistics.fmean(rates):g} "
    yield "#"
    yield f"# Collective test concluded: {program}"
    yield ""


_NCCL_HEADER = (
    "#",
    (
        "#                                                           out-of-place"
        "                       in-place"
    ),
    (
        "#       size         count      type   redop    root"
        "     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong"
    ),
    (
        "#        (B)    (elements)                          "
        "     (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)        "
    ),
)


def _nccl_case(row: Row) -> str:
    """Return size, count, type, redop and root.

    The count is one rank's share if the message consists of shares.
    """
    size, dtype = row.message_bytes or 0, DTYPES[row.dtype or ""]
    count = size // dtype.itemsize
    if OPERATIONS[row.operation].divided:
        count //= row.group_size or 1
    root = -1 if row.root is None else row.root
    redop = row.redop or "none"
    return f"{size:>12}  {count:>12}  {dtype.nccl_name:>8}  {redop:>6}  {root:>6}"


def _nccl_half(row: Row) -> str:
    texts = [_fitted(row.time_us, 7), _fitted(row.algbw_GBps, 6), _fitted(row.busbw_GBps, 6)]
    wrong = "N/A" if row.wrong is None else f"{row.wrong:g}"
    return "  ".join([*texts, f"{wrong:>6}"])


def _fitted(value: float | None, width: int) -> str:
    """Return a number with two decimals; if it does not fit, with fewer decimals or an exponent."""
    if value is None:
        return f"{'N/A':>{width}}"
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.0e}"


# ---------------------------------------------------------------------------------------------- OSU


def _osu(rows: Sequence[Row], means: bool) -> Iterator[str]:
    named = [row for row in rows if OPERATIONS[row.operation].osu_title]
    for test in rows_by(named, _osu_test_of).values():
        for block in columns_of(test, attrgetter("message_bytes")).values():
            yield from _osu_block(block, means)
    for name in _absent(rows, named):
        yield f"# OSU has no test like {name}; it is left out"


def _osu_test_of(row: Row) -> Key:
    return *_test_of(row), row.dtype, row.redop, row.in_place, row.root


def _osu_block(rows: Sequence[Row], means: bool) -> Iterator[str]:
    first = rows[0]
    operation = OPERATIONS[first.operation]
    unit = "Bandwidth (MB/s)" if operation.windowed else "Avg Latency(us)"
    yield f"# OSU {first.backend.upper()} {operation.osu_title} {OSU_VERSION}"
    meaning = _meaning(rows) if means else "latency is the median of the mean over ranks"
    yield f"# {PRINTED_BY_COMMBENCH} OSU Micro-Benchmarks; {meaning}"
    words = [_setting(first)]
    if first.redop:
        words.append(f"redop {first.redop}")
    if first.in_place:
        words.append("in place")
    if first.root:
        words.append(f"root {first.root}")
    yield f"# {', '.join(words)}"
    if first.dtype is not None:
        yield f"# Datatype: {DTYPES[first.dtype].mpi_name or first.dtype}."
        yield f"{'# Size':<{_SIZE_WIDTH}}{unit:>{_VALUE_WIDTH}}"
    else:
        yield f"# {unit}"
    for row in rows:
        value = row.time_us
        if operation.windowed:
            value = row.algbw_GBps and 1e3 * row.algbw_GBps  # MB = 1e6 bytes
        elif row.time_us_rank_mean is not None:
            value = row.time_us_rank_mean
        if value is None or row.status == "wrong":
            continue
        if row.osu_bytes is None:
            yield f"{value:17.2f}"
        else:
            yield f"{row.osu_bytes:<{_SIZE_WIDTH}d}{value:{_VALUE_WIDTH}.2f}"
    yield from _missing(rows)
    yield ""
