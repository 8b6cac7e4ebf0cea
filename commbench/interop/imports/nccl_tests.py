"""Reads the output of nccl-tests and rccl-tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commbench.backends.nccl_library import version_text
from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS, Operation
from commbench.engine.records import Record
from commbench.errors import InputError
from commbench.findings import Finding
from commbench.interop.imports.blocks import END, HEADING, Block, Layout, split_blocks
from commbench.interop.imports.reading import (
    RANK_MEAN,
    SLOWEST_RANK,
    Fields,
    LeftOutError,
    Place,
    Reading,
    Words,
    make_record,
    number,
    whole_number,
)
from commbench.units import counted

OPERATIONS_BY_PROGRAM = {
    operation.nccl_program: operation.name for operation in OPERATIONS.values()
}
DTYPES_BY_NAME = {dtype.nccl_name: dtype.name for dtype in DTYPES.values()}
BACK_TO_BACK = "operations were timed back to back, as is nccl-tests' default (-z 0)"
#: The meaning of times by the value of ``--average``.
_TIMES = {"": RANK_MEAN, "1": RANK_MEAN, "3": SLOWEST_RANK}
RANKS_AVERAGED = "times are the mean over ranks, nccl-tests' default (-a 1)"
#: The largest deviation that old versions accept, by type; they count what is beyond it.
_ACCEPTED = {"double": 1e-12, "float": 1e-5, "half": 1e-2, "bfloat16": 1e-2}
#: Where the first half of a row is blank; a blank reduction and root are 21 characters.
_BLANK_HALF = 30 * " "
#: What follows the name of a column of the second half, in place.
_SECOND = "'"
#: Rates above 1 GB/s are printed to a percent or better.
_ROUNDING = 0.02
_LIBRARY = ("version", "library", "own library")

LAYOUT = Layout(
    facts={
        "version": r"#?\s*nccl-tests version (\S+)",
        "library": r"#?\s*nccl-tests version .* nccl-library=(\d+)",
        "own library": r"(NCCL|RCCL) version ?:? ?([\d.]+)",
        "program": r"#?\s*Collective test starting: (\w+?)(?:_mpi)?\s*$",
        "command": r".*\b(\w+_perf)(?:_mpi)?\s+-\w",
        "average": r".*\b\w+_perf(?:_mpi)?\s.*\s?(?:-a ?|--average[= ])(\d)",
        "threads": r"#?\s*nThread:? \d",  # with a colon: early rccl-tests
        "iterations": r"#?\s*nThread:? .*(?<!warmup )(?<!agg )iters:? +(\d+)",
        "aggregated": r"#?\s*nThread:? .*agg iters:? +(\d+)",
        "graph": r"#?\s*nThread:? .*graph:? +(\d+)",
        "blocking": r"#?\s*Blocking Enabled: (.*)",
        "rank": (
            r"#?\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+"
            r"\s+\[\S+\]\s*(.*)"
        ),
        HEADING: r"#?\s*(size\s+count\s+type\b.*?)(?:\s+timestamp)?\s*$",
        "wrong": r"#?\s*Out of bounds values : (\d+)",
        END: r"#?\s*Avg bus bandwidth",
    },
    begins={
        "version": (),
        "program": _LIBRARY,
        "command": _LIBRARY,
        "threads": _LIBRARY,
        HEADING: _LIBRARY,
    },
    row=r"\d+\s+\d\S*\s",
)


def read(text: str, reading: Reading) -> None:
    """Read the output of one or more tests.

    Raises:
        InputError: operation or number of ranks are neither stated nor given as options.
    """
    blocks = split_blocks(text, LAYOUT, reading)
    alone = Counter(block.fact("program") for block in blocks if _ranks(block) == [0])
    for block in blocks:
        ranks = _ranks(block)
        with reading.noting():
            is_listed_twice = len(set(ranks)) < len(ranks) and len(_groups(block)) == 1
            if is_listed_twice or (ranks == [0] and alone[block.fact("program")] > 1):
                raise LeftOutError(
                    "several processes each ran alone, as where nccl-tests was built without MPI=1;"
                    " what one GPU measured is imported from an output of its own"
                )
            _read_block(block, reading)


def _ranks(block: Block) -> list[int]:
    return [int(match[1]) for match in block.facts.get("rank", ())]


def _groups(block: Block) -> set[str]:
    return {match[2] or "0" for match in block.facts.get("rank", ())}


def operation_of(program: str, reading: Reading) -> str:
    """Return the operation that a program of nccl-tests measures.

    Raises:
        InputError: the operation is neither stated nor given by --operation.
        LeftOutError: commbench has no such operation.
    """
    given = reading.options.operation
    if not program and given is None:
        raise InputError(
            f"{reading.name} does not say which operation was timed; say so with --operation."
        )
    if not program:
        return str(given)
    if program not in OPERATIONS_BY_PROGRAM:
        raise LeftOutError(f"{program} of nccl-tests has no counterpart in commbench")
    return OPERATIONS_BY_PROGRAM[program]


def stated_ranks(places: Sequence[Place]) -> int | None:
    """Return the number of ranks if all are listed, else None: a process with many GPUs lists only
    some ranks.
    """
    ranks = {place.rank for place in places}
    if ranks and ranks == set(range(len(ranks))):
        return len(ranks)
    return None


def conditions(
    reading: Reading,
    *,
    operation: str,
    places: Sequence[Place],
    average: str,
    blocking: int,
    graph: bool,
) -> tuple[Fields, Fields]:
    """Return fields of `Case`, and arguments of `make_record`, that all rows of a test share.

    Args:
        reading: notes assumptions, and where the ranks were.
        operation: that was timed.
        places: of the ranks that are listed.
        average: the value of ``-a``; empty if not stated.
        blocking: the kind of waiting between operations, as ``-z`` counts it.
        graph: whether operations were captured.

    Raises:
        InputError: the number of ranks is not known.
        LeftOutError: commbench has no such meaning of times, or no such synchronisation.
    """
    if average not in _TIMES:
        raise LeftOutError(
            f"times are neither means over ranks nor of the slowest rank (-a {average})"
        )
    ranks = reading.ranks(stated_ranks(places), operation)
    if stated_ranks(places) == ranks:
        reading.places.setdefault(ranks, []).append(places)
    if blocking == 2:  # as nccl-tests counts them
        raise LeftOutError(
            "each operation was waited for without a barrier (-z 2), neither isolated nor back to"
            " back"
        )
    case = {"operation": operation, "backend": "nccl", "buffers": "", "graph": graph}
    case["sync"] = "barrier"
    if not blocking:
        case["sync"] = "none"
        reading.assume(BACK_TO_BACK)
    devices = dict.fromkeys(place.device for place in places if place.device)
    return case, {"ranks": ranks, "device": " | ".join(devices), "time": _TIMES[average]}


def _read_block(block: Block, reading: Reading) -> None:
    columns = block.columns
    _check_table(block)
    places = []
    for match in block.facts.get("rank", ()):
        places.append(Place(rank=int(match[1]), host=match[3], device=match[4].strip()))
    operation = _operation(block, reading)
    reading.version = reading.version or block.fact("version")
    if not block.fact("average"):
        reading.assume(RANKS_AVERAGED)
    blocking = int(block.fact("blocking") != "")
    if "no barrier" in block.fact("blocking"):
        blocking = 2
    iterations = int(block.fact("iterations") or 0)
    case, shared = conditions(
        reading,
        operation=operation,
        places=places,
        average=block.fact("average"),
        blocking=blocking,
        graph=block.fact("graph") not in {"", "0"},
    )
    shared["batch"] = (iterations or 1) * int(block.fact("aggregated") or 1)
    shared["library"] = f"{block.fact('own library')} {block.fact('own library', 2)}".strip()
    if block.fact("library"):
        shared["library"] = f"NCCL {version_text(int(block.fact('library')))}"
    shared["stated"] = {"repetitions": 1 if iterations else None}
    earlier = len(reading.records)
    for line in block.lines(reading, _with_blanks):
        for second in ("", _SECOND):
            half = {name: line[name + second] for name in columns if name + second in columns}
            case["in_place"] = second == _SECOND
            if half["time"] != "N/A":
                with reading.noting():
                    _check_rates(half, OPERATIONS[operation], shared["ranks"], reading)
                    checked = _checked(line, half, block)
                    reading.records.append(half_record(case, line, half, **checked, **shared))
    _check_footer(block, operation, reading.records[earlier:], reading)


def _check_table(block: Block) -> None:
    """Raise `LeftOutError` if the times of a table have no counterpart."""
    if "cputime" in block.columns:
        raise LeftOutError("times are of the CPU only (-C)")
    if f"time{_SECOND}" not in block.columns:
        raise LeftOutError("a heading has no two halves, out of place and in place")
    groups = _groups(block)
    if len(groups) > 1:
        raise LeftOutError(
            f"{len(groups)} groups ran at the same time and only their average is printed"
        )


def _check_footer(
    block: Block, operation: str, records: Sequence[Record], reading: Reading
) -> None:
    """Note a missing footer, and one that counts wrong data which no row shows."""
    if END not in block.facts:
        reading.leave_out(f"the table of {operation} has no footer, so that lines may be missing")
    is_shown = any(record.status == "wrong" for record in records)
    if block.fact("wrong") not in {"", "0"} and not is_shown:
        reading.wrong = (
            f"{reading.name} counts {counted(block.fact('wrong'), 'wrong value')} below its table"
            f" of {operation}, and no row shows which"
        )


def _operation(block: Block, reading: Reading) -> str:
    """Return the operation of a block: stated, else of --operation, else of the command above.

    Raises:
        InputError: none of these is given.
        LeftOutError: rows show that it is another.
    """
    program = block.fact("program")
    command = block.fact("command")
    if not program and command and reading.options.operation is None:
        program = command
        reading.assume(f"the table below the command {command} is its output")
    operation = operation_of(program, reading)
    if not program and "redop" in block.columns:
        for line in block.lines(replace(reading, left_out=Counter()), _with_blanks):
            if OPERATIONS[operation].reduces != (line["redop"] != "none"):
                raise LeftOutError(
                    f"a table with redop {line['redop']} is not of {operation}; import it by"
                    " itself, with its own --operation"
                )
    return operation


def _with_blanks(line: str, columns: Sequence[str]) -> list[str]:
    """Return the words of a row with a word for what is blank: no reduction (blank for alltoall),
    no root, or one of the halves. Without the time stamp of -S.
    """
    full = line.split()
    if len(full) > 1 and re.fullmatch(r"\d+-\d+-\d+", full[-2]):
        full = full[:-2]
    half = columns.index(f"time{_SECOND}")
    if "redop" in columns:
        place = columns.index("redop")
        if not "".join(full[place : place + 1])[:1].isalpha():
            full.insert(place, "none")
    if "root" in columns and len(full) in {half - 1, len(columns) - 1}:
        place = columns.index("root")
        if not re.fullmatch(r"-?\d{1,4}", full[place]):  # a time has a point or five digits
            full.insert(place, "-1")
    if len(full) == half:
        place = half
        if _BLANK_HALF in line:
            place = columns.index("time")
        full[place:place] = ["N/A"] * (len(columns) - half)
    return full


def _checked(line: Words, half: Words, block: Block) -> Fields:
    """Return what the tool's check of a half found, as arguments of `make_record`.

    Old versions print the largest deviation, and count what is wrong in the footer.
    """
    word = half.get("#wrong", half.get("error", "N/A"))
    if word == "N/A":
        return {}
    value = number(word)
    if "#wrong" in half:
        return {"wrong": int(value)}
    if block.fact("wrong") == "0":
        return {"wrong": 0}
    if block.fact("wrong") and value > _ACCEPTED.get(line["type"], 0.0):
        return {"failure": Finding("imported_failure", "nccl-tests")}
    return {}


def half_record(
    case: Fields,
    line: Words,
    half: Words,
    *,
    stated: Fields,
    **shared: Any,
) -> Record:
    """Return the record of one half of a line.

    Args:
        case: fields of `Case` that all lines share.
        line: ``size``, ``type``, ``redop`` and ``root``, as printed.
        half: ``time``, and ``i_min`` where iterations were timed.
        stated: fields of `Stated`.
        shared: further arguments of `make_record`.

    Raises:
        LeftOutError: the half has no measurement.
    """
    redop = line.get("redop", "none")
    root = line.get("root", "-1")
    if case["in_place"] and not OPERATIONS[case["operation"]].has_in_place:
        raise LeftOutError(f"{case['operation']} in place has no counterpart in commbench")
    if redop == "mulsum":
        raise LeftOutError("reduction mulsum is unknown to commbench")
    time_us = number(half["time"])
    if "i_min" in half:
        stated = {**stated, "min_us": number(half["i_min"])}
    return make_record(
        {
            **case,
            "message_bytes": whole_number(line["size"]),
            "dtype": DTYPES_BY_NAME.get(line["type"], line["type"]),
            "redop": None if redop in {"none", ""} else redop,
            "root": None if root == "-1" else whole_number(root),
        },
        time_us=time_us,
        rank_mean_us=time_us if shared["time"] == RANK_MEAN else None,
        stated=stated,
        **shared,
    )


def _check_rates(half: Words, operation: Operation, ranks: int, reading: Reading) -> None:
    """Note an assumption if the printed bus bandwidth belongs to another number of ranks."""
    if "N/A" in {half.get("algbw", "N/A"), half.get("busbw", "N/A")}:
        return
    algbw, busbw = number(half["algbw"]), number(half["busbw"])
    expected = operation.busbw_factor(ranks) * algbw
    if algbw > 1 and abs(busbw - expected) > _ROUNDING * expected:  # smaller ones have two digits
        reading.assume(
            f"{operation.name} ran on {counted(ranks, 'rank')}, although {reading.name} prints the"
            " busbw of another number of ranks or of another operation; ours is computed again"
        )
