"""Error feedback: a hook keeps the unsent part of each parameter's gradient, and sends it later.

The residual e belongs to one rank. a = g + e is compressed and sent; the unsent part of a is the
next e (Stich et al. 2018, Karimireddy et al. 2019). Over any number of steps, sent values plus the
last residual sum up to the gradients.

Residuals are updated only if the bucket is finite. On the host a branch decides. On a device a
branch would make the host wait for all queued work, so the condition stays a tensor and `put`
depends on it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from commbench.errors import InputError
from commbench.hooks.base import Hook, Launched, StateDict, Stopwatch
from commbench.hooks.layout import Layout
from commbench.hooks.options import Feedback

Tensors = dict[str, Tensor]


@dataclass(kw_only=True)
class Slot:
    """The memory of one bucket by kind (residual, momentum), each of shape (numel,): old and new
    values.
    """

    layout: Layout
    old: Tensors = field(default_factory=dict)
    new: Tensors = field(default_factory=dict)
    """The same tensors as ``old``, unless ``held_back`` is set."""
    pending: bool = False


class Memory:
    """Tensors that each parameter keeps from step to step, in the layout of the buckets: a step
    copies nothing.

    When DDP rebuilds the buckets, the tensors are moved by parameter. With ``held_back``, updates
    go to second tensors.
    `settle` accepts these only if no bucket of the step was rejected: by swapping the two on the
    host, by `put` on a device.
    """

    def __init__(self, kinds: Collection[str]) -> None:
        self.kinds = tuple(kinds)
        self.held_back = False
        self._slots: dict[int, Slot] = {}
        self._waiting: dict[str, Tensors] = {kind: {} for kind in self.kinds}
        self._rejections: list[Tensor] = []

    def open(self, index: int, layout: Layout, like: Tensor) -> Slot:
        """Return the slot of a bucket for its next update."""
        slot = self._slots.get(index)
        if slot is None or slot.layout is not layout:
            self._dissolve(index)
            slot = self._slots[index] = self._assemble(layout, like)
        slot.pending = True
        return slot

    def reject(self, where: Tensor) -> None:
        """Make the next `settle` drop every update of this step if the condition ``where`` holds.

        Thread-safe.
        """
        self._rejections.append(where)

    def settle(self) -> None:
        """End a step: accept the updates that were held back, or drop them all."""
        rejections, self._rejections = self._rejections, []
        rejected = (
            torch.stack(rejections).any() if rejections else torch.zeros((), dtype=torch.bool)
        )
        for slot in self._slots.values():
            if slot.pending and self.held_back:
                self._accept(slot, rejected)
            slot.pending = False

    def _accept(self, slot: Slot, rejected: Tensor) -> None:
        if not on_host(rejected):
            for kind in self.kinds:
                put(slot.old[kind], slot.new[kind], where=~rejected)
        elif not rejected:
            slot.old, slot.new = slot.new, slot.old

    def scale(self, kind: str, factors: Mapping[str, float]) -> None:
        """Multiply the memory of each named parameter by its factor."""
        for slot in self._slots.values():
            for span in slot.layout.spans:
                if span.name in factors:
                    span.flat(slot.old[kind]).mul_(factors[span.name])
        for name, tensor in self._waiting[kind].items():
            tensor.mul_(factors.get(name, 1.0))

    def state(self) -> dict[str, Tensors]:
        """Return copies by kind and parameter name, each of the parameter's shape."""
        self.settle()
        copied = {kind: dict(waiting) for kind, waiting in self._waiting.items()}
        for slot in self._slots.values():
            for kind in self.kinds:
                copied[kind] |= {span.name: span.view(slot.old[kind]) for span in slot.layout.spans}
        return {
            kind: {name: tensor.clone() for name, tensor in tensors.items()}
            for kind, tensors in copied.items()
        }

    def load(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Replace the memory; the tensors wait for the buckets of their parameters."""
        self._slots.clear()
        self._rejections = []
        for kind in self.kinds:
            self._waiting[kind] = {
                name: tensor.clone() for name, tensor in state.get(kind, {}).items()
            }

    def _dissolve(self, index: int) -> None:
        """Remove the tensors from this bucket and all later ones; they wait for the new buckets."""
        for removed in [self._slots.pop(other) for other in list(self._slots) if other >= index]:
            for kind in self.kinds:
                self._waiting[kind] |= {
                    span.name: span.view(removed.old[kind]) for span in removed.layout.spans
                }

    def _assemble(self, layout: Layout, like: Tensor) -> Slot:
        slot = Slot(layout=layout)
        for kind in self.kinds:
            flat = slot.old[kind] = torch.zeros_like(like)
            for span in layout.spans:
                residual = self._waiting[kind].pop(span.name, None)
                if residual is not None:
                    span.view(flat).copy_(residual)
            slot.new[kind] = torch.zeros_like(like) if self.held_back else flat
        return slot


class FeedbackHook(Feedback, Hook):
    """A hook that compresses float32 gradients and keeps the unsent part.

    A subclass implements `exchange_bucket`. With a GradScaler the residual is kept unscaled. If any
    averaged bucket of a step is not finite, the optimiser skips the step, and the updates of all
    its buckets are dropped. All ranks have the same averaged data, so they decide alike.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = Memory(["residual"] if self.feedback else [])
        self._steps = 0
        self._names: dict[int, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._layouts: dict[int, Layout] = {}
        self._channels: dict[Layout, Any] = {}
        self._scaler: torch.amp.GradScaler | None = None
        self._scale: float | Tensor = 1.0
        self._device = torch.device("cpu")
        self._rates: dict[str, float] = {}

    @property
    def step(self) -> int:
        """The number of the current step, from 0."""
        return max(0, self._steps - 1)

    @property
    def is_dense(self) -> bool:
        """Whether the current step sends its gradients whole."""
        return self.step < self.start

    @property
    def divisor(self) -> float | Tensor:
        """The divisor of the sum over ranks: the world size divided by the loss scale that was
        removed before.
        """
        return self.world_size / self._scale

    @property
    def is_scaled(self) -> bool:
        """Whether the gradients have a loss scale; a scale on a device counts even if it is 1."""
        return isinstance(self._scale, Tensor) or self._scale != 1.0

    @abstractmethod
    def exchange_bucket(
        self, buffer: Tensor, layout: Layout, slot: Slot, watch: Stopwatch
    ) -> Launched:
        """Do as `launch`: send ``buffer`` plus ``slot.old``, write ``slot.new``, leave sum /
        `divisor` in ``buffer``.

        If the values to send are not finite, every rank must receive NaN, and ``slot.new`` is not
        written; a hook that sends blocks may treat each block by itself.
        """

    def send_dense(self, buffer: Tensor, slot: Slot, watch: Stopwatch) -> Launched:
        """Do as `exchange_bucket` by one all-reduce.

        The residual becomes zero, which it was except after a resume.
        """
        accumulate(buffer, slot).div_(self.divisor)
        if "residual" in slot.new:
            slot.new["residual"].zero_()
        return self.reduce_whole(buffer, watch)

    def attach(
        self, ddp_model: DistributedDataParallel, scaler: torch.amp.GradScaler | None
    ) -> None:
        """Record the parameters' names, and compile what the hook needs, so that no step waits.

        Raise InputError if a gradient is not float32 or the model is too small.
        """
        self._names, self._shapes = {}, {}
        elements = 0
        for name, parameter in ddp_model.module.named_parameters():
            self._names[id(parameter)] = name
            self._shapes[name] = tuple(parameter.shape)
            if not parameter.requires_grad:
                continue
            if parameter.dtype != torch.float32:
                kind = str(parameter.dtype).removeprefix("torch.")
                raise InputError(
                    f"Hook {self.name} compresses float32 gradients, {name} is {kind}: use"
                    " passthrough."
                )
            self._device = parameter.device
            elements += parameter.numel()
        self.check_size(elements)
        self._check_loaded(self.memory.state())
        self._scaler = scaler
        self.memory.held_back = scaler is not None
        self.prepare(self._device)

    def begin_step(self) -> None:
        """Count the step, settle the previous step, and read the loss scale of this step's
        gradients.
        """
        self._steps += 1
        self.memory.settle()
        if self._scaler is not None:
            unit = torch.ones((), device=self._device)
            if on_host(unit):
                self._scale = float(self._scaler.get_scale())
            else:
                self._scale = self._scaler.scale(unit)  # a tensor, as `get_scale` would wait
        if self._optimizer is not None and self.feedback:
            self._follow_rates(self._optimizer)

    def _follow_rates(self, optimizer: torch.optim.Optimizer) -> None:
        """Multiply residuals by old rate / new rate; a rate of 0 is ignored until it changes.

        A residual is a gradient of earlier steps: it then moves the parameter as far as it would
        have moved it in those steps.
        """
        changed = {}
        for group in optimizer.param_groups:
            rate = float(group["lr"])
            for parameter in group["params"]:
                name = self._names.get(id(parameter))
                if name is None or rate <= 0:
                    continue
                before = self._rates.get(name, rate)
                self._rates[name] = rate
                if before != rate:
                    changed[name] = before / rate
        if changed:
            self.memory.scale("residual", changed)

    def launch(self, bucket: GradBucket, watch: Stopwatch) -> Launched:
        """Find the bucket's memory, divide by the loss scale, exchange."""
        buffer, layout = bucket.buffer(), self._layout_of(bucket)
        slot = self.memory.open(bucket.index(), layout, buffer)
        if self.is_scaled:
            buffer.mul_(1.0 / self._scale)
        future, finish = self.exchange_bucket(buffer, layout, slot, watch)
        return future, lambda value: self._inspected(finish(value))

    def _inspected(self, result: Tensor) -> Tensor:
        """Return the averaged bucket.

        Drop this step's updates if a scaler will skip the step because of it.
        """
        if self._scaler is not None:
            self.memory.reject(~is_finite(result))
        return result

    def _layout_of(self, bucket: GradBucket) -> Layout:
        index = bucket.index()
        layout = self._layouts.get(index)
        if layout is None or not layout.holds(bucket.parameters()):
            for other in [other for other in self._layouts if other >= index]:
                self.forget(self._layouts.pop(other))
            layout = self._layouts[index] = Layout.of(bucket, self._names)
        return layout

    def channel_of(self, layout: Layout, like: Tensor) -> Any:  # noqa: ANN401 - the subclass's own
        """Return what `make_channel` made for the bucket."""
        if layout not in self._channels:
            self._channels[layout] = self.make_channel(layout, like)
        return self._channels[layout]

    def make_channel(self, layout: Layout, like: Tensor) -> Any:  # noqa: ANN401 - as above
        """Return a subclass's buffers for a bucket, on the device of ``like``."""

    def forget(self, layout: Layout) -> None:
        """Drop the buffers of a bucket that no longer exists."""
        self._channels.pop(layout, None)

    def state_dict(self) -> StateDict:
        """Return the step counter, and this rank's residuals by parameter name.

        Each rank has its own.
        """
        own = {"step": self._steps, "rates": dict(self._rates), "memory": self.memory.state()}
        return super().state_dict() | own

    def load_state_dict(self, state: StateDict) -> None:
        """Resume from `state_dict`, before or after the first step.

        Raise InputError if it belongs to another model.

        DDP puts the first step after a restart into one bucket; hooks that select per bucket select
        differently there.
        """
        super().load_state_dict(state)
        if self._names:
            self._check_loaded(state["memory"])
        self._steps, self._rates = int(state["step"]), dict(state["rates"])
        self.memory.load(state["memory"])
        self._channels.clear()  # they depend on the step

    def _check_loaded(self, memory: Mapping[str, Mapping[str, Tensor]]) -> None:
        for tensors in memory.values():
            for name, tensor in tensors.items():
                if self._shapes.get(name) != tuple(tensor.shape):
                    raise InputError(
                        f"The state to load has a residual of shape {tuple(tensor.shape)} for"
                        f" {name}, the model has {self._shapes.get(name, 'no such parameter')}:"
                        " load the state of the same model."
                    )


def is_finite(tensor: Tensor) -> Tensor:
    """Return whether every element is finite, as a boolean tensor on the same device.

    One pass, no temporary.
    """
    if tensor.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=tensor.device)
    low, high = torch.aminmax(tensor)
    return torch.isfinite(low) & torch.isfinite(high)


def on_host(flag: Tensor) -> bool:
    """Return whether reading a value needs no wait for a device."""
    return bool(flag.is_cpu)


def put(into: Tensor, value: Tensor, *, where: Tensor) -> None:
    """Write ``value`` to ``into``, of the same shape, if the condition ``where`` holds.

    Do not wait for a device.
    """
    if not on_host(where):
        torch.where(where, value.to(into.dtype), into, out=into)
    elif where:
        into.copy_(value)


def poison(tensor: Tensor, *, unless: Tensor) -> None:
    """Make all elements NaN unless the condition holds, without waiting for a device."""
    if not on_host(unless):
        tensor.masked_fill_(~unless, torch.nan)
    elif not unless:
        tensor.fill_(torch.nan)


def accumulate(buffer: Tensor, slot: Slot) -> Tensor:
    """Add the residual to the gradients, in the bucket's buffer: a = g + e, or g without a
    residual.
    """
    residual = slot.old.get("residual")
    return buffer if residual is None else buffer.add_(residual)
