"""What is trained: the `Workload` that a person or commbench itself supplies, and the `WorkloadFacts` seen of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.errors import InputError
from commbench.schema import Diverging, read_as

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn import Parameter
    from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, its loss and its data, as one rank sees them.

    A workload is made by a callable that takes any of the keyword arguments ``seed``, ``rank``, ``world_size`` and
    ``batch_size``. All ranks make the same initial model; their data differs.
    """

    model: nn.Module
    """The bare model: commbench puts DDP around it."""
    loss: Callable[[nn.Module, Any], Tensor]
    """``loss(model, batch)`` is a scalar; it calls ``model(...)``, which is the model inside DDP."""
    batches: Iterable[Any]
    """May be iterated again and again, each time from the start; begun anew where it is shorter than the training."""
    batch_size: int
    """Samples per rank in one batch."""
    optimizer: Callable[[Iterable[Parameter]], Optimizer] | None = None
    """Makes the optimiser; None is SGD with learning rate 0.01 and momentum 0.9."""
    evaluate: Callable[[nn.Module], float] | None = None
    """The value of ``metric`` for the bare model, the same on every rank; None where there is nothing to evaluate."""
    metric: str = ""
    """What ``evaluate`` returns, such as ``accuracy``."""
    target: float | None = None
    """A value of ``metric`` at which the model counts as trained."""
    steps: int | None = None
    """How many optimiser steps tell something about the loss; None where the loss tells nothing."""


@dataclass(frozen=True, kw_only=True)
class ParameterFacts:
    """One trainable parameter."""

    name: str
    numel: int
    itemsize: int
    """Bytes of one element."""
    dtype: str
    """As in ``float32``."""
    ready_ms: float
    """When its gradient was ready, since the backward pass began; median over steps."""
    shape: tuple[int, ...] | None = None
    """None where only the number of elements is known."""


@dataclass(frozen=True, kw_only=True)
class WorkloadFacts:
    """What local steps of a workload showed, without DDP; times are medians over steps, in milliseconds."""

    parameters: tuple[ParameterFacts, ...]
    """The trainable ones, in the order in which the model registers them."""
    ready_order: tuple[int, ...]
    """Indices into ``parameters`` in the order in which gradients became ready."""
    buffer_bytes: int
    """Of the model's buffers, such as BatchNorm's statistics, which DDP broadcasts in every forward pass."""
    batch_size: int
    forward_ms: float
    backward_ms: float
    optimizer_ms: float
    metric: str
    target: Diverging | None
    steps: int | None
    takes_lists: bool = False
    """Whether DDP of the torch that made them takes a list of bucket sizes."""

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and texts."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkloadFacts:
        """Return what `to_json` wrote, before or after a journey through JSON.

        Raises:
            InputError: it is something else.
        """
        facts = read_as(cls, data)
        named = set(facts.ready_order)
        if len(named) < len(facts.ready_order) or not named <= set(range(len(facts.parameters))):
            raise InputError("The facts of the workload name parameters that there are not, or one of them twice.")
        return facts
