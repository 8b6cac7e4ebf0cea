"""The result of reading another tool's output: records, assumptions, and lines that were left out
with the reason.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from commbench.collectives.cases import Case
from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Record, Stated, without_result
from commbench.errors import InputError
from commbench.fields import join_names, option
from commbench.findings import Finding
from commbench.schema import MOST_RANKS
from commbench.units import counted

#: A line of a table: its words by column.
Words: TypeAlias = Mapping[str, str]
#: Fields of a `Case` or of a record, or arguments of `make_record`.
Fields: TypeAlias = dict[str, Any]

DTYPES_BY_MPI_NAME = {dtype.mpi_name: dtype.name for dtype in DTYPES.values() if dtype.mpi_name}
#: Meanings of the time that a tool states.
RANK_MEAN = "mean over repetitions and ranks"
SLOWEST_RANK = "mean over repetitions of the slowest rank"
PAIR_MEAN = "mean over repetitions"


class LeftOutError(Exception):
    """A line, table or file cannot be imported; the text is the reason."""


#: PARAM's names of backends (``--backend``), and commbench's name of NCCL through torch, for
#: comparisons with it.
PARAM_BACKENDS = ("nccl", "gloo", "mpi", "ucc", "xla", "mccl", "torch-nccl")


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Facts that outputs may not state: options of ``import``."""

    ranks: int | None = option(
        None,
        "-n",
        "--ranks",
        metavar="RANKS",
        about="Number of ranks, if the output does not state it.",
        min=1,
        max=MOST_RANKS,
    )
    operation: str | None = option(
        None,
        "--operation",
        metavar="NAME",
        about="Operation, if the output does not state it (old nccl-tests).",
        choices=("operation", OPERATIONS),
    )
    dtype: str | None = option(
        None,
        "--dtype",
        metavar="NAME",
        about=f"Element type, if the output does not state it: {join_names(DTYPES)}.",
        choices=("data type", DTYPES),
    )
    backend: str | None = option(
        None,
        "--backend",
        metavar="NAME",
        about=f"Backend of PARAM's output: {join_names(PARAM_BACKENDS)}.",
        choices=("backend", PARAM_BACKENDS),
    )


class Place(NamedTuple):
    """The host and device of a rank."""

    rank: int
    host: str
    device: str = ""


@dataclass(kw_only=True)
class Reading:
    """The part of a tool's output that has been read."""

    name: str
    """The path as typed."""
    options: ImportOptions
    """Of the import: facts that the output may not state."""
    tool: str
    """The tool's usual name."""
    version: str = ""
    """Version of the tool; empty if not stated."""
    records: list[Record] = field(default_factory=list)
    places: dict[int, list[Sequence[Place]]] = field(default_factory=dict)
    """Hosts and devices of each table that states them, by number of ranks."""
    wrong: str = ""
    """A sentence about wrong data that no record shows; empty without any."""
    assumed: dict[str, None] = field(default_factory=dict)
    """Assumptions about facts that the output does not state, one sentence each, in order."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of left-out lines by reason."""

    def assume(self, text: str) -> None:
        """Note an assumption about a fact that is not stated."""
        self.assumed[text] = None

    def leave_out(self, reason: str) -> None:
        """Count a line that cannot be imported."""
        self.left_out[reason] += 1

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Count a `LeftOutError` raised inside, and continue."""
        try:
            yield
        except LeftOutError as reason:
            self.leave_out(str(reason))

    def dtype(self, stated: str, default: str, subject: str) -> str:
        """Return the name of an element type: stated, else of --dtype, else the tool's default."""
        named = stated or self.options.dtype
        if named:
            return named
        self.assume(f"elements of {subject} were {default}, the tool's default (else --dtype)")
        return default

    def ranks(self, stated: int | None, subject: str) -> int:
        """Return the number of ranks: the stated number, else that of -n.

        Raises:
            InputError: neither is given, or both are given and differ.
        """
        given = self.options.ranks
        ranks = given if stated is None else stated
        if ranks is None:
            raise InputError(
                f"{self.name} does not say on how many ranks {subject} ran; say so with -n."
            )
        if given is not None and given != ranks:
            raise InputError(
                f"{self.name} says that {subject} ran on {counted(ranks, 'rank')}, and -n"
                f" {given} was given."
            )
        return ranks


def number(word: str) -> float:
    """Parse a time, rate or count.

    Raises:
        LeftOutError: the word is not a finite number of 0 or more.
    """
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e18:  # also excludes NaN
        raise LeftOutError(f"{word!r} is no number that was measured")
    return value


def whole_number(word: str) -> int:
    """Parse a count or size.

    Raises:
        LeftOutError: the word is not a whole number.
    """
    if not re.fullmatch(r"\d{1,18}", word):
        raise LeftOutError(f"{word!r} is no whole number")
    return int(word)


def make_record(
    case: Fields,
    *,
    ranks: int,
    time_us: float,
    time: str,
    rank_mean_us: float | None = None,
    wrong: int | None = None,
    failure: Finding | None = None,
    stated: Mapping[str, Any] = MappingProxyType({}),
    **conditions: Any,
) -> Record:
    """Return one case as a tool states it, as a record of launch 0.

    Args:
        case: fields of `Case`; those that the operation does not have are ignored.
        ranks: the number of ranks.
        time_us: the time of one operation, microseconds.
        time: its meaning: `RANK_MEAN`, `SLOWEST_RANK` or `PAIR_MEAN`.
        rank_mean_us: the mean over ranks, microseconds, if stated.
        wrong: the number of wrong elements, if stated.
        failure: why the data is wrong, where no number is stated.
        stated: further fields of `Stated`.
        conditions: further fields of the record.

    Raises:
        LeftOutError: commbench has no such case.
    """
    operation = OPERATIONS[case["operation"]]
    if operation.moves_data and case["dtype"] not in DTYPES:
        raise LeftOutError(f"element type {case['dtype']} is unknown to commbench")
    if operation.moves_data and not case["message_bytes"]:
        raise LeftOutError("messages of 0 bytes cannot be imported")
    if not time_us:
        raise LeftOutError("a time or rate of 0 is below what the tool resolves")
    if ranks < operation.minimum_ranks:
        raise LeftOutError(f"{operation.name} on {ranks} rank has nothing to measure")
    flags = ["imported"]
    if wrong is None and failure is None:
        flags.insert(0, "unverified")
    record = Record(
        case=Case(**operation.applied(case)),
        launch=0,
        status="wrong" if wrong else "ok",
        group=f"0-{ranks - 1}" if ranks > 1 else "0",
        group_size=ranks,
        times_us=[time_us],
        rank_mean_us=[] if rank_mean_us is None else [rank_mean_us],
        wrong=wrong,
        flags=tuple(flags),
        stated=Stated(time=time, **stated),
        **conditions,
    )
    if failure is not None:
        return without_result(record, "wrong", failure)
    return record
