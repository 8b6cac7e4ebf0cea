"""The events of a launch, and the interface of every listener: rank 0, the supervisor, the ledger
and the display.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from commbench.results.info import RunInfo, VariableValues
from commbench.results.record_types import AnyRecord

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
    """Why a rank ends itself."""

    rank: int
    host: str
    case: int
    """As in `Heartbeat`."""
    message: str
    error: str = ""
    """Name of the exception's type; empty for an error of commbench, whose message is a whole
    sentence."""
    is_bad_input: bool = False
    """Whether the request cannot be carried out; else something went wrong."""
    stack: Sequence[str] = field(default_factory=list)
    """Stack of the error, as `Stack.stack`."""

    @property
    def text(self) -> str:
        """The error as Python prints it."""
        return f"{self.error}: {self.message}" if self.error else self.message


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


@dataclass(frozen=True, kw_only=True)
class LastCase:
    """A signal asks for an end: the case that has begun is the last of the launch."""


RankEvent = SessionStarted | CaseStarted | CaseFinished | CasesEnded | Heartbeat | RankError | Stack
Event = RankEvent | LaunchStarted | CaseProgress | Notice | RankOutput | LaunchFinished | LastCase


class Listener(Protocol):
    """Hears events, in order; ignores those that do not concern it."""

    def on(self, event: Event) -> None:
        """Take note of an event."""
