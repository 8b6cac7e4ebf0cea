"""One training step of a model on its own, without DDP, and when each gradient was ready in it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from commbench.hooks.step_clock import Mark, clock_of, elapsed_ms


@dataclass(frozen=True, kw_only=True)
class LocalStep:
    """Times of one or of the median step, in milliseconds."""

    forward_ms: float
    """Includes the loss."""
    backward_ms: float
    optimizer_ms: float
    ready_ms: dict[str, float]
    """When each parameter's gradient was ready, since the backward began, in that order; unused ones are absent."""


def default_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimiser of a workload that names none: SGD with learning rate 0.01 and momentum 0.9."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that DDP would reduce, in the order in which the model registers them."""
    ignored = getattr(model, "_ddp_params_and_buffers_to_ignore", ())  # how torch itself marks them
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in ignored
    }


def local_step(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batch: Any,  # noqa: ANN401 - a batch is whatever the loss understands
    optimizer: torch.optim.Optimizer,
) -> LocalStep:
    """Do one forward pass, backward pass and optimiser step, with gradients set to None before.

    Raises:
        Exception: whatever the model, the loss or the optimiser raises.
    """
    optimizer.zero_grad(set_to_none=True)
    clock = clock_of(model)
    ready: dict[str, Mark] = {}
    with ready_hooks(trainable(model), lambda name, _: ready.__setitem__(name, clock())):
        begun = clock()
        value = loss(model, batch)
        forward = clock()
        value.backward()
        backward = clock()
    optimizer.step()
    stepped = clock()
    return LocalStep(
        forward_ms=elapsed_ms(begun, forward),
        backward_ms=elapsed_ms(forward, backward),
        optimizer_ms=elapsed_ms(backward, stepped),
        ready_ms={name: elapsed_ms(forward, mark) for name, mark in ready.items()},
    )


def batch_length(batch: Any) -> int:  # noqa: ANN401 - a batch is whatever the loss understands
    """Return the first dimension of the first tensor in a batch, looking into tuples, lists and dicts; else 1."""
    first = next(tensors_in(batch), None)
    return int(first.shape[0]) if first is not None and first.dim() else 1


def tensors_in(value: Any) -> Iterator[Tensor]:  # noqa: ANN401 - what a model takes or returns
    """Yield the tensors in tuples, lists, dicts and dataclasses, as deep as these are."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in(list(vars(value).values()))


def moved_by(move: Callable[[Any], Any], value: Any) -> Any:  # noqa: ANN401 - as `tensors_in`
    """Return the like of a value in which ``move`` was called with all that can move.

    That are the tensors that `tensors_in` finds, and what else has a method ``to``, as models and some libraries'
    batches have.
    """
    if hasattr(value, "to"):
        return move(value)
    if isinstance(value, Mapping):
        return {key: moved_by(move, part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [moved_by(move, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)  # a named tuple takes each
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for name, part in vars(value).items():
            object.__setattr__(made, name, moved_by(move, part))  # it may be frozen
        return made
    return value


def median_step(steps: Sequence[LocalStep]) -> LocalStep:
    """Return the median of every time; gradients are ordered by their median, ties as in the first step."""
    medians = {name: _median(step.ready_ms[name] for step in steps) for name in steps[0].ready_ms}
    return LocalStep(
        forward_ms=_median(step.forward_ms for step in steps),
        backward_ms=_median(step.backward_ms for step in steps),
        optimizer_ms=_median(step.optimizer_ms for step in steps),
        ready_ms=dict(sorted(medians.items(), key=lambda item: item[1])),
    )


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


@contextmanager
def ready_hooks(parameters: Mapping[str, nn.Parameter], note: Callable[[str, nn.Parameter], None]) -> Iterator[None]:
    """Call ``note`` with name and parameter whenever a gradient has been accumulated, until the block ends."""

    def noting(name: str) -> Callable[[nn.Parameter], None]:
        return lambda parameter: note(name, parameter)

    hooks = [parameter.register_post_accumulate_grad_hook(noting(name)) for name, parameter in parameters.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
