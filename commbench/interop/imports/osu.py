"""Reads the output of the OSU Micro-Benchmarks in C and Python (OMB-Py)."""

from __future__ import annotations

import re

from commbench.collectives.operations import OPERATIONS, WINDOW_MESSAGES, Operation
from commbench.engine.records import Overlap, Record
from commbench.findings import Finding
from commbench.interop.imports.blocks import HEADING, Block, Layout
from commbench.interop.imports.reading import (
    DTYPES_BY_MPI_NAME,
    PAIR_MEAN,
    RANK_MEAN,
    SLOWEST_RANK,
    Fields,
    LeftOutError,
    Reading,
    Words,
    make_record,
    number,
    whole_number,
)

#: Libraries whose two-sided and collective operations have a counterpart.
_LIBRARIES = ("MPI", "NCCL", "RCCL")

LAYOUT = Layout(
    facts={
        "ranks": (
            r".*\b(?:mpirun|mpiexec|srun|aprun)\S*(?:\s.*)?"
            r"\s(?:--?np?|--ntasks)[ =]?(\d+)\s.*\bosu_"
        ),
        # suite, library, device, title, version
        "title": (
            r"#?\s*(OSU|OMB-Py) ([^\s-]+)(?:-(\S+))?"
            r" (.*?Test)(?: +(v[\d.]\S*|\(Version.*\)))?\s*$"
        ),
        "dtype": r"#?\s*Datatype: (\S+?)\.?\s*$",
        "buffers": r"\W*\w+ .* on (\w+) \(\w\) and .* on (\w+) \(\w\)",
        HEADING: r"#?\s*(Size\b.*(?:\(us\)|B/s).*|(?:Avg Latency|Overall) ?\(us\).*)",
    },
    begins={
        "ranks": (),
        "title": (),
        "dtype": ("title", "buffers", HEADING),  # -T names several types
        HEADING: (),
    },
    column=r"Size(?: \(B\))?|Iterations|Validation|[A-Z].*?\([^)]*\)|\S+",
)


def _short(title: str) -> str:
    """Return a title without words that only some versions have."""
    return re.sub(r"( |^)Latency$", "", re.sub(r" ?\bTest$", "", title.strip())).strip()


OPERATIONS_BY_TITLE = {
    _short(title): operation
    for operation in OPERATIONS.values()
    for title in (operation.osu_title, *operation.other_osu_titles)
    if title
}


def read_block(block: Block, reading: Reading) -> None:
    """Read a table of OSU.

    Raises:
        InputError: the number of ranks is neither stated nor given by -n.
    """
    operation = _operation(block)
    suite = block.fact("title")
    reading.version = reading.version or f"{suite} {block.fact('title', 5)}".strip()
    ranks = 2
    if operation.kind != "pair":
        stated = block.fact("ranks")  # only in the command above the table
        ranks = reading.ranks(int(stated) if stated else None, operation.name)
    case, conditions = _defaults(block, operation, reading)
    if operation.moves_data:
        is_float = operation.reduces or suite == "OMB-Py"
        default = "float32" if is_float else "int8"
        dtype = reading.dtype(block.fact("dtype"), default, operation.name)
        case["dtype"] = DTYPES_BY_MPI_NAME.get(dtype, dtype)
    for line in block.lines(reading):
        with reading.noting():
            reading.records.append(_record(line, operation, case, ranks, conditions))


def _operation(block: Block) -> Operation:
    """Return the operation of a test.

    Raises:
        LeftOutError: commbench has none like it.
    """
    library, title = block.fact("title", 2), block.fact("title", 4)
    if not title:
        raise LeftOutError("a table of OSU has no title above it, so that its operation is unknown")
    # MPI_Put is a library by OSU's titles
    if library not in _LIBRARIES or _short(title) not in OPERATIONS_BY_TITLE:
        raise LeftOutError(f"OSU's '{library} {title}' has no counterpart in commbench")
    return OPERATIONS_BY_TITLE[_short(title)]


def _defaults(block: Block, operation: Operation, reading: Reading) -> tuple[Fields, Fields]:
    """Return fields of `Case` and of `Record` that OSU's title states or that are its defaults."""
    library, device = block.fact("title", 2), block.fact("title", 3)
    is_c = block.fact("title") == "OSU"
    case: Fields = {"operation": operation.name, "backend": library.lower(), "dtype": None}
    case |= {"redop": "sum", "root": 0, "in_place": False}
    conditions: Fields = {}
    if operation.kind == "collective" and is_c:
        conditions["sync"] = "barrier"
    elif operation.kind == "collective":
        case["sync"] = "none"
    if is_c and library == "MPI":
        on_host = {block.fact("buffers"), block.fact("buffers", 2)} == {"HOST"}
        conditions["device"] = "cpu" if on_host or not device else device
    if operation.windowed:
        conditions["window"] = WINDOW_MESSAGES
        reading.assume(f"{WINDOW_MESSAGES} messages were in flight, OSU's default (-W)")
    if operation.has_in_place:
        reading.assume("collectives were out of place, OSU's default (-l)")
    if operation.rooted:
        reading.assume("the root was rank 0, OSU's default (-k)")
    return case, conditions


def _record(
    by_column: Words,
    operation: Operation,
    case: Fields,
    ranks: int,
    conditions: Fields,
) -> Record:
    """Return the record of one line.

    Raises:
        LeftOutError: the line has no measurement.
    """
    line = {re.sub(r" ?\((us|B|%)\)", "", column): word for column, word in by_column.items()}
    message_bytes = operation.message_bytes(whole_number(line.get("Size", "0")), ranks)
    details = {**conditions, **_time(line, operation, message_bytes)}
    passed = line.get("Validation", "").lower()
    if passed == "pass":
        details["wrong"] = 0
    elif passed == "fail":
        details["failure"] = Finding("imported_failure", "OSU")
    stated: dict[str, float] = {}
    if "Iterations" in line:
        stated["repetitions"] = whole_number(line["Iterations"])
    for percent in (25, 75, 95):  # of -z; they are means over ranks
        name = f"P{percent} Tail Lat"
        if name in line:
            stated[f"p{percent}_us"] = number(line[name])
    of_line = {**case, "message_bytes": message_bytes}
    return make_record(of_line, ranks=ranks, stated=stated, **details)


def _time(line: Words, operation: Operation, message_bytes: int) -> Fields:
    """Return the arguments of `make_record` for the time of one operation.

    Raises:
        LeftOutError: the line has no time.
    """
    for unit, bytes_per_us in (("MB/s", 1.0), ("GB/s", 1e3)):
        name = f"Bandwidth ({unit})"
        if name in line:
            rate = number(line[name]) * bytes_per_us
            if not rate:
                raise LeftOutError("a time or rate of 0 is below what the tool resolves")
            return {"time_us": operation.messages_at_once * message_bytes / rate, "time": PAIR_MEAN}
    if line.keys() >= {"Overall", "Compute", "Pure Comm."}:
        overlap = Overlap(
            pure_us=number(line["Pure Comm."]),
            compute_us=number(line["Compute"]),
            overall_us=number(line["Overall"]),
        )
        mean_us = overlap.pure_us
        details = {"overlap": overlap, "rank_mean_us": mean_us}
    else:
        mean = line.get("Avg Latency") or line.get("Latency")
        if mean is None:
            raise LeftOutError(f"OSU's columns {', '.join(line)} are unknown to commbench")
        mean_us = number(mean)
        if operation.kind == "pair":
            return {"time_us": mean_us, "time": PAIR_MEAN}
        details = {"rank_mean_us": mean_us}
    for name in ("Max Comm.", "Max Latency"):
        if name in line:
            return {**details, "time_us": number(line[name]), "time": SLOWEST_RANK}
    return {**details, "time_us": mean_us, "time": RANK_MEAN}
