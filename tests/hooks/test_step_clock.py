"""The clock of a step: instants of this process, or events that are read only when somebody waits for them."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stand_in import SimulatedCuda  # noqa: E402 - needs torch

from commbench.hooks import Hook  # noqa: E402
from commbench.hooks.base import BucketMarks, Finish, Stopwatch  # noqa: E402
from commbench.hooks.results import Expected  # noqa: E402
from commbench.hooks.step_clock import clock_of, elapsed_ms, elapsed_ns, event_clock, host_clock  # noqa: E402


class Ticking:
    """An instant that is a microsecond later whenever it is asked for."""

    def __init__(self) -> None:
        self.ns = 0.0

    def __call__(self) -> float:
        """Go on."""
        self.ns += 1000
        return self.ns


def test_the_host_counts_nanoseconds() -> None:
    """Take marks for what they are."""
    assert 1500 == elapsed_ns(500, 2000)
    assert -2.5 == elapsed_ms(3_000_000, 500_000)
    first = host_clock()
    assert 0 <= elapsed_ns(first, host_clock()) < 10**9


def test_a_model_on_the_host_is_timed_by_the_host() -> None:
    """Choose the clock by where the parameters are; the host's where there are none."""
    assert host_clock is clock_of(torch.nn.Linear(2, 1))
    assert host_clock is clock_of(torch.nn.ReLU())


def test_marking_waits_for_nothing_and_reading_for_both_events() -> None:
    """Queue events, and read the microseconds between them, forwards and backwards."""
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


def test_the_substitute_of_cuda_refuses_events_that_were_not_awaited() -> None:
    """Raise as CUDA does; otherwise the test above would show nothing."""
    clock = event_clock(0, SimulatedCuda())
    first, second = clock(), clock()
    first.synchronize()
    with pytest.raises(RuntimeError, match="not ready"):
        first.elapsed_time(second)


class FakeBucket:
    """A bucket of four zeros."""

    def buffer(self) -> Any:
        """As GradBucket."""
        return torch.zeros(4)

    def index(self) -> int:
        """As GradBucket."""
        return 1

    def is_last(self) -> bool:
        """As GradBucket."""
        return True


class Sending(Hook):
    """Sends nothing; encoding takes one tick of the clock, the way two, decoding three."""

    name = "sending"

    def __init__(self, tick: Any) -> None:
        self.tick = tick

    def launch(self, bucket: Any, watch: Stopwatch) -> tuple[Any, Finish]:
        """Pretend."""
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

    def messages(self, bucket: Any) -> tuple[Any, ...]:  # noqa: ARG002
        """Nothing."""
        return ()


def test_a_bucket_is_marked_on_its_way() -> None:
    """Tell of each bucket when it was ready, started and done, since a mark of one's choice."""
    now = Ticking()
    cuda = SimulatedCuda(now=now)
    hook = Sending(now)
    told: list[BucketMarks] = []
    hook.observer, hook.clock = told.append, event_clock(0, cuda)
    since = hook.clock()
    hook.run(FakeBucket())
    (marks,) = told
    assert (6, 0) == (cuda.events, cuda.waits)
    times = marks.times(since)
    assert (1, 4, True) == (times.index, times.numel, times.is_last)
    assert (1000, 3000, 8000) == (times.ready_ns, times.start_ns, times.done_ns)
    assert (1000, 3000) == (times.encode_ns, times.decode_ns)


def test_without_an_observer_no_event_is_made() -> None:
    """Cost a training that nobody watches nothing on a GPU."""
    cuda = SimulatedCuda()
    hook = Sending(lambda: None)
    hook.clock = event_clock(0, cuda)
    hook.run(FakeBucket())
    assert 0 == cuda.events


def test_what_a_hook_does_between_collectives_is_decoding() -> None:
    """Add it to what comes after the last; what was never marked took no time."""
    now = Ticking()
    watch = Stopwatch(event_clock(0, SimulatedCuda(now=now)))
    for ticks in (1, 4):
        began = watch.clock()
        now.ns += 1000 * (ticks - 1)
        watch.worked(began)
    watch.arrived()
    bucket = Expected(index=0, numel=4, is_last=False, dtype=torch.float32, device=torch.device("cpu"))
    times = watch.marks(bucket).times(watch.ready)
    assert (0, 0, 0) == (times.ready_ns, times.start_ns, times.encode_ns)
    assert 1000 * (1 + 4 + 1) == times.decode_ns
