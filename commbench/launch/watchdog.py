"""The conductor's watchdog: whether ranks make progress, and which rank has failed if they do not.

Counters alone do not show the failed rank: a rank that was stopped inside an operation and a rank
that waits for it have entered and left equally often. The failed rank is one that is stopped or
silent, else the one furthest behind, else, among ranks that poll while they wait, the idle one. The
rank that times out first is a victim.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.launch.diagnosis import (
    Diagnosis,
    diagnose_lost_hosts,
    diagnose_no_rank,
    diagnose_ranks,
    diagnose_silent,
)
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


@dataclass(frozen=True, kw_only=True)
class _Heard:
    beat: Heartbeat
    at: float


def process_state(host: str, pid: int) -> str | None:
    """Return the state letter of a process (T: stopped).

    None on another host, or if this is not Linux.
    """
    if host != socket.gethostname():
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[0]


class Watchdog:
    """Watches one launch. Callers pass the time, in seconds of one steady clock.

    Args:
        ranks: number of ranks.
        case_timeout: seconds without progress after which the launch is hung.
        now: when the launch was started.
        startup_timeout: the same before the first repetition, which includes compiling, loading and
            connecting; by default equal.
        state_of: the state letter of a process on a host, see `process_state`.
        here: the conductor's host; None: this one.
    """

    def __init__(
        self,
        ranks: int,
        case_timeout: float,
        *,
        now: float,
        startup_timeout: float | None = None,
        state_of: Callable[[str, int], str | None] = process_state,
        here: str | None = None,
    ) -> None:
        self._ranks = ranks
        self._case_timeout = case_timeout
        self.timeout = case_timeout if startup_timeout is None else startup_timeout
        """The timeout that applies now, in seconds."""
        self._state_of = state_of
        self._here = socket.gethostname() if here is None else here
        self._processes: dict[int, tuple[str, int]] = {}
        self._last: dict[int, _Heard] = {}
        self._base: dict[int, _Heard] = {}
        self._moved = self._looked = now
        self._polls = True
        self._cases = 0

    @property
    def processes(self) -> dict[int, tuple[str, int]]:
        """Host and process number of each known rank."""
        return dict(self._processes)

    @property
    def pids(self) -> dict[int, int]:
        """The process number of each known rank, on its own host."""
        return {rank: pid for rank, (_, pid) in self._processes.items()}

    def introduce(self, rank: int, host: str, pid: int) -> None:
        """Note that rank ``rank`` is process ``pid`` of ``host``; a heartbeat states it, too."""
        self._processes[rank] = (host, pid)

    def heartbeat(self, beat: Heartbeat, now: float) -> None:
        """Note a heartbeat."""
        before = self._last.get(beat.rank)
        self._last[beat.rank] = _Heard(beat=beat, at=now)
        self.introduce(beat.rank, beat.host, beat.pid)
        if self._cases and beat.entered:
            self.timeout = self._case_timeout
        if before is None or _position(before.beat) != _position(beat):
            self.progress(now)
        self._base.setdefault(beat.rank, self._last[beat.rank])

    def progress(self, now: float) -> None:
        """Note progress: CPU times are compared from here on."""
        self._moved = max(self._moved, now)
        self._base = {rank: sign for rank, sign in self._last.items() if sign.at == now}

    def case(self, now: float, *, polls: bool = True) -> None:
        """Note that a case begins, in which waiting ranks use a CPU if ``polls``."""
        self._polls = polls
        self._cases += 1
        if self._cases > 1 or any(sign.beat.entered for sign in self._last.values()):
            self.timeout = self._case_timeout
        self.progress(now)

    def stuck(self, now: float) -> Diagnosis | None:
        """Return the diagnosis of a hang if nothing has moved for the timeout; else None."""
        gap = now - self._looked
        self._looked = now
        if gap > GAP_S:
            self._moved += gap
            self._last = {
                rank: _Heard(beat=sign.beat, at=sign.at + gap) for rank, sign in self._last.items()
            }
        if now - self._moved <= self.timeout:
            return None
        return (
            self._stopped()
            or self.silent(now)
            or self._behind()
            or self._idle()
            or diagnose_no_rank(is_any_heard=bool(self._last))
        )

    def _stopped(self) -> Diagnosis | None:
        processes = sorted(self._processes.items())
        stopped = [
            rank for rank, (host, pid) in processes if self._state_of(host, pid) in {"T", "t"}
        ]
        return self._diagnose(stopped, "is stopped") if stopped else None

    def silent(self, now: float) -> Diagnosis | None:
        """Return ranks whose heartbeats stopped while other ranks send theirs.

        None without such ranks.
        """
        silent = [
            r
            for r in range(self._ranks)
            if r not in self._last or now - self._last[r].at > SILENCE_S
        ]
        if not silent or len(silent) == self._ranks:
            return None
        lost = self._lost_hosts(silent)
        first = min((rank for ranks in lost.values() for rank in ranks), default=silent[0])
        for_s = now - self._last[first].at if first in self._last else None
        since = "since the start" if for_s is None else f"for {for_s:.0f} s"
        if lost:
            return self._diagnose_hosts(lost, since)
        host, pid = self._processes.get(first, ("", 0))
        return diagnose_silent(silent, host, since, self._state_of(host, pid))

    def _lost_hosts(self, silent: Sequence[int]) -> dict[str, list[int]]:
        """Return the other hosts of which all ranks are silent, with these ranks."""
        hosts: dict[str, list[int]] = {}
        for rank, (host, _) in sorted(self._processes.items()):
            hosts.setdefault(host, []).append(rank)
        return {
            host: ranks
            for host, ranks in hosts.items()
            if host != self._here and set(ranks) <= set(silent)
        }

    def _diagnose_hosts(self, lost: Mapping[str, Sequence[int]], since: str) -> Diagnosis:
        others = {host for host, _ in self._processes.values()} - {self._here}
        return diagnose_lost_hosts(lost, since, self._here, is_alone=lost.keys() >= others)

    def _behind(self) -> Diagnosis | None:
        positions = {rank: (sign.beat.case, sign.beat.entered) for rank, sign in self._last.items()}
        lowest = min(positions.values(), default=None)
        behind = [rank for rank, place in sorted(positions.items()) if place == lowest]
        return (
            self._diagnose(behind, "is furthest behind") if len(behind) < len(positions) else None
        )

    def _idle(self) -> Diagnosis | None:
        """Return the ranks that are idle while all others poll.

        Any other split of CPU times shows nothing.
        """
        if not self._polls:
            return None
        rates = {rank: self._rate(rank) for rank in range(self._ranks)}
        busiest = max((rate for rate in rates.values() if rate is not None), default=0.0)
        idle = [
            rank
            for rank, rate in sorted(rates.items())
            if rate is not None and rate < IDLE * busiest
        ]
        busy = [rank for rank, rate in rates.items() if rate is not None and rate > BUSY * busiest]
        is_clear = busiest > LEAST_POLLING and idle and len(busy) + len(idle) == len(rates)
        return self._diagnose(idle, "is idle while the others wait for it") if is_clear else None

    def _rate(self, rank: int) -> float | None:
        """Return the share of a CPU that a rank has used since the last progress."""
        if rank not in self._base or self._last[rank].at <= self._base[rank].at:
            return None
        last, base = self._last[rank], self._base[rank]
        return (last.beat.cpu_ms - base.beat.cpu_ms) / 1000 / (last.at - base.at)

    def _diagnose(self, ranks: Sequence[int], state: str) -> Diagnosis:
        host, _ = self._processes.get(ranks[0], ("", 0))
        return diagnose_ranks(ranks, state, host)


def _position(beat: Heartbeat) -> tuple[int, int]:
    return beat.case, beat.entered + beat.left
