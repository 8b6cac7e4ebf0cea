"""The timed loop of a device: events on its stream around the calls, and ranks synchronised by the
device itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from commbench.engine.timing.loops import (
    Call,
    Progress,
    Repetitions,
    Step,
    Times,
    order_of,
    quiet_interpreter,
)
from commbench.engine.timing.sync import MINIMUM_PYTHON_SLACK_NS, Synchroniser

#: Resolution of a CUDA event, about half a microsecond (CUDA Runtime API, cudaEventElapsedTime).
RESOLUTION_NS = 500.0
#: Spins that measure the device's clock rate, each about half a millisecond; the clock rises during
#: the first ones.
SPINS, SPIN_CYCLES = 5, 1_000_000


class DeviceClock(Protocol):
    """The device operations that the loop needs."""

    def spin(self, cycles: int) -> None:
        """Queue a kernel that keeps the stream busy for ``cycles`` cycles of the device's clock."""

    def rendezvous(self) -> None:
        """Queue a small exchange that ends only when every rank's device has begun it."""

    def new_event(self) -> Any:
        """Make an event with the methods of `torch.cuda.Event` that the loop calls: ``record``,
        ``query``, ``synchronize`` and ``elapsed_time``.
        """


class EventTimer:
    """Times calls by events on the stream on which they are queued.

    If ranks start together, the host synchronises with the other ranks and then queues a spin, an
    exchange that synchronises the devices, and the operation between two events. The spin outlasts
    the queueing, so the time excludes the host. This is checked: the first event must not have
    occurred when the second has been queued. A repetition that fails the check counts as a late
    start. The spin's length is the slowest rank's queueing time in the previous run of as many
    operations (a warm-up at first) plus the slack of ``sync``, which grows if too many starts are
    late.

    Without synchronisation, repetitions are queued back to back and awaited at the end. Each lasts
    from the end of the previous one, so their sum includes any time in which the stream waits for
    the host. Events of different devices share no clock; stamps are of the rank's own device and
    begin at 0 in each run.
    """

    name = "event"

    def __init__(self, sync: Synchroniser, device: DeviceClock, progress: Progress) -> None:
        self.sync = sync
        self._device = device
        self._counters = progress.counters
        self._events: list[Any] = []
        self._cycles_per_ns = 0.0
        self._queueing_ns: dict[int, int] = {}
        """By the operations of a repetition, the median time of the slowest rank's host to queue
        one in the previous run."""

    def prepare(self) -> None:
        """See `Timer.prepare`."""
        self.sync.calibrate(MINIMUM_PYTHON_SLACK_NS)
        begun, ended = self._reused_events(2)
        rates = []
        for _ in range(SPINS):
            begun.record()
            self._device.spin(SPIN_CYCLES)
            ended.record()
            ended.synchronize()
            rates.append(SPIN_CYCLES / (1e6 * begun.elapsed_time(ended)))
        self._cycles_per_ns = max(rates)

    def reading_ns(self) -> float:
        """See `Timer.reading_ns`."""
        return RESOLUTION_NS

    def run(self, calls: Sequence[Call], repetitions: int, batch: int) -> Repetitions:
        """See `Timer.run`."""
        steps = order_of(calls, repetitions, batch).steps(repetitions)
        if self.sync.method == "none":
            return self._follow(steps)
        return self._isolate(steps, batch, blocking=any(call.blocking for call in calls))

    def _isolate(self, steps: Sequence[Step], batch: int, *, blocking: bool) -> Repetitions:
        """Time repetitions of ``batch`` operations that begin when all devices have met.

        ``blocking`` calls include the host's time.
        """
        device, counters, align = self._device, self._counters, self.sync.align
        events = self._reused_events(2 * len(steps))
        pairs = list(zip(events[::2], events[1::2], strict=True))
        late = np.zeros(len(steps), dtype=np.bool_)
        queueing = np.zeros(len(steps), dtype=np.int64)
        cycles = 0
        if not blocking:
            lead_ns = self._queueing_ns.get(batch, 0) + self.sync.slack_ns
            cycles = math.ceil(self._cycles_per_ns * lead_ns)
        with quiet_interpreter():
            for number, ((begun, ended), run_once) in enumerate(zip(pairs, steps, strict=True)):
                align()
                first = perf_counter_ns()
                if cycles:
                    device.spin(cycles)
                device.rendezvous()
                counters[0] += 1
                begun.record()
                run_once()
                ended.record()
                # then the device has waited; blocking calls have always begun
                late[number] = not blocking and begun.query()
                queueing[number] = perf_counter_ns() - first
                ended.synchronize()
                counters[1] += 1
            self.sync.finish()
        queueing_ns = 0
        if not blocking:
            queueing_ns = round(float(np.median(queueing)))
        self._queueing_ns[batch] = self.sync.largest(queueing_ns)
        start = _lasting_ns([(events[0], begun) for begun, _ in pairs])
        lasting = _lasting_ns(pairs)
        return Repetitions(start_ns=start, end_ns=start + lasting, late=late)

    def _follow(self, steps: Sequence[Step]) -> Repetitions:
        """Time repetitions that begin when the previous one has ended."""
        counters = self._counters
        events = self._reused_events(1 + len(steps))
        with quiet_interpreter():
            events[0].record()
            for ended, run_once in zip(events[1:], steps, strict=True):
                counters[0] += 1
                run_once()
                ended.record()
                counters[1] += 1
            events[-1].synchronize()
            self.sync.finish()
        lasting = _lasting_ns(pairwise(events))
        end = np.cumsum(lasting)
        late = np.zeros(len(steps), dtype=np.bool_)
        return Repetitions(start_ns=end - lasting, end_ns=end, late=late)

    def _reused_events(self, count: int) -> list[Any]:
        """Return ``count`` events, reused because making one takes longer than some operations."""
        while len(self._events) < count:
            self._events.append(self._device.new_event())
        return self._events[:count]


def _lasting_ns(pairs: Iterable[tuple[Any, Any]]) -> Times:
    """Return the nanoseconds between the events of each pair."""
    lasting_ms = [first.elapsed_time(last) for first, last in pairs]
    return np.rint(1e6 * np.array(lasting_ms)).astype(np.int64)
