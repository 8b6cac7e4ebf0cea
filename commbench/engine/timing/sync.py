"""Synchronised starts of repetitions: an agreed instant, a dissemination barrier, a barrier, or
nothing.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field

from commbench.engine.control import Control, gather_everywhere
from commbench.engine.timing.clocks import GlobalClock

#: The agreed instant is this number of broadcast times ahead (ReproMPI's round-time
#: synchronisation).
SLACK_BROADCASTS = 3
BROADCAST_TRIALS = 10
MINIMUM_SLACK_NS = 2_000
#: Python takes microseconds between two lines and is interrupted more easily.
MINIMUM_PYTHON_SLACK_NS = 20_000
#: A rank that shares its core wakes up late by a time slice of the scheduler.
OVERSUBSCRIBED_SLACK_NS = 250_000
MAXIMUM_SLACK_NS = 4_000_000
#: A patient rank sleeps until this long before the agreed instant, then polls the clock.
POLLING_NS = 100_000
#: Above this share of late starts the slack grows.
TOLERATED_LATE = 0.1


def is_late(now_ns: int, instant_ns: int, tolerance_ns: int) -> bool:
    """Return whether a rank is too late for an agreed instant; native loops compile this function.

    A rank that begins to wait after the instant is late (tolerance 0). After waiting, a rank may
    leave up to the slack after the instant; beyond the slack, the system took its core meanwhile.
    """
    return now_ns - instant_ns > tolerance_ns


def choose_method(requested: str, *, shared_clock: bool, own_threads: bool) -> str:
    """Resolve ``auto``: round-time if ranks share a clock, else a dissemination barrier.

    ``shared_clock``: all ranks read one clock, or their clocks agree closely enough for the timed
    operation. A backend
    with its own threads gets a patient barrier: with an agreed start, many operations of Gloo took
    milliseconds on a small machine (docs/measuring.md).
    """
    if requested != "auto":
        return requested
    if own_threads:
        return "barrier"
    return "round-time" if shared_clock else "dissemination"


@dataclass
class Synchroniser:
    """Starts the ranks of a launch together over the control plane, from Python; native loops do
    the same by `commbench.engine.timing.native`.
    """

    control: Control
    method: str
    """round-time, dissemination, barrier or none."""
    clock: GlobalClock = field(default_factory=GlobalClock)
    """The clock of instants and stamps."""
    yielding: bool = False
    """Whether waiting ranks yield their core, because ranks share cores."""
    patient: bool = False
    """Whether waiting ranks sleep, because the backend works in threads of its own: a rank that
    polls would take the core from a thread that still has to deliver."""
    slack_ns: int = MINIMUM_SLACK_NS
    """The distance of an agreed instant, or the time by which a device's spin outlasts queueing
    (`commbench.engine.timing.device`); it grows if too many starts are late."""
    least_ns: int = MINIMUM_SLACK_NS
    """The calibrated slack, with which every visit begins."""

    def align(self) -> bool:
        """Wait until this rank may start; return whether it was too late for the agreed instant."""
        if self.method == "round-time":
            return self._at_agreed_instant()
        if self.method == "barrier":
            self.control.barrier(patient=self.patient)
        elif self.method == "dissemination":
            for target, source in self.rounds():
                self.control.exchange(target, source)
        return False

    @property
    def spans_ranks(self) -> bool:
        """Return whether a repetition lasts from the first start to the last end over all ranks."""
        return self.method == "round-time"

    def reset(self) -> None:
        """Restore the calibrated slack, so that one visit does not slow down the next."""
        self.slack_ns = self.least_ns

    def calibrate(self, least_ns: int) -> None:
        """Set the slack to at least ``least_ns`` and, for instants, three broadcasts;
        collective.
        """
        if self.yielding:
            least_ns = OVERSUBSCRIBED_SLACK_NS
        if self.method == "round-time":
            least_ns = max(least_ns, SLACK_BROADCASTS * self._broadcast_ns())
        self.least_ns = least_ns
        self.reset()

    def _broadcast_ns(self) -> int:
        """Return the median time, in ns, in which an instant reaches the last rank."""
        delays = []
        for _ in range(1 + BROADCAST_TRIALS):
            self.control.barrier(patient=self.patient)
            sent_at = self.control.broadcast_int(time.perf_counter_ns(), patient=self.patient)
            delays.append(time.perf_counter_ns() - self.clock.to_local(sent_at))
        return self.largest(round(statistics.median(delays[1:])))

    def largest(self, value: int) -> int:
        """Return the largest of all ranks' values; collective."""
        return max(gather_everywhere(self.control, value))

    def handle_late_starts(self) -> None:
        """Multiply the slack by four, up to the limit, and compare the clocks again, because too
        many starts were late; collective.
        """
        self.slack_ns = max(self.slack_ns, min(4 * self.slack_ns, MAXIMUM_SLACK_NS))
        self.clock.refresh()

    def _at_agreed_instant(self) -> bool:
        self.control.barrier(patient=self.patient)
        instant = time.perf_counter_ns() + self.slack_ns
        instant = self.clock.to_local(self.control.broadcast_int(instant, patient=self.patient))
        now = time.perf_counter_ns()
        if is_late(now, instant, 0):
            return True
        left_ns = instant - now
        if self.patient and left_ns > POLLING_NS:
            time.sleep((left_ns - POLLING_NS) / 1e9)
        while time.perf_counter_ns() < instant:
            if self.yielding:
                os.sched_yield()
        return is_late(time.perf_counter_ns(), instant, self.slack_ns)

    def finish(self) -> None:
        """Wait for the other ranks after the last repetition, before anything else keeps a core
        busy.
        """
        if self.patient:
            self.control.barrier(patient=True)

    def rounds(self) -> list[tuple[int, int]]:
        """Return the target and the source of empty messages in each round of a dissemination
        barrier: ranks at doubling distances (Hensgen, Finkel & Manber 1988).
        """
        rank, size = self.control.rank, self.control.size
        partners = []
        distance = 1
        while distance < size:
            partners.append(((rank + distance) % size, (rank - distance) % size))
            distance *= 2
        return partners
