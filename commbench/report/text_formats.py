"""Rows in the text formats of nccl-tests and OSU, so that their parsers can read commbench."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import makes_groups
from commbench.engine.records import Row
from commbench.errors import check_choice
from commbench.report.formats import launches_of
from commbench.report.table import columns_of
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
    return STYLES[style](rows, means)


def _blocks(
    rows: Iterable[Row], block: Callable[[Row], Key], unique: Callable[[Row], Key]
) -> Iterator[list[Row]]:
    """Group rows by ``block`` and backend, and further until ``unique`` distinguishes the rows of a
    block.
    """
    for together in rows_by(rows, block).values():
        yield from columns_of(together, unique).values()


def _tests(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Group rows into the tests of OSU: each size once."""
    return _blocks(
        rows,
        lambda row: (
            row.operation,
            row.pattern,
            _group_of(row),
            row.dtype,
            row.redop,
            row.in_place,
            row.root,
        ),
        lambda row: (row.message_bytes,),
    )


def _group_of(row: Row) -> str:
    """Return the group of a row if its pattern makes groups: each group has its own block."""
    return row.group if makes_groups(row.pattern) else ""


def _missing(rows: Iterable[Row]) -> Iterator[str]:
    """Yield comment lines for rows without a valid result."""
    for row in rows:
        if row.status != "ok":
            size = "" if row.message_bytes is None else f" {row.message_bytes} B"
            yield (
                f"# {row.backend} {row.operation}{size} {row.dtype or ''}".rstrip()
                + f": {row.status}: {one_line(row.reason)}"
            )


def _with_means(row: Row) -> Row:
    """Return a row whose time and rates are of the mean over repetitions and ranks.

    A row without it as it is.
    """
    mean_us = row.time_us_mean
    if not mean_us or not row.time_us:
        return row
    share = mean_us / row.time_us
    algbw, busbw = (
        None if rate is None else rate / share for rate in (row.algbw_GBps, row.busbw_GBps)
    )
    return replace(
        row, time_us=mean_us, time_us_rank_mean=mean_us, algbw_GBps=algbw, busbw_GBps=busbw
    )


def _meaning(rows: Iterable[Row]) -> str:
    """Return the definition of the printed means, for the line that marks the text as
    commbench's.
    """
    launches = launches_of(row.launches for row in rows)
    return MEANS_PRINTED + (f", median of {launches}" if launches not in {"", "1 launch"} else "")


def _setting(row: Row) -> str:
    words = [f"backend {row.backend}", f"{row.group_size or row.world_size or '?'} ranks"]
    words += [
        word
        for word in (
            row.library,
            row.transport,
            f"pattern {row.pattern}" if row.pattern != "flat" else "",
            f"cadence {row.cadence}" if row.cadence not in {"", "isolated"} else "",
            f"buffers {row.buffers}" if row.buffers not in {"", "hot"} else "",
            f"algorithm {row.algorithm_requested}" if row.algorithm_requested else "",
            f"group {row.group}" if _group_of(row) else "",
            f"loop {row.loop}" if row.loop else "",
            f"env {row.env}" if row.env else "",
        )
        if word
    ]
    return one_line(", ".join(words))


# --------------------------------------------------------------------------------------- nccl-tests


def _nccl_tests(rows: Sequence[Row], means: bool) -> str:
    rows = [_with_means(row) for row in rows] if means else rows
    blocks = _blocks(
        (row for row in rows if OPERATIONS[row.operation].moves_data),
        lambda row: (row.operation, row.pattern, _group_of(row)),
        lambda row: (*_nccl_key(row), row.in_place),
    )
    skipped = sorted({row.operation for row in rows if not OPERATIONS[row.operation].moves_data})
    notes = [f"# {name} moves no data and has no place in this format" for name in skipped]
    return (
        "\n".join([line for block in blocks for line in _nccl_block(block, means=means)] + notes)
        + "\n"
    )


def _nccl_block(rows: Sequence[Row], *, means: bool) -> Iterator[str]:
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
    rates = [row.busbw_GBps for row in rows if row.busbw_GBps is not None]
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {math.fsum(rates) / len(rates) if rates else 0:g} "
    yield "#"
    yield f"# Collective test concluded: {program}"
    yield ""


def _nccl_columns(case: Sequence[str], side: Sequence[str]) -> str:
    size, count, *words = case
    return "  ".join(
        [f"# {size:>10}", f"{count:>12}", "{:>8}  {:>6}  {:>6}".format(*words)]
        + 2 * ["{:>7}  {:>6}  {:>6}  {:>6}".format(*side)]
    )


_NCCL_HEADER = (
    "#",
    f"#{'out-of-place':>71}{'in-place':>31}",
    _nccl_columns(("size", "count", "type", "redop", "root"), ("time", "algbw", "busbw", "#wrong")),
    _nccl_columns(("(B)", "(elements)", "", "", ""), ("(us)", "(GB/s)", "(GB/s)", "")),
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
    size, dtype = row.message_bytes or 0, row.dtype or ""
    share = row.group_size or 1 if OPERATIONS[row.operation].divided else 1
    count = size // (DTYPES[dtype].itemsize * share)
    root = -1 if row.root is None else row.root
    return (
        f"{size:>12}  {count:>12}  {DTYPES[dtype].nccl_name:>8}  {row.redop or 'none':>6} "
        f" {root:>6}"
    )


def _nccl_side(row: Row | None) -> str:
    if row is None:
        return "  ".join(f"{'N/A':>{width}}" for width in (7, 6, 6, 6))
    values = ((row.time_us, 7), (row.algbw_GBps, 6), (row.busbw_GBps, 6))
    wrong = "N/A" if row.wrong is None else f"{row.wrong:g}"
    return "  ".join([*(_fitted(value, width) for value, width in values), f"{wrong:>6}"])


def _fitted(value: float | None, width: int) -> str:
    """Return a number with two decimals; if it does not fit, with fewer decimals or an exponent."""
    if value is None:
        return f"{'N/A':>{width}}"
    texts = [f"{value:{width}.{decimals}f}" for decimals in (2, 1, 0)]
    return next((text for text in texts if len(text) <= width), f"{value:{width}.0e}")


# ---------------------------------------------------------------------------------------------- OSU


def _osu(rows: Sequence[Row], means: bool) -> str:
    rows = [_with_means(row) for row in rows] if means else rows
    blocks = _tests(row for row in rows if OPERATIONS[row.operation].names.osu)
    skipped = sorted({row.operation for row in rows if not OPERATIONS[row.operation].names.osu})
    notes = [f"# OSU has no test like {name}; it is left out" for name in skipped]
    return (
        "\n".join([line for block in blocks for line in _osu_block(block, means=means)] + notes)
        + "\n"
    )


def _osu_block(rows: Sequence[Row], *, means: bool) -> Iterator[str]:
    first = rows[0]
    library = first.backend.upper()
    unit = "Bandwidth (MB/s)" if OPERATIONS[first.operation].windowed else "Avg Latency(us)"
    yield f"# OSU {library} {OPERATIONS[first.operation].names.osu} {OSU_VERSION}"
    meaning = _meaning(rows) if means else "latency is the median of the mean over ranks"
    yield f"# {PRINTED_BY_COMMBENCH} OSU Micro-Benchmarks; {meaning}"
    yield f"# {_setting(first)}{_choices(first)}"
    if first.dtype is not None:
        yield f"# Datatype: {DTYPES[first.dtype].mpi_name or first.dtype}."
        yield f"{'# Size':<{_SIZE_WIDTH}}{unit:>{_VALUE_WIDTH}}"
    else:
        yield f"# {unit}"
    yield from (line for row in rows for line in _osu_line(row))
    yield from _missing(rows)
    yield ""


def _choices(row: Row) -> str:
    """Return the axes that are equal in all lines of a test, as words that follow the setting."""
    choices = (
        row.redop and f"redop {row.redop}",
        row.in_place and "in place",
        row.root and f"root {row.root}",
    )
    return "".join(f", {choice}" for choice in choices if choice)


def _osu_line(row: Row) -> Iterator[str]:
    """Yield one size and its value; empty for a row without a value (MB = 1e6 bytes)."""
    if OPERATIONS[row.operation].windowed:
        value = None if row.algbw_GBps is None else 1e3 * row.algbw_GBps
    else:
        value = row.time_us if row.time_us_rank_mean is None else row.time_us_rank_mean
    if value is None or row.status == "wrong":
        return
    if row.osu_bytes is None:
        yield f"{value:17.2f}"
    else:
        yield f"{row.osu_bytes:<{_SIZE_WIDTH}d}{value:{_VALUE_WIDTH}.2f}"


# --------------------------------------------------------------------------------------------------

STYLES: dict[str, Callable[[Sequence[Row], bool], str]] = {
    "nccl-tests": _nccl_tests,
    "osu": _osu,
    "csv": lambda rows, _: csv_text(rows),
}
