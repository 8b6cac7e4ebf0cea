"""Reads the output of PARAM's communication benchmark (comms.py)."""

from __future__ import annotations

import re

from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS, Operation
from commbench.errors import InputError
from commbench.interop.imports.blocks import HEADING, Block, Layout
from commbench.interop.imports.reading import (
    SLOWEST_RANK,
    LeftOutError,
    Reading,
    make_record,
    number,
    whole_number,
)

LAYOUT = Layout(
    facts={
        "ranks": r".*world_size:?\s*=?\s*(\d+)",
        HEADING: r"(COMMS-RES(?:\s|-QUANT).*\(B\).*)",
    },
    begins={HEADING: ("ranks",)},
    column=r"(?:total-)?size \(B\)|\w+\(us\): ?\w+|\S+",
    row=r"COMMS-RES-\S+\s+\d",
)
_OPERATIONS = {
    name: operation for operation in OPERATIONS.values() for name in operation.param_names
}


def read_block(block: Block, reading: Reading) -> None:
    """Read a table of PARAM.

    Raises:
        InputError: the number of ranks is neither stated nor given by -n.
    """
    columns = block.columns
    for column in columns:
        if re.search("QUANT|nElementsPair|^TotalLatency|^CompLatency", column):
            raise LeftOutError(
                "times of quantised communication, or beside computing or another collective,"
                " cannot be imported"
            )
    if "Max" not in columns:
        raise LeftOutError("PARAM's heading has no column for the slowest rank's time")
    stated = block.fact("ranks")
    options = reading.options
    for line in block.lines(reading):
        with reading.noting():
            _, _, name, *dtype = line[columns[0]].split("-")
            if name not in _OPERATIONS:
                raise LeftOutError(f"PARAM's {name} has no counterpart in commbench")
            operation = _OPERATIONS[name]
            ranks = reading.ranks(int(stated) if stated else None, operation.name)
            _assume_defaults(operation, reading)
            size = whole_number(line[columns[1]])
            elements = whole_number(line.get("nElementsPerRank", "0"))
            if operation.divided:
                elements *= ranks
            case = {
                "operation": operation.name,
                "backend": options.backend or "nccl",
                "message_bytes": size,
                "dtype": options.dtype,
                "redop": "sum",
                "root": 0,
                "in_place": operation.default_in_place,  # torch.distributed has no other
                "sync": "none",
                "buffers": "",
            }
            if dtype:
                case["dtype"] = dtype[0]
            elif options.dtype is None:
                case["dtype"] = _default_dtype(size, elements, reading)
            time_us = number(line["Max"])
            record = make_record(case, ranks=ranks, time_us=time_us, time=SLOWEST_RANK)
            reading.records.append(record)


def _assume_defaults(operation: Operation, reading: Reading) -> None:
    if operation.rooted:
        reading.assume("the root was rank 0, PARAM's default")
    reading.assume("operations were timed back to back, as is PARAM's default (--z 0)")
    if reading.options.backend is None:
        reading.assume("the backend was nccl, PARAM's default (else --backend)")


def _default_dtype(size: int, elements: int, reading: Reading) -> str:
    """Return PARAM's default element type, if elements have its size.

    Raises:
        InputError: they do not.
    """
    default = DTYPES["float32"]
    if elements * default.itemsize != size:
        raise InputError(
            f"{reading.name} does not say of which type elements were, and not of 4 bytes; give"
            " --dtype."
        )
    reading.assume("elements were float32, PARAM's default (else --dtype)")
    return default.name
