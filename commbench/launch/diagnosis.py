"""Diagnosis of a launch that failed or hung: the evidence, the failed rank, and the sentences about
both.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from commbench.collectives.cases import Case
from commbench.findings import Finding
from commbench.launch.events import MAIN, RankError, Stack
from commbench.launch.heartbeat import stack_in
from commbench.launch.launcher_errors import (
    LostPeer,
    RankExit,
    explain,
    find_exit,
    find_lost_daemon,
    find_lost_peer,
    is_connection_lost,
    last_line,
)
from commbench.results import info
from commbench.results.record_types import AnyCase

#: Host and process number of each rank.
Processes = Mapping[int, tuple[str, int]]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The cause of a launch's end, as far as the evidence shows."""

    rank: int | None
    """The failed rank, of several the first; None if the evidence names none."""
    reason: Finding
    """E.g. ``rank 1 on host n1 is stopped``."""
    host: str = ""
    state: str = ""
    """State of the rank: ``is stopped``, ``was killed by signal 9 (killed)``, ``raised ...``."""
    is_lost: bool = False
    """Whether the host is unreachable, so that new ranks could not start there."""


@dataclass(frozen=True, kw_only=True)
class OtherRanks:
    """Ranks that were in the same place when another rank failed.

    run.json calls the fields ``ranks`` and ``in``.
    """

    ranks: Sequence[int]
    place: str

    def __str__(self) -> str:
        return (
            f"{name_ranks(self.ranks)} {'was' if len(self.ranks) == 1 else 'were'} in {self.place}"
        )


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
    """As in `Diagnosis`."""
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
        """Return the activity of the other ranks, as a sentence without its full stop.

        Empty if unknown.
        """
        text = "; ".join(map(str, self.others))
        return text[:1].upper() + text[1:]


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
    return f"{'a rank' if rank is None else f'rank {rank}'}{f' on host {host}' if host else ''}"


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 1``, or ``ranks 1, 2``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank) for rank in ranks)}"


# ------------------------------------------------------------------------------------------- a hang


#: What state letters of processes that are no longer heard mean.
_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a device (state D)", "Z": "has ended"}


def hang_reason(timeout_s: float, cause: str) -> Finding:
    """Return why a launch is hung."""
    return Finding(code="no_progress", numbers={"timeout_s": f"{timeout_s:g}", "cause": cause})


def diagnose_ranks(ranks: Sequence[int], state: str, host: str) -> Diagnosis:
    """Name the first of the ranks that are in a state, and list the others."""
    others = (
        f" (as {'are' if len(ranks) > 2 else 'is'} {name_ranks(ranks[1:])})" if ranks[1:] else ""  # noqa: PLR2004 - grammar
    )
    reason = Finding(
        code="rank_stuck",
        subject=name_rank(ranks[0], host),
        numbers={"state": state, "others": others},
    )
    return Diagnosis(rank=ranks[0], host=host, state=state, reason=reason)


def diagnose_silent(
    ranks: Sequence[int], host: str, since: str, process_state: str | None
) -> Diagnosis:
    """Name ranks whose heartbeats have stopped, and the state of the first rank's process if
    known.
    """
    process = f" although its process {_STATES[process_state]}" if process_state in _STATES else ""
    return diagnose_ranks(ranks, f"has not been heard of {since}{process}", host)


def diagnose_lost_hosts(
    lost: Mapping[str, Sequence[int]], since: str, own_host: str, *, is_alone: bool
) -> Diagnosis:
    """Name silent hosts; if several are silent and no other host answers, this host may be cut off.

    Args:
        lost: the ranks of each such host.
        since: ``for 7 s`` or ``since the start``.
        own_host: the host of the conductor.
        is_alone: whether no other host sends heartbeats.
    """
    hosts = ", ".join(f"{host} ({name_ranks(ranks)})" for host, ranks in lost.items())
    is_one = len(lost) == 1
    silent = f"host{'' if is_one else 's'} {hosts} {'has' if is_one else 'have'}"
    suspicion = (
        f"; it may be {own_host} that has lost its network" if is_alone and not is_one else ""
    )
    host, ranks = next(iter(lost.items()))
    return Diagnosis(
        rank=ranks[0],
        host=host,
        state=f"has not been heard of {since}",
        reason=Finding(
            code="hosts_silent",
            numbers={"hosts": silent, "since": since, "suspicion": suspicion},
        ),
        is_lost=True,
    )


def diagnose_no_rank(*, is_any_heard: bool) -> Diagnosis:
    """Return the diagnosis of a hang without a rank that stands out."""
    return Diagnosis(
        rank=None, reason=Finding(code="no_rank_stands_out" if is_any_heard else "no_rank_heard")
    )


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
#: Added to a death by SIGKILL, by whether the kernel killed a process for lack of memory meanwhile.
_OUT_OF_MEMORY = {
    True: ", by the kernel for lack of memory",
    False: ", not for lack of memory",
    None: "; the system may have run out of memory",
}


def diagnose_exit(
    stderr_lines: Sequence[str],
    errors: Sequence[RankError],
    returncode: int,
    processes: Processes | None = None,
    *,
    silent: Diagnosis | None = None,
    is_out_of_memory: Callable[[str], bool | None] = lambda _: None,
) -> Diagnosis:
    """Return which rank ended a launch, if the evidence names one, and how.

    A death by signal comes first: partners of a dead rank raise errors as well, and before the
    launcher notices. Then come the first error that is not about a lost connection, a rank without
    heartbeats, an exit status, and last the launcher's messages.

    Args:
        stderr_lines: output of the launcher and the ranks, without events.
        errors: the errors that ranks reported, in order.
        returncode: of the launcher.
        processes: of the ranks, for launchers that name these only.
        silent: the ranks whose heartbeats stopped while those of other ranks went on.
        is_out_of_memory: whether the kernel has killed a process of a host for lack of memory;
            None: unknown. An empty name means this host.
    """
    text = " ".join(" ".join(stderr_lines).split())
    processes = processes or {}
    rank_exit = find_exit(text, processes)
    causes = [error for error in errors if not is_connection_lost(error.message)]
    if rank_exit and rank_exit.signal and not rank_exit.is_late:
        return _diagnose_rank_exit(rank_exit, is_out_of_memory)
    if causes:
        return diagnose_error(causes[0])
    lost = silent or _diagnose_lost_daemon(find_lost_daemon(text))
    if lost or (errors and not rank_exit):
        return lost or diagnose_error(errors[0])
    if peer := find_lost_peer(text):
        return _diagnose_lost_peer(peer, processes)
    return _diagnose_unknown(
        stderr_lines,
        returncode,
        _diagnose_rank_exit(rank_exit, is_out_of_memory) if rank_exit else None,
    )


def _diagnose_lost_daemon(host: str) -> Diagnosis | None:
    if not host:
        return None
    reason = Finding(code="daemon_lost", numbers={"host": host})
    return Diagnosis(rank=None, host=host, state="lost", reason=reason)


def _diagnose_rank_exit(
    rank_exit: RankExit, is_out_of_memory: Callable[[str], bool | None]
) -> Diagnosis:
    name = name_rank(rank_exit.rank, rank_exit.host)
    reason = Finding(
        code="rank_left", subject=name, numbers={"status": rank_exit.code, "remedy": ""}
    )
    if rank_exit.signal:
        memory = (
            _OUT_OF_MEMORY[is_out_of_memory(rank_exit.host)] if rank_exit.signal == _SIGKILL else ""
        )
        meaning = _SIGNALS.get(rank_exit.signal, "see signal(7)")
        numbers: dict[str, str | int] = {
            "signal": rank_exit.signal,
            "meaning": meaning,
            "memory": memory,
            "remedy": "",
        }
        reason = Finding(code="rank_killed", subject=name, numbers=numbers)
    return _diagnose_rank(rank_exit.rank, rank_exit.host, reason)


def _diagnose_rank(rank: int | None, host: str, reason: Finding) -> Diagnosis:
    """Return the diagnosis whose reason has the rank as its subject.

    Its state is the reason's predicate.
    """
    return Diagnosis(
        rank=rank, host=host, state=str(reason).removeprefix(f"{reason.subject} "), reason=reason
    )


def diagnose_error(error: RankError) -> Diagnosis:
    """Return the diagnosis of a rank that ended itself."""
    name = name_rank(error.rank, error.host)
    reason = Finding(code="rank_raised", subject=name, numbers={"error": error.text})
    return _diagnose_rank(error.rank, error.host, reason)


def _diagnose_lost_peer(peer: LostPeer, processes: Processes) -> Diagnosis:
    """Name the rank that has died; mpirun names the rank that first lost its connection to it."""
    candidates = [
        rank
        for rank, (host, _) in processes.items()
        if (host == peer.host if peer.host else rank not in peer.victims)
    ]
    rank = candidates[0] if len(candidates) == 1 else None
    host = peer.host or ("" if rank is None else processes[rank][0])
    reason = Finding(code="rank_died", subject=name_rank(rank, host))
    return Diagnosis(rank=rank, host=host, state="has died", reason=reason)


def _diagnose_unknown(
    lines: Sequence[str], returncode: int, diagnosis: Diagnosis | None
) -> Diagnosis:
    """Return an exit without another cause, or the launcher's own end, with a remedy if one is
    known.
    """
    remedy = explain(lines)
    if diagnosis:
        numbers = {**diagnosis.reason.numbers, "remedy": f": {remedy}" if remedy else ""}
        return replace(diagnosis, reason=replace(diagnosis.reason, numbers=numbers))
    reason = Finding(
        code="launcher_ended", numbers={"status": returncode, "last_line": last_line(lines)}
    )
    if remedy:
        reason = Finding(code="ranks_not_started", numbers={"remedy": remedy})
    return Diagnosis(rank=None, reason=reason)


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
        if host not in {"", socket.gethostname()} or now is None or self._before is None:
            return None
        return now > self._before

    def _count(self) -> int | None:
        try:
            match = re.search(
                r"^oom_kill (\d+)$", self._file.read_text(encoding="utf-8"), re.MULTILINE
            )
        except OSError:
            return None
        return int(match[1]) if match else None


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
    library_frames = [
        frame
        for frame in stack
        if frame.startswith(_OWN_FRAMES) and not frame.startswith(_WRAPPERS)
    ]
    place, _, function = (library_frames or list(stack) or ["nowhere that is known"])[0].partition(
        " in "
    )
    return f"{function} ({place})" if function else place


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
    starts = [index for index, line in enumerate(lines) if _FATAL in line]
    return list(lines[starts[0] :]) if starts else []


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
        diagnosis: Diagnosis,
        case: AnyCase | None,
        processes: Processes,
        printed: Iterable[str],
    ) -> FailedRank:
        """Return all that is known of a failure.

        Args:
            diagnosis: the cause of the launch's end.
            case: the case in which the launch ended, if any.
            processes: of the ranks, as far as known.
            printed: reports of interpreters on dying ranks.
        """
        host, pid = processes.get(
            -1 if diagnosis.rank is None else diagnosis.rank, (diagnosis.host, None)
        )
        others = {
            rank: self._place(rank, case) for rank in sorted(self.located) if rank != diagnosis.rank
        }
        return FailedRank(
            rank=diagnosis.rank,
            host=diagnosis.host or host,
            pid=pid,
            case=str(case or ""),
            state=diagnosis.state,
            stack=self._stack(diagnosis.rank, list(printed)),
            others=group_by_place(others),
        )

    def lines(self) -> list[str]:
        """Return all stacks as text."""
        text = []
        for (rank, thread), stack in sorted(self._stacks.items()):
            suffix = "" if thread == MAIN else f", thread {thread}"
            text.append(f"{name_rank(rank, stack.host)}{suffix}, most recent call first:")
            text += [f"  {frame}" for frame in stack.stack]
        return text

    def _stack(self, rank: int | None, printed: Sequence[str]) -> list[str]:
        """Return a rank's stack: of its error, as it reported, or as its interpreter printed."""
        if rank is None:
            return []
        raised = [error for error in self.errors if error.rank == rank and error.stack]
        if raised:
            return list(raised[0].stack)
        if (rank, MAIN) in self._stacks:
            return list(self._stacks[rank, MAIN].stack)
        return stack_in(printed)

    def _place(self, rank: int, case: AnyCase | None) -> str:
        stack = self._stacks[rank, MAIN]
        place = describe_place(stack.stack)
        if not isinstance(case, Case):
            return place
        operation = f"{case.operation} of {case.backend}"
        return (
            f"{operation if stack.inside else f'synchronising or preparing for {operation}'}, at"
            f" {place}"
        )
