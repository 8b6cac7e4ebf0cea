"""When the parts of a step and its buckets took place, read as soon as the device has come to the end of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from commbench.hooks import BucketMarks, BucketTimes
from commbench.hooks.step_clock import Mark, elapsed_ns

#: Seconds.
NS = 1e-9


@dataclass(frozen=True, kw_only=True)
class StepMarks:
    """One optimiser step as marks of a clock, in their order."""

    begun: Mark
    """Before the first batch is fetched."""
    passes: Sequence[tuple[Mark, Mark, Mark]]
    """Of each forward and backward pass: the batch is there, the loss is there, and the gradients, exchanged or not."""
    updating: Mark
    ended: Mark
    buckets: Sequence[BucketMarks] = ()
    """In the order in which they were finished; those of the last pass, which alone exchanges."""

    def seconds(self) -> tuple[float, float, float, float]:
        """Forward, backward, optimiser, and all of it."""
        forward = sum(elapsed_ns(fetched, lost) for fetched, lost, _ in self.passes)
        backward = sum(elapsed_ns(lost, exchanged) for _, lost, exchanged in self.passes)
        updating, whole = elapsed_ns(self.updating, self.ended), elapsed_ns(self.begun, self.ended)
        return NS * forward, NS * backward, NS * updating, NS * whole

    def bucket_times(self, *, in_turn: bool) -> list[BucketTimes]:
        """When each bucket took place, in ns since the last backward pass began; ``in_turn``: see `carried_in_turn`."""
        _, began, _ = self.passes[-1]
        times = [bucket.times(began) for bucket in self.buckets]
        return carried_in_turn(times) if in_turn else times


def carried_in_turn(times: Sequence[BucketTimes]) -> list[BucketTimes]:
    """The same where a process group carries one collective after the other: none starts before the last has arrived.

    NCCL queues them on a stream of its own, on which nobody else can put a mark: what is marked is the instant from
    which on a bucket could have started.
    """
    found: list[BucketTimes] = []
    free_ns = 0
    for one in sorted(times, key=lambda each: each.index):
        arrived_ns = max(one.start_ns, one.done_ns - one.decode_ns)
        found.append(replace(one, start_ns=min(max(one.start_ns, free_ns), arrived_ns)))
        free_ns = max(free_ns, arrived_ns)
    return found


class StepLog:
    """The times of steps in their order, each read when the next has been made.

    A GPU then always has a step to go on with while the host reads, and the host is never further ahead than that.
    """

    def __init__(self, *, in_turn: bool = False) -> None:
        self.seconds: list[tuple[float, float, float, float]] = []
        """As `StepMarks.seconds`."""
        self.buckets: list[list[BucketTimes]] = []
        """As `StepMarks.bucket_times`."""
        self._in_turn = in_turn
        self._latest: StepMarks | None = None

    def add(self, step: StepMarks) -> None:
        """Read the step before, and keep this one."""
        self.finish()
        self._latest = step

    def finish(self) -> None:
        """Read the last step, too."""
        if self._latest is not None:
            self.seconds.append(self._latest.seconds())
            self.buckets.append(self._latest.bucket_times(in_turn=self._in_turn))
        self._latest = None
