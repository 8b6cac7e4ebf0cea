"""The times of a step's parts and buckets, read after the device has reached the end of the
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from commbench.hooks import BucketMarks, BucketTimes
from commbench.hooks.step_clock import Mark, elapsed_ns

#: A nanosecond in seconds.
NS = 1e-9


@dataclass(frozen=True, kw_only=True)
class StepMarks:
    """One optimiser step as marks of a clock, in order."""

    begun: Mark
    """Mark before the first batch is fetched."""
    passes: Sequence[tuple[Mark, Mark, Mark]]
    """For each forward and backward pass: marks when the batch, the loss and the gradients were
    ready."""
    updating: Mark
    ended: Mark
    buckets: Sequence[BucketMarks] = ()
    """Marks of the buckets in the order of completion; only the last pass exchanges buckets."""

    def seconds(self) -> tuple[float, float, float, float]:
        """Return the seconds of forward, backward, optimiser, and the whole step."""
        forward = sum(elapsed_ns(fetched, loss_ready) for fetched, loss_ready, _ in self.passes)
        backward = sum(
            elapsed_ns(loss_ready, exchanged) for _, loss_ready, exchanged in self.passes
        )
        updating, whole = elapsed_ns(self.updating, self.ended), elapsed_ns(self.begun, self.ended)
        return NS * forward, NS * backward, NS * updating, NS * whole

    def bucket_times(self, *, is_serial: bool) -> list[BucketTimes]:
        """Return the times of each bucket in ns since the last backward pass began.

        ``is_serial``: see `serialised`.
        """
        _, began, _ = self.passes[-1]
        times = [bucket.times(began) for bucket in self.buckets]
        return serialised(times) if is_serial else times


def serialised(times: Sequence[BucketTimes]) -> list[BucketTimes]:
    """Move starts after earlier arrivals, for a process group that runs one collective after the
    other.

    NCCL queues collectives on its own stream, where we cannot set a mark. The mark is the time from
    which a bucket could have started.
    """
    serial: list[BucketTimes] = []
    free_ns = 0
    for bucket in sorted(times, key=lambda each: each.index):
        arrived_ns = max(bucket.start_ns, bucket.done_ns - bucket.decode_ns)
        serial.append(replace(bucket, start_ns=min(max(bucket.start_ns, free_ns), arrived_ns)))
        free_ns = max(free_ns, arrived_ns)
    return serial


class StepLog:
    """The times of steps in order; the log reads a step after the next one was queued.

    The GPU then always has a queued step while the host reads, and the host is at most one step
    ahead.
    """

    def __init__(self, *, is_serial: bool = False) -> None:
        self.seconds: list[tuple[float, float, float, float]] = []
        """As `StepMarks.seconds`."""
        self.buckets: list[list[BucketTimes]] = []
        """As `StepMarks.bucket_times`."""
        self._is_serial = is_serial
        self._latest: StepMarks | None = None

    def add(self, step: StepMarks) -> None:
        """Read the previous step and keep this one."""
        self.finish()
        self._latest = step

    def finish(self) -> None:
        """Read the last step."""
        if self._latest is not None:
            self.seconds.append(self._latest.seconds())
            self.buckets.append(self._latest.bucket_times(is_serial=self._is_serial))
        self._latest = None
