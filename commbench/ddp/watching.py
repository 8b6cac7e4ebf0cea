"""Observes a user's own training loop: times of forward and backward passes, gradients and
optimiser steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from commbench.ddp.local_step import LocalStep, batch_length, ready_hooks, tensors_in
from commbench.hooks.step_clock import Mark, clock_of, elapsed_ms

#: Recording stops after this number of backward passes: enough for precise medians, and later steps
#: are undisturbed.
MOST_PASSES = 100


@dataclass(kw_only=True)
class Forward:
    """Marks of one forward pass."""

    start: Mark
    end: Mark = None
    batch: int = 1
    is_used: bool = False
    """Whether a backward pass has passed through it."""


@dataclass(kw_only=True)
class BackwardPass:
    """Marks of one backward pass, and the forward passes that it differentiates."""

    task: int
    """Autograd's number of the call of backward."""
    since: Mark
    """End of the preceding work: a forward pass, another backward pass or the optimiser."""
    start: Mark
    """The first gradient of a model output was ready."""
    forwards: list[Forward] = field(default_factory=list)
    ready: dict[str, Mark] = field(default_factory=dict)
    """Times at which gradients were accumulated, in order."""

    def step(self) -> LocalStep:
        """Return the times.

        Forward includes the loss's forward and backward pass, because no hook marks their end.
        """
        forward_ms = sum(elapsed_ms(forward.start, forward.end) for forward in self.forwards)
        ready_ms = {name: elapsed_ms(self.start, mark) for name, mark in self.ready.items()}
        return LocalStep(
            forward_ms=forward_ms + elapsed_ms(self.since, self.start),
            backward_ms=max(ready_ms.values()),
            optimizer_ms=0.0,
            ready_ms=ready_ms,
        )


@dataclass(kw_only=True)
class Update:
    """Marks of one optimiser step."""

    start: Mark
    passes_before: int
    """Number of backward passes since the start of the recording, before the step."""
    end: Mark = None
    passes: int = 0
    """The same number after the step; a closure makes passes within the step."""


@dataclass(kw_only=True)
class Iteration:
    """The passes and optimiser steps from one update of the parameters to the next."""

    passes: Sequence[BackwardPass]
    updates: Sequence[Update] = ()
    inside: Sequence[BackwardPass] = ()
    """Passes that a closure made within an update."""

    @property
    def optimizer_ms(self) -> float:
        """Time of all updates without the passes inside them."""
        passed = sum(
            step.forward_ms + step.backward_ms
            for step in (backward.step() for backward in self.inside)
        )
        return max(
            0.0, sum(elapsed_ms(update.start, update.end) for update in self.updates) - passed
        )


class Watch:
    """Hooks on a model and on all optimisers that only read a clock.

    They neither compute nor wait.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self.passes: list[BackwardPass] = []
        self.updates: list[Update] = []
        self.sparse: dict[str, None] = {}
        """Parameters that got a sparse gradient."""
        self.has_stray = False
        """Whether gradients came without a known forward pass."""
        self._clock: Any = clock_of(model)
        self._owned = {id(parameter) for parameter in parameters.values()}
        self._forward: Forward | None = None
        self._open: BackwardPass | None = None
        """The current backward pass; no hook marks its end, so it stays open until other work
        begins."""
        self._latest: Mark = None
        self._depth = 0
        self._hooks = ExitStack()
        self._hooks.enter_context(ready_hooks(parameters, self._note_ready))
        for handle in (
            model.register_forward_pre_hook(self._begin_forward, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._end_forward),
            register_optimizer_step_pre_hook(self._begin_update),
            register_optimizer_step_post_hook(self._end_update),
        ):
            self._hooks.callback(handle.remove)

    def close(self) -> None:
        """Remove all hooks; hooks on live outputs do nothing from now on."""
        self._hooks.close()
        self._open = None
        self._clock = None

    def iterations(self) -> list[Iteration]:
        """Return the complete iterations, from update to update.

        Without an optimiser, each backward pass is one.
        """
        if not any(update.end is not None for update in self.updates):
            return [Iteration(passes=[backward]) for backward in self.passes if backward.ready]
        complete: list[Iteration] = []
        first = 0
        for count in sorted({update.passes for update in self.updates if update.end is not None}):
            updates = [update for update in self.updates if update.passes == count]
            inside = [
                done
                for update in updates
                for done in self.passes[update.passes_before : count]
                if done.ready
            ]
            passes = [backward for backward in self.passes[first:count] if backward.ready]
            if passes:
                complete.append(Iteration(passes=passes, updates=updates, inside=inside))
            first = count
        return complete

    # The hooks

    def _begin_forward(self, _module: nn.Module, args: Any, kwargs: Any) -> None:  # noqa: ANN401 - torch's own
        if not torch.is_grad_enabled() or _in_backward():
            return  # evaluation, or recomputation of activations
        if len(self.passes) >= MOST_PASSES:
            self.close()  # not in an optimiser hook: torch iterates over the hooks there
        if self._is_on:
            self._open = None
            self._forward = Forward(start=self._clock(), batch=batch_length([args, kwargs]))

    def _end_forward(self, _module: nn.Module, _args: Any, output: Any) -> None:  # noqa: ANN401 - torch's own
        forward, self._forward = self._forward, None
        if forward is None or not self._is_on:
            return
        forward.end = self._latest = self._clock()
        for tensor in tensors_in(output):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(lambda _: self._begin_backward(forward))

    def _begin_backward(self, forward: Forward) -> None:
        """Mark the gradient of an output.

        The first one of a backward pass opens a `BackwardPass`.
        """
        if not self._is_on:
            return
        task = torch._C._current_graph_task_id()  # noqa: SLF001 - torch has no public function
        if self._open is None or self._open.task != task:
            self._drop_if_empty()
            self._open = BackwardPass(task=task, since=self._latest, start=self._clock())
            self.passes.append(self._open)
        if not forward.is_used:
            forward.is_used = True
            self._open.forwards.append(forward)

    def _drop_if_empty(self) -> None:
        """Drop a backward pass that reached no parameter, such as a gradient penalty: its time
        counts as loss.
        """
        if self._open is not None and not self._open.ready:
            for forward in self.passes.pop().forwards:
                forward.is_used = False

    def _note_ready(self, name: str, parameter: nn.Parameter) -> None:
        if not self._is_on:
            return
        if self._open is None:
            self.has_stray = True
            return
        self._open.ready[name] = self._latest = self._clock()
        if parameter.grad is not None and parameter.grad.is_sparse:
            self.sparse[name] = None

    def _begin_update(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401 - torch's own
        if not self._is_on or _in_backward() or not self._concerns(optimizer):
            return
        self._depth += 1
        if self._depth > 1:
            return  # an optimiser within another one, such as its base class or a wrapped optimiser
        self._open = None
        self.updates.append(Update(start=self._clock(), passes_before=len(self.passes)))

    def _end_update(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401 - torch's own
        if not self._is_on or _in_backward() or not self._concerns(optimizer) or not self._depth:
            return
        self._depth -= 1
        if self._depth:
            return
        update = self.updates[-1]
        update.end = self._latest = self._clock()
        update.passes, self._open = len(self.passes), None

    @property
    def _is_on(self) -> bool:
        return self._clock is not None

    def _concerns(self, optimizer: Optimizer) -> bool:
        """Return whether an optimiser updates the model."""
        return any(
            id(parameter) in self._owned
            for group in optimizer.param_groups
            for parameter in group["params"]
        )


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001 - see above
