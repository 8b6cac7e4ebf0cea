"""When each bucket of a training step is ready, sent and done, by an event simulation with one or two servers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

#: Where communication wants more of a core than this, computing and communicating get so much each.
FAIR_SHARE = 0.5


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
    return _timeline(work, backward_ms, buckets, _drained(work, computed_ms, buckets))


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


def _drained(work: Sequence[BucketWork], computed_ms: float, buckets: Sequence[BucketPrediction]) -> float:
    """When DDP has waited for the buckets in order and copied each out."""
    now = computed_ms
    for bucket, prediction in zip(work, buckets, strict=True):
        now = max(now, prediction.done_ms) + bucket.copy_out_ms
    return now


def _timeline(
    work: Sequence[BucketWork], backward_ms: float, buckets: Sequence[BucketPrediction], end_ms: float
) -> Timeline:
    exposed_ms = end_ms - backward_ms - sum(bucket.encode_ms for bucket in work)
    return Timeline(buckets=tuple(buckets), end_ms=end_ms, exposed_ms=max(0.0, exposed_ms))


_LATENCY, _TRANSFER, _DECODE, _DONE = range(4)
#: What is left of a phase and is no more than rounding, in milliseconds.
_NOTHING = 1e-9


class _Job:
    """A bucket on a server."""

    __slots__ = ("left_ms", "number", "phase", "rate", "work")

    def __init__(self, number: int, work: BucketWork) -> None:
        self.number = number
        self.work = work
        self.phase = _LATENCY - 1
        self.rate = 1.0
        self.next_phase()

    def next_phase(self) -> None:
        """Go on to the next phase of which there is anything."""
        work, self.left_ms = self.work, 0.0
        while self.left_ms <= _NOTHING and self.phase < _DONE:
            self.phase += 1
            if self.phase == _LATENCY:
                self.left_ms = min(work.latency_ms, work.comm_ms)
            elif self.phase == _TRANSFER:
                self.left_ms = work.comm_ms - work.latency_ms
            elif self.phase == _DECODE:
                self.left_ms = work.decode_ms


class _Simulation:
    """One thread that computes, buckets in the order of sending, and servers that share a link."""

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
            self._serve()
        self._compute(max(0.0, backward_ms - reached))
        computed = self.now
        while self.jobs:
            self._until_next(math.inf, computing=False)
        return computed

    def _compute(self, left_ms: float) -> None:
        """Let time pass until so much has been computed."""
        while left_ms > _NOTHING:
            rate = self.computing_rate if any(job.phase != _LATENCY for job in self.jobs) else 1.0
            left_ms -= rate * self._until_next(left_ms / rate, computing=True)

    def _until_next(self, limit_ms: float, *, computing: bool) -> float:
        """Let time pass until a job's phase ends or ``limit_ms`` are over; return how much."""
        slowed = self.communicating_rate if computing else 1.0
        sharing = sum(job.phase == _TRANSFER for job in self.jobs)
        step = limit_ms
        for job in self.jobs:
            job.rate = 1.0 if job.phase == _LATENCY else slowed / sharing if job.phase == _TRANSFER else slowed
            step = min(step, job.left_ms / job.rate)
        self.now += step
        ended = False
        for job in self.jobs:
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
            self.jobs.append(_Job(number, self.work[number]))
