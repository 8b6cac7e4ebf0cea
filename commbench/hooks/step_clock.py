"""The clock of a training step: the process's clock, or events in a GPU's streams, read after the
GPU reached them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

#: A timestamp: nanoseconds of this process's clock, or an event of a GPU.
Mark = Any
#: Takes a mark without waiting; on a GPU its time is when the current stream reaches the mark.
Clock = Callable[[], Mark]

host_clock: Clock = time.perf_counter_ns


def event_clock(number: int, cuda: Any = torch.cuda) -> Clock:
    """Return a clock of events in the current stream.

    In a future's callback, that is the callback's stream.

    Args:
        number: the GPU's number; it need not be the current GPU of the calling thread.
        cuda: ``torch.cuda``, or a substitute.
    """

    def mark() -> Mark:
        event = cuda.Event(enable_timing=True)
        event.record(cuda.current_stream(number))
        return event

    return mark


def clock_of(model: nn.Module) -> Clock:
    """Return the clock of the device that holds the model."""
    device = next((parameter.device for parameter in model.parameters() if parameter.is_cuda), None)
    return host_clock if device is None else event_clock(device.index)


def elapsed_ns(first: Mark, last: Mark) -> int:
    """Return the nanoseconds between two marks of a clock; waits until a GPU has reached both."""
    if isinstance(first, int):
        return int(last - first)
    first.synchronize()
    last.synchronize()
    milliseconds: float = first.elapsed_time(last)
    return round(1e6 * milliseconds)


def elapsed_ms(first: Mark, last: Mark) -> float:
    """Return the milliseconds between two marks; see `elapsed_ns`."""
    return elapsed_ns(first, last) / 1e6
