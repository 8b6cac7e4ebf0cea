"""The workload ``trace:``: a model without computation whose gradients become ready at recorded
times.

torch and numba's decorators are untyped here: torch's classes count as Any.
"""

# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types
from torch import Tensor, nn

from commbench.ddp.plan.workload import Workload
from commbench.ddp.traces import Trace, TracedParameter, load_trace
from commbench.ddp.workloads.sampling import GRADIENTS, STRUCTURE, generator
from commbench.errors import InputError
from commbench.system.compiling import compiled

#: Standard deviations of the gradients, one for each tensor, lie between these powers of ten.
SCALES = (-4.0, -2.0)
CALIBRATION_PARAMETERS = 200
CLOCK_THREAD_CPUTIME_ID = 3
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))


class Replay(nn.Module):
    """The parameters of a trace.

    A backward pass yields their gradients in the recorded order at the recorded times.

    ``forward`` takes anything and returns the scalar 0 from which `backward` starts. Gradients are
    drawn once, from a Gaussian for each rank and tensor, and copied in every pass into memory that
    is reused.
    """

    def __init__(self, trace: Trace, pace: Pace, *, seed: int, rank: int) -> None:
        super().__init__()
        self.trace = trace
        self.pace = pace
        self._gradients = _Shared(_draw_gradients(trace, seed=seed, rank=rank))
        self._handed_out: dict[int, Tensor] = {}
        self._registered = _register(self, trace)

    def forward(self, _batch: Any) -> Tensor:
        """Use up the recorded time.

        Return the end of the autograd chain that the backward pass runs through.
        """
        self.pace.begin()
        self.pace.enter()
        start = torch.zeros((), device=self._registered[0].device, requires_grad=True)
        value = start.clone()  # its hook runs after the last gradient is accumulated
        value.register_hook(self._end_backward)
        for index in reversed(self.trace.ready_order):
            value = _Release.apply(value, self._registered[index], self, index)
        value.register_hook(self._begin_backward)
        self.pace.until(self.trace.forward_ms)
        return value

    def release(self, index: int) -> Tensor:
        """Wait until a parameter's gradient is due and return it; the caller may write to it."""
        self.pace.enter()
        gradient = self._gradients[index].to(self._registered[index].device)
        self._gradients[index] = gradient  # it stays there
        if (
            self._registered[index].grad is None
        ):  # else torch would add the new gradient to the old one
            if index not in self._handed_out:
                self._handed_out[index] = torch.empty_like(gradient)
            gradient = self._handed_out[index].copy_(gradient)
        self.pace.until(self.trace.parameters[index].ready_ms)
        return gradient.detach()  # a new tensor on the same memory: torch keeps it without a copy

    def _begin_backward(self, _upstream: Tensor) -> None:
        self.pace.begin()

    def _end_backward(self, _upstream: Tensor) -> None:
        self.pace.enter()
        self.pace.until(self.trace.backward_ms)


class _Shared(list[Tensor]):
    """Tensors that copies of a model share."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Shared:
        return self


def _draw_gradients(trace: Trace, *, seed: int, rank: int) -> Iterator[Tensor]:
    """Yield every tensor's gradient: ranks share the standard deviation and have different
    values.
    """
    low, high = SCALES
    uniform = torch.rand(len(trace.parameters), generator=generator(seed, STRUCTURE))
    powers = (low + (high - low) * uniform).tolist()
    for index, parameter in enumerate(trace.parameters):
        numbers = generator(seed, GRADIENTS, rank, index)
        drawn = torch.randn(parameter.shape, generator=numbers)
        yield drawn.mul_(10 ** powers[index]).to(_dtype(parameter))


class _Release(torch.autograd.Function):
    """Returns a gradient in the backward pass; autograd accumulates it before the next one."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, _parameter: Tensor, replay: Replay, index: int) -> Tensor:
        ctx.replay, ctx.index = replay, index
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return upstream, ctx.replay.release(ctx.index), None, None


class ReplayedOptimizer(torch.optim.SGD):
    """Plain SGD whose step lasts the recorded time; for a trace of a GPU it sleeps."""

    def __init__(self, parameters: Iterable[nn.Parameter], trace: Trace, pace: Pace) -> None:
        super().__init__(parameters, lr=1e-6)
        self._trace, self._pace = trace, pace

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters: gradients that differ between ranks then cause parameters that
        differ.
        """
        self._pace.begin()
        self._pace.enter()
        value: float | None = None
        if self._trace.device == "cpu":
            value = super().step(closure)
        self._pace.until(self._trace.optimizer_ms)
        return value


def workload(name_or_path: str, *, seed: int, rank: int, batch_size: int | None) -> Workload:
    """Return the replay of a trace; its loss has no meaning.

    Raises:
        InputError: there is no such trace, it is invalid, or a batch other than the recorded one is
            requested.
    """
    trace = load_trace(name_or_path)
    if batch_size not in {None, trace.batch}:
        raise InputError(
            f"A batch of {batch_size} was asked for and the trace {name_or_path} was recorded with"
            f" {trace.batch}: leave the batch to the trace."
        )
    pace = pace_for(trace)
    return Workload(
        model=Replay(trace, pace, seed=seed, rank=rank),
        loss=lambda model, batch: model(batch),
        batches=[torch.zeros(trace.batch, 1)],
        batch_size=trace.batch,
        optimizer=lambda parameters: ReplayedOptimizer(parameters, trace, pace),
    )


def pace_for(trace: Trace) -> Pace:
    """Return a new pace for the device of the trace."""
    if trace.device == "cpu":
        return BusyPace(_overhead_ns())
    return Pace()


def _register(root: nn.Module, trace: Trace) -> list[nn.Parameter]:
    """Register the trace's parameters under their names, in submodules for the prefixes of the
    names.

    Raises:
        InputError: no model can have parameters of these names in this order.
    """
    try:
        for traced in trace.parameters:
            *path, leaf = traced.name.split(".")
            module = root
            for part in path:
                if part not in dict(module.named_children()):
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(
                leaf, nn.Parameter(torch.zeros(traced.shape, dtype=_dtype(traced)))
            )
    except KeyError as error:
        raise InputError(
            f"The trace {trace.name} cannot be replayed ({error}): rename the parameter."
        ) from error
    registered = dict(root.named_parameters())
    if list(registered) != [traced.name for traced in trace.parameters]:
        raise InputError(
            f"The trace {trace.name} cannot be replayed, for its parameters are not in the order in"
            " which a model of these names registers them: sort them by module."
        )
    return list(registered.values())


def _dtype(parameter: TracedParameter) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, parameter.dtype)
    return dtype


@cache
def _overhead_ns() -> int:
    """Measure the time that autograd and Python need for each gradient of a replay."""
    parameters = tuple(
        TracedParameter(name=str(index), shape=(), dtype="float32", ready_ms=0.0)
        for index in range(CALIBRATION_PARAMETERS)
    )
    pace = BusyPace(0)
    trace = Trace(
        name="calibration",
        device="cpu",
        batch=1,
        forward_ms=0.0,
        backward_ms=0.0,
        optimizer_ms=0.0,
        parameters=parameters,
    )
    model = Replay(trace, pace, seed=0, rank=0)
    overheads = []
    for _ in range(5):
        model.zero_grad(set_to_none=True)
        value = model(None)
        started = time.thread_time_ns()
        value.backward()
        overheads.append(
            (time.thread_time_ns() - started - pace.spent_ns) // CALIBRATION_PARAMETERS
        )
    return max(0, sorted(overheads)[len(overheads) // 2])


# --------------------------------------------------------------------------------------------- pace


@compiled
def keep_busy(cpu_ns: int) -> None:
    """Use ``cpu_ns`` nanoseconds of this thread's CPU time, without holding the GIL."""
    now = np.zeros(2, dtype=np.int64)
    _clock_gettime(CLOCK_THREAD_CPUTIME_ID, now.ctypes.data)
    end = now[0] * 1_000_000_000 + now[1] + cpu_ns
    while now[0] * 1_000_000_000 + now[1] < end:
        _clock_gettime(CLOCK_THREAD_CPUTIME_ID, now.ctypes.data)


class Pace:
    """Keeps a replayed pass to its recorded times by sleeping, as a GPU leaves the core free."""

    def __init__(self) -> None:
        self._begun = 0

    def begin(self) -> None:
        """Mark the start of a pass."""
        self._begun = time.perf_counter_ns()

    def enter(self) -> None:
        """Mark the start of the work before a recorded time.

        The time since the last `until` belongs to DDP.
        """

    def until(self, recorded_ms: float) -> None:
        """Wait until ``recorded_ms`` of the pass have elapsed."""
        remaining = recorded_ms / 1e3 - (time.perf_counter_ns() - self._begun) / 1e9
        if remaining > 0:
            time.sleep(remaining)


class BusyPace(Pace):
    """Uses CPU time: other work on the core then delays the replay as it would delay the model.

    The work of DDP and its hooks between two gradients adds to the recorded times, as in real
    training. ``overhead_ns`` is the replay's own time for each gradient; it is subtracted.
    """

    def __init__(self, overhead_ns: int) -> None:
        super().__init__()
        self.overhead_ns = overhead_ns
        self.spent_ns = 0
        self._entered = 0
        keep_busy(0)  # compiles, or loads numba's cache

    def begin(self) -> None:
        """See `Pace.begin`."""
        self.spent_ns = 0

    def enter(self) -> None:
        """See `Pace.enter`."""
        self._entered = time.thread_time_ns()

    def until(self, recorded_ms: float) -> None:
        """See `Pace.until`."""
        self.spent_ns += self.overhead_ns
        remaining = (
            round(recorded_ms * 1e6) - self.spent_ns - (time.thread_time_ns() - self._entered)
        )
        if remaining > 0:
            keep_busy(remaining)
        self.spent_ns += time.thread_time_ns() - self._entered
