"""What is measured beside the times of a visit: the state of the network and of the machine, GPU
clocks, energy, and the overlap of a non-blocking collective with computing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from commbench.collectives.cases import Case
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control
from commbench.engine.energy import EnergyMeter
from commbench.engine.records import Overlap
from commbench.engine.samples import Samples
from commbench.engine.session import Session
from commbench.engine.setup import Prepared, prepare
from commbench.engine.timing.loops import Call, Progress, Timer, median_us
from commbench.system import process

Fields = dict[str, Any]
"""Fields of a `commbench.engine.records.Record`."""


class Observer(Protocol):
    """Watches the repetitions of a visit; which observers there are is the same on all ranks."""

    def before(self) -> None:
        """Begin to watch, after the warm-up."""

    def after(self) -> object:
        """Return what this rank has seen, after the repetitions; may be collective."""

    def fields(self, ranks: Sequence[Any]) -> Fields:
        """Return fields of the visit's record on rank 0, from what each rank has seen."""


# ---------------------------------------------------------------------------------------- machine

#: A visit is disturbed if a rank waited longer than this share of it for a CPU, or if other guests
#: had CPUs so long.
DISTURBED_SHARE = 0.25


@dataclass
class Disturbance:
    """The share of time that a rank has waited for a CPU, or that other guests had CPUs."""

    counts_delay: bool
    """Whether this thread has a CPU of its own, so that waiting for one is a disturbance."""

    def before(self) -> None:
        """Read the kernel's counters."""
        self._begun = time.perf_counter()
        self._delay_s, self._stolen_s = process.waiting_s()

    def after(self) -> float:
        """Return the share since then."""
        lasted_s = time.perf_counter() - self._begun
        delay_s, stolen_s = process.waiting_s()
        waited_s = stolen_s - self._stolen_s
        if self.counts_delay:
            waited_s = max(waited_s, delay_s - self._delay_s)
        return waited_s / max(lasted_s, 1e-9)

    def fields(self, ranks: Sequence[float]) -> Fields:
        """Return whether the visit was disturbed on any rank, 0 or 1."""
        return {"disturbed": int(max(ranks) > DISTURBED_SHARE)}


# ----------------------------------------------------------------------------------------- energy


@dataclass
class EnergyObserver:
    """The energy of an operation on all hosts."""

    meter: EnergyMeter
    """The counters that each rank reads."""
    progress: Progress
    """Counts the repetitions."""
    operations: int
    """Of one repetition."""
    repeat: Callable[[], None] | None = None
    """Repeats the operation for the energy alone, after the times are known; None: the timed
    repetitions give the energy."""

    def before(self) -> None:
        """Read the counters."""
        self._readings = self.meter.read()
        self._repeated_before = int(self.progress.counters[1])
        self._begun = time.perf_counter()

    def after(self) -> float | None:
        """Return the joules of this rank's counters; None if one cannot be read."""
        if self.repeat:
            self.before()
            self.repeat()
        self._lasted_s = time.perf_counter() - self._begun
        self._repetitions = int(self.progress.counters[1]) - self._repeated_before
        return self.meter.joules_since(self._readings)

    def fields(self, ranks: Sequence[float | None]) -> Fields:
        """Return the energy of one operation, if it is known."""
        return self.meter.energy_each(ranks, self._repetitions * self.operations, self._lasted_s)


# ---------------------------------------------------------------------------------- network probe

#: Timed intervals of a probe, their length in microseconds, and the most operations of each.
INTERVALS, INTERVAL_US, MOST_OPERATIONS = 5, 5.0, 32


def probe_of(communicator: Communicator, session: Session) -> Callable[[], float] | None:
    """Return the backend's probe, opened once per launch; collective.

    It is a short operation before and after each visit, whose time tells the state of the machine:
    an 8-byte all_reduce of all ranks in the native loop, the same number of operations each time. A
    virtual machine whose CPUs are placed again can be in two states for seconds, in one of which
    all operations take longer. Which state a visit met is told by the probe alone, never by the
    visit's own times.

    Returns:
        This rank's median time of an operation in microseconds, collective; None without a native
        loop, a second rank, or a CPU for each.
    """
    backend = communicator.backend
    if backend in session.probes:
        return session.probes[backend]
    probe = None
    if "native" in communicator.loops and communicator.size > 1 and not session.oversubscribed:
        case = Case(
            backend=backend,
            operation="all_reduce",
            message_bytes=8,
            dtype="float64",
            redop="sum",
            in_place=True,
            loop="native",
        )
        calls = prepare(case, communicator, session.hosts).calls
        time_us = partial(median_us, session.timer(case, communicator), calls, INTERVALS)
        time_us(1)
        fitting = int(INTERVAL_US / max(time_us(1), 1e-3))
        operations = session.control.broadcast_int(max(1, min(MOST_OPERATIONS, fitting)))
        probe = partial(time_us, operations)
    session.probes[backend] = probe
    return probe


# ---------------------------------------------------------------------------------------- overlap

#: Repetitions of an overlap where there is time, and at least.
OVERLAPS, FEWEST_OVERLAPS = 30, 6
#: Attempts at a measurement whose starts are all late; each widens the slack.
ATTEMPTS = 4
_ALL_LATE = -1
#: Share of a case's time slice for each of the three measurements.
SHARE = 0.3
#: Order of the matrix in one step of computing, a matrix-vector product of about a microsecond.
ORDER = 32


@dataclass
class OverlapObserver:
    """The overlap of a non-blocking collective with computing, as OSU's non-blocking benchmarks
    define it: a start and a completion are timed with and without computing between them.
    """

    prepared: Prepared
    """Its calls are the start and the completion; none on a rank that does not take part."""
    session: Session
    make_timer: Callable[[], Timer]
    """Returns a Python loop: computing is not native code, and all three times must be
    comparable; collective."""
    fewest: int = FEWEST_OVERLAPS
    """Repetitions, however long they take."""

    def before(self) -> None:
        """Do nothing: the overlap is measured by itself."""

    def after(self) -> Overlap | None:
        """Return medians on rank 0; collective.

        None on the other ranks, and on rank 0 if no repetition started on time, as on very busy
        hosts.
        """
        timer, calls = self.make_timer(), self.prepared.calls
        first_ns = self._median_ns(timer, calls, min(self.fewest, 3))
        affordable = int(SHARE * self.session.budget.slice_s * 1e9 / (first_ns or 1))
        repetitions = max(self.fewest, min(OVERLAPS, affordable))
        pure_ns = self._median_ns(timer, calls, repetitions)
        compute = []
        if calls:
            compute = [Call(run=Computing(pure_ns or 0).run)]
        compute_ns = self._median_ns(timer, compute, repetitions)
        overall_ns = self._median_ns(timer, [*calls[:1], *compute, *calls[1:]], repetitions)
        if self.session.control.rank or pure_ns is None or compute_ns is None or overall_ns is None:
            return None
        return Overlap(
            pure_us=pure_ns / 1e3, compute_us=compute_ns / 1e3, overall_us=overall_ns / 1e3
        )

    def fields(self, ranks: Sequence[Overlap | None]) -> Fields:
        """Return the overlap that rank 0 has seen."""
        return {"overlap": ranks[0]}

    def _median_ns(self, timer: Timer, calls: Sequence[Call], repetitions: int) -> int | None:
        """Return the median over repetitions of the slowest rank, on every rank.

        None if all starts were late.
        """
        control, participants = self.session.control, self.prepared.participants
        for _ in range(ATTEMPTS):
            times_us = slowest_us(control, timer, calls, participants, repetitions)
            median_ns = _ALL_LATE
            if times_us:
                median_ns = round(1e3 * float(np.median(times_us)))
            median_ns = control.broadcast_int(median_ns)
            if median_ns != _ALL_LATE:
                return median_ns
            timer.sync.handle_late_starts()
        return None


class Computing:
    """Multiplies a small matrix with a vector for a given time in nanoseconds, as OSU's
    dummy_compute does.
    """

    def __init__(self, lasting_ns: int) -> None:
        self._lasting_ns = lasting_ns
        self._matrix = np.ones((ORDER, ORDER), dtype=np.float32)
        self._vector = np.ones(ORDER, dtype=np.float32)
        self._product = np.empty(ORDER, dtype=np.float32)

    def run(self) -> None:
        """Compute."""
        until = time.perf_counter_ns() + self._lasting_ns
        while time.perf_counter_ns() < until:
            np.dot(self._matrix, self._vector, out=self._product)


def slowest_us(
    control: Control,
    timer: Timer,
    calls: Sequence[Call],
    participants: Sequence[int],
    repetitions: int,
) -> list[float]:
    """Return the slowest rank's time of each of a few repetitions, in microseconds, on rank 0.

    None elsewhere.
    """
    gathered = control.gather(timer.run(calls, repetitions, 1))
    if gathered is None:
        return []
    samples = Samples(participants, spanning=False)
    samples.add(gathered)
    return samples.slowest_us(1)
