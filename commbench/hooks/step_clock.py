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


def event_clock(number: int, cuda: Any = torch.cuda) -> Clock:  # noqa: ANN401 - a module, or what stands for it
    """Return a clock of events in whatever stream is current: in a future's callback that is one of its own.

    Args:
        number: of the GPU, which need not be the current one of every thread that marks.
        cuda: ``torch.cuda``, or what stands for it.
    """

    def mark() -> Mark:
        event = cuda.Event(enable_timing=True)
        event.record(cuda.current_stream(number))
        return event

    return mark


def clock_of(model: nn.Module) -> Clock:
    """Return what reads the time where the model computes."""
    device = next((parameter.device for parameter in model.parameters() if parameter.is_cuda), None)
    return host_clock if device is None else event_clock(device.index)


def elapsed_ns(first: Mark, last: Mark) -> int:
    """Return the nanoseconds from one mark of a clock to another; waits until a GPU has come to both."""
    if isinstance(first, int):
        return int(last - first)
    first.synchronize()
    last.synchronize()
    milliseconds: float = first.elapsed_time(last)
    return round(1e6 * milliseconds)


def elapsed_ms(first: Mark, last: Mark) -> float:
    """Return the same in milliseconds."""
    return elapsed_ns(first, last) / 1e6
