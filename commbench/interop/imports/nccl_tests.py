"""Reads the output of nccl-tests, and commbench's output in the same format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS
from commbench.errors import InputError
from commbench.interop.imports.reading import (
    MEANS_PRINTED,
    PRINTED_BY_COMMBENCH,
    RANK_MEAN,
    SLOWEST_RANK,
    ImportOptions,
    LeftOutError,
    OwnSetting,
    Place,
    Reading,
    Timed,
    importable_operation,
    number,
    own_setting,
    whole_lines,
    whole_number,
)

OPERATIONS_BY_PROGRAM = {
    operation.nccl_program: operation.name for operation in OPERATIONS.values()
}
DTYPES_BY_NAME = {dtype.nccl_name: dtype.name for dtype in DTYPES.values()}
BACK_TO_BACK = "operations were timed back to back, as is nccl-tests' default (-z 0)"
RANKS_AVERAGED = "times are the mean over ranks, nccl-tests' default (-a 1)"

_TABLE = re.compile(r"#\s*size\s+count\s+type\b")
_BEGIN = re.compile(rf"# (nccl-tests version|nThread \d|{PRINTED_BY_COMMBENCH})")
_RANK = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s*(.*)"
)
_SETTINGS = {
    "iters": re.compile(r"(?<!warmup )(?<!agg )iters:? (\d+)"),
    "aggregated": re.compile(r"agg iters:? (\d+)"),
    "graph": re.compile(r"graph:? (\d+)"),
}
_HALF = {"time", "cputime"}


@dataclass(kw_only=True)
class Block:
    """One test: the lines above its table, and the table."""

    version: str = ""
    library: str = ""
    program: str = ""
    own: bool = False
    """Whether commbench printed the table."""
    means: bool = False
    """Whether it printed means over ranks."""
    setting: OwnSetting | None = None
    """The conditions, if commbench printed the table."""
    groups: set[int] = field(default_factory=set)
    places: list[Place] = field(default_factory=list)
    settings: dict[str, int] = field(default_factory=dict)
    blocking: int = 0
    columns: list[str] = field(default_factory=list)
    """The words of the table's heading."""
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    """Line number and words of each line of the table."""
    out_of_bounds: int | None = None
    """The count in the footer."""
    ended: bool = False
    """Whether there is a footer."""

    @property
    def lists_twice(self) -> bool:
        """Whether a rank of one group is listed more than once."""
        return len(self.groups) == 1 and len(self.places) > len(
            {place.rank for place in self.places}
        )

    @property
    def is_alone(self) -> bool:
        """Whether rank 0 is the only listed rank."""
        return [place.rank for place in self.places] == [0]


def recognises(text: str) -> bool:
    """Return whether a text is output of nccl-tests, or looks like it."""
    return any(
        _TABLE.match(line) or line.startswith("# nccl-tests version") for _, line in _lines(text)
    )


def _lines(text: str) -> list[tuple[int, str]]:
    return list(whole_lines(text, Reading(name="")))


def read(text: str, name: str, options: ImportOptions) -> Reading:
    """Read the output of one or more tests.

    Raises:
        InputError: operation or number of ranks are neither stated nor given as options.
    """
    reading = Reading(name=name)
    blocks = split_blocks(text, reading)
    alone = Counter(block.program for block in blocks if block.is_alone)
    for block in blocks:
        with reading.noting():
            if block.lists_twice or (block.is_alone and alone[block.program] > 1):
                raise LeftOutError(
                    "several processes each ran alone, as where nccl-tests was built without MPI=1;"
                    " what one GPU measured is imported from an output of its own"
                )
            _read_block(block, reading, options)
    return reading


def split_blocks(text: str, reading: Reading) -> list[Block]:
    """Split a text into its tests, in order."""
    blocks = [Block()]
    for place, line in whole_lines(text, reading):
        if _BEGIN.match(line) and (blocks[-1].columns or blocks[-1].ended):
            blocks.append(Block(version=blocks[-1].version, library=blocks[-1].library))
        block = blocks[-1]
        if line.startswith("#"):
            _read_comment(line, block)
        elif block.columns and not block.ended and re.match(r"\s*\d", line):
            block.rows.append((place, line.split()))
    return [block for block in blocks if block.columns]


def _read_comment(line: str, block: Block) -> None:  # noqa: C901 - one branch for each kind of line
    """Parse a line above or below a table."""
    if match := re.match(r"# nccl-tests version (\S+).* nccl-library=(\d+)", line):
        block.version, block.library = match[1], f"NCCL {nccl_version(int(match[2]))}"
    elif match := re.match(r"# Collective test starting: (\S+)", line):
        block.program = match[1].removesuffix("_mpi")
    elif line.startswith("# nThread"):
        block.settings = {
            name: int(match[1])
            for name, pattern in _SETTINGS.items()
            if (match := pattern.search(line))
        }
    elif match := re.match(r"# Blocking Enabled: (.*)", line):
        block.blocking = 2 if "no barrier" in match[1] else 1
    elif match := _RANK.match(line):
        block.groups.add(int(match[2] or 0))
        block.places.append(Place(rank=int(match[1]), host=match[3], device=match[4].strip()))
    elif line.startswith(f"# {PRINTED_BY_COMMBENCH}"):
        block.own, block.means = True, MEANS_PRINTED in line
    elif block.own and (setting := own_setting(line)):
        block.setting = setting
    elif _TABLE.match(line):
        block.columns = line.lstrip("# ").split()
    elif match := re.match(r"# Out of bounds values : (\d+)", line):
        block.out_of_bounds = int(match[1])
    elif line.startswith("# Avg bus bandwidth"):
        block.ended = True


def nccl_version(code: int) -> str:
    """Return NCCL's version from its code: 22807 is 2.28.7, and 2708 is 2.7.8."""
    scale = 10_000 if code >= 10_000 else 1000  # noqa: PLR2004 - from 2.9 on
    return f"{code // scale}.{code % scale // 100}.{code % 100}"


def operation_of(program: str, name: str, options: ImportOptions) -> str:
    """Return the operation that a program of nccl-tests measures.

    Raises:
        InputError: the operation is neither stated nor given by --operation.
        LeftOutError: commbench has no such operation.
    """
    if not program and options.operation is None:
        raise InputError(f"{name} does not say which operation was timed; say so with --operation.")
    operation = OPERATIONS_BY_PROGRAM.get(program) if program else options.operation
    if operation is None:
        raise LeftOutError(f"{program} of nccl-tests has no counterpart in commbench")
    return operation


def stated_ranks(places: Sequence[Place]) -> int | None:
    """Return the number of ranks if all are listed, else None: a process with many GPUs lists only
    some ranks.
    """
    ranks = {place.rank for place in places}
    return len(ranks) if ranks and ranks == set(range(len(ranks))) else None


def cadence_of(blocking: int, reading: Reading) -> str:
    """Return the synchronisation between operations, as in `Case.sync`.

    Raises:
        LeftOutError: commbench has no such synchronisation.
    """
    if blocking == 2:  # noqa: PLR2004 - as nccl-tests counts them
        raise LeftOutError(
            "each operation was waited for without a barrier (-z 2), neither isolated nor back to"
            " back"
        )
    if blocking:
        return "barrier"
    reading.assume(BACK_TO_BACK)
    return "none"


def _read_block(block: Block, reading: Reading, options: ImportOptions) -> None:
    if "cputime" in block.columns:
        raise LeftOutError("times are of the CPU only (-C)")
    if len(block.groups) > 1:
        raise LeftOutError(
            f"{len(block.groups)} groups ran at the same time and only their average is printed"
        )
    operation = operation_of(block.program, reading.name, options)
    setting = block.setting
    ranks = reading.ranks(
        options, setting.ranks if setting else stated_ranks(block.places), operation
    )
    reading.version = reading.version or block.version
    if stated_ranks(block.places) == ranks:
        reading.places[ranks] = block.places
    if not block.ended:
        reading.leave_out(f"the table of {operation} has no footer, so that lines may be missing")
    shared = {
        "operation": operation,
        "ranks": ranks,
        "backend": setting.backend if setting else "nccl",
    }
    shared |= {"pattern": setting.pattern if setting else "flat", **_conditions(block, reading)}
    for place, words in block.rows:
        with reading.noting():
            reading.records += [
                timed.record() for timed in _halves(place, words, block, shared, reading)
            ]


def _conditions(block: Block, reading: Reading) -> dict[str, Any]:
    """Return the fields of `Timed` that all rows of a test share."""
    if block.setting:
        return {"time": RANK_MEAN if block.means else SLOWEST_RANK, **block.setting.manner}
    reading.assume(RANKS_AVERAGED)
    together = block.settings.get("iters", 1) * block.settings.get("aggregated", 1)
    devices = list(dict.fromkeys(place.device for place in block.places if place.device))
    return {
        "time": RANK_MEAN,
        "sync": cadence_of(block.blocking, reading),
        "buffers": "",
        "graph": bool(block.settings.get("graph")),
        "repetitions": 1 if "iters" in block.settings else None,
        "conditions": {"batch": together, "library": block.library, "device": " | ".join(devices)},
    }


def _halves(
    place: int, words: Sequence[str], block: Block, shared: dict[str, Any], reading: Reading
) -> list[Timed]:
    """Parse both halves of a line: out of place and in place.

    Raises:
        LeftOutError: the words do not match the heading.
    """
    columns = [column for column in block.columns if column != "timestamp"]
    stamp = 2 if "timestamp" in block.columns else 0
    if len(words) not in {len(columns), len(columns) + stamp}:
        raise LeftOutError(
            f"line {place} has {len(words)} words where the heading has {len(columns)}"
        )
    begins = [number for number, column in enumerate(columns) if column in _HALF]
    if len(begins) != 2:  # noqa: PLR2004 - out of place, in place
        raise LeftOutError(
            f"the heading above line {place} has no two halves, out of place and in place"
        )
    first, second = begins
    case = dict(zip(columns[:first], words, strict=False))
    timed = []
    for in_place, low, high in ((False, first, second), (True, second, len(columns))):
        half = dict(zip(columns[low:high], words[low:high], strict=True))
        if half["time"] == "N/A" or not has_half(
            shared["operation"], in_place=in_place, reading=reading
        ):
            continue
        _check_rates(half, shared, reading)
        timed.append(
            timed_half(case, half, in_place=in_place, out_of_bounds=block.out_of_bounds, **shared)
        )
    return timed


def has_half(operation: str, *, in_place: bool, reading: Reading) -> bool:
    """Return whether commbench has this case; nccl-tests has in-place cases of more operations."""
    if in_place and not OPERATIONS[operation].has_in_place:
        reading.leave_out(f"{operation} in place has no counterpart in commbench")
        return False
    return True


def timed_half(
    case: dict[str, str],
    half: dict[str, str],
    *,
    in_place: bool,
    out_of_bounds: int | None,
    **shared: Any,  # noqa: ANN401 - fields of `Timed`
) -> Timed:
    """Parse one half of a line.

    Args:
        case: ``size``, ``type``, ``redop`` and ``root``, as printed.
        half: ``time`` and ``#wrong`` (``error`` in old versions), and ``i_min`` where iterations
            were timed.
        in_place: whether this is the in-place half.
        out_of_bounds: count of wrong elements in the footer, the only count of old versions.
        shared: further fields of `Timed`.

    Raises:
        LeftOutError: the half has no measurement.
    """
    redop, root = case.get("redop", "none"), case.get("root", "-1")
    if redop == "mulsum":
        raise LeftOutError("reduction mulsum is unknown to commbench")
    time_us = number(half["time"])
    wrong = half.get("#wrong", "0" if out_of_bounds == 0 else "N/A")
    return Timed(
        message_bytes=whole_number(case["size"]),
        time_us=time_us,
        rank_mean_us=time_us if shared["time"] == RANK_MEAN else None,
        dtype=DTYPES_BY_NAME.get(case["type"], case["type"]),
        redop=None if redop in {"none", ""} else redop,
        root=None if root == "-1" else whole_number(root),
        in_place=in_place,
        wrong=None if wrong == "N/A" else int(number(wrong)),
        min_us=number(half["i_min"]) if "i_min" in half else None,
        **shared,
    )


def _check_rates(half: dict[str, str], shared: dict[str, Any], reading: Reading) -> None:
    """Note an assumption if the printed bus bandwidth belongs to another number of ranks."""
    if "N/A" in {half["algbw"], half["busbw"]}:
        return
    algbw, busbw = number(half["algbw"]), number(half["busbw"])
    factor = importable_operation(
        shared["operation"], shared["pattern"], shared["ranks"]
    ).busbw_factor(shared["ranks"])
    rounding = 0.5 * (factor * _last_digit(half["algbw"]) + _last_digit(half["busbw"]))
    if abs(busbw - factor * algbw) > 1.01 * rounding:
        reading.assume(
            f"{shared['operation']} ran on {shared['ranks']} ranks, although the busbw that"
            f" {reading.name} prints is that of another number of them; ours is computed again"
        )


def _last_digit(word: str) -> float:
    """Return the value of a number's last printed digit: 0.01 for 12.34."""
    digits, _, power = word.partition("e")
    return float(10.0 ** (int(power or 0) - len(digits.partition(".")[2])))
