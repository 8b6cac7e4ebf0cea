"""Times the parts of a person's own optimiser steps, and the buckets where the pass-through hook
sends them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.merging import stamps_of
from commbench.ddp.step_times import serialised
from commbench.hooks.base import BucketMarks, Hook
from commbench.hooks.step_clock import Mark, clock_of, elapsed_ms
from commbench.live.passes import Pass

#: Columns of `StepParts.times` before the buckets: milliseconds of the step and of its parts.
STEP, BROADCAST, FORWARD, BACKWARD, EXPOSED, OPTIMIZER = range(6)
COLUMNS = 6
#: Timestamps of a bucket, as `commbench.ddp.merging.stamps_of`.
STAMPS = 5
#: DDP's method that broadcasts the buffers of a module, such as the statistics of BatchNorm.
SYNC_BUFFERS = "_sync_buffers"
#: Begin and end in milliseconds.
Span = tuple[float, float]


@dataclass
class Collected:
    """Marks of one step."""

    buckets: list[BucketMarks] = field(default_factory=list)
    broadcasts: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Begin and end of each broadcast of buffers, which DDP makes before a forward pass."""
    last_gradient: Mark = None


class StepParts:
    """Takes the marks of steps; nothing is read, and nothing waits, before a block ends.

    Args:
        ddp_model: the model that is trained.
    """

    def __init__(self, ddp_model: DistributedDataParallel) -> None:
        self._model = ddp_model
        if hasattr(ddp_model, SYNC_BUFFERS):
            ddp_model.__dict__[SYNC_BUFFERS] = self._broadcast
        self._clock = clock_of(ddp_model)
        self._is_serial = ddp_model.device.type == "cuda"
        self._hook: Hook | None = None
        """Times buckets; None before the block of buckets."""
        self._open = Collected()
        self._collected: dict[int, Collected] = {}
        """By the number of the step."""
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._note_gradient)
            for parameter in ddp_model.parameters()
            if parameter.requires_grad
        ]

    def observe(self, hook: Hook) -> None:
        """Take the buckets of a hook from now on."""
        self._hook, hook.observer = hook, self._note_bucket

    def _broadcast(self) -> None:
        """Broadcast the buffers, in place of DDP's method."""
        begin = self._clock()
        getattr(type(self._model), SYNC_BUFFERS)(self._model)
        self._open.broadcasts.append((begin, self._clock()))

    def _note_gradient(self, _parameter: nn.Parameter) -> None:
        self._open.last_gradient = self._clock()

    def _note_bucket(self, marks: BucketMarks) -> None:
        self._open.buckets.append(marks)

    def end_step(self, step: Pass) -> None:
        """Assign the marks since the last call to a step that is over."""
        self._collected[step.index], self._open = self._open, Collected()

    def times(self, steps: Sequence[Pass], buckets: int) -> NDArray[np.float64]:
        """Return the times of consecutive steps: shape (steps, COLUMNS), or (steps, COLUMNS +
        STAMPS * buckets).

        Parts are in milliseconds. A bucket has ready, start, done, encoding and decoding in ns
        since the last backward pass began. The first step is NaN, because the end of the step
        before it is not known. Times of buckets are NaN in a step with another number of buckets.
        """
        times = np.full((len(steps), COLUMNS + (STAMPS * buckets if self._hook else 0)), np.nan)
        collected = [self._collected.pop(step.index) for step in steps]
        self._collected.clear()  # of steps before the first block
        for row, of_step, (before, step) in zip(
            times[1:], collected[1:], itertools.pairwise(steps), strict=True
        ):
            row[:COLUMNS] = split_step(before, step, of_step)
            if self._hook and len(of_step.buckets) == buckets:
                events = [marks.times(step.backwards[-1][0]) for marks in of_step.buckets]
                events = serialised(events) if self._is_serial else events
                ordered = sorted(events, key=lambda event: event.index)
                row[COLUMNS:] = np.array(stamps_of(ordered)).ravel()
        return times

    def close(self) -> None:
        """Remove every hook; closing twice is harmless."""
        self._model.__dict__.pop(SYNC_BUFFERS, None)
        if self._hook is not None:
            self._hook.observer = None
        while self._handles:
            self._handles.pop().remove()


def split_step(before: Pass, step: Pass, collected: Collected) -> list[float]:
    """Return the milliseconds of a step and of its parts.

    The rest of the step is between the parts.

    Here a step lasts from the end of an exchange of gradients to the end of the next one. The
    exchange ends on all ranks at about the same time. So the parts of the rank that comes last to
    an exchange are the reason of its time.

    Raises:
        ValueError: no backward pass was seen.
    """
    if not before.backwards or not step.backwards:
        raise ValueError("the script calls no backward() of torch")
    since = before.backwards[-1][1]
    backwards = [_span(since, *marks) for marks in step.backwards]
    forwards = _forward_spans(
        [elapsed_ms(since, mark) for mark in step.forwards], [begin for begin, _ in backwards]
    )
    broadcasts = [_span(since, *marks) for marks in collected.broadcasts]
    whole = 0.0, backwards[-1][1]
    passes = [*forwards, *backwards]
    updates = [_common(whole, _span(since, *marks)) for marks in [*before.updates, *step.updates]]
    exposed_ms = _exposed_ms(step, collected)
    return [
        whole[1],
        sum(map(_length, broadcasts)),
        sum(_length(forward) - _shared_ms(forward, broadcasts) for forward in forwards),
        sum(map(_length, backwards)) - exposed_ms,
        exposed_ms,
        sum(_length(update) - _shared_ms(update, passes) for update in updates),
    ]


def _span(since: Mark, begin: Mark, end: Mark) -> Span:
    return elapsed_ms(since, begin), elapsed_ms(since, end)


def _length(span: Span) -> float:
    return max(0.0, span[1] - span[0])


def _common(span: Span, other: Span) -> Span:
    """Return the part of a span that lies in another one; a span of no length if there is none."""
    return max(span[0], other[0]), min(span[1], other[1])


def _shared_ms(span: Span, others: Sequence[Span]) -> float:
    """Return the part of a span that others take, which do not overlap."""
    return sum(_length(_common(span, other)) for other in others)


def _forward_spans(forwards: Sequence[float], backwards: Sequence[float]) -> list[Span]:
    """Return the forward passes, each with its loss, from the begins of all passes in order.

    A forward pass lasts until the next pass begins. One that no backward pass follows is left out.
    """
    begins = sorted([*forwards, *backwards])
    return [
        (begin, next(following for following in begins if following > begin))
        for begin in forwards
        if begin < backwards[-1]
    ]


def _exposed_ms(step: Pass, collected: Collected) -> float:
    """Return the time from the last local gradient to the end of the last backward pass."""
    begun, ended = step.backwards[-1]
    if collected.last_gradient is None:
        return 0.0
    return max(0.0, elapsed_ms(begun, ended) - elapsed_ms(begun, collected.last_gradient))
