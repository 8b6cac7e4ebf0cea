"""Error feedback: a hook keeps the unsent part of each parameter's gradient, and sends it later.

The residual e belongs to one rank. a = g + e is compressed and sent; the unsent part of a is the
next e (Stich et al. 2018, Karimireddy et al. 2019). Over any number of steps, sent values plus the
last residual sum up to the gradients.

Residuals are updated only if the bucket is finite. On the host a branch decides. On a device a
branch would make the host wait for all queued work, so the condition stays a tensor and `put`
depends on it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Self

from commbench.errors import InputError
from commbench.hooks.base import Hook, Launched, StateDict, Stopwatch
from commbench.hooks.options import Feedback

Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One tensor's part of a bucket: elements ``start`` to ``start + numel``, with the strides
    ``stride``.
    """

    name: str
    start: int
    numel: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def view(self, flat: Tensor) -> Tensor:
        """Return the span of ``flat``, shape (bucket numel,), as a tensor of the parameter's
        shape.
        """
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + self.start)

    def flat(self, flat: Tensor) -> Tensor:
        """Return the span of ``flat`` in memory order, shape (numel,)."""
        return flat[self.start : self.start + self.numel]


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """The tensors of one bucket in the order of its buffer.

    One object as long as the tensors stay the same.

    DDP uses one large bucket in the first step, then rebuilds its buckets in the order in which
    gradients were ready.
    """

    parameters: tuple[torch.nn.Parameter, ...]
    spans: tuple[Span, ...]
    numel: int

    @classmethod
    def of(cls, bucket: GradBucket, names: Mapping[int, str]) -> Self:
        """Return the layout of a bucket; ``names`` maps the parameters' ``id`` to names."""
        spans, start = [], 0
        parameters = tuple(bucket.parameters())
        for parameter in parameters:
            shape, numel = tuple(parameter.shape), parameter.numel()
            name, stride = names[id(parameter)], _stride_in_bucket(shape, tuple(parameter.stride()))
            spans.append(Span(name=name, start=start, numel=numel, shape=shape, stride=stride))
            start += numel
        return cls(parameters=parameters, spans=tuple(spans), numel=start)

    def holds(self, parameters: Sequence[torch.nn.Parameter]) -> bool:
        """Return whether the bucket consists of these parameter objects, in this order."""
        return list(map(id, self.parameters)) == list(map(id, parameters))


def _stride_in_bucket(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a gradient in its bucket: the parameter's own if dense in memory, else
    row-major.

    ``GradBucket.gradients()`` does not show it: it returns every tensor as row-major.
    """
    expected = 1
    for size, step in sorted(zip(shape, stride, strict=True), key=lambda pair: (pair[1], pair[0])):
        if size != 1 and step != expected:
            return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        expected *= size
    return stride


@dataclass(kw_only=True)
class Slot:
    """What a hook keeps for one bucket."""

    layout: Layout
    memory: Tensors
    """By kind (residual, momentum), each of shape (numel,)."""
    before: Tensors
    """Copies of ``memory`` at the start of the latest step; empty unless steps can be undone."""
    channel: Any = None
    """The buffers of its messages, see `FeedbackHook.make_channel`."""

    @property
    def residual(self) -> Tensor:
        """The unsent part of the gradients, shape (numel,)."""
        return self.memory["residual"]

    def by_name(self, kind: str) -> Tensors:
        """Return the memory by parameter name, as views of the parameters' shapes."""
        return {span.name: span.view(self.memory[kind]) for span in self.layout.spans}


class Memory:
    """Tensors that each parameter keeps from step to step, in the layout of the buckets: a step
    moves nothing.

    When DDP rebuilds the buckets, the tensors are moved by parameter. With ``can_undo``, every step
    copies them first, and `settle` restores them if a bucket of the step was rejected.
    """

    def __init__(self, kinds: Collection[str]) -> None:
        self.can_undo = False
        self._slots: dict[int, Slot] = {}
        self._waiting: dict[str, Tensors] = {kind: {} for kind in kinds}
        self._rejections: list[Tensor] = []

    def open(self, bucket: GradBucket, names: Mapping[int, str]) -> Slot:
        """Return the slot of a bucket for its next update.

        ``names`` maps the parameters' ``id`` to names.
        """
        index = bucket.index()
        slot = self._slots.get(index)
        if slot is None or not slot.layout.holds(bucket.parameters()):
            self._dissolve(index)
            slot = self._assemble(Layout.of(bucket, names), bucket.buffer())
            self._slots[index] = slot
        for kind, copied in slot.before.items():
            copied.copy_(slot.memory[kind])
        return slot

    def reject(self, where: Tensor) -> None:
        """Make the next `settle` drop every update of this step if the condition ``where`` holds.

        Thread-safe.
        """
        self._rejections.append(where)

    def settle(self) -> None:
        """End a step: keep its updates, or undo them all."""
        rejections, self._rejections = self._rejections, []
        if not rejections:
            return
        is_rejected = torch.stack(rejections).any()
        for slot in self._slots.values():
            for kind, copied in slot.before.items():
                put(slot.memory[kind], copied, where=is_rejected)

    def scale(self, kind: str, factors: Mapping[str, float]) -> None:
        """Multiply the memory of each named parameter by its factor."""
        for slot in self._slots.values():
            for span in slot.layout.spans:
                if span.name in factors:
                    span.flat(slot.memory[kind]).mul_(factors[span.name])
        for name, tensor in self._waiting[kind].items():
            tensor.mul_(factors.get(name, 1.0))

    def drop_channels(self) -> None:
        """Drop the buffers of all messages; the next step makes new ones."""
        for slot in self._slots.values():
            slot.channel = None

    def state(self) -> dict[str, Tensors]:
        """Return copies by kind and parameter name, each of the parameter's shape."""
        self.settle()
        state = {}
        for kind, waiting in self._waiting.items():
            tensors = dict(waiting)
            for slot in self._slots.values():
                tensors |= slot.by_name(kind)
            state[kind] = {name: tensor.clone() for name, tensor in tensors.items()}
        return state

    def load(self, state: Mapping[str, Tensors]) -> None:
        """Replace the memory; the tensors wait for the buckets of their parameters."""
        self._slots.clear()
        self._rejections = []
        for kind in self._waiting:
            tensors = state.get(kind, {})
            self._waiting[kind] = {name: tensor.clone() for name, tensor in tensors.items()}

    def _dissolve(self, index: int) -> None:
        """Remove the tensors from this bucket and all later ones; they wait for the new buckets."""
        for removed in [self._slots.pop(other) for other in list(self._slots) if other >= index]:
            for kind in self._waiting:
                self._waiting[kind] |= removed.by_name(kind)

    def _assemble(self, layout: Layout, like: Tensor) -> Slot:
        slot = Slot(layout=layout, memory={}, before={})
        for kind in self._waiting:
            flat = slot.memory[kind] = torch.zeros_like(like)
            for span in layout.spans:
                residual = self._waiting[kind].pop(span.name, None)
                if residual is not None:
                    span.view(flat).copy_(residual)
            if self.can_undo:
                slot.before[kind] = torch.zeros_like(like)
        return slot


class FeedbackHook(Feedback, Hook):
    """A hook that compresses float32 gradients and keeps the unsent part.

    A subclass implements `exchange_bucket`. With a GradScaler the residual is kept unscaled. If any
    averaged bucket of a step is not finite, the optimiser skips the step, and the updates of all
    its buckets are dropped. All ranks have the same averaged data, so they decide alike.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = Memory(["residual"])
        self._steps = 0
        self._names: dict[int, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
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
    def exchange_bucket(self, buffer: Tensor, slot: Slot, watch: Stopwatch) -> Launched:
        """Do as `launch`: send ``buffer`` plus the residual, keep the unsent part as the residual,
        and leave sum / `divisor` in ``buffer``.

        If the values to send are not finite, every rank must receive NaN, and the memory is kept; a
        hook that sends blocks may treat each block by itself.
        """

    def send_dense(self, buffer: Tensor, watch: Stopwatch) -> Launched:
        """Average the gradients by one all-reduce; the residual stays as it is."""
        return self.reduce_whole(buffer.div_(self.divisor), watch)

    def attach(
        self, ddp_model: DistributedDataParallel, scaler: torch.amp.GradScaler | None
    ) -> None:
        """Record the parameters' names, and compile what the hook needs, so that no step waits.

        Raise InputError if a gradient is not float32.
        """
        self._names, self._shapes = {}, {}
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
        self._check_loaded(self.memory.state())
        self._scaler = scaler
        self.memory.can_undo = scaler is not None
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
        if self._optimizer is not None:
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
        buffer = bucket.buffer()
        slot = self.memory.open(bucket, self._names)
        if self.is_scaled:
            buffer.mul_(1.0 / self._scale)
        future, finish = self.exchange_bucket(buffer, slot, watch)
        return future, lambda value: self._inspected(finish(value), slot)

    def _inspected(self, result: Tensor, slot: Slot) -> Tensor:
        """Return the averaged bucket.

        Drop this step's updates if a scaler will skip the step because of it. Without feedback,
        drop what was not sent.
        """
        if self._scaler is not None:
            self.memory.reject(~is_finite(result))
        if not self.feedback:
            slot.residual.zero_()
        return result

    def channel_of(self, slot: Slot, like: Tensor) -> Any:
        """Return what `make_channel` made for the bucket."""
        if slot.channel is None:
            slot.channel = self.make_channel(slot.layout, like)
        return slot.channel

    def make_channel(self, layout: Layout, like: Tensor) -> Any:
        """Return a subclass's buffers for a bucket, on the device of ``like``."""

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
        self.memory.load(state["memory"])  # without channels, which depend on the step

    def _check_loaded(self, memory: Mapping[str, Tensors]) -> None:
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
