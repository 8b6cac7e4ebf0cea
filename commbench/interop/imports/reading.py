"""The result of reading another tool's output: records, assumptions, and lines that were left out
with the reason.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from commbench.collectives.cases import Case
from commbench.collectives.composed import MATRIX, operation_in_pattern
from commbench.collectives.datatypes import DTYPES
from commbench.collectives.operations import Operation
from commbench.collectives.patterns import check_pattern, makes_groups
from commbench.engine.records import Record, Stated, without_result
from commbench.errors import InputError
from commbench.findings import Finding, UnsupportedError

#: Prefixes that launchers add to lines: mpirun --tag-output and srun --label.
_LABEL = re.compile(r"^(\[\d+,\d+\]<std(out|err)>:|\s{0,3}\d+: ) ?")
#: Start of the line that marks output of commbench in another tool's format.
PRINTED_BY_COMMBENCH = "Printed by commbench in the format of"
#: What such a line says of the means of ``run --as``; without it the times in nccl-tests' format
#: are medians of the slowest rank.
MEANS_PRINTED = "times are means over repetitions and ranks"
DTYPES_BY_MPI_NAME = {dtype.mpi_name: dtype.name for dtype in DTYPES.values() if dtype.mpi_name}
#: Meanings of the time that a tool states.
RANK_MEAN = "mean over repetitions and ranks"
SLOWEST_RANK = "mean over repetitions of the slowest rank"
PAIR_MEAN = "mean over repetitions"


class LeftOutError(Exception):
    """A line, table or file cannot be imported; the text is the reason."""


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """The options of the import: facts that outputs may not state."""

    ranks: int | None = None
    operation: str | None = None
    dtype: str | None = None
    backend: str | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """The host and device of a rank."""

    rank: int
    host: str
    device: str = ""


@dataclass(kw_only=True)
class Reading:
    """The part of a tool's output that has been read."""

    name: str
    """The path as typed."""
    version: str = ""
    """Version of the tool; empty if not stated."""
    records: list[Record] = field(default_factory=list)
    places: dict[int, Sequence[Place]] = field(default_factory=dict)
    """Hosts and devices by number of ranks, if stated."""
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

    def ranks(self, options: ImportOptions, output_ranks: int | None, subject: str) -> int:
        """Return the number of ranks: the stated number, else that of -n.

        Raises:
            InputError: neither is given, or both are given and differ.
        """
        if output_ranks is None and options.ranks is None:
            raise InputError(
                f"{self.name} does not say on how many ranks {subject} ran; say so with -n."
            )
        if None not in {output_ranks, options.ranks} and output_ranks != options.ranks:
            raise InputError(
                f"{self.name} says that {subject} ran on {output_ranks} ranks, and -n"
                f" {options.ranks} was given."
            )
        return int(output_ranks or options.ranks or 0)


@dataclass(frozen=True, kw_only=True)
class OwnSetting:
    """The conditions that commbench states above a table in another tool's format."""

    backend: str
    ranks: int | None
    pattern: str = "flat"
    sync: str = "auto"
    redop: str | None = None
    in_place: bool = False
    root: int = 0
    graph: bool = False
    persistent: bool = False
    buffers: str = "hot"

    @property
    def manner(self) -> dict[str, Any]:
        """The fields of `Timed` for synchronisation, cadence and buffers."""
        return {
            "sync": self.sync,
            "graph": self.graph,
            "persistent": self.persistent,
            "buffers": self.buffers,
        }


def own_setting(line: str) -> OwnSetting | None:
    """Parse the line of conditions; None for another line.

    A library's name may contain commas; it stands before the searched words.
    """
    match = re.match(r"# backend ([\w-]+), (\d+|\?) ranks(.*)", line)
    if not match:
        return None
    words = dict(re.findall(r", (pattern|cadence|buffers|redop|root) (\S+?)(?=,|$)", match[3]))
    return OwnSetting(
        backend=match[1],
        ranks=None if match[2] == "?" else int(match[2]),
        pattern=words.get("pattern", "flat"),
        sync="none" if words.get("cadence") == "pipelined" else "auto",
        redop=words.get("redop"),
        in_place=", in place" in match[3],
        root=int(words.get("root", 0)),
        graph=words.get("cadence") == "graph",
        persistent=words.get("cadence") == "persistent",
        buffers=words.get("buffers", "hot"),
    )


def whole_lines(text: str, reading: Reading) -> Iterator[tuple[int, str]]:
    """Yield the complete lines with their numbers, without prefixes of launchers.

    Count an unterminated last line.
    """
    *lines, rest = text.split("\n")
    for number, line in enumerate(lines, start=1):
        yield number, _LABEL.sub("", line.rstrip("\r"), count=1)
    if rest.strip():
        reading.leave_out(
            f"line {len(lines) + 1} has no end, so that it may be cut off ({rest.strip()[:60]!r})"
        )


def number(word: str) -> float:
    """Parse a time, rate or count.

    Raises:
        LeftOutError: the word is not a finite number of 0 or more.
    """
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e18:  # noqa: PLR2004 - also excludes NaN
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


def importable_operation(operation: str, pattern: str, ranks: int) -> Operation:
    """Return the definition of an operation in a pattern on ``ranks`` ranks.

    Raises:
        LeftOutError: the operation or the pattern is unknown, or its table is one of several that
            ran together.
    """
    try:
        check_pattern(pattern)
        composed = operation_in_pattern(operation, pattern, ranks)
    except (InputError, UnsupportedError) as error:
        raise LeftOutError(str(error)) from error
    if makes_groups(pattern) or pattern == MATRIX:
        raise LeftOutError(
            f"a table of pattern {pattern} is one part of several that ran together; use the run"
            " itself"
        )
    return composed


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One case as a tool states it; fields that the tool does not state stay empty."""

    operation: str
    backend: str
    ranks: int
    message_bytes: int
    time_us: float
    time: str
    """Meaning of the time: `RANK_MEAN`, `SLOWEST_RANK` or `PAIR_MEAN`."""
    dtype: str | None
    redop: str | None = None
    root: int | None = None
    in_place: bool | None = None
    pattern: str = "flat"
    sync: str = "auto"
    buffers: str = "hot"
    graph: bool = False
    persistent: bool = False
    rank_mean_us: float | None = None
    wrong: int | None = None
    failure: Finding | None = None
    """Why the data is wrong, where the tool states no number of wrong elements."""
    repetitions: int | None = None
    min_us: float | None = None
    p25_us: float | None = None
    p75_us: float | None = None
    p95_us: float | None = None
    conditions: dict[str, Any] = field(default_factory=dict)
    """Further fields of the record."""

    def record(self) -> Record:
        """Return the case as a record of launch 0.

        Raises:
            LeftOutError: commbench has no such case.
        """
        operation = importable_operation(self.operation, self.pattern, self.ranks)
        if operation.moves_data and self.dtype not in DTYPES:
            raise LeftOutError(f"element type {self.dtype} is unknown to commbench")
        if operation.moves_data and not self.message_bytes:
            raise LeftOutError("messages of 0 bytes cannot be imported")
        if not self.time_us:
            raise LeftOutError("a time or rate of 0 is below what the tool resolves")
        if self.ranks < operation.minimum_ranks:
            raise LeftOutError(f"{self.operation} on {self.ranks} rank has nothing to measure")
        record = Record(
            case=Case(
                backend=self.backend,
                operation=self.operation,
                message_bytes=self.message_bytes if operation.moves_data else 0,
                dtype=self.dtype if operation.moves_data else None,
                redop=self.redop if operation.reduces else None,
                root=self.root if operation.rooted else None,
                in_place=self.in_place if operation.has_in_place else None,
                pattern=self.pattern,
                sync=self.sync,
                buffers=self.buffers,
                graph=self.graph,
                persistent=self.persistent,
            ),
            launch=0,
            status="wrong" if self.wrong else "ok",
            group=f"0-{self.ranks - 1}" if self.ranks > 1 else "0",
            group_size=self.ranks,
            times_us=[self.time_us],
            rank_mean_us=[] if self.rank_mean_us is None else [self.rank_mean_us],
            wrong=self.wrong,
            flags=(
                ("imported",)
                if self.wrong is not None or self.failure
                else ("unverified", "imported")
            ),
            stated=Stated(
                time=self.time,
                repetitions=self.repetitions,
                min_us=self.min_us,
                p25_us=self.p25_us,
                p75_us=self.p75_us,
                p95_us=self.p95_us,
            ),
            **self.conditions,
        )
        return without_result(record, "wrong", self.failure) if self.failure else record
