"""Tests of the clock of a step: host timestamps, or GPU events read only when awaited."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stand_in import SimulatedCuda

from commbench.hooks import Hook
from commbench.hooks.base import Finish, Stopwatch
from commbench.hooks.step_clock import clock_of, elapsed_ms, elapsed_ns, event_clock, host_clock


class Ticking:
    """A timestamp that grows by one microsecond per call."""

    def __init__(self) -> None:
        self.ns = 0.0

    def __call__(self) -> float:
        """Return the next timestamp."""
        self.ns += 1000
        return self.ns


def test_the_host_counts_nanoseconds():
    """Return host marks as nanoseconds."""
    assert 1500 == elapsed_ns(500, 2000)
    assert -2.5 == elapsed_ms(3_000_000, 500_000)
    first = host_clock()
    assert 0 <= elapsed_ns(first, host_clock()) < 10**9


def test_a_model_on_the_host_is_timed_by_the_host():
    """Choose the clock by the parameters' device, and the host's without parameters."""
    assert host_clock is clock_of(torch.nn.Linear(2, 1))
    assert host_clock is clock_of(torch.nn.ReLU())


def test_marking_waits_for_nothing_and_reading_for_both_events():
    """Queue events without waiting, and read signed microseconds between them."""
    cuda = SimulatedCuda(now=Ticking())
    clock = event_clock(0, cuda)
    first, second, third = clock(), clock(), clock()
    assert (3, 0) == (cuda.events, cuda.waits)
    assert [1000, 2000, -1000, 0] == [
        elapsed_ns(first, second),
        elapsed_ns(first, third),
        elapsed_ns(third, second),
        elapsed_ns(second, second),
    ]
    assert 8 == cuda.waits
    assert 0.002 == pytest.approx(elapsed_ms(first, third))


class FakeBucket:
    """A bucket of four zeros."""

    def buffer(self) -> Any:
        """Return the buffer, as GradBucket does."""
        return torch.zeros(4)

    def index(self) -> int:
        """Return the index, as GradBucket does."""
        return 1


class Sending(Hook):
    """A hook that sends nothing: encoding takes one tick, communication two, decoding three."""

    name = "sending"

    def __init__(self, tick: Any) -> None:
        self.tick = tick

    def launch(self, bucket: Any, watch: Stopwatch) -> tuple[Any, Finish]:
        """Simulate the exchange."""
        watch.encoded()
        watch.started()
        self.tick()
        future = torch.futures.Future()
        future.set_result(bucket.buffer())

        def finish(value: Any) -> Any:
            self.tick()
            self.tick()
            return value

        return future, finish


def test_a_bucket_is_marked_on_its_way():
    """Report when each bucket was ready, started and done, relative to a reference mark."""
    now = Ticking()
    cuda = SimulatedCuda(now=now)
    hook = Sending(now)
    marked = []
    hook.observer, hook.clock = marked.append, event_clock(0, cuda)
    since = hook.clock()
    hook.run(FakeBucket())
    (marks,) = marked
    assert (6, 0) == (cuda.events, cuda.waits)
    assert (1, 4) == (marks.bucket.index, marks.bucket.numel)
    assert (1000, 3000, 8000, 1000, 3000) == marks.stamps(since)


def test_without_an_observer_no_event_is_made():
    """Create no event on a GPU without an observer."""
    cuda = SimulatedCuda()
    hook = Sending(lambda: None)
    hook.clock = event_clock(0, cuda)
    hook.run(FakeBucket())
    assert 0 == cuda.events


def test_what_a_hook_does_between_collectives_is_decoding():
    """Count work between collectives as decoding, and a missing mark as zero time."""
    now = Ticking()
    watch = Stopwatch(event_clock(0, SimulatedCuda(now=now)))
    for ticks in (1, 4):
        began = watch.clock()
        now.ns += 1000 * (ticks - 1)
        watch.worked(began)
    watch.arrived()
    watch.done = watch.clock()
    ready, start, _, encode, decode = watch.stamps(watch.ready)
    assert 0 == ready
    assert 0 == start
    assert 0 == encode
    assert 1000 * (1 + 4 + 1) == decode
