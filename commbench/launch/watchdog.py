"""The conductor's watchdog: whether ranks make progress, and clues to what has failed if not.

Counters alone do not show the failed rank: a rank that was stopped inside an operation and a rank
that waits for it have entered and left equally often. The failed rank is one that is stopped or
silent, else the one furthest behind, else, among ranks that poll while they wait, the idle one. The
rank that times out first is a victim.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from commbench.findings import Finding, Numbers
from commbench.launch.clues import Clue, name_ranks, worst
from commbench.launch.events import Heartbeat

#: A rank is silent after this many seconds without a heartbeat while others send theirs: six
#: intervals.
SILENCE_S = 3.0
#: The watchdog looks several times a second. After a longer gap the conductor itself was stopped;
#: the gap is ignored.
GAP_S = 5.0
#: Shares of the busiest rank's CPU time: a rank that polls uses more than the first, an idle one
#: less than the second.
BUSY, IDLE = 0.5, 0.2
#: A rank that polls uses more than this of a CPU, however many ranks take turns on it.
LEAST_POLLING = 0.05
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
#: What a process that is no longer heard does, by its state.
_STATES = {
    psutil.STATUS_RUNNING: "runs",
    psutil.STATUS_SLEEPING: "sleeps",
    psutil.STATUS_DISK_SLEEP: "waits for a device (state D)",
    psutil.STATUS_ZOMBIE: "has ended",
}


def process_state(host: str, pid: int) -> str:
    """Return the state of a process, as psutil names it; empty on another host or if it ended."""
    if host == socket.gethostname():
        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).status()
    return ""


@dataclass
class Watchdog:
    """Watches one launch. Callers pass the time, in seconds of one steady clock."""

    ranks: int
    """Number of ranks."""
    case_timeout: float
    """Seconds without progress after which the launch is hung."""
    timeout: float
    """The timeout that applies now, in seconds; before the first repetition a longer one, which
    includes compiling, loading and connecting."""
    begun: float
    """When the launch was started."""
    state_of: Callable[[str, int], str] = process_state
    """The state of a process on a host, see `process_state`."""
    here: str = field(default_factory=socket.gethostname)
    """The conductor's host."""

    def __post_init__(self) -> None:
        self.processes: dict[int, tuple[str, int]] = {}
        """Host and process number of each known rank."""
        self._last: dict[int, Heartbeat] = {}
        self._heard: dict[int, float] = {}
        """The time of the last heartbeat of each rank."""
        self._base: dict[int, tuple[int, float]] = {}
        """CPU time of each rank in ms at its first heartbeat since the last progress, and when."""
        self._moved = self._looked = self.begun
        self._polls = True
        self.case_number = -1
        """As `Heartbeat.case`, of the case that has begun last."""

    @property
    def pids(self) -> dict[int, int]:
        """The process number of each known rank, on its own host."""
        return {rank: pid for rank, (_, pid) in self.processes.items()}

    def introduce(self, rank: int, host: str, pid: int) -> None:
        """Note that rank ``rank`` is process ``pid`` of ``host``; a heartbeat states it, too."""
        self.processes[rank] = (host, pid)

    def heartbeat(self, beat: Heartbeat, now: float) -> None:
        """Note a heartbeat."""
        before = self._last.get(beat.rank)
        self._last[beat.rank], self._heard[beat.rank] = beat, now
        self.introduce(beat.rank, beat.host, beat.pid)
        if self.case_number >= 0 and beat.entered:
            self.timeout = self.case_timeout
        if before is None or before.position != beat.position:
            self.progress(now)
        self._base.setdefault(beat.rank, (beat.cpu_ms, now))

    def progress(self, now: float) -> None:
        """Note progress: CPU times are compared from here on."""
        self._moved = max(self._moved, now)
        self._base.clear()

    def case(self, now: float, *, polls: bool = True) -> None:
        """Note that a case begins, in which waiting ranks use a CPU if ``polls``."""
        self._polls = polls
        self.case_number += 1
        if self.case_number > 0 or any(beat.entered for beat in self._last.values()):
            self.timeout = self.case_timeout
        self.progress(now)

    def stuck(self, now: float) -> Clue | None:
        """Return the clue to a hang if nothing has moved for the timeout; else None."""
        gap = now - self._looked
        self._looked = now
        if gap > GAP_S:
            self._moved += gap
            for rank in self._heard:
                self._heard[rank] += gap
        if now - self._moved <= self.timeout:
            return None
        last = max(self._heard, key=self._heard.__getitem__, default=0)
        if now - self._heard.get(last, 0.0) > SILENCE_S:  # how far they are is not known
            numbers = {"since": self._since(last, now)}
            unheard = Clue(kind="unclear", code="no_rank_heard", numbers=numbers)
            return self._stopped() or unheard
        clues = [Clue(kind="unclear", code="no_rank_stands_out")]
        for clue in (self._stopped(), self.silent(now), self._behind(), self._idle()):
            if clue:
                clues.append(clue)
        return worst(clues)

    def _stopped(self) -> Clue | None:
        stopped = []
        for rank, (host, pid) in sorted(self.processes.items()):
            if self.state_of(host, pid) in _STOPPED:
                stopped.append(rank)
        return self._clue("stopped", "rank_stopped", stopped)

    def silent(self, now: float, *, counts_unheard: bool = True) -> Clue | None:
        """Return the clue of ranks whose heartbeats stopped while other ranks send theirs.

        None without such ranks.

        Args:
            now: the time in seconds, as of `time.monotonic`.
            counts_unheard: whether a rank that never sent a heartbeat is silent. It may not have
                begun yet.
        """
        silent = []
        for rank in range(self.ranks):
            is_silent = counts_unheard
            if rank in self._heard:
                is_silent = now - self._heard[rank] > SILENCE_S
            if is_silent:
                silent.append(rank)
        if len(silent) == self.ranks:
            return None
        lost = self._lost_hosts(silent)
        if lost:
            return self._lost_clue(lost, now)
        if not silent:
            return None
        numbers: Numbers = {"since": self._since(silent[0], now)}
        code, process = "rank_silent", ""
        if silent[0] in self.processes:
            process = _STATES.get(self.state_of(*self.processes[silent[0]]), "")
        if process:
            code, numbers["process"] = "rank_silent_process", process
        return self._clue("silent", code, silent, numbers)

    def _since(self, rank: int, now: float) -> str:
        """Return since when a rank has not been heard of."""
        if rank not in self._heard:
            return str(Finding("heard_never"))
        return str(Finding("heard_ago", numbers={"seconds": now - self._heard[rank]}))

    def _lost_hosts(self, silent: Sequence[int]) -> dict[str, list[int]]:
        """Return the other hosts of which all ranks are silent, with these ranks."""
        hosts: dict[str, list[int]] = {}
        for rank, (host, _) in sorted(self.processes.items()):
            if host != self.here:
                hosts.setdefault(host, []).append(rank)
        return {host: ranks for host, ranks in hosts.items() if set(ranks) <= set(silent)}

    def _lost_clue(self, lost: dict[str, list[int]], now: float) -> Clue:
        """Name silent hosts; if several are, this host may be cut off."""
        code = "host_silent"
        if len(lost) > 1:
            code = "hosts_silent"
        hosts = tuple(f"{host} ({name_ranks(ranks)})" for host, ranks in lost.items())
        host, ranks = next(iter(lost.items()))
        since = self._since(ranks[0], now)
        return Clue(
            kind="silent",
            code=code,
            rank=ranks[0],
            host=host,
            numbers={"hosts": hosts, "since": since, "here": self.here},
            is_host_lost=True,
        )

    def _behind(self) -> Clue | None:
        positions = {rank: (beat.case, beat.entered) for rank, beat in self._last.items()}
        lowest = min(positions.values(), default=None)
        behind = [rank for rank, place in sorted(positions.items()) if place == lowest]
        if len(behind) == len(positions):
            return None
        return self._clue("behind", "rank_behind", behind)

    def _idle(self) -> Clue | None:
        """Return the clue of ranks that are idle while all others poll.

        Any other split of CPU times shows nothing.
        """
        rates = {}
        for rank, (cpu_ms, since) in sorted(self._base.items()):
            passed_s = self._heard[rank] - since
            if passed_s > 0:
                rates[rank] = (self._last[rank].cpu_ms - cpu_ms) / 1000 / passed_s
        if not self._polls or len(rates) < self.ranks:
            return None
        busiest = max(rates.values())
        idle = [rank for rank, rate in rates.items() if rate < IDLE * busiest]
        busy = [rank for rank, rate in rates.items() if rate > BUSY * busiest]
        if busiest <= LEAST_POLLING or len(busy) + len(idle) < self.ranks:
            return None
        return self._clue("idle", "rank_idle", idle)

    def _clue(
        self, kind: str, code: str, ranks: Sequence[int], numbers: Numbers | None = None
    ) -> Clue | None:
        """Return the clue that ranks are in some state; None without ranks."""
        if not ranks:
            return None
        host, _ = self.processes.get(ranks[0], ("", 0))
        return Clue(
            kind=kind,
            code=code,
            rank=ranks[0],
            host=host,
            numbers=numbers or {},
            others=ranks[1:],
        )
