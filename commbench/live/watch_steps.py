"""The times of the parts of a person's own optimiser steps, and of the buckets that the
pass-through hook sends, from the marks of passes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from commbench.ddp.step_times import STAMPS, bucket_stamps
from commbench.hooks.step_clock import Mark, elapsed_ms
from commbench.live.passes import Pass

#: Columns of `times_of` before the buckets: milliseconds of the step and of its parts.
STEP, BROADCAST, FORWARD, BACKWARD, EXPOSED, OPTIMIZER = range(6)
COLUMNS = 6
#: Begin and end in milliseconds.
Span = tuple[float, float]
ALWAYS: Span = (-math.inf, math.inf)


def times_of(steps: Sequence[Pass], buckets: int, *, is_serial: bool) -> NDArray[np.float64]:
    """Return the times of consecutive steps: shape (steps, COLUMNS + STAMPS * buckets).

    Parts are in milliseconds. A bucket has ready, start, done, encoding and decoding in ns since
    the backward pass of the first bucket began. The first step is NaN, because the end of the step
    before it is not known. Times of buckets are NaN in a step with another number of buckets.

    Args:
        steps: passes of a watched training.
        buckets: of each step; 0: their times are not wanted.
        is_serial: see `commbench.ddp.step_times.bucket_stamps`.
    """
    times = np.full((len(steps), COLUMNS + STAMPS * buckets), np.nan)
    for row, (before, step) in zip(times[1:], itertools.pairwise(steps), strict=True):
        row[:COLUMNS] = split_step(before, step)
        if buckets and len(step.buckets) == buckets:
            since = step.backwards[0][0]
            for begin, _ in step.backwards:
                if elapsed_ms(begin, step.buckets[0].ready) >= 0:
                    since = begin
            row[COLUMNS:] = bucket_stamps(step.buckets, since, is_serial=is_serial).ravel()
    return times


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
