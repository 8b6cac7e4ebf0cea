"""The `Workload` that is trained, supplied by a user or by commbench, and its measured
`WorkloadFacts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn import Parameter
    from torch.optim import Optimizer

#: The largest number of names in a message.
NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, its loss and one rank's data.

    A workload is made by a callable that takes any of the keyword arguments ``seed``, ``rank``,
    ``world_size`` and ``batch_size``. All ranks make the same initial model; their data differs.
    """

    model: nn.Module
    """The model without DDP; commbench wraps it."""
    loss: Callable[[nn.Module, Any], Tensor]
    """``loss(model, batch)`` is a scalar; it calls ``model(...)``, which is the model inside
    DDP."""
    batches: Iterable[Any]
    """Can be iterated repeatedly, each time from the start; training starts over at its end."""
    batch_size: int
    """Samples per rank in one batch."""
    optimizer: Callable[[Iterable[Parameter]], Optimizer] | None = None
    """Makes the optimiser; None: SGD with learning rate 0.01 and momentum 0.9."""
    evaluate: Callable[[nn.Module], float] | None = None
    """Returns the value of ``metric`` for the model without DDP, the same on every rank; None:
    no evaluation."""
    metric: str = ""
    """The name of the value that ``evaluate`` returns, such as ``accuracy``."""
    target: float | None = None
    """A value of ``metric`` at which the model counts as trained."""
    steps: int | None = None
    """Optimiser steps after which the loss is meaningful; None if it never is."""


@dataclass(frozen=True, kw_only=True)
class ParameterFacts:
    """One trainable parameter."""

    name: str
    numel: int
    itemsize: int
    """Bytes of one element."""
    dtype: str
    """Name of its type, such as ``float32``."""
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of its gradient."""
        return self.numel * self.itemsize


@dataclass(frozen=True, kw_only=True)
class WorkloadFacts:
    """What a few local steps of a workload, without DDP, show of it."""

    parameters: tuple[ParameterFacts, ...]
    """The trainable parameters, in the order of registration in the model."""
    ready_order: tuple[int, ...]
    """Indices into ``parameters`` in the order in which gradients became ready."""
    batch_size: int = 1
    unused: tuple[str, ...] = ()
    """Names of trainable parameters without a gradient in some step; first in ``ready_order``."""


def named(names: Sequence[str]) -> str:
    """Return 'The parameter a' or 'The parameters a, b, c and 4 more'."""
    if len(names) == 1:
        return f"The parameter {names[0]}"
    listed = ", ".join(names[:NAMED])
    if len(names) > NAMED:
        return f"The parameters {listed} and {len(names) - NAMED} more"
    return f"The parameters {listed}"


def check_all_used(unused: Sequence[str]) -> None:
    """Check that no parameter is unused.

    Raises:
        InputError: some are, by their names.
    """
    if unused:
        raise InputError(
            f"{named(unused)} got no gradient in a backward pass, and DDP would wait for it"
            " forever: use all in the loss, or set requires_grad to False."
        )
