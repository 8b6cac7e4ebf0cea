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


def is_late_on_device(*, has_begun: bool, blocking: bool) -> bool:
    """Return whether a device had to wait for its host.

    Args:
        has_begun: whether the event before the calls had occurred when the host had queued the
            event after them.
        blocking: whether the calls return only at their end on the device; then the event has
            always occurred.
    """
    return has_begun and not blocking


@dataclass
class SyncPlan:
    """How the ranks of a launch start together.

    ``method`` is round-time, dissemination, barrier or none. ``slack_ns`` is the distance of an
    agreed instant, or the time by which a device's spin outlasts queueing
    (`commbench.engine.timing.device`); it grows if too many starts are late. ``yielding``: whether
    waiting ranks yield their core, because ranks share cores.
    """

    method: str
    slack_ns: int = MINIMUM_SLACK_NS
    yielding: bool = False
    least_ns: int = MINIMUM_SLACK_NS
    """The calibrated slack, with which every visit begins."""
    clock: GlobalClock = field(default_factory=GlobalClock)
    """The clock of instants and stamps."""

    def reset(self) -> None:
        """Restore the calibrated slack, so that one visit does not slow down the next."""
        self.slack_ns = self.least_ns

    def widen(self) -> None:
        """Multiply the slack by four, up to the limit."""
        self.slack_ns = max(self.slack_ns, min(4 * self.slack_ns, MAXIMUM_SLACK_NS))

    @property
    def spans_ranks(self) -> bool:
        """Return whether a repetition lasts from the first start to the last end over all ranks."""
        return self.method == "round-time"


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


class Synchroniser:
    """Starts ranks together over the control plane, from Python.

    ``patient``: waiting ranks yield their core, because the backend works in threads of its own. A
    rank that polls would take the core from a thread that still has to deliver.
    """

    def __init__(self, control: Control, plan: SyncPlan, *, patient: bool = False) -> None:
        self.plan = plan
        self._control = control
        self._patient = patient
        self._align = {
            "round-time": self._at_agreed_instant,
            "dissemination": self._disseminate,
            "barrier": self._barrier,
            "none": _at_once,
        }[plan.method]

    def calibrate(self, least_ns: int) -> None:
        """Set the slack to at least ``least_ns`` and, for instants, three broadcasts;
        collective.
        """
        least_ns = OVERSUBSCRIBED_SLACK_NS if self.plan.yielding else least_ns
        broadcasts_ns = (
            SLACK_BROADCASTS * self._broadcast_ns() if self.plan.method == "round-time" else 0
        )
        self.plan.least_ns = max(least_ns, broadcasts_ns)
        self.plan.reset()

    def _broadcast_ns(self) -> int:
        """Return the median time, in ns, in which an instant reaches the last rank."""
        delays = []
        for _ in range(1 + BROADCAST_TRIALS):
            self._control.barrier(patient=self._patient)
            sent_at = self._control.broadcast_int(time.perf_counter_ns(), patient=self._patient)
            delays.append(time.perf_counter_ns() - self.plan.clock.to_local(sent_at))
        return self.largest(round(statistics.median(delays[1:])))

    def largest(self, value: int) -> int:
        """Return the largest of all ranks' values; collective."""
        return max(gather_everywhere(self._control, value))

    def handle_late_starts(self) -> None:
        """Widen the slack and compare the clocks again, because too many starts were late;
        collective.
        """
        self.plan.widen()
        self.plan.clock.refresh()

    def align(self) -> bool:
        """Wait until this rank may start; return whether it was too late for the agreed instant."""
        return self._align()

    def _at_agreed_instant(self) -> bool:
        self._control.barrier(patient=self._patient)
        instant = time.perf_counter_ns() + self.plan.slack_ns
        instant = self.plan.clock.to_local(
            self._control.broadcast_int(instant, patient=self._patient)
        )
        now = time.perf_counter_ns()
        if is_late(now, instant, 0):
            return True
        left_ns = instant - now
        if self._patient and left_ns > POLLING_NS:
            time.sleep((left_ns - POLLING_NS) / 1e9)
        while time.perf_counter_ns() < instant:
            if self.plan.yielding:
                os.sched_yield()
        return is_late(time.perf_counter_ns(), instant, self.plan.slack_ns)

    def finish(self) -> None:
        """Wait for the other ranks after the last repetition, before anything else keeps a core
        busy.
        """
        if self._patient:
            self._control.barrier(patient=True)

    def _barrier(self) -> bool:
        self._control.barrier(patient=self._patient)
        return False

    def _disseminate(self) -> bool:
        """Rounds of empty messages over doubling distances (Hensgen, Finkel & Manber 1988)."""
        rank, size = self._control.rank, self._control.size
        distance = 1
        while distance < size:
            self._control.exchange((rank + distance) % size, (rank - distance) % size)
            distance *= 2
        return False


def _at_once() -> bool:
    return False
