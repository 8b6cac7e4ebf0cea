"""The events of a launch, and the interface of every listener: rank 0, the supervisor, the ledger
and the display.

Events come from ranks to the conductor by lines, on rank 0's stdout or on each rank's stderr.

A line is ``@commbench NAME {fields as JSON}``. Rank 0 writes measurements to a private copy of
stdout, so that no library can write between these lines. All ranks write short lines to stderr,
which the launcher forwards from all hosts. Foreign and incomplete lines are passed through and
never an error. In the other direction, rank 0's stdin carries the plan and then, if the run is to
end early, `FINISH`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from commbench.results.files import as_plain
from commbench.results.info import RunInfo, VariableValues
from commbench.results.record_types import AnyRecord, read_record

#: Name of a process's main thread.
MAIN = "MainThread"
#: More than the rounding error of a sum of shares, see `CaseFinished`.
ROUNDING = 1e-6

# -------------------------------------------------------------------------------------- from rank 0


@dataclass(frozen=True, kw_only=True)
class SessionStarted:
    """All ranks have come together."""

    facts: RunInfo
    """The conditions of the launch, see `commbench.launch.facts.collect_session`."""
    variables: Mapping[str, VariableValues] = field(default_factory=dict)
    """By name, the variables that `commbench.system.env` gives the ranks of the launch."""


@dataclass(frozen=True, kw_only=True)
class CaseStarted:
    """A planned case begins; a training case begins with each of its blocks."""

    index: int
    """Index of the case in the plan."""


@dataclass(frozen=True, kw_only=True)
class CaseFinished:
    """A case has been measured, in one visit or wholly, or has failed."""

    record: AnyRecord
    share: float = 1.0
    """Share of the case's time slice that this visit was given."""


@dataclass(frozen=True, kw_only=True)
class CasesEnded:
    """The ranks begin no further case."""

    is_complete: bool
    """False if planned cases are left."""


# ---------------------------------------------------------------------------------- from every rank


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A rank is alive, and how far it has come."""

    rank: int
    host: str
    pid: int
    entered: int
    """Repetitions begun since the rank started."""
    left: int
    """Repetitions finished since the rank started."""
    cpu_ms: int
    """CPU time of the process."""
    case: int
    """Number of the case within the launch, or of the block in training; -1 before the first."""

    @property
    def position(self) -> tuple[int, int]:
        """How far the rank has come; it changes with each begin and end of a repetition."""
        return self.case, self.entered + self.left


@dataclass(frozen=True, kw_only=True)
class RankError:
    """Why a rank ends itself, or cannot make a case."""

    rank: int
    host: str
    case: int
    """As in `Heartbeat`."""
    message: str
    """The sentence of an error of commbench; of another its type, its text and its line in the
    user's own file."""
    is_bad_input: bool = False
    """Whether the request cannot be carried out; else something went wrong."""
    is_of_case: bool = False
    """Whether the case alone fails, unless other ranks wait for this one."""
    stack: Sequence[str] = field(default_factory=list)
    """Stack of the error, as `Stack.stack`."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The stack of a thread of a rank, reported on request and before the rank is ended."""

    rank: int
    host: str
    thread: str
    """Name of the thread; the main thread's is `MAIN`."""
    stack: Sequence[str]
    """Frames as ``path:line in function``, the innermost first; the outer ones of a deep stack
    are left out."""
    inside: bool = False
    """Whether the rank has begun a repetition and not finished it."""


# ------------------------------------------------------------------------------- from the conductor


@dataclass(frozen=True, kw_only=True)
class LaunchStarted:
    """Ranks are being started."""

    launch: int
    """Counted from 0."""
    launches: int
    stage: str = ""
    """Name of the stage in a run of several stages."""


@dataclass(frozen=True, kw_only=True)
class CaseProgress:
    """A case begins, and how far the run is."""

    done: int
    """Finished cases, counted over all launches."""
    total: int
    case: str
    eta_s: float
    """Estimated time left, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A sentence that the user should read."""

    text: str


@dataclass(frozen=True, kw_only=True)
class RankOutput:
    """The last lines that the ranks of a failed launch and their launcher wrote on stderr."""

    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class LaunchFinished:
    """The launch is over, however it ended."""

    seconds: float
    eta_s: float
    """Seconds until the stage is over, by what launches have taken so far."""


@dataclass(frozen=True, kw_only=True)
class LastCase:
    """A signal asks for an end: the case that has begun is the last of the launch."""


RankEvent = SessionStarted | CaseStarted | CaseFinished | CasesEnded | Heartbeat | RankError | Stack
Event = RankEvent | LaunchStarted | CaseProgress | Notice | RankOutput | LaunchFinished | LastCase


class Listener(Protocol):
    """Hears events, in order; ignores those that do not concern it."""

    def on(self, event: Event) -> None:
        """Take note of an event."""


# -------------------------------------------------------------------------------------- their lines

MARK = "@commbench "
#: Tells rank 0 that the case that has begun is the last.
FINISH = "finish"
#: Most characters of an error's message.
LONGEST_TEXT = 600
#: A line below this, in bytes, is written in one piece (PIPE_BUF).
LONGEST_LINE = 4096

_TYPES: Mapping[str, type[RankEvent]] = {
    "session": SessionStarted,
    "case": CaseStarted,
    "record": CaseFinished,
    "end": CasesEnded,
    "heartbeat": Heartbeat,
    "error": RankError,
    "stack": Stack,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def format_short(event: RankEvent) -> str:
    """Return the line for an event, with its message or stack cut to the size that a pipe takes in
    one piece.
    """
    fields = dict(vars(event))
    if isinstance(event, RankError):
        fields["message"] = event.message[:LONGEST_TEXT]
    line = _line(event, fields, is_ascii=False)
    while len(line.encode(errors="replace")) >= LONGEST_LINE and fields.get("stack"):
        fields["stack"] = fields["stack"][:-1]
        line = _line(event, fields, is_ascii=False)
    return line


def _line(event: RankEvent, fields: Mapping[str, object], *, is_ascii: bool) -> str:
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=is_ascii, default=as_plain)
    return f"{MARK}{_NAMES[type(event)]} {body}\n"


def split_line(line: str) -> tuple[str, RankEvent | None]:
    """Divide a line into the foreign text before the mark and the event.

    None if there is no whole event.
    """
    foreign, mark, rest = line.partition(MARK)
    name, _, body = rest.partition(" ")
    if not mark or name not in _TYPES:
        return line, None
    try:
        fields, _ = json.JSONDecoder().raw_decode(body)  # other text may follow on the same line
        if name == "record":
            fields["record"] = read_record(fields["record"])
        return foreign, _TYPES[name](**fields)
    except (ValueError, TypeError, KeyError):
        return line, None


def say(event: RankEvent) -> None:
    """Write an event to stderr in one piece; ignore that the reader has gone."""
    with contextlib.suppress(OSError):
        os.write(2, format_short(event).encode(errors="replace"))


def claim_stdout() -> TextIO:
    """Reserve stdout for events: return a private copy of it, and redirect descriptor 1 to
    stderr.
    """
    sys.stdout.flush()
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return private


class EventWriter:
    """Rank 0's listener: writes each event to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stream.write("\n")  # an import may have left half a line there

    def on(self, event: Event) -> None:
        """Write an event that a rank reports."""
        if not isinstance(event, RankEvent):
            return
        fields = dict(vars(event))
        if isinstance(event, CaseFinished):
            fields["record"] = event.record.to_json()
        self._stream.write(_line(event, fields, is_ascii=True))
        self._stream.flush()
