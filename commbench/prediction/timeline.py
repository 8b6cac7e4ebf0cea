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
    return _finished(work, backward_ms, computed_ms, buckets)


def serial(work: Sequence[BucketWork], backward_ms: float) -> Timeline:
    """The timeline if nothing overlaps, one bucket after the other when the backward pass is over: the upper bound."""
    computed_ms = now = backward_ms + _delay(work)
    delay = reached = 0.0
    buckets = []
    for bucket in work:
        reached = max(reached, bucket.ready_ms)
        delay += bucket.copy_in_ms
        ready = reached + delay
        delay += bucket.encode_ms
        start, now = now, now + bucket.comm_ms + bucket.decode_ms
        buckets.append(BucketPrediction(size_bytes=bucket.size_bytes, ready_ms=ready, start_ms=start, done_ms=now))
    return _finished(work, backward_ms, computed_ms, buckets)


def _delay(work: Sequence[BucketWork]) -> float:
    """By how much buckets make the backward pass longer on its own thread."""
    return sum(bucket.copy_in_ms + bucket.encode_ms for bucket in work)


def _finished(
    work: Sequence[BucketWork], backward_ms: float, computed_ms: float, buckets: Sequence[BucketPrediction]
) -> Timeline:
    """Wait for the buckets in order and copy each out."""
    now = computed_ms
    for bucket, prediction in zip(work, buckets, strict=True):
        now = max(now, prediction.done_ms) + bucket.copy_out_ms
    exposed = now - backward_ms - sum(bucket.encode_ms for bucket in work)
    return Timeline(buckets=tuple(buckets), end_ms=now, exposed_ms=max(0.0, exposed))


_LATENCY, _TRANSFER, _DECODE, _DONE = range(4)


class _Job:
    """A bucket on a server: what is left of its phases, in milliseconds at full speed."""

    def __init__(self, number: int, work: BucketWork) -> None:
        latency = min(work.latency_ms, work.comm_ms)
        self.number = number
        self.left_ms = [latency, work.comm_ms - latency, work.decode_ms]
        self.phase = _LATENCY
        self.skip()

    def skip(self) -> None:
        """Go on to the first phase of which something is left."""
        while self.phase < _DONE and self.left_ms[self.phase] <= 0:
            self.phase += 1


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
            self._advance(min(self._remaining(computing=False)), computing=False)
        return computed

    def _compute(self, left_ms: float) -> None:
        """Let time pass until so much has been computed."""
        while left_ms > 0:
            rate = self.computing_rate if any(job.phase != _LATENCY for job in self.jobs) else 1.0
            step = min(self._remaining(computing=True), default=math.inf)
            if step >= left_ms / rate:
                self._advance(left_ms / rate, computing=True)
                return
            self._advance(step, computing=True)
            left_ms -= step * rate

    def _rates(self, *, computing: bool) -> list[float]:
        """How fast the jobs go on."""
        slowed = self.communicating_rate if computing else 1.0
        sharing = sum(job.phase == _TRANSFER for job in self.jobs)
        of_phase = (1.0, slowed / max(1, sharing), slowed)
        return [of_phase[job.phase] for job in self.jobs]

    def _remaining(self, *, computing: bool) -> list[float]:
        """How long each job's phase still takes, in milliseconds, if nothing else happens."""
        rates = self._rates(computing=computing)
        return [job.left_ms[job.phase] / rate for job, rate in zip(self.jobs, rates, strict=True)]

    def _advance(self, step_ms: float, *, computing: bool) -> None:
        """Let so much time pass, at most until the next phase ends, and start what can start then."""
        if not self.jobs:
            self.now += step_ms
            return
        rates, remaining = self._rates(computing=computing), self._remaining(computing=computing)
        self.now += step_ms
        for job, rate, left_ms in zip(self.jobs, rates, remaining, strict=True):
            job.left_ms[job.phase] = 0.0 if left_ms <= step_ms else job.left_ms[job.phase] - step_ms * rate
            job.skip()
        self._serve()

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
