"""Clues to why a launch failed or hung, and all that is known of a failed rank."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from commbench.collectives.cases import Case
from commbench.findings import Finding, Value
from commbench.launch.events import MAIN, RankError, Stack
from commbench.launch.heartbeat import stack_in
from commbench.launch.messages import (
    RankExit,
    find_exit,
    find_lost_daemon,
    find_lost_peer,
    find_remedy,
    is_connection_lost,
    last_line,
    one_line,
)
from commbench.results import info
from commbench.results.record_types import AnyCase

#: Host and process number of each rank.
Processes = Mapping[int, tuple[str, int]]
#: Kinds of clues, from the surest cause to what only follows from it: partners of a dead rank raise
#: errors as well, and before the launcher notices its death.
CAUSES = (
    "stopped",
    "killed",
    "raised",
    "silent",
    "daemon lost",
    "died",
    "left",
    "lost connection",
    "behind",
    "idle",
    "not started",
    "launcher ended",
    "unclear",
)


@dataclass(frozen=True, kw_only=True)
class Clue:
    """A sign of why a launch failed or hung."""

    kind: str
    """One of `CAUSES`."""
    code: str
    """Of the clause, e.g. ``rank_stopped``: rank 1 on host n1 is stopped."""
    rank: int | None = None
    """The rank that it points at, of several the first; None: no certain one."""
    host: str = ""
    numbers: Mapping[str, Value] = field(default_factory=dict)
    """Of the clause."""
    others: Sequence[int] = ()
    """Further ranks in the same state."""
    is_host_lost: bool = False
    """Whether the host is unreachable, so that new ranks could not start there."""

    @property
    def reason(self) -> Finding:
        """The clause."""
        return Finding(self.code, name_rank(self.rank, self.host), self.numbers)

    @property
    def state(self) -> str:
        """What is wrong with the rank: ``is stopped``; empty if the clue names none."""
        if self.rank is None and self.kind in _WITHOUT_RANK:
            return ""
        code = self.code
        if self.is_host_lost:
            code = "rank_silent"
        return str(Finding(code, numbers=self.numbers)).strip()

    def __str__(self) -> str:
        """Return the clause, and one on other ranks in the same state."""
        clauses = [self.reason]
        if self.others:
            code = "ranks_too"
            if len(self.others) == 1:
                code = "rank_too"
            clauses.append(Finding(code, name_ranks(self.others)))
        return "; ".join(map(str, clauses))


_WITHOUT_RANK = frozenset({"not started", "launcher ended", "unclear"})


def worst(clues: Iterable[Clue]) -> Clue:
    """Return the clue that is nearest to the cause, of equal ones the first."""
    return min(clues, key=lambda clue: CAUSES.index(clue.kind))


@dataclass(frozen=True, kw_only=True)
class OtherRanks:
    """Ranks that were in the same place when another rank failed.

    run.json calls the fields ``ranks`` and ``in``.
    """

    ranks: Sequence[int]
    place: str

    def __str__(self) -> str:
        code = "ranks_were_in"
        if len(self.ranks) == 1:
            code = "rank_was_in"
        return str(Finding(code, name_ranks(self.ranks), {"place": self.place}))


@dataclass(frozen=True, kw_only=True)
class FailedRank:
    """Why a launch has failed, as ``culprit`` in run.json states it."""

    rank: int | None
    """None if no rank can be named as the cause."""
    host: str
    pid: int | None
    """Process number on its own host."""
    case: str
    """Empty before the first."""
    state: str
    """As `Clue.state`."""
    stack: Sequence[str]
    """Stack of the rank's main thread, the innermost frame first; empty if unknown."""
    others: Sequence[OtherRanks]
    """What other ranks were doing."""

    def to_json(self) -> info.FailedRank:
        """Return the entry of run.json."""
        return {
            "rank": self.rank,
            "host": self.host,
            "pid": self.pid,
            "case": self.case,
            "state": self.state,
            "stack": self.stack,
            "others": [{"ranks": each.ranks, "in": each.place} for each in self.others],
        }

    @property
    def waiting(self) -> str:
        """Sentences on the activity of the other ranks; empty if unknown."""
        return " ".join(map(str, self.others))


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a launch ended."""

    status: Literal["ok", "cut", "failed", "hung", "interrupted", "refused"]
    """``cut``: time ran out before the last case; ``refused``: a rank finds that the request
    cannot be carried out."""
    reason: str = ""
    """One sentence without its full stop; for ``ok`` a warning, or empty."""
    cause: Finding | None = None
    """Why a launch failed or hung; the reason of the case that was being measured."""
    failed_rank: FailedRank | None = None
    """Of a launch that failed or hung."""
    is_host_lost: bool = False
    """Whether a host is out of reach."""
    output: Sequence[str] = ()
    """The last lines of the ranks and their launcher, and stacks, of a launch that is broken."""
    has_begun: bool = False
    """Whether a case had begun."""
    has_result: bool = False
    """Whether a case has come to its end."""
    case: AnyCase | None = None
    """The case in which the launch failed or hung; its reason names it."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """By key, the reason of each case that is not to be measured again."""

    @classmethod
    def broken(
        cls,
        status: Literal["failed", "hung"],
        cause: Finding,
        *,
        failed_rank: FailedRank | None = None,
        is_host_lost: bool = False,
        output: Sequence[str] = (),
    ) -> Ending:
        """Return the ending of a launch that failed or hung."""
        return cls(
            status=status,
            reason=str(cause),
            cause=cause,
            failed_rank=failed_rank,
            is_host_lost=is_host_lost,
            output=output,
        )

    @property
    def is_broken(self) -> bool:
        """Whether the launch failed or hung."""
        return self.status in {"failed", "hung"}

    def in_case(self, case: AnyCase) -> Ending:
        """Return the ending with its case."""
        return replace(self, case=case, reason=in_case(self.reason, case))


def in_case(reason: str, case: AnyCase) -> str:
    """Return a reason with the case that it is about."""
    return f"{reason}, in case {case}"


def name_rank(rank: int | None, host: str = "") -> str:
    """Return ``rank 1 on host n1``, ``a rank`` if its number is unknown, without a host if that is
    unknown.
    """
    name = "a rank"
    if rank is not None:
        name = f"rank {rank}"
    if host:
        return f"{name} on host {host}"
    return name


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 1``, or ``ranks 1, 2``."""
    noun = "rank"
    if len(ranks) > 1:
        noun = "ranks"
    return f"{noun} {', '.join(map(str, ranks))}"


def hang_reason(timeout_s: float, cause: str) -> Finding:
    """Return why a launch is hung."""
    return Finding(code="no_progress", numbers={"timeout_s": f"{timeout_s:g}", "cause": cause})


# ------------------------------------------------------------------------------------------ an exit

_SIGNALS = {
    4: "illegal instruction",
    6: "aborted",
    7: "bus error",
    8: "arithmetic fault",
    9: "killed",
    11: "segmentation fault",
}
_SIGKILL = 9
#: Codes of a death by SIGKILL, by whether the kernel has killed a process for lack of memory.
_SIGKILL_CODES = {
    True: "rank_killed_memory",
    False: "rank_killed_other",
    None: "rank_killed_unknown",
}


def exit_clues(
    lines: Sequence[str],
    errors: Sequence[RankError],
    returncode: int,
    processes: Processes | None = None,
    *,
    is_out_of_memory: Callable[[str], bool | None] = lambda _: None,
) -> list[Clue]:
    """Return the clues to why a launcher has ended; there is always one.

    Args:
        lines: output of the launcher and the ranks, without events.
        errors: the errors that ranks reported, in order.
        returncode: of the launcher.
        processes: of the ranks, for launchers that name these only.
        is_out_of_memory: whether the kernel has killed a process of a host for lack of memory;
            None: unknown. An empty name means this host.
    """
    text, processes = one_line(lines), processes or {}
    clues = [error_clue(error) for error in errors]
    rank_exit = find_exit(text, processes)
    if rank_exit and rank_exit.is_killed:
        clues.append(_killed(rank_exit, is_out_of_memory(rank_exit.host)))
    elif rank_exit:
        clues.append(_left(rank_exit, find_remedy(lines)))
    host = find_lost_daemon(text)
    if host:
        clues.append(
            Clue(kind="daemon lost", code="daemon_lost", host=host, numbers={"host": host})
        )
    peer = find_lost_peer(text, processes)
    if peer:
        clues.append(Clue(kind="died", code="rank_died", rank=peer[0], host=peer[1]))
    clues += start_clues(lines)
    last = last_line(lines)
    code = "launcher_ended"
    if last:
        code = "launcher_ended_saying"
    numbers: dict[str, Value] = {"status": returncode, "last_line": last}
    clues.append(Clue(kind="launcher ended", code=code, numbers=numbers))
    return clues


def start_clues(lines: Sequence[str]) -> list[Clue]:
    """Return the clue to why ranks could not be started, if their launcher's output has one."""
    remedy = find_remedy(lines)
    if remedy is None:
        return []
    numbers: dict[str, Value] = {"remedy": str(remedy)}
    return [Clue(kind="not started", code="ranks_not_started", numbers=numbers)]


def _killed(rank_exit: RankExit, is_out_of_memory: bool | None) -> Clue:
    kind, code = "killed", "rank_killed"
    if rank_exit.is_late:
        kind = "left"
    if rank_exit.signal == _SIGKILL:
        code = _SIGKILL_CODES[is_out_of_memory]
    meaning = _SIGNALS.get(rank_exit.signal, "see signal(7)")
    numbers: dict[str, Value] = {"signal": rank_exit.signal, "meaning": meaning}
    return Clue(kind=kind, code=code, rank=rank_exit.rank, host=rank_exit.host, numbers=numbers)


def _left(rank_exit: RankExit, remedy: Finding | None) -> Clue:
    code = "rank_left"
    numbers: dict[str, Value] = {"status": rank_exit.status}
    if remedy:
        code, numbers["remedy"] = "rank_left_because", str(remedy)
    return Clue(kind="left", code=code, rank=rank_exit.rank, host=rank_exit.host, numbers=numbers)


def error_clue(error: RankError) -> Clue:
    """Return the clue that a rank's own error is."""
    kind = "raised"
    if is_connection_lost(error.message):
        kind = "lost connection"
    numbers: dict[str, Value] = {"error": error.text}
    return Clue(kind=kind, code="rank_raised", rank=error.rank, host=error.host, numbers=numbers)


class MemoryKills:
    """Detects that the kernel has killed a process on this host for lack of memory since this
    object was made.
    """

    def __init__(self, file: Path = Path("/proc/vmstat")) -> None:
        self._file = file
        self._before = self._count()

    def is_out_of_memory(self, host: str) -> bool | None:
        """Return whether something was killed; None if unknown, as on other hosts than this one."""
        now = self._count()
        is_here = host in {"", socket.gethostname()}
        if not is_here or now is None or self._before is None:
            return None
        return now > self._before

    def _count(self) -> int | None:
        try:
            match = re.search(
                r"^oom_kill (\d+)$", self._file.read_text(encoding="utf-8"), re.MULTILINE
            )
        except OSError:
            return None
        if match is None:
            return None
        return int(match[1])


# ----------------------------------------------------------------------------------------- evidence

#: Path parts of frames that show where a rank waits.
_OWN_FRAMES = ("commbench/", "torch/", "mpi4py/")
#: Frames that only wrap what they call.
_WRAPPERS = ("torch/distributed/c10d_logger.py", "torch/utils/")
#: First words of the interpreter's report on a process that dies of a signal.
_FATAL = "Fatal Python error"


def describe_place(stack: Sequence[str]) -> str:
    """Return the place of a thread: its innermost frame of commbench, torch or mpi4py, else its
    innermost frame.
    """
    innermost = "nowhere that is known"
    if stack:
        innermost = stack[0]
    for frame in stack:
        if frame.startswith(_OWN_FRAMES) and not frame.startswith(_WRAPPERS):
            innermost = frame
            break
    place, _, function = innermost.partition(" in ")
    if function:
        return f"{function} ({place})"
    return place


def group_by_place(places: Mapping[int, str]) -> list[OtherRanks]:
    """Put ranks together that are in the same place, the lowest rank first."""
    groups: dict[str, list[int]] = {}
    for rank, place in sorted(places.items()):
        groups.setdefault(place, []).append(rank)
    return [OtherRanks(ranks=ranks, place=place) for place, ranks in groups.items()]


def find_crash_report(lines: Sequence[str]) -> list[str]:
    """Return the interpreter's report on a process that died of a signal.

    Empty without a report.
    """
    for index, line in enumerate(lines):
        if _FATAL in line:
            return list(lines[index:])
    return []


class Evidence:
    """The errors and stacks that ranks have reported."""

    def __init__(self) -> None:
        self.errors: list[RankError] = []
        """In the order in which they came."""
        self._stacks: dict[tuple[int, str], Stack] = {}

    def add(self, event: RankError | Stack) -> None:
        """Keep an event."""
        if isinstance(event, RankError):
            self.errors.append(event)
        else:
            self._stacks[event.rank, event.thread] = event

    def forget_stacks(self) -> None:
        """Forget all stacks: only those reported from now on count."""
        self._stacks.clear()

    @property
    def located(self) -> set[int]:
        """The ranks that have reported where their main threads are."""
        return {rank for rank, thread in self._stacks if thread == MAIN}

    def failed_rank(
        self,
        clue: Clue,
        case: AnyCase | None,
        processes: Processes,
        printed: Iterable[str],
    ) -> FailedRank:
        """Return all that is known of a failure.

        Args:
            clue: to the cause of the launch's end.
            case: the case in which the launch ended, if any.
            processes: of the ranks, as far as known.
            printed: reports of interpreters on dying ranks.
        """
        host, pid = clue.host, None
        if clue.rank is not None and clue.rank in processes:
            known_host, pid = processes[clue.rank]
            host = host or known_host
        places = {}
        for rank in sorted(self.located - {clue.rank}):
            places[rank] = self._place(rank, case)
        return FailedRank(
            rank=clue.rank,
            host=host,
            pid=pid,
            case=str(case or ""),
            state=clue.state,
            stack=self._stack(clue.rank, list(printed)),
            others=group_by_place(places),
        )

    def lines(self) -> list[str]:
        """Return all stacks as text."""
        text = []
        for (rank, thread), stack in sorted(self._stacks.items()):
            title = name_rank(rank, stack.host)
            if thread != MAIN:
                title = f"{title}, thread {thread}"
            text.append(f"{title}, most recent call first:")
            text += [f"  {frame}" for frame in stack.stack]
        return text

    def _stack(self, rank: int | None, printed: Sequence[str]) -> list[str]:
        """Return a rank's stack: of its error, as it reported, or as its interpreter printed."""
        if rank is None:
            return []
        for error in self.errors:
            if error.rank == rank and error.stack:
                return list(error.stack)
        if (rank, MAIN) in self._stacks:
            return list(self._stacks[rank, MAIN].stack)
        return stack_in(printed)

    def _place(self, rank: int, case: AnyCase | None) -> str:
        stack = self._stacks[rank, MAIN]
        place = describe_place(stack.stack)
        if not isinstance(case, Case):
            return place
        code = "place_before"
        if stack.inside:
            code = "place_inside"
        numbers = {"operation": case.operation, "backend": case.backend, "place": place}
        return str(Finding(code, numbers=numbers))
