"""Reads the output of PARAM's communication benchmark (comms.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS, Operation
from commbench.errors import InputError
from commbench.interop.imports.reading import (
    SLOWEST_RANK,
    ImportOptions,
    LeftOutError,
    Reading,
    Timed,
    number,
    whole_lines,
    whole_number,
)

#: PARAM's names of backends (``--backend``), and commbench's name of NCCL through torch, for
#: comparisons with it.
PARAM_BACKENDS = ("nccl", "gloo", "mpi", "ucc", "xla", "mccl", "torch-nccl")
_RESULT = re.compile(
    r"\s*COMMS-RES-(?P<name>[a-z_0-9]+)(?:-(?P<dtype>[a-z]+\d+)\S*)?\s+(?P<words>\d.*)$"
)
_HEADING = re.compile(r"\s*COMMS-RES\S*\s+(?P<columns>.*\(B\).*)$")
_COLUMN = re.compile(
    r"(?:total-)?size \(B\)|nElementsPerRank|nElementsPairPerRank|\w*(?:Latency|Time)\(us\):(?:p50|"
    r" ?Quant)"
    r"|\S+"
)
_OPERATIONS = {
    name: operation for operation in OPERATIONS.values() for name in operation.names.param
}


def recognises(text: str) -> bool:
    """Return whether a text is output of PARAM's communication benchmark."""
    return "COMMS-RES" in text


def read(text: str, name: str, options: ImportOptions) -> Reading:
    """Read the output of PARAM.

    Raises:
        InputError: the number of ranks is neither stated nor given by -n.
    """
    reading = Reading(name=name)
    columns: list[str] = []
    world_size: int | None = None
    for place, line in whole_lines(text, reading):
        if match := re.search(r"world_size:?\s*=?\s*(\d+)", line):
            world_size = int(match[1])
        elif "COMMS-RES-QUANT" in line:
            reading.leave_out("times of quantised communication cannot be imported")
        elif result := _RESULT.match(line):
            with reading.noting():
                reading.records.append(
                    _timed(
                        place,
                        result,
                        columns,
                        world_size=world_size,
                        reading=reading,
                        options=options,
                    ).record()
                )
        elif heading := _HEADING.match(line):
            columns = _COLUMN.findall(heading["columns"])
    return reading


def _timed(
    place: int,
    result: re.Match[str],
    columns: Sequence[str],
    *,
    world_size: int | None,
    reading: Reading,
    options: ImportOptions,
) -> Timed:
    """Parse one result.

    Raises:
        LeftOutError: the line has no measurement of an operation of commbench.
    """
    name, words = result["name"], result["words"].split()
    if name not in _OPERATIONS:
        raise LeftOutError(f"PARAM's {name} has no counterpart in commbench")
    if any(
        "nElementsPair" in column or column.startswith(("TotalLatency", "CompLatency"))
        for column in columns
    ):
        raise LeftOutError("times beside computing or another collective cannot be imported")
    if len(words) != len(columns):
        raise LeftOutError(
            f"line {place} has {len(words)} words where the heading has {len(columns)}"
        )
    line = dict(zip(columns, words, strict=True))
    if "Max" not in line:
        raise LeftOutError(f"line {place} does not state the slowest rank's time")
    operation = _OPERATIONS[name]
    ranks = reading.ranks(options, world_size, operation.name)
    if operation.rooted:
        reading.assume("the root was rank 0, PARAM's default")
    reading.assume("operations were timed back to back, as is PARAM's default (--z 0)")
    if options.backend is None:
        reading.assume("the backend was nccl, PARAM's default (else --backend)")
    return Timed(
        operation=operation.name,
        backend=options.backend or "nccl",
        ranks=ranks,
        message_bytes=whole_number(words[0]),
        time_us=number(line["Max"]),
        time=SLOWEST_RANK,
        dtype=_dtype(
            result["dtype"], line, operation, ranks=ranks, reading=reading, options=options
        ),
        redop="sum",
        root=0,
        in_place=operation.default_in_place,  # torch.distributed has no other
        sync="none",
        buffers="",
    )


def _dtype(
    dtype_name: str | None,
    line: Mapping[str, str],
    operation: Operation,
    *,
    ranks: int,
    reading: Reading,
    options: ImportOptions,
) -> str:
    """Return the element type: stated, else of --dtype, else PARAM's default if elements have its
    size.

    Raises:
        InputError: none of these applies.
    """
    if dtype_name or options.dtype:
        return str(dtype_name or options.dtype)
    elements = int(number(line.get("nElementsPerRank", "0"))) * (ranks if operation.divided else 1)
    default = DTYPES["float32"]
    if elements * default.itemsize != whole_number(next(iter(line.values()))):
        raise InputError(
            f"{reading.name} does not say of which type elements were, and not of 4 bytes; give"
            " --dtype."
        )
    reading.assume("elements were float32, PARAM's default (else --dtype)")
    return default.name
