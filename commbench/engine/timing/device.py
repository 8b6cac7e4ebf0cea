"""The timed loop of a device: events on its stream around the calls, ranks brought together by the device itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from commbench.engine.timing.loops import Call, Progress, Repetitions, order_of, quiet_interpreter
from commbench.engine.timing.sync import MINIMUM_PYTHON_SLACK_NS, Synchroniser, is_late_on_device

#: What CUDA says of an event's resolution: about half a microsecond (CUDA Runtime API, cudaEventElapsedTime).
RESOLUTION_NS = 500.0
#: Spins that tell how fast the device's clock runs, each about half a millisecond; it rises during the first ones.
SPINS, SPIN_CYCLES = 5, 1_000_000


class DeviceClock(Protocol):
    """What the loop asks of a device; an event is whatever the device makes of it."""

    def spin(self, cycles: int) -> None:
        """Queue something that keeps the stream busy for so many cycles of the device's clock."""

    def rendezvous(self) -> None:
        """Queue something tiny that ends only when every rank's device has begun it."""

    def new_event(self) -> Any:  # noqa: ANN401 - the device's own
        """Make an event."""

    def record(self, event: Any) -> None:  # noqa: ANN401 - as new_event
        """Queue that the event takes place when all that was queued before has ended."""

    def has_happened(self, event: Any) -> bool:  # noqa: ANN401 - as new_event
        """Whether the event has taken place, without waiting for it."""

    def wait(self, event: Any) -> None:  # noqa: ANN401 - as new_event
        """Return when the event has taken place."""

    def elapsed_ns(self, first: Any, last: Any) -> float:  # noqa: ANN401 - as new_event
        """Nanoseconds between two events that have taken place."""


class EventTimer:
    """Times calls by events on the stream that they are queued on.

    Where ranks start together, the host meets the other ranks and queues a spin, an exchange in which the devices meet,
    and the operation between two events. The spin lasts longer than the host takes to queue all that, so that the
    device finds everything there and what the host takes is not in the time. The proof is that the first event has not
    taken place yet when the second has been queued; a repetition without it counts as a late start. How long queueing
    takes on the slowest rank is known from the run before: the first run of other calls is for warming up in any case.
    The plan's slack is added, which grows where too many starts are late.

    Without synchronisation repetitions are queued one behind the other, and waited for only at the end. Each lasts from
    the end of the one before, so that all together last as long as the stream does, its waiting for the host included.

    Events of different devices share no clock: stamps are of the rank's own device, and begin at 0 in each run.
    """

    name = "event"

    def __init__(self, sync: Synchroniser, device: DeviceClock, progress: Progress) -> None:
        self.sync = sync
        self._device = device
        self._counters = progress.counters
        self._events: list[Any] = []
        self._cycles_per_ns = 0.0
        self._queueing_ns = 0
        """What the slowest rank's host took to queue a repetition of the last run; median."""

    def prepare(self) -> None:
        """See `Timer.prepare`."""
        self.sync.calibrate(MINIMUM_PYTHON_SLACK_NS)
        begun, ended = self._take(2)
        rates = []
        for _ in range(SPINS):
            self._device.record(begun)
            self._device.spin(SPIN_CYCLES)
            self._device.record(ended)
            self._device.wait(ended)
            rates.append(SPIN_CYCLES / self._device.elapsed_ns(begun, ended))
        self._cycles_per_ns = max(rates)

    def reading_ns(self) -> float:
        """See `Timer.reading_ns`."""
        return RESOLUTION_NS

    def run(self, calls: Sequence[Call], repetitions: int, batch: int) -> Repetitions:
        """See `Timer.run`."""
        steps = order_of(calls, repetitions, batch).steps(repetitions)
        if self.sync.plan.method == "none":
            return self._follow(steps)
        return self._isolate(steps, blocking=any(call.blocking for call in calls))

    def _isolate(self, steps: Sequence[Callable[[], object]], *, blocking: bool) -> Repetitions:
        """Each begins when all devices have met; of ``blocking`` ones the host's part cannot be hidden."""
        device, counters, align = self._device, self._counters, self.sync.align
        events = self._take(2 * len(steps))
        pairs = list(zip(events[::2], events[1::2], strict=True))
        late = np.zeros(len(steps), dtype=np.bool_)
        queueing = np.zeros(len(steps), dtype=np.int64)
        cycles = 0 if blocking else math.ceil(self._cycles_per_ns * (self._queueing_ns + self.sync.plan.slack_ns))
        with quiet_interpreter():
            for number, ((begun, ended), run_once) in enumerate(zip(pairs, steps, strict=True)):
                align()
                first = perf_counter_ns()
                if cycles:
                    device.spin(cycles)
                device.rendezvous()
                counters[0] += 1
                device.record(begun)
                run_once()
                device.record(ended)
                late[number] = is_late_on_device(has_begun=device.has_happened(begun), blocking=blocking)
                queueing[number] = perf_counter_ns() - first
                device.wait(ended)
                counters[1] += 1
            self.sync.finish()
        self._queueing_ns = self.sync.largest(0 if blocking else round(float(np.median(queueing))))
        start = _whole([device.elapsed_ns(events[0], begun) for begun, _ in pairs])
        lasting = _whole([device.elapsed_ns(*pair) for pair in pairs])
        return Repetitions(start_ns=start, end_ns=start + lasting, late=late, comparable=False)

    def _follow(self, steps: Sequence[Callable[[], object]]) -> Repetitions:
        """Each begins when the one before has ended."""
        device, counters = self._device, self._counters
        events = self._take(1 + len(steps))
        with quiet_interpreter():
            device.record(events[0])
            for ended, run_once in zip(events[1:], steps, strict=True):
                counters[0] += 1
                run_once()
                device.record(ended)
                counters[1] += 1
            device.wait(events[-1])
            self.sync.finish()
        lasting = _whole([device.elapsed_ns(*pair) for pair in pairwise(events)])
        end = np.cumsum(lasting)
        late = np.zeros(len(steps), dtype=np.bool_)
        return Repetitions(start_ns=end - lasting, end_ns=end, late=late, comparable=False)

    def _take(self, count: int) -> list[Any]:
        """Events to use again: making one takes longer than some operations."""
        while len(self._events) < count:
            self._events.append(self._device.new_event())
        return self._events[:count]


def _whole(times_ns: Sequence[float]) -> NDArray[np.int64]:
    return np.rint(times_ns).astype(np.int64)
