"""Top-k sparsification with error feedback: each rank sends its k largest elements, or all send the
same chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from commbench.hooks import catalogue, chunks, selectors
from commbench.hooks.base import Launched, Stopwatch
from commbench.hooks.chunks import TorchChunks
from commbench.hooks.feedback import Layout, Memory, Slot, is_finite, put
from commbench.hooks.message import ChunkLayout, PayloadLayout, PayloadPart
from commbench.hooks.ordering import Ending, OrderedHook, all_gather
from commbench.hooks.selectors import DTYPES, TorchSelector, make_selector, split


@dataclass(frozen=True, kw_only=True)
class _Channel:
    """One bucket's message layout, and its send and receive buffers, reused in every step."""

    payload: PayloadLayout
    selectors: Sequence[TorchSelector]
    sent: Tensor
    """uint8, shape (payload.nbytes,)."""
    gathered: Tensor
    """uint8, shape (world_size, payload.nbytes)."""


class TopK(catalogue.TopK, OrderedHook):
    """Each rank sends k = ceil(density x n) elements, the largest, per bucket or per parameter.

    With ``exchange=aligned``, all ranks send the same chunks.
    """

    opens = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum:
            self.memory = Memory(["residual", "momentum"])

    def prepare(self, device: torch.device) -> None:
        """Compile the work of the exchange, see `selectors.prepare` and `chunks.prepare`."""
        if not self.compiles:
            return
        if self.runs_in_order:
            chunks.prepare(device)
        else:
            selectors.prepare(device)

    def exchange_bucket(self, buffer: Tensor, slot: Slot, watch: Stopwatch) -> Launched:
        """Gather every rank's message and sum the messages in rank order, or exchange chunks."""
        if self.clip:
            self._clip(buffer, slot.layout)
        if self.momentum:
            self._correct(buffer, slot.memory["momentum"])
        if self.is_dense:
            return self.send_dense(buffer, watch)
        if self.runs_in_order:
            return self._exchange_chunks(buffer, slot, watch)
        channel = self.channel_of(slot, buffer)
        self._encode(channel, buffer, slot)
        if not channel.payload.sparse:
            return self.reduce_whole(buffer, watch)
        watch.started()
        gathered = channel.gathered.view(-1)
        work = all_gather(gathered, channel.sent, group=self._group, async_op=True)
        return work.get_future(), lambda _: self._decode(channel, buffer)

    def _exchange_chunks(self, buffer: Tensor, slot: Slot, watch: Stopwatch) -> Launched:
        """Compute norms and begin to sum them on the autograd thread.

        Choose chunks and sum them in an ordered job.
        """
        channel = self.channel_of(slot, buffer)
        channel.measure(buffer, slot.residual)
        watch.started()

        def sum_norms(group: ProcessGroup) -> Work:
            return dist.all_reduce(channel.norms, group=group, async_op=True)

        def sum_values(wait: Callable[[], object]) -> Ending:
            wait()
            start = watch.clock()
            channel.take(divisor=self.divisor, memory=slot.memory)
            watch.worked(start)
            work = dist.all_reduce(channel.values, group=self._private, async_op=True)
            return Ending(work, channel.values)

        return self.submit_opened(sum_norms, sum_values), lambda _: channel.spread(buffer)

    # Sending

    def _encode(self, channel: _Channel, buffer: Tensor, slot: Slot) -> None:
        """Write the message; this overwrites ``buffer`` unless no element of it is selected."""
        self._take_whole(channel, buffer)
        momentum = slot.memory.get("momentum")
        for part, selector in zip(channel.payload.sparse, channel.selectors, strict=True):
            payload = _bytes(part, channel.sent)
            selector.encode(_elements(part, buffer), _elements(part, slot.residual), payload)
            indices, values = split(payload, part.k, DTYPES[self.values])
            if momentum is not None:
                _forget(_elements(part, momentum), indices, values)
            if self.values == "float32":  # float16 would be rounded again: its sums are divided
                values.div_(self.divisor)

    def _take_whole(self, channel: _Channel, buffer: Tensor) -> None:
        """Move tensors that are sent whole to the message.

        If the bucket has no others, divide them in place.
        """
        for part in channel.payload.dense:
            values = _elements(part, buffer)
            values.div_(self.divisor)
            if channel.payload.sparse:
                _bytes(part, channel.sent).view(torch.float32).copy_(values)
                values.zero_()

    # Receiving

    def _decode(self, channel: _Channel, buffer: Tensor) -> Tensor:
        """Sum the messages in the order of the ranks, so that all ranks have the same bits."""
        buffer.zero_()
        for block in channel.gathered:
            for part, selector in zip(channel.payload.sparse, channel.selectors, strict=True):
                selector.add(_bytes(part, block), _elements(part, buffer))
        if self.values == "float16":
            buffer.div_(self.divisor)
        for block in channel.gathered:
            for part in channel.payload.dense:
                _elements(part, buffer).add_(_bytes(part, block).view(torch.float32))
        return buffer

    # Deep Gradient Compression

    def _clip(self, buffer: Tensor, layout: Layout) -> None:
        """Clip each tensor's norm.

        The norm of the whole gradient is unknown when a bucket is ready.
        """
        limit = self.clip / self.world_size**0.5
        for span in layout.spans:
            flat = span.flat(buffer)
            # float32 cannot hold the square of an element above 1.8e19.
            norm = torch.linalg.vector_norm(flat, dtype=torch.float64)
            flat.mul_(torch.where(norm > limit, limit / norm, 1.0))

    def _correct(self, buffer: Tensor, momentum: Tensor) -> None:
        """Accumulate u = m u + g in place of g; a gradient that is not finite is not added."""
        finite = is_finite(buffer)
        put(momentum, buffer.add_(momentum, alpha=self.momentum), where=finite)

    @property
    def current_density(self) -> float:
        """The density of the current step."""
        if self.step >= self.warmup_steps:
            return self.density
        return self.warmup[self.step * len(self.warmup) // self.warmup_steps]

    # Memory

    def make_channel(self, layout: Layout, like: Tensor) -> _Channel | TorchChunks:
        """See `FeedbackHook.make_channel`."""
        if self.runs_in_order:
            chunk_layout = ChunkLayout.of(
                layout.numel, density=self.current_density, chunk=self.chunk
            )
            return chunks.make_chunks(chunk_layout, like.device, fast=self.compiles)
        shapes = [span.shape for span in layout.spans]
        payload = self.layout(shapes, self.current_density)
        ranks = self.world_size if payload.sparse else 0
        part_selectors = []
        for part in payload.sparse:
            sizes = part.numel, part.k, self.values
            part_selectors.append(make_selector(*sizes, fast=self.compiles, device=like.device))
        return _Channel(
            payload=payload,
            selectors=part_selectors,
            sent=torch.zeros(payload.nbytes, dtype=torch.uint8, device=like.device),
            gathered=torch.zeros((ranks, payload.nbytes), dtype=torch.uint8, device=like.device),
        )

    def begin_step(self) -> None:
        """See `FeedbackHook.begin_step`; also drop all channels if the density changes."""
        before = self.current_density
        super().begin_step()
        if self.current_density != before:
            self.memory.drop_channels()


def _elements(part: PayloadPart, flat: Tensor) -> Tensor:
    """Return the part of a bucket, shape (part.numel,)."""
    return flat[part.start : part.start + part.numel]


def _bytes(part: PayloadPart, block: Tensor) -> Tensor:
    """Return the part of a message, uint8 of shape (part.nbytes,)."""
    return block[part.offset : part.offset + part.nbytes]


def _forget(momentum: Tensor, indices: Tensor, values: Tensor) -> None:
    """Zero the sent elements.

    Unused slots (value 0) and slots that are not finite (NaN) send nothing.
    """
    sent = values.abs() > 0
    at = indices.long()
    # Subtract: an unused slot may have the index of a sent element.
    momentum.index_add_(0, at, torch.where(sent, momentum[at], 0.0), alpha=-1)
