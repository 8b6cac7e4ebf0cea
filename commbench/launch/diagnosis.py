"""Diagnosis of a failed launch: the evidence that is kept, and the failed rank."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from commbench.collectives.cases import Case
from commbench.launch.heartbeat import group_by_place, stack_in, waits_in
from commbench.launch.launcher_errors import explain
from commbench.launch.protocol import MAIN, LastWords, Stack
from commbench.results.record_types import AnyCase


@dataclass(frozen=True, kw_only=True)
class Blame:
    """What has ended a launch, as far as can be told."""

    rank: int | None
    """The first of the ranks to blame; None where none can be told."""
    text: str
    """E.g. ``rank 1 on host n1 is stopped``: what follows the word "hung:"."""
    host: str = ""
    state: str = ""
    """What is wrong with the rank, in a few words: ``stopped``, ``killed by signal 9 (killed)``, ``raised ...``."""
    is_lost: bool = False
    """Whether the host cannot be reached any more, so that ranks would not come together again."""


#: What a rank says that has lost its partner: a victim.
_VICTIM = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken ?pipe|timed out|closed by peer|socket closed",
    re.IGNORECASE,
)
_OPENMPI_SIGNAL = re.compile(r"rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+) \((.+?)\)")
_OPENMPI_EXIT = re.compile(r"Process name: \[.+?,(\d+)\] Exit code: (\d+)")
_OPENMPI_PEER = re.compile(r"peer process has unexpectedly disconnected\..*?Peer host: (\S+)")
_OPENMPI_VICTIM = re.compile(r"An error occurred in Socket closed.*?reported by process \[\d+,(\d+)\]")
_OPENMPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d+)")
_OPENMPI_LOST = re.compile(r"lost communication with a remote daemon\..*?Remote daemon: \S+ on node (\S+)", re.DOTALL)
_TORCHRUN = re.compile(r"rank +: (\d+) \(local_rank: \d+\) exitcode +: (-?\d+) \(pid: \d+\)")
_MPICH = re.compile(r"PID (\d+) RUNNING AT (\S+).*?EXIT (?:CODE|STATUS): (\d+)")
#: srun names tasks host by host, first the one that ended first; of those that it ended itself it says "Terminated".
_SRUN = re.compile(r"srun: error: (\S+): tasks? (\d+)[\d,-]*: (?:Exited with exit code (\d+)|([A-Z][A-Za-z ]*))")
_SRUN_SIGNALS = {signal.strsignal(number): number for number in signal.valid_signals()} | {"Out Of Memory": 9}
#: What our own tear-down does to the ranks that were still alive.
_SIGTERM, _SIGKILL = 15, 9
_SIGNALS = {
    4: "illegal instruction",
    6: "aborted",
    7: "bus error",
    8: "arithmetic fault",
    9: "killed",
    11: "segmentation fault",
}


def blame_exit(
    stderr_lines: Sequence[str],
    errors: Sequence[LastWords],
    returncode: int,
    processes: Mapping[int, tuple[str, int]] | None = None,
    *,
    silent: Blame | None = None,
    is_out_of_memory: Callable[[str], bool | None] = lambda _: None,
) -> Blame:
    """Which rank ended a launch, if that can be told, and how.

    A death by signal comes first: partners of a dead rank raise errors as well, and sooner than the launcher notices.
    Then the first error of a rank that does not merely complain about a lost partner, then a rank that is not heard of
    any more, an exit status, and what the launcher says in its own words.

    Args:
        stderr_lines: what the launcher and the ranks wrote, messages of ours left out.
        errors: the last words of ranks, in order.
        returncode: of the launcher.
        processes: host and process of each rank, for launchers that name these only.
        silent: the ranks that were not heard of any more, where others were.
        is_out_of_memory: whether the kernel has killed a process of a host for lack of memory; None: unknown. Without
            a host's name it is about this one.
    """
    text = " ".join(" ".join(stderr_lines).split())
    processes = processes or {}
    found = _by_launcher(text, processes)
    causes = [words for words in errors if not _VICTIM.search(words.text)]
    if found and found.signal and not found.is_late:
        return found.blame(is_out_of_memory)
    if causes:
        return _raised(causes[0])
    lost = silent or _lost_daemon(text)
    if lost:
        return lost
    if errors and not found:
        return _raised(errors[0])
    lost = _lost_peer(text, {rank: host for rank, (host, _) in processes.items()})
    return lost or _in_other_words(stderr_lines, returncode, found.blame(is_out_of_memory) if found else None)


def _lost_daemon(text: str) -> Blame | None:
    found = _OPENMPI_LOST.search(text)
    if not found:
        return None
    return Blame(rank=None, host=found[1], state="lost", text=f"mpirun has lost its daemon on host {found[1]}")


def _lost_peer(text: str, hosts: Mapping[int, str]) -> Blame | None:
    """The rank that has died where mpirun blames the one that first lost its connection to it."""
    found = _OPENMPI_PEER.search(text)
    victims = {int(rank) for rank in _OPENMPI_VICTIM.findall(text)}
    if not found and not victims:
        return None
    known = {rank: host for rank, host in hosts.items() if (host == found[1] if found else rank not in victims)}
    rank = next(iter(known)) if len(known) == 1 else None
    host = found[1] if found else "" if rank is None else known[rank]
    who = "a rank" if rank is None else f"rank {rank}"
    where = f" on host {host}" if host else ""
    said = f"{who}{where} has died: others lost their connection to it"
    return Blame(rank=rank, host=host, state="has died", text=said)


def _in_other_words(lines: Sequence[str], returncode: int, blame: Blame | None) -> Blame:
    """What the launcher says, explained as far as it can be, of a rank's exit or by itself."""
    why = explain(lines)
    if blame:
        return replace(blame, text=f"{blame.text}: {why}") if why else blame
    if why:
        return Blame(rank=None, text=f"the ranks could not be started: {why}")
    return Blame(rank=None, text=f"the launcher ended with exit status {returncode}{_last_line(lines)}")


def _raised(words: LastWords) -> Blame:
    text = f"rank {words.rank} on host {words.host} raised {words.text}"
    return Blame(rank=words.rank, host=words.host, state=f"raised {words.text}", text=text)


@dataclass(frozen=True, kw_only=True)
class _Exit:
    """How a rank left, as the launcher reports it."""

    rank: int | None
    code: int
    """Exit status; negative: the signal that ended it."""
    host: str = ""
    is_late: bool = False
    """Whether the launcher has noticed another rank's end before."""

    @property
    def signal(self) -> int:
        """The signal that ended the rank, but for the one that tear-down sends; 0: none."""
        return -self.code if self.code < 0 and -self.code != _SIGTERM else 0

    def blame(self, is_out_of_memory: Callable[[str], bool | None]) -> Blame:
        """The same in words."""
        state = f"left with exit status {self.code}"
        if self.signal:
            state = f"was killed by signal {self.signal} ({_SIGNALS.get(self.signal, 'see signal(7)')})"
        if self.signal == _SIGKILL:
            state += _OUT_OF_MEMORY[is_out_of_memory(self.host)]
        who = "a rank" if self.rank is None else f"rank {self.rank}"
        where = f" on host {self.host}" if self.host else ""
        return Blame(rank=self.rank, host=self.host, state=state, text=f"{who}{where} {state}")


def _by_launcher(text: str, processes: Mapping[int, tuple[str, int]]) -> _Exit | None:
    if found := _OPENMPI_SIGNAL.search(text):
        return _Exit(rank=int(found[1]), host=found[2], code=-int(found[3]))
    if failures := [_Exit(rank=int(rank), code=int(code)) for rank, code in _TORCHRUN.findall(text)]:
        return _by_torchrun(failures[-1], failures[:-1])
    if found := _OPENMPI_EXIT.search(text):
        return _Exit(rank=int(found[1]), code=int(found[2]))
    if found := _OPENMPI_ABORT.search(text):
        return _Exit(rank=int(found[1]), code=1)
    if tasks := _SRUN.findall(text):
        return _by_srun(tasks)
    return _by_hydra(text, processes)


def _by_hydra(text: str, processes: Mapping[int, tuple[str, int]]) -> _Exit | None:
    found = _MPICH.search(text)
    if not found:
        return None
    return _Exit(rank=_rank_of(int(found[1]), found[2], processes), host=found[2], code=-int(found[3]))


def _rank_of(pid: int, host: str, processes: Mapping[int, tuple[str, int]]) -> int | None:
    """The rank that a process on a host is: in containers, processes of several hosts have the same number."""
    ranks = [rank for rank, (_, number) in processes.items() if number == pid]
    there = [rank for rank in ranks if _short(processes[rank][0]) == _short(host)]
    candidates = there or ranks
    return candidates[0] if len(candidates) == 1 else None


def _short(host: str) -> str:
    """A host's name without its domain."""
    return host.partition(".")[0]


def _by_torchrun(noticed: _Exit, others: Sequence[_Exit]) -> _Exit:
    """Choose between the failure that torchrun noticed first and ``others``: a killed rank may be noticed later."""
    killed = [other for other in others if other.signal]
    return replace(killed[0], is_late=True) if noticed.code > 0 and killed else noticed


def _by_srun(failures: Sequence[Sequence[str]]) -> _Exit | None:
    """Choose the first death that is not srun's own doing, else the first exit status."""
    for host, rank, _, word in failures:
        number = _SRUN_SIGNALS.get(word.split(" srun")[0].split(" slurmstepd")[0].strip())
        if number is not None and number != _SIGTERM:
            return _Exit(rank=int(rank), host=host, code=-number)
    exits = [_Exit(rank=int(rank), host=host, code=int(code)) for host, rank, code, _ in failures if code]
    return exits[0] if exits else None


def _last_line(lines: Sequence[str]) -> str:
    """The last line that says something, for a launcher that we cannot read better."""
    told = [line.strip() for line in lines if re.search(r"\w", line)]
    return f": {told[-1][:200]}" if told else ""


# ------------------------------------------------------------------------------------------------ out of memory

#: What is added to a death by SIGKILL, by whether the kernel killed something for lack of memory meanwhile.
_OUT_OF_MEMORY = {
    True: ", by the kernel for lack of memory",
    False: ", not for lack of memory",
    None: "; the system may have run out of memory",
}


class MemoryKills:
    """Counts what the kernel kills on this host for lack of memory, from now on; in a memory control group, too."""

    def __init__(self, file: Path = Path("/proc/vmstat")) -> None:
        self._file = file
        self._before = self._count()

    def is_out_of_memory(self, host: str) -> bool | None:
        """Whether something was killed; None where that is unknown, as on other hosts than this one."""
        now = self._count()
        if host not in {"", socket.gethostname()} or now is None or self._before is None:
            return None
        return now > self._before

    def _count(self) -> int | None:
        try:
            found = re.search(r"^oom_kill (\d+)$", self._file.read_text(encoding="utf-8"), re.MULTILINE)
        except OSError:
            return None
        return int(found[1]) if found else None


#: How the interpreter begins what it prints of a process that dies of a signal.
_FATAL = "Fatal Python error"


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """Why a launch has failed, as run.json states it."""

    rank: int | None
    """None where no rank can be told to be the cause."""
    host: str
    pid: int | None
    """As its own host numbers it."""
    case: str
    """Empty before the first."""
    state: str
    """What is wrong with the rank, to follow its name: ``is stopped``, ``raised ValueError: ...``."""
    stack: Sequence[str]
    """Where the rank's main thread was, the innermost frame first; empty where that cannot be had."""
    others: Sequence[Mapping[str, object]]
    """What other ranks were doing: ``ranks`` and ``in``."""

    def to_json(self) -> dict[str, object]:
        """All of it."""
        return asdict(self)

    @property
    def waiting(self) -> str:
        """The others in a sentence without its full stop; empty where nothing is known of them."""
        parts = []
        for group in self.others:
            ranks = [str(rank) for rank in group["ranks"]]  # type: ignore[attr-defined]
            is_one = len(ranks) == 1
            parts.append(
                f"rank{'' if is_one else 's'} {', '.join(ranks)} {'was' if is_one else 'were'} in {group['in']}"
            )
        said = "; ".join(parts)
        return said[:1].upper() + said[1:]


class Evidence:
    """What ranks have said."""

    def __init__(self) -> None:
        self.words: list[LastWords] = []
        """Why ranks end themselves, in the order in which they came."""
        self._stacks: dict[tuple[int, str], Stack] = {}

    def hear(self, message: LastWords | Stack) -> None:
        """Keep what a rank says."""
        if isinstance(message, LastWords):
            self.words.append(message)
        else:
            self._stacks[message.rank, message.thread] = message

    def forget_stacks(self) -> None:
        """From here on, only what is told anew counts."""
        self._stacks.clear()

    @property
    def located(self) -> set[int]:
        """The ranks that have told where their main threads are."""
        return {rank for rank, thread in self._stacks if thread == MAIN}

    def convict(
        self, blame: Blame, case: AnyCase | None, processes: Mapping[int, tuple[str, int]], printed: Iterable[str]
    ) -> Culprit:
        """Put together what is known of a failure.

        Args:
            blame: what has ended the launch.
            case: in which it was, if any.
            processes: host and process of each rank that is known.
            printed: what interpreters may have printed of a dying rank.
        """
        host, pid = processes.get(-1 if blame.rank is None else blame.rank, (blame.host, None))
        others = {rank: self._place(rank, case) for rank in sorted(self.located) if rank != blame.rank}
        return Culprit(
            rank=blame.rank,
            host=blame.host or host,
            pid=pid,
            case=str(case or ""),
            state=blame.state,
            stack=self._stack(blame.rank, list(printed)),
            others=group_by_place(others),
        )

    def lines(self) -> list[str]:
        """All stacks, for people."""
        found = []
        for (rank, thread), told in sorted(self._stacks.items()):
            what = "" if thread == MAIN else f", thread {thread}"
            found.append(f"rank {rank} on host {told.host}{what}, most recent call first:")
            found += [f"  {frame}" for frame in told.stack]
        return found

    def _stack(self, rank: int | None, printed: Sequence[str]) -> list[str]:
        """Where a rank was: as it has told, as it raised, or as its interpreter has printed."""
        if rank is None:
            return []
        words = [words for words in self.words if words.rank == rank and words.stack]
        if words:
            return list(words[0].stack)
        if (rank, MAIN) in self._stacks:
            return list(self._stacks[rank, MAIN].stack)
        return stack_in(printed)

    def _place(self, rank: int, case: AnyCase | None) -> str:
        told = self._stacks[rank, MAIN]
        if not isinstance(case, Case):
            return waits_in(told.stack)
        what = f"{case.operation} of {case.backend}"
        return f"{what if told.inside else f'synchronising or preparing for {what}'}, at {waits_in(told.stack)}"


def of_a_crash(lines: Sequence[str]) -> list[str]:
    """What the interpreter has printed of a process that died of a signal; empty where nothing."""
    starts = [index for index, line in enumerate(lines) if _FATAL in line]
    return list(lines[starts[0] :]) if starts else []
