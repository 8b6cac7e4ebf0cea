"""The timed loop in Python for every host backend.

Parameters, results and progress of all timed loops.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from commbench.engine.timing.sync import MINIMUM_PYTHON_SLACK_NS, Synchroniser
from commbench.system.clock import timer_cost_s
from commbench.system.process import without_collector

#: Stalls of a rank that are kept between two visits.
MOST_STALLS = 10


class Progress:
    """Counters of repetitions entered and left; native loops write them without holding the GIL."""

    def __init__(self) -> None:
        self.counters: NDArray[np.int64] = np.zeros(2, dtype=np.int64)
        self.case = ""
        self._stalls: list[tuple[float, float]] = []

    def add_stall(self, at_s: float, lasted_s: float) -> None:
        """Note that this process did not run for ``lasted_s`` from ``at_s`` on.

        Called by another thread.
        """
        if len(self._stalls) < MOST_STALLS:
            self._stalls.append((round(at_s, 3), round(lasted_s, 3)))

    def take_stalls(self) -> list[tuple[float, float]]:
        """Return the beginning and duration of each stall since the last call, in seconds."""
        taken, self._stalls = self._stalls, []
        return taken

    @property
    def total(self) -> int:
        """Return a number that changes while the rank makes progress."""
        return int(self.counters.sum())


Times = NDArray[np.int64]
Step = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A prepared, repeatable call: from Python, and from native code if it has ``rows``."""

    run: Step
    rows: Sequence[tuple[int, ...]] = ()
    """(address of a C function, its integer arguments...), called in order; each must return 0."""
    keep: Sequence[object] = ()
    """Memory that only addresses in ``rows`` refer to."""
    blocking: bool = False
    """Whether a device call returns only at its end on the device; the host's time is then part
    of it."""


def address_of(function: Any) -> int:
    """Return the address of a C function in this process."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None  # noqa: S101 - the library is loaded
    return address


def empty_call() -> Call:
    """Return a call that does nothing: in native code, a C function that returns its argument 0."""
    return Call(run=lambda: None, rows=[(address_of(ctypes.CDLL(None).abs), 0)])


@dataclass(frozen=True, kw_only=True)
class Order:
    """The calls of each repetition of a timed loop."""

    turns: Sequence[Sequence[Call]]
    """The calls of a repetition; several if sets of buffers rotate."""
    first: int = 0
    """The turn of the first repetition; the others follow cyclically."""
    batch: int = 1
    """How often a repetition makes the calls of its turn."""

    def unrolled(self) -> list[list[Call]]:
        """Return all calls of a repetition, of each turn."""
        return [[*turn] * self.batch for turn in self.turns]

    def steps(self, repetitions: int) -> list[Step]:
        """Return one function for each repetition."""
        functions = [run_in_order([call.run for call in turn]) for turn in self.unrolled()]
        places = range(self.first, self.first + repetitions)
        return [functions[place % len(functions)] for place in places]


class Turns(list[Call]):
    """The calls of an operation on each of several sets of buffers; timed loops rotate the sets.

    The next set is remembered between runs; otherwise short runs would use the first sets only.
    """

    def __init__(self, sets: Sequence[Sequence[Call]]) -> None:
        super().__init__(call for calls in sets for call in calls)
        self.sets = sets
        self._next = 0

    def order(self, repetitions: int, batch: int) -> Order:
        """Return the order in which each of ``batch`` operations uses the next set, from where the
        last run ended.
        """
        count = len(self.sets)
        turns = []
        for begin in range(0, count, batch):
            turn: list[Call] = []
            for position in range(begin, begin + batch):
                turn += self.sets[position % count]
            turns.append(turn)
        first = -(-self._next // batch) % len(turns)
        self._next = (first + repetitions) * batch % count
        return Order(turns=turns, first=first)


def in_turns(sets: Sequence[Sequence[Call]]) -> Sequence[Call]:
    """Return the calls of an operation on one set of buffers, or on several in turn."""
    if len(sets) == 1:
        return sets[0]
    return Turns(sets)


def order_of(calls: Sequence[Call], repetitions: int, batch: int) -> Order:
    """Return the order of the calls in ``repetitions`` repetitions of ``batch`` operations."""
    if isinstance(calls, Turns):
        return calls.order(repetitions, batch)
    return Order(turns=[calls], batch=batch)


@dataclass(frozen=True, kw_only=True)
class Repetitions:
    """One rank's stamps of n repetitions, each an array of shape (n,), on one clock within a
    run.
    """

    start_ns: Times
    end_ns: Times
    late: NDArray[np.bool_]
    """Whether this rank missed the agreed start, or its device had to wait for the host."""


class Timer(Protocol):
    """A timed loop of one backend. ``name`` is the row's ``loop``: native, python or event."""

    name: str
    sync: Synchroniser

    def prepare(self) -> None:
        """Compile and calibrate, once per launch before the first case; collective."""

    def run(self, calls: Sequence[Call], repetitions: int, batch: int) -> Repetitions:
        """Time ``repetitions`` of ``batch`` times ``calls``, with ranks synchronised before
        each.
        """

    def reading_ns(self) -> float:
        """Return the cost of one reading of this loop's clock, in nanoseconds."""


def median_us(timer: Timer, calls: Sequence[Call], repetitions: int, batch: int) -> float:
    """Return this rank's median time of one of ``batch`` operations, in microseconds."""
    timed = timer.run(calls, repetitions, batch)
    return float(np.median(timed.end_ns - timed.start_ns)) / batch / 1e3


class PythonTimer:
    """Times calls one by one from Python."""

    name = "python"

    def __init__(self, sync: Synchroniser, progress: Progress) -> None:
        self.sync = sync
        self._counters = progress.counters

    def prepare(self) -> None:
        """See `Timer.prepare`."""
        self.sync.calibrate(MINIMUM_PYTHON_SLACK_NS)

    def reading_ns(self) -> float:
        """See `Timer.reading_ns`."""
        return timer_cost_s() * 1e9

    def run(self, calls: Sequence[Call], repetitions: int, batch: int) -> Repetitions:
        """See `Timer.run`."""
        steps = order_of(calls, repetitions, batch).steps(repetitions)
        start = np.zeros(repetitions, dtype=np.int64)
        end = np.zeros(repetitions, dtype=np.int64)
        late = np.zeros(repetitions, dtype=np.bool_)
        counters, align, now = self._counters, self.sync.align, time.perf_counter_ns
        with quiet_interpreter():
            for repetition, run_once in enumerate(steps):
                late[repetition] = align()
                counters[0] += 1
                begun = now()
                run_once()
                end[repetition] = now()
                start[repetition] = begun
                counters[1] += 1
            self.sync.finish()
        clock = self.sync.clock
        return Repetitions(start_ns=clock.to_global(start), end_ns=clock.to_global(end), late=late)


def run_in_order(functions: Sequence[Step]) -> Step:
    """Return one function that calls all.

    A single function is returned as it is, without a loop.
    """
    if len(functions) == 1:
        return functions[0]

    def run_all() -> None:
        for function in functions:
            function()

    return run_all


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """Disable Python's garbage collector: a full collection takes milliseconds once torch is
    loaded.
    """
    gc.collect(0)
    gc.freeze()
    try:
        with without_collector():
            yield
    finally:
        gc.unfreeze()
