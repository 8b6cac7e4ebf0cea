"""How much of a non-blocking collective hides behind computing, as OSU's non-blocking benchmarks define it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from commbench.engine.control import Control
from commbench.engine.records import Overlap
from commbench.engine.samples import Samples
from commbench.engine.timing.loops import Call, Timer

REPETITIONS = 30
#: How often a measurement is tried where all starts were late; each time ranks agree on instants further ahead.
ATTEMPTS = 4
_ALL_LATE = -1
#: Share of a case's time slice for each of the three measurements.
SHARE = 0.3
#: Order of the matrix whose product with a vector is one step of computing: about a microsecond.
ORDER = 32


def measure_overlap(
    calls: Sequence[Call], timer: Timer, control: Control, participants: Sequence[int], slice_s: float
) -> Overlap | None:
    """Time a start and a completion with and without computing in between; the medians on rank 0, None elsewhere.

    None on rank 0, too, where no repetition began on time, as happens on hosts that are very busy.

    Args:
        calls: the start and the completion; none on a rank that stands aside.
        timer: a Python loop: computing is not native code, and all three times must be comparable.
        control: the ranks, which all call this together.
        participants: the ranks whose slowest counts.
        slice_s: time for all of it, in seconds.
    """
    first_ns = _median_ns(control, timer, calls, participants, 3)
    affordable = int(SHARE * slice_s * 1e9 / (first_ns or 1))
    repetitions = max(6, min(REPETITIONS, affordable))
    pure_ns = _median_ns(control, timer, calls, participants, repetitions)
    compute = [Call(run=Computing(pure_ns or 0).run)] if calls else []
    compute_ns = _median_ns(control, timer, compute, participants, repetitions)
    overall_ns = _median_ns(control, timer, [*calls[:1], *compute, *calls[1:]], participants, repetitions)
    if control.rank or pure_ns is None or compute_ns is None or overall_ns is None:
        return None
    return Overlap(pure_us=pure_ns / 1e3, compute_us=compute_ns / 1e3, overall_us=overall_ns / 1e3)


class Computing:
    """Multiplies a small matrix with a vector until so many nanoseconds have passed, as OSU's dummy_compute does."""

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


def _median_ns(
    control: Control, timer: Timer, calls: Sequence[Call], participants: Sequence[int], repetitions: int
) -> int | None:
    """Median over repetitions of the slowest rank, on every rank; None where all starts were late all the same."""
    for _ in range(ATTEMPTS):
        times_us = probe_us(control, timer, calls, participants, repetitions)
        median_ns = control.broadcast_int(round(1e3 * float(np.median(times_us))) if times_us else _ALL_LATE)
        if median_ns != _ALL_LATE:
            return median_ns
        timer.sync.handle_late_starts()
    return None


def probe_us(
    control: Control, timer: Timer, calls: Sequence[Call], participants: Sequence[int], repetitions: int
) -> list[float]:
    """The slowest rank's time of each of a few repetitions, in microseconds, on rank 0; none elsewhere."""
    gathered = control.gather(timer.run(calls, repetitions, 1))
    if gathered is None:
        return []
    samples = Samples(participants, spanning=False)
    samples.add(gathered)
    return samples.slowest_us(1)
