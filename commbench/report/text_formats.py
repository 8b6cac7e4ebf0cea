"""Rows in the text formats of nccl-tests and OSU, so that their parsers can read commbench."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import makes_groups
from commbench.engine.records import Row
from commbench.errors import check_choice
from commbench.report.collectives import columns_of
from commbench.report.formats import launches_of
from commbench.results.tables import (
    MEANS_PRINTED,
    PRINTED_BY_COMMBENCH,
    csv_text,
    one_line,
    rows_by,
)

OSU_VERSION = "v7.4"
_SIZE_WIDTH, _VALUE_WIDTH = 10, 18

Key = tuple[object, ...]


def render(rows: Sequence[Row], style: str, *, means: bool = False) -> str:
    """Return the rows as text that ends in a newline.

    Args:
        rows: the rows of a run, in print order.
        style: ``nccl-tests`` (one block for each backend and operation), ``osu`` (one block for
            each test), or ``csv`` (as ``collectives.csv``).
        means: whether to print means over repetitions and ranks, as those tools do, instead of
            commbench's time in nccl-tests' format and the median of the mean over ranks in OSU's.

    Raises:
        InputError: the style is unknown.
    """
    check_choice("format", style, STYLES)
    if style == "csv":
        return csv_text(rows)
    form = _FORMS[style]
    if means:
        rows = [_with_means(row) for row in rows]
    named = [row for row in rows if form.has(row)]
    lines: list[str] = []
    for test in rows_by(named, form.test_of).values():
        for block in columns_of(test, form.unique).values():
            lines += form.block_of(block, means)
    for name in sorted({row.operation for row in rows} - {row.operation for row in named}):
        lines.append(form.left_out.format(name=name))
    return "\n".join(lines) + "\n"


class _Form(NamedTuple):
    """The format of a tool."""

    has: Callable[[Row], object]
    """Whether it has a place for a row."""
    test_of: Callable[[Row], Key]
    """What the rows of a block, over one backend, have in common."""
    unique: Callable[[Row], object]
    """What distinguishes the rows of a block."""
    block_of: Callable[[Sequence[Row], bool], Iterable[str]]
    left_out: str


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
    launches = launches_of(row.launches for row in rows)
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
    words = [f"backend {row.backend}", f"{ranks} ranks", row.library, row.transport]
    for name, usual in _STATED.items():
        value = _group_of(row) if name == "group" else getattr(row, name)
        if value not in {"", usual}:
            words.append(f"{name.removesuffix('_requested')} {value}")
    return one_line(", ".join(filter(None, words)))


# --------------------------------------------------------------------------------------- nccl-tests


def _nccl_test(row: Row) -> Key:
    return row.operation, row.pattern, _group_of(row)


def _nccl_block(rows: Sequence[Row], means: bool) -> Iterator[str]:
    program = OPERATIONS[rows[0].operation].nccl_program
    meaning = _meaning(rows) if means else "time is the median of the slowest rank"
    yield f"# {PRINTED_BY_COMMBENCH} nccl-tests; {meaning}"
    yield f"# Collective test starting: {program}"
    yield f"# {_setting(rows[0])}"
    yield from _NCCL_HEADER
    for line in _nccl_lines(rows):
        yield "  ".join([_nccl_case(line), _nccl_side(line.get(False)), _nccl_side(line.get(True))])
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


def _nccl_lines(rows: Sequence[Row]) -> list[dict[bool, Row]]:
    """Return the rows of each line, by in place or not.

    Operations without that choice count as out of place.
    """
    lines: dict[Key, dict[bool, Row]] = {}
    for row in rows:
        if row.time_us is not None:
            lines.setdefault(_nccl_key(row), {})[bool(row.in_place)] = row
    return list(lines.values())


def _nccl_key(row: Row) -> Key:
    return (row.dtype, row.redop, row.root, row.message_bytes)


def _nccl_case(line: dict[bool, Row]) -> str:
    """Return size, count, type, redop and root.

    The count is one rank's share if the message consists of shares.
    """
    row = next(iter(line.values()))
    size, dtype = row.message_bytes or 0, DTYPES[row.dtype or ""]
    count = size // dtype.itemsize
    if OPERATIONS[row.operation].divided:
        count //= row.group_size or 1
    root = -1 if row.root is None else row.root
    redop = row.redop or "none"
    return f"{size:>12}  {count:>12}  {dtype.nccl_name:>8}  {redop:>6}  {root:>6}"


def _nccl_side(row: Row | None) -> str:
    if row is None:
        return "  ".join(f"{'N/A':>{width}}" for width in (7, 6, 6, 6))
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


def _osu_test(row: Row) -> Key:
    axes = (row.dtype, row.redop, row.in_place, row.root)
    return row.operation, row.pattern, _group_of(row), *axes


def _osu_block(rows: Sequence[Row], means: bool) -> Iterator[str]:
    first = rows[0]
    operation = OPERATIONS[first.operation]
    unit = "Bandwidth (MB/s)" if operation.windowed else "Avg Latency(us)"
    yield f"# OSU {first.backend.upper()} {operation.names.osu} {OSU_VERSION}"
    meaning = _meaning(rows) if means else "latency is the median of the mean over ranks"
    yield f"# {PRINTED_BY_COMMBENCH} OSU Micro-Benchmarks; {meaning}"
    yield f"# {_setting(first)}{_choices(first)}"
    if first.dtype is not None:
        yield f"# Datatype: {DTYPES[first.dtype].mpi_name or first.dtype}."
        yield f"{'# Size':<{_SIZE_WIDTH}}{unit:>{_VALUE_WIDTH}}"
    else:
        yield f"# {unit}"
    for row in rows:
        yield from _osu_line(row)
    yield from _missing(rows)
    yield ""


def _choices(row: Row) -> str:
    """Return the axes that are equal in all lines of a test, as words that follow the setting."""
    words = ""
    if row.redop:
        words += f", redop {row.redop}"
    if row.in_place:
        words += ", in place"
    if row.root:
        words += f", root {row.root}"
    return words


def _osu_line(row: Row) -> Iterator[str]:
    """Yield one size and its value; empty for a row without a value (MB = 1e6 bytes)."""
    value = row.time_us
    if OPERATIONS[row.operation].windowed:
        value = row.algbw_GBps and 1e3 * row.algbw_GBps
    elif row.time_us_rank_mean is not None:
        value = row.time_us_rank_mean
    if value is None or row.status == "wrong":
        return
    if row.osu_bytes is None:
        yield f"{value:17.2f}"
    else:
        yield f"{row.osu_bytes:<{_SIZE_WIDTH}d}{value:{_VALUE_WIDTH}.2f}"


# --------------------------------------------------------------------------------------------------


def _moves_data(row: Row) -> bool:
    return OPERATIONS[row.operation].moves_data


def _osu_name(row: Row) -> str | None:
    return OPERATIONS[row.operation].names.osu


def _nccl_line(row: Row) -> Key:
    return (*_nccl_key(row), row.in_place)


_FORMS = {
    "nccl-tests": _Form(
        has=_moves_data,
        test_of=_nccl_test,
        unique=_nccl_line,
        block_of=_nccl_block,
        left_out="# {name} moves no data and has no place in this format",
    ),
    "osu": _Form(
        has=_osu_name,
        test_of=_osu_test,
        unique=attrgetter("message_bytes"),
        block_of=_osu_block,
        left_out="# OSU has no test like {name}; it is left out",
    ),
}
STYLES = (*_FORMS, "csv")
