"""When each bucket of a training step is ready, sent and done, by an event simulation with one or two servers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

#: Where communication wants more of a core than this, computing and communicating get so much each.
FAIR_SHARE = 0.5
_LATENCY, _TRANSFER, _DECODE, _DONE = range(4)
#: What is left of a phase and is no more than rounding, in milliseconds.
_NOTHING = 1e-9


@dataclass(frozen=True, kw_only=True)
class BucketWork:
    """One bucket as the timeline takes it in; milliseconds."""

    size_bytes: int
    ready_ms: float
    """All its gradients are there, since the backward pass began, were there no hooks."""
    encode_ms: float
    """Delays every later gradient, too."""
    comm_ms: float
    """Its collectives alone on the network."""
    decode_ms: float
    latency_ms: float = 0.0
    """The part of ``comm_ms`` in which it leaves the link to others."""
    copy_in_ms: float = 0.0
    """DDP copies gradients into the bucket, as part of the backward pass."""
    copy_out_ms: float = 0.0
    """DDP copies the result back to the gradients, when the backward pass is over and the bucket is done."""

    @cached_property
    def phases(self) -> tuple[tuple[int, float], ...]:
        """The phases in which it keeps a server, in order, each with its milliseconds."""
        latency_ms = min(self.latency_ms, self.comm_ms)
        phases = ((_LATENCY, latency_ms), (_TRANSFER, self.comm_ms - self.latency_ms), (_DECODE, self.decode_ms))
        return tuple(phase for phase in phases if phase[1] > _NOTHING)


@dataclass(frozen=True, kw_only=True)
class BucketPrediction:
    """One bucket in a predicted step; milliseconds since the backward pass began."""

    size_bytes: int
    ready_ms: float
    start_ms: float
    done_ms: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The backward pass of a step."""

    buckets: Sequence[BucketPrediction]
    end_ms: float
    """The backward pass, communication included, is over."""
    exposed_ms: float
    """What of that the backward pass without communication and encoding does not take."""


def overlapped(work: Sequence[BucketWork], backward_ms: float, *, servers: int, contention: float = 0.0) -> Timeline:
    """Simulate the backward pass; with ``contention`` 0 communication costs computing nothing: the lower bound.

    Buckets start in the order given, each when its gradients are there and encoded and a server is free, and keep the
    server until they are decoded. Buckets under way at the same time share the link evenly, but for their latency.
    At the end DDP waits for the buckets in order and copies each back.

    Args:
        work: the buckets in the order of sending.
        backward_ms: the backward pass without communication.
        servers: how many buckets can be under way at the same time.
        contention: the share of the computing core that communication takes while it is under way, 0 to 1. Up to
            `FAIR_SHARE` only computing becomes slower, beyond that both do; at 1 nothing is gained by overlapping.
    """
    simulation = _Simulation(work, servers, contention)
    computed_ms = simulation.run(backward_ms)
    times = zip(work, simulation.ready, simulation.start, simulation.done, strict=True)
    buckets = [
        BucketPrediction(size_bytes=bucket.size_bytes, ready_ms=ready, start_ms=start, done_ms=done)
        for bucket, ready, start, done in times
    ]
    return _timeline(work, backward_ms, buckets, _drained(work, computed_ms, simulation.done))


def overlapped_end_ms(work: Sequence[BucketWork], backward_ms: float, *, servers: int, contention: float) -> float:
    """Return `Timeline.end_ms` of `overlapped` alone."""
    simulation = _Simulation(work, servers, contention)
    return _drained(work, simulation.run(backward_ms), simulation.done)


def serial(work: Sequence[BucketWork], backward_ms: float) -> Timeline:
    """The timeline if nothing overlaps, one bucket after the other when the backward pass is over: the upper bound."""
    now = backward_ms + sum(bucket.copy_in_ms + bucket.encode_ms for bucket in work)
    delay = reached = 0.0
    buckets = []
    for bucket in work:
        reached = max(reached, bucket.ready_ms)
        delay += bucket.copy_in_ms
        done = now + bucket.comm_ms + bucket.decode_ms
        buckets.append(
            BucketPrediction(size_bytes=bucket.size_bytes, ready_ms=reached + delay, start_ms=now, done_ms=done)
        )
        delay += bucket.encode_ms
        now = done + bucket.copy_out_ms
    return _timeline(work, backward_ms, buckets, now)


def _drained(work: Sequence[BucketWork], computed_ms: float, done_ms: Sequence[float]) -> float:
    """When DDP has waited for the buckets in order and copied each out."""
    now = computed_ms
    for bucket, done in zip(work, done_ms, strict=True):
        now = max(now, done) + bucket.copy_out_ms
    return now


def _timeline(
    work: Sequence[BucketWork], backward_ms: float, buckets: Sequence[BucketPrediction], end_ms: float
) -> Timeline:
    exposed_ms = end_ms - backward_ms - sum(bucket.encode_ms for bucket in work)
    return Timeline(buckets=tuple(buckets), end_ms=end_ms, exposed_ms=max(0.0, exposed_ms))


class _Job:
    """A bucket on a server."""

    __slots__ = ("left_ms", "number", "phase", "phases", "rate")

    def __init__(self, number: int, phases: Iterable[tuple[int, float]]) -> None:
        self.number = number
        self.phases = iter(phases)
        self.rate = 1.0
        self.next_phase()

    def next_phase(self) -> None:
        """Begin the next phase; `_DONE` follows the last one."""
        self.phase, self.left_ms = next(self.phases, (_DONE, 0.0))


class _Simulation:
    """One thread that computes, buckets in the order of sending, and servers that share a link.

    A fit runs it ten thousands of times, so that its loops create nothing and compute no rate of an idle link.
    """

    def __init__(self, work: Sequence[BucketWork], servers: int, contention: float) -> None:
        self.work = work
        self.servers = servers
        self.computing_rate = max(1 - contention, FAIR_SHARE)
        self.communicating_rate = min(1.0, FAIR_SHARE / contention) if contention else 1.0
        self.now = 0.0
        self.ready: list[float] = []
        self.start = [0.0] * len(work)
        self.done = [0.0] * len(work)
        self.queue: deque[int] = deque()
        self.jobs: list[_Job] = []

    def run(self, backward_ms: float) -> float:
        """Go from event to event until everything is done; return when the thread that computes was."""
        reached = 0.0
        for number, bucket in enumerate(self.work):
            self._compute(max(0.0, bucket.ready_ms - reached) + bucket.copy_in_ms)
            reached = max(reached, bucket.ready_ms)
            self.ready.append(self.now)
            self._compute(bucket.encode_ms)
            self.queue.append(number)
            if len(self.jobs) < self.servers:
                self._serve()
        self._compute(max(0.0, backward_ms - reached))
        computed = self.now
        while self.jobs:
            self._until_next(math.inf, 1.0)
        return computed

    def _compute(self, left_ms: float) -> None:
        """Let time pass until so much has been computed."""
        while left_ms > _NOTHING:
            rate = 1.0
            for job in self.jobs:
                if job.phase != _LATENCY:
                    rate = self.computing_rate
            left_ms -= rate * self._until_next(left_ms / rate, self.communicating_rate)

    def _until_next(self, limit_ms: float, communicating_rate: float) -> float:
        """Let time pass until a job's phase ends or ``limit_ms`` are over; return how much."""
        jobs, step, sharing = self.jobs, limit_ms, 0
        for job in jobs:
            if job.phase == _TRANSFER:
                sharing += 1
        for job in jobs:
            phase = job.phase
            job.rate = rate = (
                1.0 if phase == _LATENCY else communicating_rate / sharing if phase == _TRANSFER else communicating_rate
            )
            step = min(step, job.left_ms / rate)
        self.now += step
        ended = False
        for job in jobs:
            job.left_ms -= step * job.rate
            if job.left_ms <= _NOTHING:
                job.next_phase()
                ended = ended or job.phase == _DONE
        if ended:
            self._serve()
        return step

    def _serve(self) -> None:
        """Let go of what is done, and take on what waits."""
        while True:
            for job in self.jobs:
                if job.phase == _DONE:
                    self.done[job.number] = self.now
            self.jobs = [job for job in self.jobs if job.phase != _DONE]
            if not self.queue or len(self.jobs) >= self.servers:
                return
            number = self.queue.popleft()
            self.start[number] = self.now
            self.jobs.append(_Job(number, self.work[number].phases))
