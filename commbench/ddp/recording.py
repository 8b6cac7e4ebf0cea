"""Recording of a trace: trains a model for some steps and keeps their medians."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from commbench.ddp.checks import checked_step, endless, first_batch
from commbench.ddp.local_step import (
    LocalStep,
    batch_length,
    default_optimizer,
    local_step,
    median_step,
    trainable,
)
from commbench.ddp.plan.workload import check_all_used
from commbench.ddp.traces import Conditions, Trace, TracedParameter
from commbench.system.host import cpu_model


def record(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batches: Iterable[Any],
    *,
    steps: int = 9,
    name: str = "",
    optimizer: Callable[[Iterable[Any]], Optimizer] | None = None,
) -> Trace:
    """Train a model for ``2 + steps`` steps and return the medians of the last ``steps`` as a
    trace.

    The batches are cycled; the optimiser is as in `commbench.ddp.plan.workload.Workload`. The model
    is changed.

    Raises:
        InputError: the model, the loss or the batches are unsuitable (see `commbench.ddp.checks`).
    """
    batch = batch_length(first_batch(batches))
    optimizer_in_use, source = (
        (optimizer or default_optimizer)(trainable(model).values()),
        endless(batches),
    )
    check_all_used(checked_step(model, loss, next(source), optimizer_in_use))
    times = [local_step(model, loss, next(source), optimizer_in_use) for _ in range(1 + steps)][1:]
    step = median_step(times)
    method = f"median of {steps} training steps, each gradient timed when it was accumulated"
    return trace_of(model, step, name=name, batch=batch, recorded=conditions(model, method))


def trace_of(
    model: nn.Module, step: LocalStep, *, name: str, batch: int, recorded: Conditions
) -> Trace:
    """Return the trace of a model's trainable parameters and of one step."""
    return Trace(
        name=name or type(model).__name__.lower(),
        device="cuda" if any(parameter.is_cuda for parameter in model.parameters()) else "cpu",
        batch=batch,
        forward_ms=step.forward_ms,
        backward_ms=step.backward_ms,
        optimizer_ms=step.optimizer_ms,
        parameters=tuple(
            TracedParameter(
                name=parameter_name,
                shape=tuple(parameter.shape),
                dtype=str(parameter.dtype).removeprefix("torch."),
                ready_ms=min(step.ready_ms[parameter_name], step.backward_ms),
            )
            for parameter_name, parameter in trainable(model).items()
        ),
        recorded=recorded,
    )


def conditions(model: nn.Module, method: str) -> Conditions:
    """Return the method, processor and software of a recording."""
    cuda = next((parameter.device for parameter in model.parameters() if parameter.is_cuda), None)
    processor = {"gpu": torch.cuda.get_device_name(cuda)} if cuda else {"cpu": cpu_model()}
    return {
        "how": method,
        **processor,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
