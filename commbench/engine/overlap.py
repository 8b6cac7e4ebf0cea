"""Overlap of a non-blocking collective with computing, as OSU's non-blocking benchmarks define
it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from commbench.engine.control import Control
from commbench.engine.records import Overlap
from commbench.engine.samples import Samples
from commbench.engine.timing.loops import Call, Timer

REPETITIONS = 30
#: Attempts at a measurement whose starts are all late; each widens the slack.
ATTEMPTS = 4
_ALL_LATE = -1
#: Share of a case's time slice for each of the three measurements.
SHARE = 0.3
#: Order of the matrix in one step of computing, a matrix-vector product of about a microsecond.
ORDER = 32


def measure_overlap(
    calls: Sequence[Call],
    timer: Timer,
    control: Control,
    participants: Sequence[int],
    *,
    slice_s: float,
    fewest: int,
) -> Overlap | None:
    """Time a start and a completion with and without computing between them.

    Return medians on rank 0.

    None on the other ranks, and on rank 0 if no repetition started on time, as on very busy hosts.

    Args:
        calls: the start and the completion; none on a rank that does not take part.
        timer: a Python loop: computing is not native code, and all three times must be comparable.
        control: the ranks, which all call this together.
        participants: the ranks whose slowest counts.
        slice_s: time for all of it, in seconds.
        fewest: repetitions, however long they take.
    """
    first_ns = _median_ns(control, timer, calls, participants, min(fewest, 3))
    affordable = int(SHARE * slice_s * 1e9 / (first_ns or 1))
    repetitions = max(fewest, min(REPETITIONS, affordable))
    pure_ns = _median_ns(control, timer, calls, participants, repetitions)
    compute = [Call(run=Computing(pure_ns or 0).run)] if calls else []
    compute_ns = _median_ns(control, timer, compute, participants, repetitions)
    overall_ns = _median_ns(
        control, timer, [*calls[:1], *compute, *calls[1:]], participants, repetitions
    )
    if control.rank or pure_ns is None or compute_ns is None or overall_ns is None:
        return None
    return Overlap(pure_us=pure_ns / 1e3, compute_us=compute_ns / 1e3, overall_us=overall_ns / 1e3)


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


def _median_ns(
    control: Control,
    timer: Timer,
    calls: Sequence[Call],
    participants: Sequence[int],
    repetitions: int,
) -> int | None:
    """Return the median over repetitions of the slowest rank, on every rank.

    None if all starts were late.
    """
    for _ in range(ATTEMPTS):
        times_us = probe_us(control, timer, calls, participants, repetitions)
        median_ns = control.broadcast_int(
            round(1e3 * float(np.median(times_us))) if times_us else _ALL_LATE
        )
        if median_ns != _ALL_LATE:
            return median_ns
        timer.sync.handle_late_starts()
    return None


def probe_us(
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
