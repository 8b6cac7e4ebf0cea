"""Finds where the optimiser steps of a person's own training begin, and takes their times and
losses.

A step begins where a training forward pass of the DDP model starts and no gradient is pending: an
optimiser has stepped since the last backward pass, or a backward pass is over and every gradient
has been released (a skipped step of a GradScaler, an optimiser without hooks). Forward passes
without gradients or in evaluation mode are no steps.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from commbench.hooks.step_clock import Mark, clock_of


@dataclass(kw_only=True)
class Step:
    """One optimiser step of the training on this rank."""

    index: int
    """Its number, from 0."""
    begun: Mark
    """Before its first forward pass, on the clock of the model's device."""
    host_ns: int
    """The same, on the host's clock."""
    updated_ns: int | None = None
    """On the host's clock, after the optimiser; None if no optimiser was seen."""
    passes: int = 0
    """Forward passes; more than one if gradients are accumulated."""
    batch: int = 1
    """First dimension of the first tensor given to the model."""
    precision: str = "fp32"
    """Of the first forward pass, as ``ddp.csv`` writes it."""
    losses: list[torch.Tensor] = field(default_factory=list)
    """Of each backward pass, as given to ``backward()``; on the device."""
    forwards: list[Mark] = field(default_factory=list)
    """The begin of each forward pass; empty unless parts of steps are watched, as the next two."""
    backwards: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Begin and end of each call of ``backward()``; the end of the last one comes after the
    exchange of gradients."""
    updates: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Begin and end of each optimiser step."""


class Boundaries:
    """Calls a function at the begin of each optimiser step, before the forward pass.

    Args:
        ddp_model: the model that is trained.
        on_step: gets the step that is over, None at the first, and the step that begins; it must
            not raise.
        watches_parts: take a mark at the begin and the end of each pass and of each optimiser step,
            too.
    """

    def __init__(
        self,
        ddp_model: nn.Module,
        on_step: Callable[[Step | None, Step], None],
        *,
        watches_parts: bool = False,
    ) -> None:
        self._on_step = on_step
        self._watches_parts = watches_parts
        self._backward_begun: Mark = None
        self._update_begun: Mark = None
        self._clock = clock_of(ddp_model)
        self._parameters = [p for p in ddp_model.parameters() if p.requires_grad]
        self._ids = {id(p) for p in self._parameters}
        self._owners: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._step: Step | None = None
        self._has_updated = self._has_gradients = False
        self._handles = [
            ddp_model.register_forward_pre_hook(
                torch.compiler.disable(self._before_forward), with_kwargs=True
            ),
            register_optimizer_step_post_hook(self._after_update),
        ]
        if watches_parts:
            self._handles.append(register_optimizer_step_pre_hook(self._before_update))
        _BackwardCalls.observe(self)

    @property
    def hooks(self) -> set[int]:
        """The keys under which the model holds this object's hooks."""
        return {handle.id for handle in self._handles}

    def close(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        _BackwardCalls.ignore(self)

    def _before_forward(
        self, module: nn.Module, inputs: tuple[object, ...], keywords: Mapping[str, object]
    ) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        if self._is_boundary():
            ended, now = self._step, time.perf_counter_ns()
            index = 0 if ended is None else ended.index + 1
            self._step = Step(
                index=index,
                begun=self._clock(),
                host_ns=now,
                batch=_batch_of((inputs, keywords)),
                precision=_precision_on(self._parameters[0].device.type),
            )
            self._has_updated = self._has_gradients = False
            self._on_step(ended, self._step)
        assert self._step is not None  # noqa: S101 - the first forward pass is a boundary
        self._step.passes += 1
        if self._watches_parts:
            self._step.forwards.append(self._clock())

    def _is_boundary(self) -> bool:
        if self._step is None or self._has_updated:
            return True
        return self._has_gradients and all(p.grad is None for p in self._parameters)

    def _before_update(self, optimizer: Optimizer, _inputs: object, _keywords: object) -> None:
        if self._step is not None and self._is_owner(optimizer):
            self._update_begun = self._clock()

    def _after_update(self, optimizer: Optimizer, _inputs: object, _keywords: object) -> None:
        if self._step is None or not self._is_owner(optimizer):
            return
        self._has_updated = True
        self._step.updated_ns = time.perf_counter_ns()
        if self._update_begun is not None:
            self._step.updates.append((self._update_begun, self._clock()))
            self._update_begun = None

    def _is_owner(self, optimizer: Optimizer) -> bool:
        """Return whether the optimiser updates parameters of the model."""
        if optimizer not in self._owners:
            groups = getattr(optimizer, "param_groups", ())
            self._owners[optimizer] = any(
                id(p) in self._ids for group in groups for p in group["params"]
            )
        return self._owners[optimizer]

    def before_backward(self) -> None:
        """Take the begin of a call of ``backward()``."""
        if self._watches_parts:
            self._backward_begun = self._clock()

    def after_backward(self, tensors: object) -> None:
        """Take the end and the loss of a call of ``backward()``."""
        if self._step is None:
            return
        self._has_gradients = True
        if self._backward_begun is not None:
            self._step.backwards.append((self._backward_begun, self._clock()))
            self._backward_begun = None
        if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
            self._step.losses.append(tensors.detach())


class _BackwardCalls:
    """Tells `Boundaries` of each call of ``torch.autograd.backward``, which ``Tensor.backward``
    calls, too.
    """

    _observers: ClassVar[list[Boundaries]] = []
    _original: ClassVar[Callable[..., None]] = torch.autograd.backward

    @classmethod
    def observe(cls, observer: Boundaries) -> None:
        """Tell ``observer`` before each call, and after it with the tensors."""
        if not cls._observers:
            cls._original, torch.autograd.backward = torch.autograd.backward, cls._call
        cls._observers.append(observer)

    @classmethod
    def ignore(cls, observer: Boundaries) -> None:
        """Tell ``observer`` no more; with the last one torch's own function is back."""
        cls._observers.remove(observer)
        if not cls._observers and torch.autograd.backward == cls._call:
            torch.autograd.backward = cls._original

    @classmethod
    def _call(cls, tensors: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401 - torch's
        for observer in cls._observers:
            observer.before_backward()
        cls._original(tensors, *arguments, **keywords)
        for observer in cls._observers:
            observer.after_backward(tensors)


def _batch_of(inputs: object) -> int:
    """Return the first dimension of the first tensor in nested inputs; 1 if there is none."""
    if isinstance(inputs, torch.Tensor):
        return int(inputs.shape[0]) if inputs.dim() else 0
    children = (
        inputs.values()
        if isinstance(inputs, Mapping)
        else inputs
        if isinstance(inputs, list | tuple)
        else ()
    )
    return next((batch for batch in map(_batch_of, children) if batch), 0) or 1


def _precision_on(device: str) -> str:
    """Return the precision of a forward pass that begins now, as ``ddp.csv`` writes it."""
    if torch.is_autocast_enabled(device):
        return "amp-bf16" if torch.get_autocast_dtype(device) is torch.bfloat16 else "amp-fp16"
    accelerate = sys.modules.get("accelerate.state")  # sets autocast inside the forward pass
    mixed = (
        accelerate.AcceleratorState._shared_state.get("_mixed_precision") if accelerate else None  # noqa: SLF001
    )
    return f"amp-{mixed}" if mixed in {"fp16", "bf16"} else "fp32"
