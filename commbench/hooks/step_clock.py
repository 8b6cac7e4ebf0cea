"""The clock of a training step: this process's own, or events in a GPU's streams, read when the GPU is through."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

#: An instant: nanoseconds of this process's clock, or an event of a GPU.
Mark = Any
#: Marks this instant and waits for nothing; on a GPU it is the one at which the current stream comes to the mark.
Clock = Callable[[], Mark]

host_clock: Clock = time.perf_counter_ns


def event_clock(cuda: Any = torch.cuda) -> Clock:  # noqa: ANN401 - a module, or what stands for it
    """Return a clock of events. Each is in the stream that is current: in a future's callback one of its own."""

    def mark() -> Mark:
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    return mark


def clock_of(model: nn.Module) -> Clock:
    """Return what reads the time where the model computes."""
    return event_clock() if any(parameter.is_cuda for parameter in model.parameters()) else host_clock


def elapsed_ns(first: Mark, last: Mark) -> int:
    """Return the nanoseconds from one mark of a clock to another; waits until a GPU has come to both."""
    if isinstance(first, int):
        return int(last - first)
    first.synchronize()
    last.synchronize()
    return round(1e6 * first.elapsed_time(last))


def elapsed_ms(first: Mark, last: Mark) -> float:
    """Return the same in milliseconds."""
    return elapsed_ns(first, last) / 1e6
