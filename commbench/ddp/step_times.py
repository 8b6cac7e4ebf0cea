"""The times of a step's parts and buckets, read after the device has reached the end of the
step.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commbench.hooks.base import Stopwatch
from commbench.hooks.step_clock import Mark, elapsed_ns
from commbench.stats import Floats

#: A nanosecond in seconds.
NS = 1e-9
#: Columns of a bucket's stamps: when all its gradients were ready, when its communication began
#: and when its result was ready, in ns since the backward pass began; ns of encoding and decoding.
READY, START, DONE, ENCODE, DECODE = range(5)
STAMPS = 5


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
    buckets: Sequence[Stopwatch] = ()
    """Marks of the buckets in the order of completion; only the last pass exchanges buckets."""

    def seconds(self) -> tuple[float, float, float, float]:
        """Return the seconds of forward, backward, optimiser, and the whole step."""
        forward = backward = 0
        for fetched, loss_ready, exchanged in self.passes:
            forward += elapsed_ns(fetched, loss_ready)
            backward += elapsed_ns(loss_ready, exchanged)
        updating, whole = elapsed_ns(self.updating, self.ended), elapsed_ns(self.begun, self.ended)
        return NS * forward, NS * backward, NS * updating, NS * whole


def bucket_stamps(buckets: Sequence[Stopwatch], since: Mark, *, is_serial: bool) -> Floats:
    """Return the stamps of a step's buckets in the order of sending, shape (buckets, STAMPS).

    Args:
        buckets: of one step, in any order.
        since: the begin of the backward pass.
        is_serial: whether the process group runs one collective after the other, see `serialise`.
    """
    stamps = np.empty((len(buckets), STAMPS))
    in_order = sorted(buckets, key=operator.attrgetter("bucket.index"))
    for row, bucket in zip(stamps, in_order, strict=True):
        row[:] = bucket.stamps(since)
    if is_serial:
        serialise(stamps)
    return stamps


def serialise(stamps: Floats) -> None:
    """Move the starts of buckets after earlier arrivals.

    NCCL queues collectives on its own stream, where we cannot set a mark. The mark is the time from
    which a bucket could have started.
    """
    free_ns = 0.0
    for row in stamps:
        arrived_ns = max(row[START], row[DONE] - row[DECODE])
        row[START] = min(max(row[START], free_ns), arrived_ns)
        free_ns = max(free_ns, arrived_ns)


class StepLog:
    """The times of steps in order; the log reads a step after the next one was queued.

    The GPU then always has a queued step while the host reads, and the host is at most one step
    ahead.
    """

    def __init__(self, *, is_serial: bool = False) -> None:
        self.seconds: list[tuple[float, float, float, float]] = []
        """As `StepMarks.seconds`."""
        self.buckets: list[Floats] = []
        """The stamps of each step's buckets."""
        self._is_serial = is_serial
        self._latest: StepMarks | None = None

    def add(self, step: StepMarks) -> None:
        """Read the previous step and keep this one."""
        self.finish()
        self._latest = step

    def finish(self) -> None:
        """Read the last step."""
        step, self._latest = self._latest, None
        if step is None:
            return
        self.seconds.append(step.seconds())
        _, began, _ = step.passes[-1]
        self.buckets.append(bucket_stamps(step.buckets, began, is_serial=self._is_serial))
