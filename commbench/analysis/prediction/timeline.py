"""Event simulation of a training step: when each bucket is ready, sent and done, with one or two
servers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

#: If communication wants more of a core than this, computing and communication get this much each.
FAIR_SHARE = 0.5
_LATENCY, _TRANSFER, _DECODE, _DONE = range(4)
#: A remaining time of a phase, in milliseconds, that is rounding error.
_NOTHING = 1e-9


@dataclass(frozen=True, kw_only=True)
class BucketWork:
    """Inputs of the simulation for one bucket; milliseconds."""

    size_bytes: int
    ready_ms: float
    """When all gradients are ready, from the start of the backward pass, without hooks."""
    encode_ms: float
    """Also delays all later gradients."""
    comm_ms: float
    """Its collectives, alone on the network."""
    decode_ms: float
    latency_ms: float = 0.0
    """The part of ``comm_ms`` in which the link is free for others."""
    copy_in_ms: float = 0.0
    """DDP copies gradients into the bucket during the backward pass."""
    copy_out_ms: float = 0.0
    """DDP copies the result back to the gradients after the backward pass and the bucket's
    communication."""

    @cached_property
    def phases(self) -> tuple[tuple[int, float], ...]:
        """The phases in which it keeps a server, in order, each with its milliseconds."""
        latency_ms = min(self.latency_ms, self.comm_ms)
        phases = (
            (_LATENCY, latency_ms),
            (_TRANSFER, self.comm_ms - self.latency_ms),
            (_DECODE, self.decode_ms),
        )
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
    """End of the backward pass including communication."""
    exposed_ms: float
    """The part of that beyond computing and encoding."""


def overlapped(
    work: Sequence[BucketWork], backward_ms: float, *, servers: int, contention: float = 0.0
) -> Timeline:
    """Simulate the backward pass.

    With ``contention`` 0 communication does not slow computing: the lower bound.

    A bucket starts, in the given order, when its gradients are ready and encoded and a server is
    free. It occupies the server until it is decoded. Concurrent buckets share the link evenly,
    except during their latency. At the end DDP waits for the buckets in order and copies each back.

    Args:
        work: the buckets in the order of sending.
        backward_ms: the backward pass without communication.
        servers: concurrent buckets.
        contention: share of the computing core that communication uses while it is in progress, 0
            to 1. Up to `FAIR_SHARE` only computing becomes slower, beyond that both do; at 1
            overlapping gains nothing.
    """
    simulation = _Simulation(work, servers, contention)
    computed_ms = simulation.run(backward_ms)
    times = zip(work, simulation.ready, simulation.start, simulation.done, strict=True)
    buckets = [
        BucketPrediction(size_bytes=bucket.size_bytes, ready_ms=ready, start_ms=start, done_ms=done)
        for bucket, ready, start, done in times
    ]
    return _timeline(work, backward_ms, buckets, _drained(work, computed_ms, simulation.done))


def overlapped_end_ms(
    work: Sequence[BucketWork], backward_ms: float, *, servers: int, contention: float
) -> float:
    """Return `Timeline.end_ms` of `overlapped` alone."""
    simulation = _Simulation(work, servers, contention)
    return _drained(work, simulation.run(backward_ms), simulation.done)


def serial(work: Sequence[BucketWork], backward_ms: float) -> Timeline:
    """Return the timeline if nothing overlaps: bucket after bucket when the backward pass is over.

    The upper bound.
    """
    now = backward_ms + sum(bucket.copy_in_ms + bucket.encode_ms for bucket in work)
    delay = reached = 0.0
    buckets = []
    for bucket in work:
        reached = max(reached, bucket.ready_ms)
        delay += bucket.copy_in_ms
        done = now + bucket.comm_ms + bucket.decode_ms
        buckets.append(
            BucketPrediction(
                size_bytes=bucket.size_bytes, ready_ms=reached + delay, start_ms=now, done_ms=done
            )
        )
        delay += bucket.encode_ms
        now = done + bucket.copy_out_ms
    return _timeline(work, backward_ms, buckets, now)


def _drained(work: Sequence[BucketWork], computed_ms: float, done_ms: Sequence[float]) -> float:
    """Return the time at which DDP has waited for the buckets in order and copied each back."""
    now = computed_ms
    for bucket, done in zip(work, done_ms, strict=True):
        now = max(now, done) + bucket.copy_out_ms
    return now


def _timeline(
    work: Sequence[BucketWork],
    backward_ms: float,
    buckets: Sequence[BucketPrediction],
    end_ms: float,
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
        self.phase, self.left_ms = next(self.phases)

    def next_phase(self) -> None:
        """Go to the next phase with a duration above 0."""
        self.phase, self.left_ms = next(self.phases, (_DONE, 0.0))


class _Simulation:
    """One computing thread, buckets in the order of sending, and servers that share a link."""

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
        """Process events until all buckets are done; return when computing was done."""
        reached = 0.0
        for number, bucket in enumerate(self.work):
            self._compute(max(0.0, bucket.ready_ms - reached) + bucket.copy_in_ms)
            reached = max(reached, bucket.ready_ms)
            self.ready.append(self.now)
            if bucket.encode_ms:
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
        """Advance time until ``left_ms`` of computing are done."""
        while left_ms > _NOTHING:
            rate = 1.0
            for job in self.jobs:
                if job.phase != _LATENCY:
                    rate = self.computing_rate
            left_ms -= rate * self._until_next(left_ms / rate, self.communicating_rate)

    def _until_next(self, limit_ms: float, communicating_rate: float) -> float:
        """Advance time to the end of a job's phase or by ``limit_ms``; return the elapsed time."""
        jobs, step, sharing = self.jobs, limit_ms, 0
        for job in jobs:
            if job.phase == _TRANSFER:
                sharing += 1
        for job in jobs:
            phase = job.phase
            job.rate = rate = (
                1.0
                if phase == _LATENCY
                else communicating_rate / sharing
                if phase == _TRANSFER
                else communicating_rate
            )
            step = min(step, job.left_ms / rate)
        self.now += step
        ended = False
        for job in jobs:
            job.left_ms -= step * job.rate
            if job.left_ms <= _NOTHING:
                job.next_phase()
                if job.phase == _DONE:
                    self.done[job.number] = self.now
                    ended = True
        if ended:
            self._serve()
        return step

    def _serve(self) -> None:
        """Release finished jobs and start waiting ones; a bucket without phases is done at once."""
        self.jobs = [job for job in self.jobs if job.phase != _DONE]
        while self.queue and len(self.jobs) < self.servers:
            number = self.queue.popleft()
            self.start[number] = self.done[number] = self.now
            if phases := self.work[number].phases:
                self.jobs.append(_Job(number, phases))
