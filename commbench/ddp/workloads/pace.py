"""How a replayed step spends its time: by keeping a core busy, as computing on it would, or by sleeping.

numba's decorators have no types.
"""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
from numba import njit, types

CLOCK_THREAD_CPUTIME_ID = 3
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))


@njit(nogil=True, cache=True)
def keep_busy(cpu_ns: int) -> None:
    """Use the core for so many nanoseconds of this thread's CPU time, without holding the interpreter."""
    now = np.zeros(2, dtype=np.int64)
    _clock_gettime(CLOCK_THREAD_CPUTIME_ID, now.ctypes.data)
    end = now[0] * 1_000_000_000 + now[1] + cpu_ns
    while now[0] * 1_000_000_000 + now[1] < end:
        _clock_gettime(CLOCK_THREAD_CPUTIME_ID, now.ctypes.data)


class Pace(Protocol):
    """Keeps a replayed pass to its recorded times."""

    def begin(self) -> None:
        """A pass begins."""

    def enter(self) -> None:
        """The work before a recorded time begins; what came between belongs to DDP."""

    def until(self, recorded_ms: float) -> None:
        """Return when the pass is as old as that."""


class BusyPace:
    """Spends CPU time, so that whatever else needs the core delays the replay as it would delay the model.

    What DDP and its hooks do between two gradients is added to the recorded times, as in life. ``overhead_ns`` is what
    the replay itself needs there for each gradient; it is taken off.
    """

    def __init__(self, overhead_ns: int) -> None:
        self.overhead_ns = overhead_ns
        self.spent_ns = 0
        self._entered = 0
        keep_busy(0)  # compiles, or loads numba's cache

    def begin(self) -> None:
        """See `Pace.begin`."""
        self.spent_ns = 0

    def enter(self) -> None:
        """See `Pace.enter`."""
        self._entered = time.thread_time_ns()

    def until(self, recorded_ms: float) -> None:
        """See `Pace.until`."""
        self.spent_ns += self.overhead_ns
        missing = round(recorded_ms * 1e6) - self.spent_ns - (time.thread_time_ns() - self._entered)
        if missing > 0:
            keep_busy(missing)
        self.spent_ns += time.thread_time_ns() - self._entered


class SleepingPace:
    """Sleeps until the recorded time: for a trace of a GPU, which leaves the core free."""

    def __init__(self) -> None:
        self._begun = 0

    def begin(self) -> None:
        """See `Pace.begin`."""
        self._begun = time.perf_counter_ns()

    def enter(self) -> None:
        """See `Pace.enter`."""

    def until(self, recorded_ms: float) -> None:
        """See `Pace.until`."""
        missing = recorded_ms / 1e3 - (time.perf_counter_ns() - self._begun) / 1e9
        if missing > 0:
            time.sleep(missing)
