"""The timed loop of a device: events on its stream around the calls, ranks brought together by the device itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from commbench.timing.loops import Call, Repetitions, order_of, quiet_interpreter
from commbench.timing.progress import Progress
from commbench.timing.sync import MINIMUM_PYTHON_SLACK_NS, Synchroniser

#: What CUDA says of an event's resolution: about half a microsecond (CUDA Runtime API, cudaEventElapsedTime).
RESOLUTION_NS = 500.0


class DeviceClock(Protocol):
    """What the loop asks of a device; an event is whatever the device makes of it."""

    def meet(self) -> None:
        """Queue something tiny that ends only when every rank's device has begun it."""

    def new_event(self) -> Any:  # noqa: ANN401 - the device's own
        """Make an event."""

    def record(self, event: Any) -> None:  # noqa: ANN401 - as new_event
        """Queue that the event takes place when all that was queued before has ended."""

    def wait(self, event: Any) -> None:  # noqa: ANN401 - as new_event
        """Return when the event has taken place."""

    def elapsed_ns(self, first: Any, last: Any) -> float:  # noqa: ANN401 - as new_event
        """Nanoseconds between two events that have taken place."""


class EventTimer:
    """Times calls by events on the stream that they are queued on.

    The host meets the other ranks, then the devices do, by an exchange that is queued before the first event: it keeps
    the device busy while the host queues the calls, so that what the host takes for that is not in the time. Between
    the events the host waits for nothing. Without synchronisation repetitions are queued one behind the other, and
    waited for only at the end.

    Events of different devices share no clock: stamps begin at 0 in each repetition, and say how long it took.
    """

    name = "event"

    def __init__(self, sync: Synchroniser, device: DeviceClock, progress: Progress) -> None:
        self.sync = sync
        self._device = device
        self._counters = progress.counters
        self._events: list[tuple[Any, Any]] = []

    def prepare(self) -> None:
        """See `Timer.prepare`."""
        self.sync.calibrate(MINIMUM_PYTHON_SLACK_NS)

    def reading_ns(self) -> float:
        """See `Timer.reading_ns`."""
        return RESOLUTION_NS

    def run(self, calls: Sequence[Call], repetitions: int, batch: int) -> Repetitions:
        """See `Timer.run`."""
        steps = order_of(calls, repetitions, batch).steps(repetitions)
        together, device, counters = self.sync.plan.method != "none", self._device, self._counters
        events = self._pairs(repetitions)
        with quiet_interpreter():
            for (begun, ended), run_once in zip(events, steps, strict=True):
                if together:
                    self.sync.align()
                    device.meet()
                counters[0] += 1
                device.record(begun)
                run_once()
                device.record(ended)
                if together:
                    device.wait(ended)
                counters[1] += 1
            if events:
                device.wait(events[-1][1])
            self.sync.finish()
        lasted = np.array([device.elapsed_ns(*pair) for pair in events])
        start = np.zeros(repetitions, dtype=np.int64)
        return Repetitions(start_ns=start, end_ns=np.rint(lasted).astype(np.int64), late=start.astype(np.bool_))

    def _pairs(self, repetitions: int) -> list[tuple[Any, Any]]:
        """Events to use again: making one takes longer than some operations."""
        while len(self._events) < repetitions:
            self._events.append((self._device.new_event(), self._device.new_event()))
        return self._events[:repetitions]
