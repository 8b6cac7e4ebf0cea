"""Tests of the event-timing loop on a scripted device stream and host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from faking import make_session
from threads import ThreadControl, run_threads

from commbench.engine.samples import Samples
from commbench.engine.sampling import Sampler
from commbench.engine.timing import device as device_module
from commbench.engine.timing.device import EventTimer
from commbench.engine.timing.loops import Call, Progress, Repetitions
from commbench.engine.timing.sync import (
    MAXIMUM_SLACK_NS,
    MINIMUM_PYTHON_SLACK_NS,
    Synchroniser,
)

CYCLES_PER_NS = 1.5
MEET_NS, OPERATION_NS = 10_000, 30_000


@dataclass
class Event:
    """An event on a device, with its time."""

    device: SimulatedDevice
    at_ns: float = 0.0

    def record(self) -> None:
        """Record the event after all queued operations."""
        self.device.queue(self.device.call_ns, 0.0)
        self.at_ns = self.device.end_ns

    def query(self) -> bool:
        """Return whether the event has occurred."""
        return self.device.now_ns >= self.at_ns

    def synchronize(self) -> None:
        """Block the host until the event."""
        self.device.now_ns = max(self.device.now_ns, self.at_ns)

    def elapsed_time(self, later: Event) -> float:
        """Return the milliseconds between two recorded events."""
        assert self.device.now_ns >= max(self.at_ns, later.at_ns)
        return (later.at_ns - self.at_ns) / 1e6


@dataclass
class SimulatedDevice:
    """A device stream and the host that queues on it.

    The host takes ``call_ns`` for other calls.
    """

    host_ns: Callable[[int], float] = lambda _: 5000.0
    """What the host takes to queue the n-th operation."""
    call_ns: float = 2000.0
    meet_ns: float = MEET_NS
    operation_ns: float = OPERATION_NS
    now_ns: float = 0.0
    """How far the host is."""
    end_ns: float = 0.0
    """When the device will have done all that is queued."""
    spins: list[float] = field(default_factory=list)
    """How long it was kept busy, each time."""
    operations: int = 0

    def queue(self, host_ns: float, lasting_ns: float) -> None:
        """Queue what takes the host and the device so long."""
        self.now_ns += host_ns
        self.end_ns = max(self.end_ns, self.now_ns) + lasting_ns

    def spin(self, cycles: int) -> None:
        """Keep the device busy."""
        self.spins.append(cycles / CYCLES_PER_NS)
        self.queue(self.call_ns, cycles / CYCLES_PER_NS)

    def rendezvous(self) -> None:
        """Do nothing, as there are no other ranks."""
        self.queue(self.call_ns, self.meet_ns)

    def operate(self) -> None:
        """Queue an operation."""
        self.queue(self.host_ns(self.operations), self.operation_ns)
        self.operations += 1

    def operate_and_wait(self) -> None:
        """Queue an operation, and wait for it."""
        self.operate()
        self.now_ns = self.end_ns

    def new_event(self) -> Event:
        """Return an unrecorded event."""
        return Event(self)


class Here(threading.local):
    """Holds the device of this rank."""

    device: SimulatedDevice


HERE = Here()


@pytest.fixture(autouse=True)
def _host_clock(monkeypatch):
    """Replace the loop's clock by that of the simulated host."""
    monkeypatch.setattr(device_module, "perf_counter_ns", lambda: HERE.device.now_ns)


def opened(control: ThreadControl, device: SimulatedDevice, method: str = "barrier") -> EventTimer:
    """Return a calibrated loop on a device whose record of calls is empty."""
    HERE.device = device
    timer = EventTimer(Synchroniser(control, method), device, Progress())
    timer.prepare()
    device.spins.clear()
    return timer


def timed(
    device: SimulatedDevice,
    chunks: Sequence[int],
    *,
    method: str = "barrier",
    blocking: bool = False,
) -> list[Repetitions]:
    """Time the given operations in each run of one rank."""
    calls = [Call(run=device.operate_and_wait if blocking else device.operate, blocking=blocking)]

    def work(control: ThreadControl) -> list[Repetitions]:
        timer = opened(control, device, method)
        return [timer.run(calls, repetitions, 1) for repetitions in chunks]

    return run_threads(1, work)[0]


def sampled(device: SimulatedDevice) -> Samples:
    """Sample the operations of one rank until the rule stops."""

    def work(control: ThreadControl) -> Samples | None:
        timer, calls = opened(control, device), [Call(run=device.operate)]
        sampler = Sampler(session=make_session(control), timer=timer, calls=calls)
        sampler.warm_up(None)
        return sampler.collect(Samples([0], spanning=False))

    samples = run_threads(1, work)[0]
    assert samples is not None
    return samples


def lasting(stamps: Repetitions) -> list[int]:
    """Return the times of a run."""
    return (stamps.end_ns - stamps.start_ns).tolist()


@pytest.mark.parametrize("host_ns", [1000.0, 70_000.0, 2_000_000.0])
def test_what_the_host_takes_is_not_in_the_time(host_ns):
    """Time the device alone, whatever the host takes to queue."""
    first, then = timed(SimulatedDevice(host_ns=lambda _: host_ns), [1, 5])
    assert (
        bool(first.late[0])
        == (lasting(first)[0] > OPERATION_NS)
        == (host_ns > MINIMUM_PYTHON_SLACK_NS + MEET_NS)
    )
    assert [OPERATION_NS] * 5 == lasting(then)
    assert [False] * 5 == then.late.tolist()


def test_what_one_operation_takes_to_queue_is_not_taken_for_several():
    """Warm up one by one before every visit, and lose the first repetitions of the first only."""
    device = SimulatedDevice()

    def work(control: ThreadControl) -> list[float]:
        timer, calls = opened(control, device), [Call(run=device.operate)]
        late = []
        for _visit in range(3):
            timer.run(calls, 2, 1)
            late.append(float(timer.run(calls, 5, 8).late.mean()))
        return late

    assert [1.0, 0.0, 0.0] == run_threads(1, work)[0]


def test_a_repetition_for_which_the_device_waited_is_late():
    """Mark exactly the repetition in which the host was interrupted as late."""
    device = SimulatedDevice(host_ns=lambda number: 300_000.0 if number == 7 else 5000.0)
    _, stamps = timed(device, [4, 6])
    assert [number == 3 for number in range(6)] == stamps.late.tolist()
    assert [number == 3 for number in range(6)] == [time > OPERATION_NS for time in lasting(stamps)]


def test_the_slowest_host_decides_for_all():
    """Keep every device busy until the last rank has queued its operations."""
    devices = [SimulatedDevice(host_ns=lambda _, ns=ns: ns) for ns in (5000.0, 90_000.0)]

    def work(control: ThreadControl) -> None:
        device = devices[control.rank]
        timer = opened(control, device)
        for _ in range(2):
            timer.run([Call(run=device.operate)], 1, 1)

    run_threads(2, work)
    assert devices[0].spins == devices[1].spins
    assert devices[0].spins[1] > 90_000 + MINIMUM_PYTHON_SLACK_NS


def test_too_many_late_starts_keep_the_device_busy_for_longer():
    """Lengthen the spin after late starts, and count only repetitions without waiting."""
    device = SimulatedDevice(
        host_ns=lambda number: 5000.0 + (number % 3 == 0) * MAXIMUM_SLACK_NS / 8
    )
    samples = sampled(device)
    assert max(device.spins) > 4 * MINIMUM_PYTHON_SLACK_NS
    assert samples.late > 0
    assert {OPERATION_NS / 1e3} == set(samples.slowest_us(1))


def test_what_waits_on_the_host_is_timed_with_the_host():
    """Include host time in blocking calls, and mark them not as late."""
    device = SimulatedDevice(host_ns=lambda _: 70_000.0)
    _, stamps = timed(device, [1, 3], blocking=True)
    assert [] == device.spins
    assert [False] * 3 == stamps.late.tolist()
    assert min(lasting(stamps)) > 70_000


@pytest.mark.parametrize(("host_ns", "expected"), [(5000.0, OPERATION_NS), (70_000.0, 72_000)])
def test_unsynchronised_times_sum_to_the_time_of_the_stream(host_ns, expected):
    """Time each repetition from the end of the previous one, waits for the host included."""
    device = SimulatedDevice(host_ns=lambda _: host_ns)
    (stamps,) = timed(device, [10], method="none")
    assert [host_ns + OPERATION_NS] + [expected] * 9 == lasting(stamps)
    assert not device.spins
