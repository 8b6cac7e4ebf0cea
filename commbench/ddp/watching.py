"""Watches somebody else's training loop: when forward and backward passes, gradients and the optimiser come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from commbench.ddp.local_step import LocalStep, batch_length, ready_hooks, tensors_in
from commbench.hooks.step_clock import Mark, clock_of, elapsed_ms

#: No more backward passes than that are watched: medians are sharp by then, and the rest of a training costs nothing.
MOST_PASSES = 100


@dataclass(kw_only=True)
class Forward:
    """One forward pass; readings of the clock."""

    start: Mark
    end: Mark = None
    batch: int = 1
    used: bool = False
    """A backward pass went through it."""


@dataclass(kw_only=True)
class BackwardPass:
    """One backward pass and the forward passes that it goes back through; readings of the clock."""

    task: int
    """Autograd's number for the call of backward."""
    since: Mark
    """What came before it was over: a forward pass, another backward pass or the optimiser."""
    start: Mark
    """The first gradient of an output of the model was there."""
    forwards: list[Forward] = field(default_factory=list)
    ready: dict[str, Mark] = field(default_factory=dict)
    """When each gradient was accumulated, in that order."""

    def step(self) -> LocalStep:
        """Its times; the loss, both ways, belongs to forward, for nothing tells where it ends."""
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
    """One step of an optimiser; readings of the clock."""

    start: Mark
    passes_before: int
    """Backward passes since the beginning, before it."""
    end: Mark = None
    passes: int = 0
    """Likewise after it: a closure makes some in between."""


@dataclass(kw_only=True)
class Iteration:
    """What a loop did from one update of the parameters to the next."""

    passes: Sequence[BackwardPass]
    updates: Sequence[Update] = ()
    inside: Sequence[BackwardPass] = ()
    """Those of the passes that a closure made within an update."""

    @property
    def optimizer_ms(self) -> float:
        """Time of all updates without the passes inside."""
        passed = sum(step.forward_ms + step.backward_ms for step in (one.step() for one in self.inside))
        return max(0.0, sum(elapsed_ms(update.start, update.end) for update in self.updates) - passed)


class Watch:
    """Hooks on a model and on all optimisers, which only read a clock; nothing is computed or waited for in them."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self.passes: list[BackwardPass] = []
        self.updates: list[Update] = []
        self.sparse: dict[str, None] = {}
        """Parameters that got a sparse gradient."""
        self.stray = False
        """Gradients came although no forward pass had been seen that leads to them."""
        self._clock: Any = clock_of(model)
        self._owned = {id(parameter) for parameter in parameters.values()}
        self._forward: Forward | None = None
        self._open: BackwardPass | None = None
        """The backward pass under way; nobody says when it is over, so the last until something else begins."""
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
        """Take all hooks away. Those on outputs that are still alive do nothing any more."""
        self._hooks.close()
        self._open = None
        self._clock = None

    def iterations(self) -> list[Iteration]:
        """What was seen whole, from one update to the next; without an optimiser every backward pass is one."""
        if not any(update.end is not None for update in self.updates):
            return [Iteration(passes=[one]) for one in self.passes if one.ready]
        found: list[Iteration] = []
        begun = 0
        for count in sorted({update.passes for update in self.updates if update.end is not None}):
            updates = [update for update in self.updates if update.passes == count]
            inside = [one for update in updates for one in self.passes[update.passes_before : count] if one.ready]
            passes = [one for one in self.passes[begun:count] if one.ready]
            if passes:
                found.append(Iteration(passes=passes, updates=updates, inside=inside))
            begun = count
        return found

    # The hooks

    def _begin_forward(self, _module: nn.Module, args: Any, kwargs: Any) -> None:  # noqa: ANN401 - torch's own
        if not torch.is_grad_enabled() or _in_backward():
            return  # evaluating, or computing anew what was not kept
        if len(self.passes) >= MOST_PASSES:
            self.close()  # not in a hook of an optimiser, where torch walks through them
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
        """An output's gradient has come; of several outputs and forward passes the first begins the backward pass."""
        if not self._is_on:
            return
        task = torch._C._current_graph_task_id()  # noqa: SLF001 - torch's own wrappers use it for want of another
        if self._open is None or self._open.task != task:
            self._drop_if_empty()
            self._open = BackwardPass(task=task, since=self._latest, start=self._clock())
            self.passes.append(self._open)
        if not forward.used:
            forward.used = True
            self._open.forwards.append(forward)

    def _drop_if_empty(self) -> None:
        """Forget a backward pass to no parameter, as a gradient penalty makes: its time counts as that of the loss."""
        if self._open is not None and not self._open.ready:
            for forward in self.passes.pop().forwards:
                forward.used = False

    def _note_ready(self, name: str, parameter: nn.Parameter) -> None:
        if not self._is_on:
            return
        if self._open is None:
            self.stray = True
            return
        self._open.ready[name] = self._latest = self._clock()
        if parameter.grad is not None and parameter.grad.is_sparse:
            self.sparse[name] = None

    def _begin_update(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401 - torch's own
        if not self._is_on or _in_backward() or not self._concerns(optimizer):
            return
        self._depth += 1
        if self._depth > 1:
            return  # an optimiser within another: of the class it inherits from, or one that it distributes
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
        """Whether it updates the model."""
        return any(id(parameter) in self._owned for group in optimizer.param_groups for parameter in group["params"])


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001 - see above
