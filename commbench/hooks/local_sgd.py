"""`LocalSGD`: exchanges parameters once in several optimiser steps, instead of gradients in every
step.
"""

# torch's PostLocalSGDOptimizer is not used: it averages after steps 1, H + 1, 2H + 1, and only
# parameters with a gradient on this rank, so that ranks may sum messages of different lengths; it
# has no outer optimiser either.

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.distributed as dist

from commbench.errors import InputError
from commbench.hooks.base import Finish, Hook, StateDict, Stopwatch
from commbench.hooks.message import BucketShape, Message, periodic_messages

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel
    from typing_extensions import Self

#: DiLoCo's outer learning rate and momentum (arXiv 2311.08105, section 3).
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
#: Parts of this size are copied while others are under way; as large as DDP's buckets.
PART_BYTES = 25 * 2**20


class LocalSGD(Hook):
    """Averages parameters every ``period`` optimiser steps (local SGD, arXiv 1805.09767).

    Gradients stay on their rank.

    ``LocalSGD(period=8).register(ddp_model, optimizer=optimizer)``; the training loop stays as it
    is. Between exchanges DDP sends nothing. An exchange follows every ``period``-th
    ``optimizer.step()``: parameters are all-reduced in parts of 25 MiB and, if DDP broadcasts
    buffers, rank 0's buffers are sent. The optimiser's state stays on its rank.

    Args:
        period: optimiser steps from one exchange to the next.
        outer: ``average`` replaces parameters by their mean over the ranks. ``nesterov`` takes the
            mean change since the last exchange as the gradient of an outer step of SGD with
            Nesterov momentum (DiLoCo, arXiv 2311.08105).
        outer_lr: learning rate of the outer step; only with ``outer=nesterov``.
        outer_momentum: momentum of the outer step; only with ``outer=nesterov``.
        start: number of first steps that are each followed by an exchange.
    """

    name: ClassVar[str] = "localsgd"

    def __init__(
        self,
        *,
        period: int = 8,
        outer: Literal["average", "nesterov"] = "average",
        outer_lr: float = OUTER_LR,
        outer_momentum: float = OUTER_MOMENTUM,
        start: int = 0,
    ) -> None:
        if period < 1 or start < 0:
            raise InputError(
                f"Hook localsgd was given period {period} and start {start}: they are numbers of"
                " steps, period at least 1, start at least 0."
            )
        if not (outer_lr > 0 and 0 < outer_momentum < 1):
            raise InputError(
                f"Hook localsgd was given outer_lr {outer_lr:g} and outer_momentum"
                f" {outer_momentum:g}: the first is above 0, the second above 0 and below 1."
            )
        if outer == "average" and (outer_lr, outer_momentum) != (OUTER_LR, OUTER_MOMENTUM):
            raise InputError(
                "Hook localsgd was given outer_lr or outer_momentum: they need outer=nesterov."
            )
        self.period = period
        self.start = start
        self._rates = (outer_lr, outer_momentum) if outer == "nesterov" else None
        self._steps = 0
        self._parts: list[_Part] = []
        self._outer_steps: list[_OuterStep] = []
        """One for each part; empty with ``outer=average``."""
        self._ending = contextlib.ExitStack()

    def register(
        self,
        ddp_model: DistributedDataParallel,
        *,
        scaler: torch.amp.GradScaler | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Self:
        """See `Hook.register`; ranks must hold equal parameters, as DDP's construction makes them.

        Raises InputError also without an optimiser, with a GradScaler, and for a static graph.
        """
        _check(ddp_model, scaler, optimizer)
        super().register(ddp_model, scaler=scaler)
        ignored = getattr(ddp_model, "parameters_to_ignore", ())
        trained = [
            p
            for name, p in ddp_model.module.named_parameters()
            if p.requires_grad and name not in ignored
        ]
        self._parts = [_Part(parameters) for parameters in _divide(trained)]
        if self._rates:
            self._outer_steps = [_OuterStep(part.collect(), *self._rates) for part in self._parts]
        self._ending.enter_context(ddp_model.no_sync())
        self._ending.callback(optimizer.register_step_post_hook(self._after_step).remove)  # type: ignore[union-attr]
        return self

    def launch(
        self, bucket: dist.GradBucket, watch: Stopwatch
    ) -> tuple[torch.futures.Future, Finish]:
        """Return the rank's own gradients.

        DDP asks for them only where other code ends its ``no_sync``.
        """
        buffer = bucket.buffer()
        watch.encoded()
        watch.started()
        future = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
        future.set_result(buffer)
        return future, lambda value: value

    def messages(self, bucket: BucketShape) -> tuple[Message, ...]:
        """See `Hook.messages`.

        The bucket is the whole model, and the message is the mean of a step.
        """
        return periodic_messages(bucket, period=self.period)

    def close(self) -> None:
        """Exchange nothing any more.

        DDP exchanges no gradients either, because the hook stays in it.
        """
        self._ending.close()

    # Exchanging

    def _after_step(self, *_: Any) -> None:  # noqa: ANN401 - the optimiser and the arguments of its step
        self._steps += 1
        if self._steps <= self.start or self._steps % self.period == 0:
            self.exchange()

    def exchange(self) -> None:
        """Exchange parameters, and buffers if DDP broadcasts them; all ranks must call it."""
        with torch.no_grad():
            works = [part.begin_average(self._group) for part in self._parts]
            for part, work, outer in itertools.zip_longest(self._parts, works, self._outer_steps):
                work.wait()
                if outer is not None:
                    outer.step(part.flat)
                part.spread()
            for buffers in _divide(self._broadcast_buffers()):
                part = _Part(buffers)
                dist.broadcast(
                    part.collect(), dist.get_global_rank(self._group, 0), group=self._group
                )
                part.spread()

    def _broadcast_buffers(self) -> list[torch.Tensor]:
        """Return the buffers that DDP would broadcast before a forward pass."""
        ddp_model = self._model()
        if ddp_model is None or not ddp_model.broadcast_buffers:
            return []
        ignored = getattr(ddp_model, "parameters_to_ignore", ())
        return [buffer for name, buffer in ddp_model.module.named_buffers() if name not in ignored]

    # Checkpoints

    def state_dict(self) -> StateDict:
        """See `Hook.state_dict`; parameters are equal on all ranks only right after an exchange."""
        return super().state_dict() | {
            "steps": self._steps,
            "outer": [outer.state() for outer in self._outer_steps],
        }

    def load_state_dict(self, state: StateDict) -> None:
        """See `Hook.load_state_dict`; load the parameters first, and register the hook before."""
        super().load_state_dict(state)
        if [len(part["parameters"]) for part in state["outer"]] != [
            outer.elements for outer in self._outer_steps
        ]:
            raise InputError(
                "The state to load into hook localsgd is of another model or another outer step:"
                " load that of the same."
            )
        for outer, saved in zip(self._outer_steps, state["outer"], strict=True):
            outer.load(saved)
        self._steps = state["steps"]


def _check(
    ddp_model: DistributedDataParallel,
    scaler: torch.amp.GradScaler | None,
    optimizer: torch.optim.Optimizer | None,
) -> None:
    """Raise InputError if the training cannot exchange parameters."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            "Hook localsgd was given"
            f" {'no optimizer' if optimizer is None else f'a {type(optimizer).__name__}'}:"
            " exchanges follow its steps, so register with optimizer=optimizer."
        )
    if scaler is not None:
        raise InputError(
            "Hook localsgd was given a GradScaler: a rank whose gradients overflow would skip its"
            " step and the exchange, and the others would wait for it; train in fp32 or amp-bf16."
        )
    if getattr(ddp_model, "static_graph", False):
        raise InputError(
            "Hook localsgd was given a DDP model with a static graph, which DDP learns from an"
            " exchange of gradients: leave out static_graph."
        )


def _divide(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the tensors by type and device, in parts of `PART_BYTES` or less, or of one tensor."""
    parts: list[list[torch.Tensor]] = []
    latest: dict[tuple[torch.dtype, torch.device], tuple[int, list[torch.Tensor]]] = {}
    for tensor in tensors:
        kind = tensor.dtype, tensor.device
        nbytes, part = latest.get(kind, (0, []))
        if not part or nbytes + tensor.nbytes > PART_BYTES:
            nbytes, part = 0, []
            parts.append(part)
        part.append(tensor)
        latest[kind] = nbytes + tensor.nbytes, part
    return parts


class _Part:
    """Tensors of one type that are exchanged together, in memory of shape (elements,)."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self.flat = torch.empty(
            sum(each.numel() for each in tensors), dtype=tensors[0].dtype, device=tensors[0].device
        )

    def collect(self) -> torch.Tensor:
        """Copy the tensors to ``flat``, and return it."""
        return torch.cat([each.detach().reshape(-1) for each in self._tensors], out=self.flat)

    def begin_average(self, group: dist.ProcessGroup) -> dist.Work:
        """Begin to write the mean of the tensors over the ranks to ``flat``.

        All ranks get the same bits.
        """
        self.collect().div_(group.size())
        return dist.all_reduce(self.flat, group=group, async_op=True)

    def spread(self) -> None:
        """Copy ``flat`` to the tensors."""
        pieces = self.flat.split([each.numel() for each in self._tensors])
        for tensor, piece in zip(self._tensors, pieces, strict=True):
            tensor.copy_(piece.view(tensor.shape))


class _OuterStep:
    """DiLoCo's outer optimiser of a part: SGD with Nesterov momentum as in torch.optim.SGD."""

    def __init__(self, parameters: torch.Tensor, lr: float, momentum: float) -> None:
        self._lr = lr
        self._momentum = momentum
        self._state = {"parameters": parameters.clone(), "momentum": torch.zeros_like(parameters)}
        """The parameters right after the last exchange, and the momentum; each of shape
        (elements,)."""

    @property
    def elements(self) -> int:
        """Elements of the part."""
        return len(self._state["parameters"])

    def step(self, averaged: torch.Tensor) -> None:
        """Make an outer step with the mean parameters of the ranks; write its result there."""
        parameters, momentum = self._state["parameters"], self._state["momentum"]
        change = parameters - averaged
        momentum.mul_(self._momentum).add_(change)
        parameters.sub_(change.add_(momentum, alpha=self._momentum), alpha=self._lr)
        averaged.copy_(parameters)

    def state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the state."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Take over the result of `state`."""
        for name, tensor in self._state.items():
            tensor.copy_(saved[name])
