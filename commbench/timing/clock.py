"""The monotonic clock that every stamp comes from: its tick, and the price of reading it."""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np

READINGS = 2000


@lru_cache(maxsize=1)
def _differences() -> tuple[float, float]:
    """Smallest non-zero and median difference of successive readings, in nanoseconds."""
    now = time.perf_counter_ns
    stamps = np.array([now() for _ in range(READINGS)])
    steps = np.diff(stamps)
    moved = steps[steps > 0]
    return float(moved.min()) if moved.size else 1.0, float(np.median(steps))


def tick_ns() -> float:
    """The resolution of CLOCK_MONOTONIC, in nanoseconds: finer than one reading from Python can see is taken from the system."""
    return min(_differences()[0], max(1.0, 1e9 * time.clock_getres(time.CLOCK_MONOTONIC)))


def reading_ns() -> float:
    """What one reading of the clock from Python takes, in nanoseconds."""
    return _differences()[1]
