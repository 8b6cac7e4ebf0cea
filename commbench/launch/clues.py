"""Clues to why a launch failed or hung, and all that is known of a failed rank."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from commbench.collectives.cases import Case
from commbench.findings import Finding, Numbers, Value, as_text
from commbench.launch.events import MAIN, RankError, Stack
from commbench.launch.heartbeat import stack_in
from commbench.launch.launcher_output import (
    CONNECTION_LOST,
    LOST_DAEMON,
    Processes,
    RankExit,
    find_exit,
    find_lost_peer,
    find_remedy,
    last_line,
    one_line,
)
from commbench.results import info
from commbench.results.record_types import AnyCase
from commbench.system.files import parse_fields, read_text

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
        if self.kind in _WITHOUT_RANK:
            return ""
        code = self.code
        if self.is_host_lost:
            code = "rank_silent"
        return str(Finding(code, numbers=self.numbers)).strip()

    def __str__(self) -> str:
        """Return the clause, and one on other ranks in the same state."""
        clauses = [self.reason]
        if self.others:
            clauses.append(Finding("ranks_too", name_ranks(self.others)))
        return "; ".join(map(str, clauses))


_WITHOUT_RANK = frozenset({"not started", "launcher ended", "unclear"})


def worst(clues: Iterable[Clue]) -> Clue:
    """Return the clue that is nearest to the cause, of equal ones the first."""
    return min(clues, key=lambda clue: CAUSES.index(clue.kind))


def waiting(failed_rank: info.FailedRank) -> str:
    """Return sentences on the activity of the other ranks; empty if unknown."""
    sentences = []
    for others in failed_rank["others"]:
        ranks = name_ranks(others["ranks"])
        sentences.append(Finding("ranks_were_in", ranks, {"place": others["in"]}))
    return as_text(sentences)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a launch ended."""

    status: Literal["ok", "cut", "failed", "hung", "interrupted", "refused"]
    """``cut``: time ran out before the last case; ``refused``: a rank finds that the request
    cannot be carried out."""
    cause: Finding | None = None
    """Why, for ``ok`` a warning; also the reason of the case that was being measured."""
    case: AnyCase | None = None
    """The case in which the launch failed or hung."""
    failed_rank: info.FailedRank | None = None
    """Of a launch that failed or hung."""
    is_host_lost: bool = False
    """Whether a host is out of reach."""
    output: Sequence[str] = ()
    """The last lines of the ranks and their launcher, and stacks, of a launch that is broken."""

    @classmethod
    def early(cls, number: int) -> Ending:
        """Return the ending of a launch that signal ``number`` ended, or the time limit (0)."""
        if number:
            name = signal.Signals(number).name
            return cls(status="interrupted", cause=Finding("interrupted", name))
        return cls(status="cut", cause=Finding("launch_cut"))

    @property
    def reason(self) -> str:
        """The cause and the case in one sentence without its full stop; or empty."""
        if self.cause is None:
            return ""
        return in_case(str(self.cause), self.case)

    @property
    def is_broken(self) -> bool:
        """Whether the launch failed or hung."""
        return self.status in {"failed", "hung"}


def in_case(reason: str, case: AnyCase | None) -> str:
    """Return a reason with the case that it is about."""
    if case is None:
        return reason
    return f"{reason.removesuffix('.')}, in case {case}"


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
    7: "bus error, as when /dev/shm is full",
    8: "arithmetic fault",
    9: "killed",
    11: "segmentation fault",
}
_SIGKILL = 9


def exit_clues(
    lines: Sequence[str],
    errors: Sequence[RankError],
    returncode: int,
    processes: Processes | None = None,
    *,
    kills_before: int | None = None,
) -> list[Clue]:
    """Return the clues to why a launcher has ended; there is always one.

    Args:
        lines: output of the launcher and the ranks, without events.
        errors: the errors that ranks reported, in order.
        returncode: of the launcher.
        processes: of the ranks, for launchers that name these only.
        kills_before: `memory_kills` when the launch began.
    """
    clues = [error_clue(error) for error in errors]
    clues += written_clues(lines, processes or {}, kills_before)
    last = last_line(lines)
    code = "launcher_ended"
    if returncode < 0:
        code = "launcher_killed"
    elif last:
        code = "launcher_ended_saying"
    numbers: Numbers = {
        "status": returncode,
        "last_line": last,
        "signal": -returncode,
        "meaning": _meaning(-returncode),
    }
    clues.append(Clue(kind="launcher ended", code=code, numbers=numbers))
    return clues


def written_clues(
    lines: Sequence[str], processes: Processes, kills_before: int | None
) -> list[Clue]:
    """Return the clues that the output of the launcher and the ranks has, see `exit_clues`."""
    text = one_line(lines)
    clues = []
    rank_exit, remedy = find_exit(text, processes), find_remedy(lines)
    if rank_exit:
        clues.append(_exit_clue(rank_exit, kills_before, remedy))
    lost = LOST_DAEMON.search(text)
    if lost:
        numbers = {"host": lost[1]}
        clues.append(Clue(kind="daemon lost", code="daemon_lost", host=lost[1], numbers=numbers))
    peer = find_lost_peer(text, processes)
    if peer:
        clues.append(Clue(kind="died", code="rank_died", rank=peer[0], host=peer[1]))
    if remedy:
        numbers = {"remedy": str(remedy)}
        clues.append(Clue(kind="not started", code="ranks_not_started", numbers=numbers))
    return clues


def _meaning(number: int) -> str:
    """Return what a signal means."""
    return _SIGNALS.get(number, "see signal(7)")


def _exit_clue(rank_exit: RankExit, kills_before: int | None, remedy: Finding | None) -> Clue:
    kind, code = "killed", "rank_killed"
    if rank_exit.is_late or not rank_exit.is_killed:
        kind = "left"
    if rank_exit.signal == _SIGKILL:
        code = "rank_killed_unknown"
        kills = memory_kills()
        is_here = rank_exit.host in {"", socket.gethostname()}
        if is_here and kills is not None and kills_before is not None:
            code = "rank_killed_other"
            if kills > kills_before:
                code = "rank_killed_memory"
    if not rank_exit.is_killed:
        code = "rank_left"
        if remedy:
            code = "rank_left_because"
    numbers: Numbers = {
        "signal": rank_exit.signal,
        "meaning": _meaning(rank_exit.signal),
        "status": rank_exit.status,
        "remedy": str(remedy),
    }
    return Clue(kind=kind, code=code, rank=rank_exit.rank, host=rank_exit.host, numbers=numbers)


def error_clue(error: RankError) -> Clue:
    """Return the clue that a rank's own error is."""
    kind = "raised"
    if CONNECTION_LOST.search(error.message):
        kind = "lost connection"
    numbers = {"error": error.message.removesuffix(".")}
    return Clue(kind=kind, code="rank_raised", rank=error.rank, host=error.host, numbers=numbers)


def memory_kills() -> int | None:
    """Return how many processes the kernel of this host has killed for lack of memory.

    None if it does not count.
    """
    kills = parse_fields(read_text("proc/vmstat"), " ").get("oom_kill")
    if kills is None:
        return None
    return int(kills)


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
    ) -> info.FailedRank:
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
        by_place: dict[str, list[int]] = {}
        for rank in sorted(self.located - {clue.rank}):
            by_place.setdefault(self._place(rank, case), []).append(rank)
        return {
            "rank": clue.rank,
            "host": host,
            "pid": pid,
            "case": str(case or ""),
            "state": clue.state,
            "stack": self._stack(clue.rank, list(printed)),
            "others": [{"ranks": ranks, "in": place} for place, ranks in by_place.items()],
        }

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
