"""The parameters of a model, its default optimiser, and the tensors in a batch."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from commbench.ddp.plan.workload import ParameterFacts


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


def parameter_facts(model: nn.Module) -> tuple[ParameterFacts, ...]:
    """Return the facts of the trainable parameters, in the order of their registration."""
    facts = []
    for name, parameter in trainable(model).items():
        fact = ParameterFacts(
            name=name,
            numel=parameter.numel(),
            itemsize=parameter.element_size(),
            dtype=str(parameter.dtype).removeprefix("torch."),
            shape=tuple(parameter.shape),
        )
        facts.append(fact)
    return tuple(facts)


def batch_length(batch: Any) -> int:
    """Return the first dimension of the first tensor in a batch, looking into tuples, lists and
    dicts; else 1.
    """
    first = next(tensors_in(batch), None)
    if first is None or not first.dim():
        return 1
    return int(first.shape[0])


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists, dicts and dataclasses.

    Methods of mappings are not called: some load or draw their values only then.
    """
    if isinstance(value, UserDict):
        value = value.data
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(dict.values(value)))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in(list(vars(value).values()))


def moved_by(move: Callable[[Any], Any], value: Any) -> Any:
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
        if hasattr(value, "_fields"):  # the constructor of a named tuple takes the parts one by one
            return type(value)(*parts)
        return type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for name, part in vars(value).items():
            object.__setattr__(copied, name, moved_by(move, part))  # the dataclass may be frozen
        return copied
    return value
