"""The conductor's watchdog: whether ranks still make progress, and which rank is to blame when they do not.

Counters alone do not tell: a rank that was stopped inside an operation and one that waits for it have entered and left
equally often. The culprit is therefore a rank that is stopped or silent, else the one furthest behind, else, among
ranks that poll while they wait, the idle one. The rank that times out first is the victim, never the culprit.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.launch.diagnosis import Blame
from commbench.launch.protocol import Heartbeat

#: A rank that has not been heard for so long, in seconds, while others have, is silent: six heartbeats.
SILENCE_S = 3.0
#: The watchdog looks several times a second; over a longer gap the conductor itself was stopped: that does not count.
GAP_S = 5.0
#: Shares of the busiest rank's CPU time: a rank that polls uses more than the first, an idle one less than the second.
BUSY, IDLE = 0.5, 0.2
#: A rank that polls uses more than this of a CPU, however many ranks take turns on it.
LEAST_POLLING = 0.05


#: What process states mean for one that is not heard of.
_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a device (state D)", "Z": "has ended"}


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
        startup_timeout: the same before the first repetition, as what is compiled, loaded or connected at first use is
            part of starting; by default no other.
        state_of: the state letter of a process on a host, see `process_state`.
        here: the host that watches; None: this one.
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
        """What counts now, in seconds."""
        self._state_of = state_of
        self._here = socket.gethostname() if here is None else here
        self._processes: dict[int, tuple[str, int]] = {}
        self._last: dict[int, _Sign] = {}
        self._base: dict[int, _Sign] = {}
        self._moved = self._looked = now
        self._polls = True
        self._cases = 0

    @property
    def processes(self) -> dict[int, tuple[str, int]]:
        """Host and process of each rank that is known."""
        return dict(self._processes)

    @property
    def pids(self) -> dict[int, int]:
        """The process of each rank that is known, as its own host numbers it."""
        return {rank: pid for rank, (_, pid) in self._processes.items()}

    def introduce(self, rank: int, host: str, pid: int) -> None:
        """Rank ``rank`` is process ``pid`` of ``host``; a heartbeat says so too."""
        self._processes[rank] = (host, pid)

    def heartbeat(self, beat: Heartbeat, now: float) -> None:
        """A rank was heard."""
        before = self._last.get(beat.rank)
        self._last[beat.rank] = _Sign(beat=beat, at=now)
        self.introduce(beat.rank, beat.host, beat.pid)
        if self._cases and beat.entered:
            self.timeout = self._case_timeout
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
        self._cases += 1
        if self._cases > 1 or any(sign.beat.entered for sign in self._last.values()):
            self.timeout = self._case_timeout
        self.progress(now)

    def stuck(self, now: float) -> Blame | None:
        """The hang, if nothing has moved for the case timeout."""
        gap = now - self._looked
        self._looked = now
        if gap > GAP_S:
            self._moved += gap
            self._last = {rank: _Sign(beat=sign.beat, at=sign.at + gap) for rank, sign in self._last.items()}
        if now - self._moved <= self.timeout:
            return None
        return self._stopped() or self.silent(now) or self._behind() or self._idle() or self._unknown()

    def _stopped(self) -> Blame | None:
        processes = sorted(self._processes.items())
        stopped = [rank for rank, (host, pid) in processes if self._state_of(host, pid) in {"T", "t"}]
        return self._blame(stopped, "is stopped") if stopped else None

    def silent(self, now: float) -> Blame | None:
        """Ranks not heard lately, where others are: their process or host is stopped, dead or cut off."""
        silent = [r for r in range(self._ranks) if r not in self._last or now - self._last[r].at > SILENCE_S]
        if not silent or len(silent) == self._ranks:
            return None
        lost = self._lost_hosts(silent)
        first = min((rank for ranks in lost.values() for rank in ranks), default=silent[0])
        for_s = now - self._last[first].at if first in self._last else None
        since = "since the start" if for_s is None else f"for {for_s:.0f} s"
        if lost:
            return self._blame_hosts(lost, since)
        state = f"has not been heard of {since}{_while(self._state_of(*self._processes.get(first, ('', 0))))}"
        return self._blame(silent, state)

    def _lost_hosts(self, silent: Sequence[int]) -> dict[str, list[int]]:
        """The other hosts on which no rank is heard, and their ranks."""
        hosts: dict[str, list[int]] = {}
        for rank, (host, _) in sorted(self._processes.items()):
            hosts.setdefault(host, []).append(rank)
        return {host: ranks for host, ranks in hosts.items() if host != self._here and set(ranks) <= set(silent)}

    def _blame_hosts(self, lost: Mapping[str, Sequence[int]], since: str) -> Blame:
        """Blame hosts that are not heard; where that is all of several others, this one may be cut off."""
        named = ", ".join(f"{host} ({_named(ranks)})" for host, ranks in lost.items())
        text = f"host {named} has not been heard of {since}"
        if lost.keys() >= {host for host, _ in self._processes.values()} - {self._here} and len(lost) > 1:
            text = f"hosts {named} have not been heard of {since}; it may be {self._here} that has lost its network"
        elif len(lost) > 1:
            text = f"hosts {named} have not been heard of {since}"
        host, ranks = next(iter(lost.items()))
        state = f"has not been heard of {since}"
        return Blame(rank=ranks[0], host=host, state=state, text=text, is_lost=True)

    def _behind(self) -> Blame | None:
        positions = {rank: (sign.beat.case, sign.beat.entered) for rank, sign in self._last.items()}
        lowest = min(positions.values(), default=None)
        behind = [rank for rank, place in sorted(positions.items()) if place == lowest]
        return self._blame(behind, "is furthest behind") if len(behind) < len(positions) else None

    def _idle(self) -> Blame | None:
        """The ranks that do nothing where the others poll; no other split of CPU times means anything."""
        if not self._polls:
            return None
        rates = {rank: self._rate(rank) for rank in range(self._ranks)}
        known = [rate for rate in rates.values() if rate is not None]
        busiest = max(known, default=0.0)
        idle = [rank for rank, rate in sorted(rates.items()) if rate is not None and rate < IDLE * busiest]
        busy = [rank for rank, rate in rates.items() if rate is not None and rate > BUSY * busiest]
        told = busiest > LEAST_POLLING and idle and len(busy) + len(idle) == len(rates)
        return self._blame(idle, "is idle while the others wait for it") if told else None

    def _rate(self, rank: int) -> float | None:
        """Share of a CPU that a rank has used since nothing moves."""
        if rank not in self._base or self._last[rank].at <= self._base[rank].at:
            return None
        last, base = self._last[rank], self._base[rank]
        return (last.beat.cpu_ms - base.beat.cpu_ms) / 1000 / (last.at - base.at)

    def _unknown(self) -> Blame:
        if not self._last:
            return Blame(rank=None, text="no rank has been heard of since the launch was started")
        return Blame(rank=None, text="all ranks are alive and equally far; none can be told to be the cause")

    def _blame(self, ranks: Sequence[int], state: str) -> Blame:
        host, _ = self._processes.get(ranks[0], ("", 0))
        others = f" (as {'are' if len(ranks) > 2 else 'is'} {_named(ranks[1:])})" if ranks[1:] else ""  # noqa: PLR2004 - grammar
        where = f" on host {host}" if host else ""
        return Blame(rank=ranks[0], host=host, state=state, text=f"rank {ranks[0]}{where} {state}{others}")


def _named(ranks: Sequence[int]) -> str:
    """``rank 1``, or ``ranks 1, 2``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank) for rank in ranks)}"


def _while(letter: str | None) -> str:
    """What a process does that is not heard of, as far as its state tells."""
    return f" although its process {_STATES[letter]}" if letter in _STATES else ""


def _position(beat: Heartbeat) -> tuple[int, int]:
    return beat.case, beat.entered + beat.left
