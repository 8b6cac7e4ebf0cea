"""Reads the output of the Intel MPI Benchmarks (IMB-MPI1)."""

from __future__ import annotations

from commbench.collectives.operations import OPERATIONS, Operation
from commbench.engine.records import Record
from commbench.findings import Finding
from commbench.interop.imports.blocks import HEADING, Block, Layout, read_blocks
from commbench.interop.imports.reading import (
    DTYPES_BY_MPI_NAME,
    PAIR_MEAN,
    SLOWEST_RANK,
    Fields,
    LeftOutError,
    Reading,
    Words,
    make_record,
    number,
    whole_number,
)

#: What is measured alike here. A pair's time is half the round trip, that of Sendrecv of one
#: message to the next rank.
OPERATIONS_BY_NAME = {
    operation.imb_name: operation for operation in OPERATIONS.values() if operation.imb_name
}
_DTYPES = DTYPES_BY_MPI_NAME | {"MPI_BYTE": "int8"}
_OF_RUN = ("version", "dtype", "reduced", "redop", "off_cache", "root_shift")

LAYOUT = Layout(
    facts={
        "version": r"#?\s*Intel ?\(R\) MPI Benchmark(?:s| Suite) V?(\d[^,]*)",
        "dtype": r"#?\s*MPI_Datatype\s+:\s+(\S+)",
        "reduced": r"#?\s*MPI_Datatype for reductions\s+:\s+(\S+)",
        "redop": r"#?\s*MPI_Op\s+:\s+MPI_(\S+)",
        "off_cache": r"#\s+\S*IMB-MPI1\b.*\s-off_cache\s+(\S+)",
        "root_shift": r"#\s+\S*IMB-MPI1\b.*\s-root_shift\s+(on|1|yes|enable)\b",
        "benchmark": r"#?\s*Benchmarking (\S+)",
        "processes": r"#?\s*#processes = (\d+)",
        "groups": r"#?\s*\(\s*(\d+) groups of (\d+) processes",
        HEADING: r"((?:#bytes\s+)?#repetitions\b.*)",
    },
    begins={"version": (), "benchmark": _OF_RUN, HEADING: _OF_RUN},
)


def read(text: str, reading: Reading) -> None:
    """Read the output of IMB-MPI1, which states the number of processes of each table.

    Raises:
        InputError: a table lacks the number and -n was not given.
    """
    read_blocks(text, reading, layout=LAYOUT, read_block=_read_block)
    if "All processes entering MPI_Finalize" not in text:
        reading.leave_out(
            "the output does not say that it is complete, so that lines may be missing"
        )


def _read_block(block: Block, reading: Reading) -> None:
    name = block.fact("benchmark").removeprefix("Multi-")
    if not name:
        raise LeftOutError(
            "a table of IMB has no line 'Benchmarking' above it, so that its operation is unknown"
        )
    if name not in OPERATIONS_BY_NAME:
        raise LeftOutError(f"IMB's {name} has no counterpart in commbench")
    groups = block.fact("groups")
    if groups not in {"", "1"}:
        raise LeftOutError(
            f"IMB's {name} ran in {groups} groups at the same time, which are not told apart"
        )
    operation = OPERATIONS_BY_NAME[name]
    stated = block.fact("groups", 2) or block.fact("processes")
    ranks = int(stated or reading.ranks(None, name))
    if operation.kind == "pair" and ranks > 2:
        raise LeftOutError(
            f"IMB's {name} ran in {ranks // 2} pairs at the same time, which are not told apart"
        )
    reading.version = reading.version or block.fact("version")
    is_off_cache = operation.moves_data and block.fact("off_cache") != ""
    case = {
        "operation": operation.name,
        "backend": "mpi",
        "dtype": None,
        "redop": (block.fact("redop") or "SUM").lower(),
        "root": 0,
        "in_place": False,
        "buffers": "rotated" if is_off_cache else "hot",
    }
    if operation.moves_data:
        stated = block.fact("reduced" if operation.reduces else "dtype")
        default = "MPI_FLOAT" if operation.reduces else "MPI_BYTE"
        dtype = reading.dtype(stated, default, operation.name)
        case["dtype"] = _DTYPES.get(dtype, dtype)
        if dtype == "MPI_BYTE":
            reading.assume("MPI_BYTE is counted as int8")
    if operation.rooted and block.fact("root_shift"):
        raise LeftOutError(f"the root of IMB's {name} changed with each call (-root_shift on)")
    if operation.rooted:
        reading.assume("the root was rank 0, IMB's default (-root_shift off)")
    for line in block.lines(reading):
        with reading.noting():
            reading.records.append(_record(line, operation, case, ranks))


def _record(line: Words, operation: Operation, case: Fields, ranks: int) -> Record:
    """Return the record of one line.

    Raises:
        LeftOutError: the line has no measurement.
    """
    slowest = line.get("t_max[usec]") or line.get("t[usec]")
    if slowest is None:
        raise LeftOutError(f"IMB's columns {' '.join(line)} are unknown to commbench")
    details: Fields = {}
    if "t_avg[usec]" in line:
        details["rank_mean_us"] = number(line["t_avg[usec]"])
    if "defects" in line and number(line["defects"]):
        details["failure"] = Finding("imported_failure", "IMB")
    elif "defects" in line:
        details["wrong"] = 0
    size = whole_number(line.get("#bytes", "0"))
    return make_record(
        {**case, "message_bytes": operation.message_bytes(size, ranks)},
        ranks=ranks,
        time_us=number(slowest),
        time=PAIR_MEAN if operation.kind == "pair" else SLOWEST_RANK,
        stated={"repetitions": whole_number(line["#repetitions"])},
        **details,
    )
