"""Times the parts of a person's own optimiser steps, and the buckets where the pass-through hook
sends them.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.step_times import STAMPS, bucket_stamps
from commbench.hooks.base import Hook, Stopwatch
from commbench.hooks.step_clock import Mark, clock_of, elapsed_ms
from commbench.live.passes import Pass, Passes

#: Columns of `StepParts.times` before the buckets: milliseconds of the step and of its parts.
STEP, BROADCAST, FORWARD, BACKWARD, EXPOSED, OPTIMIZER = range(6)
COLUMNS = 6
#: DDP's method that broadcasts the buffers of a module, such as the statistics of BatchNorm.
SYNC_BUFFERS = "_sync_buffers"
#: Begin and end in milliseconds.
Span = tuple[float, float]
ALWAYS: Span = (-math.inf, math.inf)


class StepParts:
    """Takes the marks of steps; nothing is read, and nothing waits, before a block ends.

    Args:
        ddp_model: the model that is trained.
        passes: its clock, whose open pass gets the marks.
    """

    def __init__(self, ddp_model: DistributedDataParallel, passes: Passes) -> None:
        self._model = weakref.proxy(ddp_model)
        self._passes = weakref.proxy(passes)
        self._clock = clock_of(ddp_model)
        self._hook: Hook | None = None
        """Times buckets; None before the block of buckets."""
        if hasattr(ddp_model, SYNC_BUFFERS):
            ddp_model.__dict__[SYNC_BUFFERS] = self._broadcast
        passes.times_gradients = True

    def observe(self, hook: Hook) -> None:
        """Take the buckets of a hook from now on."""
        self._hook = hook
        hook.observer = self._note_bucket

    def _broadcast(self) -> None:
        """Broadcast the buffers, in place of DDP's method."""
        begin = self._clock()
        getattr(self._model.__class__, SYNC_BUFFERS)(self._model)
        self._passes.open.broadcasts.append((begin, self._clock()))

    def _note_bucket(self, marks: Stopwatch) -> None:
        self._passes.open.buckets.append(marks)

    def times(self, steps: Sequence[Pass], buckets: int) -> NDArray[np.float64]:
        """Return the times of consecutive steps: shape (steps, COLUMNS), or (steps, COLUMNS +
        STAMPS * buckets).

        Parts are in milliseconds. A bucket has ready, start, done, encoding and decoding in ns
        since the backward pass of the first bucket began. The first step is NaN, because the end
        of the step before it is not known. Times of buckets are NaN in a step with another number
        of buckets.
        """
        columns = COLUMNS
        if self._hook is not None:
            columns += STAMPS * buckets
        times = np.full((len(steps), columns), np.nan)
        for row, (before, step) in zip(times[1:], itertools.pairwise(steps), strict=True):
            row[:COLUMNS] = split_step(before, step)
            if self._hook is not None and len(step.buckets) == buckets:
                row[COLUMNS:] = self._stamps(step)
        return times

    def _stamps(self, step: Pass) -> NDArray[np.float64]:
        since = step.backwards[0][0]
        for begin, _ in step.backwards:
            if elapsed_ms(begin, step.buckets[0].ready) >= 0:
                since = begin
        is_serial = self._model.device.type == "cuda"
        return bucket_stamps(step.buckets, since, is_serial=is_serial).ravel()

    def close(self) -> None:
        """Leave DDP's methods as they were; closing twice is harmless."""
        self._model.__dict__.pop(SYNC_BUFFERS, None)
        if self._hook is not None:
            self._hook.observer = None


def split_step(before: Pass, step: Pass) -> list[float]:
    """Return the milliseconds of a step and of its parts.

    The rest of the step is between the parts.

    Here a step lasts from the end of an exchange of gradients to the end of the next one. The
    exchange ends on all ranks at about the same time. So the parts of the rank that comes last to
    an exchange are the reason of its time.
    """
    since = before.backwards[-1][1]
    backwards = _spans(since, step.backwards)
    whole = 0.0, backwards[-1][1]
    forwards = _forward_spans([elapsed_ms(since, mark) for mark in step.forwards], backwards)
    broadcasts = _spans(since, step.broadcasts)
    updates = _spans(since, [*before.updates, *step.updates])
    exposed_ms = 0.0
    if step.last_gradient is not None:
        exposed_ms = max(0.0, whole[1] - elapsed_ms(since, step.last_gradient))
    return [
        whole[1],
        _shared_ms(broadcasts, [ALWAYS]),
        _shared_ms(forwards, [ALWAYS]) - _shared_ms(forwards, broadcasts),
        _shared_ms(backwards, [ALWAYS]) - exposed_ms,
        exposed_ms,
        _shared_ms(updates, [whole]) - _shared_ms(updates, [*forwards, *backwards]),
    ]


def _spans(since: Mark, marks: Sequence[tuple[Mark, Mark]]) -> list[Span]:
    return [(elapsed_ms(since, begin), elapsed_ms(since, end)) for begin, end in marks]


def _forward_spans(begins: Sequence[float], backwards: Sequence[Span]) -> list[Span]:
    """Return the forward passes, each with its loss.

    A forward pass lasts until the next pass begins. One that no backward pass follows is left out.
    """
    forwards = []
    following = backwards[-1][0]
    for begin in sorted([*begins, *(begin for begin, _ in backwards)], reverse=True):
        if begin in begins and begin < following:
            forwards.append((begin, following))
        following = min(begin, following)
    return forwards


def _shared_ms(spans: Sequence[Span], others: Sequence[Span]) -> float:
    """Return the time of spans that lies in others, which do not overlap."""
    shared_ms = 0.0
    for begin, end in spans:
        for other_begin, other_end in others:
            shared_ms += max(0.0, min(end, other_end) - max(begin, other_begin))
    return shared_ms
