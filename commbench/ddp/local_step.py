"""One training step of a model without DDP, and the time at which each gradient was ready."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from commbench.ddp.plan.workload import ParameterFacts
from commbench.hooks.step_clock import Mark, clock_of, elapsed_ms


@dataclass(frozen=True, kw_only=True)
class LocalStep:
    """Times of one step, or medians over steps, in milliseconds."""

    forward_ms: float
    """Includes the loss."""
    backward_ms: float
    optimizer_ms: float
    ready_ms: dict[str, float]
    """Time from the start of the backward pass until each gradient was ready, in order; without
    unused parameters."""


def default_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the default optimiser of workloads: SGD with learning rate 0.01 and momentum 0.9."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that DDP reduces, in the order of their registration in the model."""
    ignored = getattr(model, "_ddp_params_and_buffers_to_ignore", ())  # torch's own attribute
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in ignored
    }


def parameter_facts(
    model: nn.Module, ready_ms: Mapping[str, float] = MappingProxyType({})
) -> tuple[ParameterFacts, ...]:
    """Return the facts of the trainable parameters, in the order of their registration.

    ``ready_ms``: as in `LocalStep`; 0 for those that it lacks.
    """
    facts = []
    for name, parameter in trainable(model).items():
        fact = ParameterFacts(
            name=name,
            numel=parameter.numel(),
            itemsize=parameter.element_size(),
            dtype=str(parameter.dtype).removeprefix("torch."),
            ready_ms=ready_ms.get(name, 0.0),
            shape=tuple(parameter.shape),
        )
        facts.append(fact)
    return tuple(facts)


def local_step(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batch: Any,  # noqa: ANN401 - a batch has any type that the loss accepts
    optimizer: torch.optim.Optimizer,
) -> LocalStep:
    """Set gradients to None, then make one forward pass, backward pass and optimiser step.

    Return their times.

    Raises:
        Exception: the model, the loss or the optimiser raised it.
    """
    optimizer.zero_grad(set_to_none=True)
    clock = clock_of(model)
    ready: dict[str, Mark] = {}

    def timing(name: str) -> Callable[[nn.Parameter], None]:
        return lambda _: ready.__setitem__(name, clock())

    with contextlib.ExitStack() as stack:
        for name, parameter in trainable(model).items():
            handle = parameter.register_post_accumulate_grad_hook(timing(name))
            stack.callback(handle.remove)
        start = clock()
        value = loss(model, batch)
        forward = clock()
        value.backward()
        backward = clock()
    optimizer.step()
    stepped = clock()
    return LocalStep(
        forward_ms=elapsed_ms(start, forward),
        backward_ms=elapsed_ms(forward, backward),
        optimizer_ms=elapsed_ms(backward, stepped),
        ready_ms={name: elapsed_ms(forward, mark) for name, mark in ready.items()},
    )


def batch_length(batch: Any) -> int:  # noqa: ANN401 - a batch has any type that the loss accepts
    """Return the first dimension of the first tensor in a batch, looking into tuples, lists and
    dicts; else 1.
    """
    first = next(tensors_in(batch), None)
    return int(first.shape[0]) if first is not None and first.dim() else 1


def tensors_in(value: Any) -> Iterator[Tensor]:  # noqa: ANN401 - the inputs or outputs of a model
    """Yield the tensors in nested tuples, lists, dicts and dataclasses."""
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
    """Return a copy of a value in which ``move`` has replaced all movable parts.

    Movable parts are tensors, as `tensors_in` finds them, and objects with a method ``to``, such as
    models and the batches of some libraries.
    """
    if hasattr(value, "to"):
        return move(value)
    if isinstance(value, Mapping):
        return {key: moved_by(move, part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [moved_by(move, part) for part in value]
        is_named = hasattr(
            value, "_fields"
        )  # the constructor of a named tuple has one argument for each part
        return type(value)(*parts) if is_named else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for name, part in vars(value).items():
            object.__setattr__(copied, name, moved_by(move, part))  # the dataclass may be frozen
        return copied
    return value


def median_step(steps: Sequence[LocalStep]) -> LocalStep:
    """Return the median of every time.

    Gradients are in the order of their medians, ties as in the first step.

    Gradients that a step lacks are left out.
    """
    common = [name for name in steps[0].ready_ms if all(name in step.ready_ms for step in steps)]
    medians = {name: _median(step.ready_ms[name] for step in steps) for name in common}
    return LocalStep(
        forward_ms=_median(step.forward_ms for step in steps),
        backward_ms=_median(step.backward_ms for step in steps),
        optimizer_ms=_median(step.optimizer_ms for step in steps),
        ready_ms=dict(sorted(medians.items(), key=lambda item: item[1])),
    )


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))
