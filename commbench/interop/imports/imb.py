"""Reads the output of the Intel MPI Benchmarks (IMB-MPI1)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commbench.collectives.operations import OPERATIONS, Operation
from commbench.findings import Finding
from commbench.interop.imports.reading import (
    DTYPES_BY_MPI_NAME,
    PAIR_MEAN,
    SLOWEST_RANK,
    ImportOptions,
    LeftOutError,
    Reading,
    Timed,
    number,
    whole_lines,
    whole_number,
)

#: What is measured alike here. A pair's time is half the round trip, that of Sendrecv of one
#: message to the next rank.
OPERATIONS_BY_NAME = {
    operation.names.imb: operation for operation in OPERATIONS.values() if operation.names.imb
}
#: Reasons to leave a benchmark out, if there is more to state than the missing counterpart.
_UNLIKE = {
    "Exchange": (
        "each rank exchanges with both neighbours at the same time, which no operation of commbench"
        " does"
    ),
    "PingPing": "both ranks send at the same time, which no operation of commbench does",
}
_DTYPES = DTYPES_BY_MPI_NAME | {"MPI_BYTE": "int8"}
_SETTINGS = {
    "dtype": re.compile(r"# MPI_Datatype\s+:\s+(\S+)"),
    "reduced": re.compile(r"# MPI_Datatype for reductions\s+:\s+(\S+)"),
    "redop": re.compile(r"# MPI_Op\s+:\s+MPI_(\S+)"),
    "off_cache": re.compile(r"#\s+\S*IMB-MPI1\b.*\s-off_cache\s+(\S+)"),
}


@dataclass(kw_only=True)
class Benchmark:
    """One table: a benchmark on a number of processes."""

    name: str
    processes: int | None = None
    groups: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the output up to this table."""
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    """Line number and words of each line of the table."""


def recognises(text: str) -> bool:
    """Return whether a text is output of the Intel MPI Benchmarks."""
    return bool(
        re.search(r"^\S*\s*#\s+(Intel ?\(R\) MPI Benchmarks|Benchmarking \w+)", text, re.MULTILINE)
    )


def read(text: str, name: str, options: ImportOptions) -> Reading:
    """Read the output of IMB-MPI1, which states the number of processes of each table.

    Raises:
        InputError: a table lacks the number and -n was not given; or no table has the number of -n.
    """
    reading = Reading(name=name)
    benchmarks = _benchmarks(text, reading)
    table_ranks = [benchmark.processes for benchmark in benchmarks if benchmark.processes]
    if table_ranks and options.ranks not in {None, *table_ranks}:
        reading.ranks(options, max(table_ranks), "its largest table")
    for benchmark in benchmarks:
        with reading.noting():
            _read_benchmark(benchmark, reading, options)
    if "All processes entering MPI_Finalize" not in text:
        reading.leave_out(
            "the output does not say that it is complete, so that lines may be missing"
        )
    return reading


def _benchmarks(text: str, reading: Reading) -> list[Benchmark]:
    benchmarks: list[Benchmark] = []
    settings: dict[str, str] = {}
    for place, line in whole_lines(text, reading):
        if version := re.match(r"#\s+Intel ?\(R\) MPI Benchmarks ([\d.]+)", line):
            reading.version = version[1]
        settings |= {
            name: match[1] for name, pattern in _SETTINGS.items() if (match := pattern.match(line))
        }
        if begin := re.match(r"#\s*Benchmarking (\S+)", line):
            benchmarks.append(Benchmark(name=begin[1], settings=dict(settings)))
        elif benchmarks:
            _read_line(place, line, benchmarks[-1])
    return benchmarks


def _read_line(place: int, line: str, benchmark: Benchmark) -> None:
    words = line.split()
    if match := re.match(r"#\s*#processes = (\d+)", line):
        benchmark.processes = int(match[1])
    elif match := re.match(r"#\s*\(\s*(\d+) groups of (\d+) processes", line):
        benchmark.groups, benchmark.processes = int(match[1]), int(match[2])
    elif "#repetitions" in words:
        benchmark.columns = words
    elif benchmark.columns and words and words[0].isdigit():
        benchmark.rows.append((place, words))


def _read_benchmark(benchmark: Benchmark, reading: Reading, options: ImportOptions) -> None:
    name = benchmark.name
    if name not in OPERATIONS_BY_NAME:
        raise LeftOutError(
            f"IMB's {name} is left out: {_UNLIKE.get(name, 'commbench has no such operation')}"
        )
    if benchmark.groups > 1:
        raise LeftOutError(
            f"IMB's {name} ran in {benchmark.groups} groups at the same time, which are not told"
            " apart"
        )
    operation = OPERATIONS_BY_NAME[name]
    is_off_cache = operation.moves_data and "off_cache" in benchmark.settings
    shared = {
        "operation": operation.name,
        "backend": "mpi",
        "ranks": benchmark.processes or reading.ranks(options, None, name),
        "time": PAIR_MEAN if operation.kind == "pair" else SLOWEST_RANK,
        "in_place": False,
        "root": 0,
        "buffers": "rotated" if is_off_cache else "hot",
        **_elements(benchmark, operation, reading, options),
    }
    if operation.rooted:
        reading.assume("the root was rank 0, IMB's default (-root_shift off)")
    for place, words in benchmark.rows:
        with reading.noting():
            reading.records.append(
                _timed(place, words, benchmark.columns, operation, shared).record()
            )


def _elements(
    benchmark: Benchmark, operation: Operation, reading: Reading, options: ImportOptions
) -> dict[str, str | None]:
    """Return the fields of `Timed` for element type and reduction."""
    if not operation.moves_data:
        return {"dtype": None}
    name = benchmark.settings.get("reduced" if operation.reduces else "dtype", options.dtype)
    if name is None:
        name = "MPI_FLOAT" if operation.reduces else "MPI_BYTE"
        reading.assume(f"elements of {operation.name} were {name}, IMB's default (else --dtype)")
    if name == "MPI_BYTE":
        reading.assume("MPI_BYTE is counted as int8")
    return {
        "dtype": _DTYPES.get(name, name),
        "redop": benchmark.settings.get("redop", "SUM").lower() if operation.reduces else None,
    }


def _timed(
    place: int,
    words: Sequence[str],
    columns: Sequence[str],
    operation: Operation,
    shared: Mapping[str, Any],
) -> Timed:
    """Parse one line of a table.

    Raises:
        LeftOutError: the line has no measurement.
    """
    if stop := re.search(r"(time-out|out-of-mem).*", " ".join(words)):
        raise LeftOutError(f"line {place}: IMB did not measure this size ({stop[0]:.60})")
    if len(words) != len(columns):
        raise LeftOutError(
            f"line {place} has {len(words)} words where the heading has {len(columns)}"
        )
    line = dict(zip(columns, words, strict=True))
    defects = number(line["defects"]) if "defects" in line else None
    slowest = line.get("t_max[usec]") or line.get("t[usec]")
    if slowest is None:
        raise LeftOutError(f"IMB's columns {' '.join(columns)} are unknown to commbench")
    return Timed(
        **shared,
        message_bytes=operation.message_bytes(
            whole_number(line.get("#bytes", "0")), shared["ranks"]
        ),
        time_us=number(slowest),
        rank_mean_us=number(line["t_avg[usec]"]) if "t_avg[usec]" in line else None,
        repetitions=whole_number(line["#repetitions"]),
        wrong=0 if defects == 0 else None,
        failure=Finding(code="imported_defects") if defects else None,
    )
