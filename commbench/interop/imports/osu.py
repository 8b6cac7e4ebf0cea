"""Reads the output of the OSU Micro-Benchmarks in C and Python (OMB-Py), and commbench's output in
that format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS, WINDOW_MESSAGES, Operation
from commbench.engine.records import Overlap
from commbench.findings import Finding
from commbench.interop.imports.reading import (
    DTYPES_BY_MPI_NAME,
    PAIR_MEAN,
    PRINTED_BY_COMMBENCH,
    RANK_MEAN,
    SLOWEST_RANK,
    ImportOptions,
    LeftOutError,
    OwnSetting,
    Reading,
    Timed,
    importable_operation,
    number,
    own_setting,
    whole_lines,
    whole_number,
)

#: Libraries whose two-sided and collective operations have a counterpart, and devices of buffers
#: (``-d``).
_LIBRARIES, _DEVICES = ("MPI", "NCCL", "RCCL"), ("", "CUDA", "ROCM", "OPENACC", "SYCL")
_DATATYPE = "# Datatype:"
_TITLE = re.compile(r"# ?(OSU|OMB-Py) (\S+) (.*?)(?: (v[\d.]\S*))?\s*$")
#: Names of columns.
_COLUMN = re.compile(
    r"Avg Latency ?\(us\)|Min Latency ?\(us\)|Max Latency ?\(us\)|Latency ?\(us\)|P\d+ Tail"
    r" (?:Lat|BW) ?\([^)]*\)"
    r"|Bandwidth ?\([MG]B/s\)|Iterations|Validation|Overall ?\(us\)|Compute ?\(us\)|Pure Comm\.?"
    r" ?\(us\)"
    r"|Min Comm\.? ?\(us\)|Max Comm\.? ?\(us\)|Coll\. Init ?\(us\)|MPI_Test ?\(us\)|MPI_Wait"
    r" ?\(us\)|Overlap ?\(%\)"
    r"|(?:Wait|Init) avg ?\(us\)|Size(?: \(B\))?"
)
_DTYPES = DTYPES_BY_MPI_NAME | {name: name for name in DTYPES}


def _short(title: str) -> str:
    """Return a title without words that only some versions have."""
    return re.sub(r"( |^)Latency$", "", re.sub(r" ?\bTest$", "", title.strip())).strip()


OPERATIONS_BY_TITLE = {
    _short(title): operation
    for operation in OPERATIONS.values()
    for title in (operation.names.osu, *operation.names.other_osu)
    if title
}


@dataclass(kw_only=True)
class Test:
    """One test: its title, the lines above its table, and the table."""

    suite: str
    """``OSU`` or ``OMB-Py``."""
    library: str
    """For example ``MPI`` or ``MPI-CUDA``."""
    title: str
    version: str
    own: bool = False
    """Whether commbench printed the table."""
    setting: OwnSetting | None = None
    dtype: str | None = None
    on_host: bool = False
    """Whether both sides' buffers are stated to be on the host, although the title names a
    device."""
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    """Line number and words of each line of the table."""


def recognises(text: str) -> bool:
    """Return whether a text is output of OSU's benchmarks."""
    return any(_TITLE.match(line) for _, line in whole_lines(text, Reading(name="")))


def read(text: str, name: str, options: ImportOptions) -> Reading:
    """Read the output of one or more tests.

    Raises:
        InputError: the number of ranks is neither stated nor given by -n.
    """
    reading = Reading(name=name)
    for test in _tests(text, reading):
        with reading.noting():
            _read_test(test, reading, options)
    return reading


def _tests(text: str, reading: Reading) -> list[Test]:
    tests: list[Test] = []
    for place, line in whole_lines(text, reading):
        if match := _TITLE.match(line):
            tests.append(
                Test(suite=match[1], library=match[2], title=match[3], version=match[4] or "")
            )
        elif not tests:
            continue
        elif line.startswith("#"):
            if tests[-1].rows and line.startswith(
                _DATATYPE
            ):  # -T names several, and this is the next
                tests.append(replace(tests[-1], rows=[]))
            _read_comment(line, tests[-1])
        elif re.match(r"\s*\d", line):
            tests[-1].rows.append((place, line.split()))
    return tests


def _read_comment(line: str, test: Test) -> None:
    """Parse a line above a table."""
    if match := re.match(rf"{_DATATYPE} (\S+?)\.?\s*$", line):
        test.dtype = match[1]
    elif match := re.match(r"# .* on (\w+) \(\w\) and .* on (\w+) \(\w\)", line):
        test.on_host = {match[1], match[2]} == {"HOST"}
    elif line.startswith(f"# {PRINTED_BY_COMMBENCH}"):
        test.own = True
    elif test.own and (setting := own_setting(line)):
        test.setting = setting
    elif not test.columns and (columns := _COLUMN.findall(line)):
        rest = _COLUMN.sub("", line.lstrip("#")).strip()
        test.columns = [*columns, *([rest] if rest else [])]


def _read_test(test: Test, reading: Reading, options: ImportOptions) -> None:
    operation = OPERATIONS_BY_TITLE.get(_short(test.title))
    library, _, device = test.library.partition("-")
    if operation is None or (
        not test.own and library not in _LIBRARIES
    ):  # MPI_Put is a library by OSU's titles
        raise LeftOutError(f"OSU's '{library} {test.title}' has no counterpart in commbench")
    if device not in _DEVICES:
        raise LeftOutError(f"OSU's library {test.library!r} is unknown to commbench")
    if not test.columns:
        raise LeftOutError(f"OSU's {test.title!r} has no heading over its columns")
    unknown = [column for column in test.columns if not _COLUMN.fullmatch(column)]
    if unknown:
        raise LeftOutError(
            f"OSU's {test.title!r} has columns that are unknown to commbench ({unknown[0]})"
        )
    reading.version = reading.version or f"{test.suite} {test.version}".strip()
    test_ranks = test.setting.ranks if test.setting else 2 if operation.kind == "pair" else None
    ranks = (
        test_ranks
        if operation.kind == "pair" and not test.own
        else reading.ranks(options, test_ranks, operation.name)
    )
    shared = _shared(test, operation, int(ranks or 0), reading, options)
    operation = importable_operation(operation.name, shared["pattern"], shared["ranks"])
    for place, words in test.rows:
        with reading.noting():
            if len(words) != len(test.columns):
                raise LeftOutError(
                    f"line {place} has {len(words)} words where the heading has {len(test.columns)}"
                )
            reading.records.append(_timed(test, operation, words, shared).record())


def _shared(
    test: Test, operation: Operation, ranks: int, reading: Reading, options: ImportOptions
) -> dict[str, Any]:
    """Return the fields of `Timed` that all lines of a test share, and note the assumptions for
    them.
    """
    setting = test.setting
    conditions: dict[str, Any] = {}
    library, _, device = test.library.partition("-")
    if operation.windowed and not test.own:
        reading.assume(f"{WINDOW_MESSAGES} messages were in flight, OSU's default (-W)")
        conditions["window"] = WINDOW_MESSAGES
    if test.suite == "OSU" and library == "MPI" and not setting:
        conditions["device"] = device if device and not test.on_host else "cpu"
    if operation.has_in_place and not setting:
        reading.assume("collectives were out of place, OSU's default (-l)")
    if operation.rooted and not setting:
        reading.assume("the root was rank 0, OSU's default (-k)")
    collective = operation.kind == "collective" and not setting
    return {
        "operation": operation.name,
        "backend": setting.backend if setting else library.lower(),
        "ranks": ranks,
        "pattern": setting.pattern if setting else "flat",
        "dtype": _dtype(test, operation, reading, options) if operation.moves_data else None,
        "redop": (setting.redop if setting else "sum") if operation.reduces else None,
        "root": setting.root if setting else 0,
        "in_place": setting.in_place if setting else False,
        **(
            setting.manner
            if setting
            else {"sync": "none" if test.suite == "OMB-Py" and collective else "auto"}
        ),
        "conditions": (
            conditions | ({"sync": "barrier"} if collective and test.suite == "OSU" else {})
        ),
    }


def _dtype(test: Test, operation: Operation, reading: Reading, options: ImportOptions) -> str:
    """Return the element type: stated, else of --dtype, else OSU's default."""
    if test.dtype is not None:
        return _DTYPES.get(test.dtype, test.dtype)
    if options.dtype is not None:
        return options.dtype
    dtype = "float32" if operation.reduces or test.suite == "OMB-Py" else "int8"
    default = f"{test.suite}'s default (else --dtype)"
    reading.assume(
        f"elements of {operation.name} were {DTYPES[dtype].mpi_name} ({dtype}), {default}"
    )
    return dtype


def _timed(
    test: Test, operation: Operation, words: Sequence[str], shared: Mapping[str, Any]
) -> Timed:
    """Parse one line of a table.

    Raises:
        LeftOutError: the line has no measurement.
    """
    line = {
        re.sub(r" ?\((us|B|%)\)", "", column): word
        for column, word in zip(test.columns, words, strict=True)
    }
    size = whole_number(line["Size"]) if "Size" in line else 0
    message_bytes = operation.message_bytes(size, shared["ranks"])
    passed = line.get("Validation", "").lower()
    fields = {
        **shared,
        "message_bytes": message_bytes,
        "repetitions": whole_number(line["Iterations"]) if "Iterations" in line else None,
        "wrong": 0 if passed == "pass" else None,
        "failure": Finding(code="imported_failure") if passed == "fail" else None,
        **_quantiles(line),
    }
    return Timed(**{**fields, **_time(line, operation, message_bytes, fields["conditions"])})


def _time(
    line: Mapping[str, str], operation: Operation, message_bytes: int, conditions: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields of `Timed` for the time of one operation.

    Raises:
        LeftOutError: the line has no time.
    """
    rate = next((name for name in line if name.startswith("Bandwidth")), None)
    if rate is not None:
        bytes_per_us = number(line[rate]) * (1e3 if "GB/s" in rate else 1)
        if not bytes_per_us:
            raise LeftOutError("a time or rate of 0 is below what the tool resolves")
        return {
            "time_us": operation.messages_at_once * message_bytes / bytes_per_us,
            "time": PAIR_MEAN,
        }
    if "Overall" in line:
        overlap = Overlap(
            pure_us=number(line["Pure Comm."]),
            compute_us=number(line["Compute"]),
            overall_us=number(line["Overall"]),
        )
        slowest = "Max Comm." in line
        return {
            "time_us": number(line["Max Comm."]) if slowest else overlap.pure_us,
            "rank_mean_us": overlap.pure_us,
            "time": SLOWEST_RANK if slowest else RANK_MEAN,
            "conditions": {**conditions, "overlap": overlap},
        }
    mean_us = number(line.get("Avg Latency") or line.get("Latency") or "")
    if operation.kind == "pair":
        return {"time_us": mean_us, "time": PAIR_MEAN}
    if "Max Latency" in line:
        return {
            "time_us": number(line["Max Latency"]),
            "rank_mean_us": mean_us,
            "time": SLOWEST_RANK,
        }
    return {"time_us": mean_us, "rank_mean_us": mean_us, "time": RANK_MEAN}


def _quantiles(line: Mapping[str, str]) -> dict[str, float]:
    """Return the quantiles of -z for which `Timed` has a field; they are means over ranks."""
    return {
        f"p{percent}_us": number(line[name])
        for percent in (25, 75, 95)
        if (name := f"P{percent} Tail Lat") in line
    }
