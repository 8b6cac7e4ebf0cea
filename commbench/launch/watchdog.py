"""The conductor's watchdog: whether ranks still make progress, and which rank is to blame when they do not.

Counters alone do not tell: a rank that was stopped inside an operation and one that waits for it have entered and left
equally often. The culprit is therefore a rank that is stopped or silent, else the one furthest behind, else, among
ranks that poll while they wait, the idle one. The rank that times out first is the victim, never the culprit.
"""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.launch.wire import Heartbeat, LastWords

#: A rank that has not been heard for so long, in seconds, while others have, is silent: six heartbeats.
SILENCE_S = 3.0
#: The watchdog looks several times a second; over a longer gap the conductor itself was stopped: that does not count.
GAP_S = 5.0
#: Shares of the busiest rank's CPU time: a rank that polls uses more than the first, an idle one less than the second.
BUSY, IDLE = 0.5, 0.2
#: A rank that polls uses more than this of a CPU, however many ranks take turns on it.
LEAST_POLLING = 0.05


@dataclass(frozen=True, kw_only=True)
class Hang:
    """No rank makes progress: who is to blame, as far as can be told, and why."""

    rank: int | None
    host: str
    text: str
    """E.g. ``rank 1 on host n1 is stopped``: what follows the word "hung:"."""


@dataclass(frozen=True, kw_only=True)
class _Sign:
    beat: Heartbeat
    at: float


def process_state(host: str, pid: int) -> str | None:
    """The state letter of a process (T: stopped) where it is on this host and this is Linux, else None."""
    if host != socket.gethostname():
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[0]


class Watchdog:
    """Watches one launch. It is told the time, in seconds of any steady clock, and never reads one itself.

    Args:
        ranks: how many ranks there are.
        case_timeout: seconds without progress after which the launch is hung.
        now: when the launch was started.
        startup_timeout: the same before the first case; by default no other.
        state_of: the state letter of a process on a host, see `process_state`.
    """

    def __init__(
        self,
        ranks: int,
        case_timeout: float,
        *,
        now: float,
        startup_timeout: float | None = None,
        state_of: Callable[[str, int], str | None] = process_state,
    ) -> None:
        self._ranks = ranks
        self._case_timeout = case_timeout
        self.timeout = case_timeout if startup_timeout is None else startup_timeout
        """What counts now, in seconds."""
        self._state_of = state_of
        self._processes: dict[int, tuple[str, int]] = {}
        self._last: dict[int, _Sign] = {}
        self._base: dict[int, _Sign] = {}
        self._moved = self._looked = now
        self._polls = True

    @property
    def pids(self) -> dict[int, int]:
        """The process of each rank that is known, as its own host numbers it."""
        return {rank: pid for rank, (_, pid) in self._processes.items()}

    @property
    def hosts(self) -> dict[int, str]:
        """The host of each rank that is known."""
        return {rank: host for rank, (host, _) in self._processes.items()}

    def introduce(self, rank: int, host: str, pid: int) -> None:
        """Rank ``rank`` is process ``pid`` of ``host``; a heartbeat says so too."""
        self._processes[rank] = (host, pid)

    def heartbeat(self, beat: Heartbeat, now: float) -> None:
        """A rank was heard."""
        before = self._last.get(beat.rank)
        self._last[beat.rank] = _Sign(beat=beat, at=now)
        self.introduce(beat.rank, beat.host, beat.pid)
        if before is None or _position(before.beat) != _position(beat):
            self.progress(now)
        self._base.setdefault(beat.rank, self._last[beat.rank])

    def progress(self, now: float) -> None:
        """Something has moved: CPU times are compared from here on."""
        self._moved = max(self._moved, now)
        self._base = {rank: sign for rank, sign in self._last.items() if sign.at == now}

    def case(self, now: float, *, polls: bool = True) -> None:
        """A case begins; ranks burn CPU while they wait if ``polls``."""
        self._polls = polls
        self.timeout = self._case_timeout
        self.progress(now)

    def stuck(self, now: float) -> Hang | None:
        """The hang, if nothing has moved for the case timeout."""
        gap = now - self._looked
        self._looked = now
        if gap > GAP_S:
            self._moved += gap
            self._last = {rank: _Sign(beat=sign.beat, at=sign.at + gap) for rank, sign in self._last.items()}
        if now - self._moved <= self.timeout:
            return None
        return self._stopped() or self._silent(now) or self._behind() or self._idle() or self._unknown()

    def _stopped(self) -> Hang | None:
        processes = sorted(self._processes.items())
        stopped = [rank for rank, (host, pid) in processes if self._state_of(host, pid) in {"T", "t"}]
        return self._blame(stopped, "stopped") if stopped else None

    def _silent(self, now: float) -> Hang | None:
        """Ranks not heard lately, where others are: their process or host is stopped, dead or cut off."""
        silent = [r for r in range(self._ranks) if r not in self._last or now - self._last[r].at > SILENCE_S]
        if not silent or len(silent) == self._ranks:
            return None
        return self._blame(silent, "silent" if silent[0] in self._last else "silent since the start")

    def _behind(self) -> Hang | None:
        positions = {rank: (sign.beat.case, sign.beat.entered) for rank, sign in self._last.items()}
        lowest = min(positions.values(), default=None)
        behind = [rank for rank, place in sorted(positions.items()) if place == lowest]
        return self._blame(behind, "furthest behind") if len(behind) < len(positions) else None

    def _idle(self) -> Hang | None:
        """The ranks that do nothing where the others poll; no other split of CPU times means anything."""
        if not self._polls:
            return None
        rates = {rank: self._rate(rank) for rank in range(self._ranks)}
        known = [rate for rate in rates.values() if rate is not None]
        busiest = max(known, default=0.0)
        idle = [rank for rank, rate in sorted(rates.items()) if rate is not None and rate < IDLE * busiest]
        busy = [rank for rank, rate in rates.items() if rate is not None and rate > BUSY * busiest]
        told = busiest > LEAST_POLLING and idle and len(busy) + len(idle) == len(rates)
        return self._blame(idle, "idle while the others wait for it") if told else None

    def _rate(self, rank: int) -> float | None:
        """Share of a CPU that a rank has used since nothing moves."""
        if rank not in self._base or self._last[rank].at <= self._base[rank].at:
            return None
        last, base = self._last[rank], self._base[rank]
        return (last.beat.cpu_ms - base.beat.cpu_ms) / 1000 / (last.at - base.at)

    def _unknown(self) -> Hang:
        if not self._last:
            return Hang(rank=None, host="", text="no rank has been heard of since the launch was started")
        return Hang(rank=None, host="", text="all ranks are alive and equally far; none can be told to be the cause")

    def _blame(self, ranks: Sequence[int], what: str) -> Hang:
        host, _ = self._processes.get(ranks[0], ("", 0))
        listed = ", ".join(str(rank) for rank in ranks[1:])
        others = f" (as {'are ranks' if len(ranks) > 2 else 'is rank'} {listed})" if listed else ""  # noqa: PLR2004 - grammar
        where = f" on host {host}" if host else ""
        return Hang(rank=ranks[0], host=host, text=f"rank {ranks[0]}{where} is {what}{others}")


def _position(beat: Heartbeat) -> tuple[int, int]:
    return beat.case, beat.entered + beat.left


# ------------------------------------------------------------------------------------------- how a launch has ended

#: What a rank says that has lost its partner: a victim.
_VICTIM = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken ?pipe|timed out|closed by peer|socket closed",
    re.IGNORECASE,
)
_Blame = tuple[int | None, str]
_OPENMPI_SIGNAL = re.compile(r"rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+) \((.+?)\)")
_OPENMPI_EXIT = re.compile(r"Process name: \[.+?,(\d+)\] Exit code: (\d+)")
_OPENMPI_PEER = re.compile(r"peer process has unexpectedly disconnected\..*?Peer host: (\S+)")
_OPENMPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d+)")
_TORCHRUN = re.compile(r"rank +: (\d+) \(local_rank: \d+\) exitcode +: (-?\d+) \(pid: \d+\)")
_MPICH = re.compile(r"PID (\d+) RUNNING AT (\S+).*?EXIT (?:CODE|STATUS): (\d+)")
#: srun names tasks host by host, first the one that ended first; of those that it ended itself it says "Terminated".
_SRUN = re.compile(r"srun: error: (\S+): tasks? (\d+)[\d,-]*: (?:Exited with exit code (\d+)|([A-Z][A-Za-z ]*))")
_SRUN_SIGNALS = {signal.strsignal(number): number for number in signal.valid_signals()} | {"Out Of Memory": 9}
#: What our own tear-down does to the ranks that were still alive.
_SIGTERM = 15
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
    pids: Mapping[int, int] | None = None,
    hosts: Mapping[int, str] | None = None,
) -> tuple[int | None, str]:
    """Which rank ended a launch, if that can be told, and how, in words.

    A death by signal comes first: partners of a dead rank raise errors as well, and sooner than the launcher notices.
    Then the first error of a rank that does not merely complain about a lost partner, then an exit status.

    Args:
        stderr_lines: what the launcher and the ranks wrote, messages of ours left out.
        errors: the last words of ranks, in order.
        returncode: of the launcher.
        pids: process of each rank, for launchers that name processes only.
        hosts: host of each rank, for messages that name hosts only.
    """
    text = " ".join(" ".join(stderr_lines).split())
    killed, left = _by_launcher(text, {pid: rank for rank, pid in (pids or {}).items()})
    causes = [words for words in errors if not _VICTIM.search(words.text)]
    if killed:
        return killed
    for words in (*causes, *([] if left else errors)):
        return words.rank, f"rank {words.rank} on host {words.host} raised {words.text}"
    return (
        _lost_peer(text, hosts or {})
        or left
        or (None, f"the launcher ended with exit status {returncode}{_last_line(stderr_lines)}")
    )


def _by_launcher(text: str, ranks: Mapping[int, int]) -> tuple[_Blame | None, _Blame | None]:
    """(a rank killed by a signal, a rank that left by itself), as the launcher reports it."""
    if found := _OPENMPI_SIGNAL.search(text):
        return _death(int(found[1]), f" on host {found[2]}", -int(found[3]))
    if failures := [(int(rank), int(code)) for rank, code in _TORCHRUN.findall(text)]:
        return _by_torchrun(*failures[-1], failures[:-1])
    if found := _OPENMPI_EXIT.search(text):
        return _death(int(found[1]), "", int(found[2]))
    if found := _OPENMPI_ABORT.search(text):
        return None, (int(found[1]), f"rank {found[1]} aborted MPI")
    if tasks := _SRUN.findall(text):
        return _by_srun(tasks)
    found = _MPICH.search(text)
    return _death(ranks.get(int(found[1])), f" on host {found[2]}", -int(found[3])) if found else (None, None)


def _by_torchrun(rank: int, code: int, others: Sequence[tuple[int, int]]) -> tuple[_Blame | None, _Blame | None]:
    """Choose between the failure that torchrun noticed first and ``others``: a killed rank may be noticed later."""
    killed = [(other, status) for other, status in others if status < 0 and -status != _SIGTERM]
    if code > 0 and killed:
        death, _ = _death(killed[0][0], "", killed[0][1])
        return None, death
    return _death(rank, "", code)


def _lost_peer(text: str, hosts: Mapping[int, str]) -> _Blame | None:
    """The rank that has died where mpirun blames the one that first lost its connection to it."""
    found = _OPENMPI_PEER.search(text)
    if not found:
        return None
    there = [rank for rank, host in sorted(hosts.items()) if host == found[1]]
    who = f"rank {there[0]}" if len(there) == 1 else "a rank"
    return there[0] if len(
        there
    ) == 1 else None, f"{who} on host {found[1]} has died: others lost their connection to it"


def _by_srun(failures: Sequence[Sequence[str]]) -> tuple[_Blame | None, _Blame | None]:
    """Choose the first death that is not srun's own doing, else the first exit status."""
    for host, rank, _, word in failures:
        number = _SRUN_SIGNALS.get(word.split(" srun")[0].split(" slurmstepd")[0].strip())
        if number is not None and number != _SIGTERM:
            return _death(int(rank), f" on host {host}", -number)
    exits = [(host, rank, code) for host, rank, code, _ in failures if code]
    return _death(int(exits[0][1]), f" on host {exits[0][0]}", int(exits[0][2])) if exits else (None, None)


def _death(rank: int | None, where: str, code: int) -> tuple[_Blame | None, _Blame | None]:
    """Word an exit status; negative ones are signals."""
    who = f"rank {rank}{where}" if rank is not None else f"a rank{where}"
    if code >= 0 or -code == _SIGTERM:
        return None, (rank, f"{who} left with exit status {code}")
    hint = "; the system may have run out of memory" if code == -9 else ""  # noqa: PLR2004 - SIGKILL
    return (rank, f"{who} was killed by signal {-code} ({_SIGNALS.get(-code, 'see signal(7)')}){hint}"), None


def _last_line(lines: Sequence[str]) -> str:
    """The last line that says something, for a launcher that we cannot read better."""
    told = [line.strip() for line in lines if re.search(r"\w", line)]
    return f": {told[-1][:200]}" if told else ""
