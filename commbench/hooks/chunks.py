"""Aligned top-k: all ranks send the same chunks of a bucket, so that values are all-reduced and no
indices are sent.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Protocol

import torch
import torch.distributed as dist

from commbench.hooks.base import Stopwatch
from commbench.hooks.feedback import is_finite, poison, put
from commbench.hooks.message import ChunkLayout

Memory = Mapping[str, torch.Tensor]
"""The ``residual`` and ``momentum`` of a bucket, if it has them, each of shape (elements,)."""


class Chunker(Protocol):
    """Does the local work on the chunks of a bucket.

    On a device everything is queued; the host never waits.
    """

    def measure(
        self, gradient: torch.Tensor, residual: torch.Tensor | None, norms: torch.Tensor
    ) -> None:
        """Write the norm of each chunk of gradient + residual to ``norms``, shape (chunks,)."""

    def take(
        self,
        gradient: torch.Tensor,
        residual: torch.Tensor | None,
        norms: torch.Tensor,
        values: torch.Tensor,
        *,
        divisor: float | torch.Tensor,
        memory: Memory,
    ) -> None:
        """Choose the chunks with the largest norms.

        Write their sums of gradient and residual, divided, to ``values``.

        The other chunks become the new residual, and the momentum of chosen chunks becomes zero. If
        a norm is not finite, ``values`` are NaN and ``memory`` is kept. Equal norms give all ranks
        the same choice.

        Args:
            gradient: as given to `measure`.
            residual: as given to `measure`.
            norms: shape (chunks,), summed over the ranks.
            values: shape (kept, chunk).
            divisor: of the values.
            memory: the new memory of the bucket.
        """

    def spread(self, values: torch.Tensor, into: torch.Tensor) -> None:
        """Write the values of the chosen chunks to ``into``, shape (elements,), and zeros
        elsewhere.
        """


class TorchChunker:
    """The work by torch operations: the reference, for any device."""

    def __init__(self, layout: ChunkLayout, device: torch.device) -> None:
        self._layout = layout
        self._total = torch.zeros((layout.chunks, layout.chunk), device=device)
        self._chosen = torch.arange(layout.sent_chunks, device=device)

    @property
    def _flat(self) -> torch.Tensor:
        """The chunks as one tensor of the bucket's shape; only the last chunk reaches beyond it."""
        return self._total.view(-1)[: self._layout.elements]

    def measure(
        self, gradient: torch.Tensor, residual: torch.Tensor | None, norms: torch.Tensor
    ) -> None:
        """See `Chunker.measure`."""
        self._total.view(-1)[self._layout.elements :] = 0.0  # NaN after a step that was not finite
        torch.add(gradient, 0.0 if residual is None else residual, out=self._flat)
        torch.linalg.vector_norm(self._total, dim=1, out=norms)

    def take(
        self,
        gradient: torch.Tensor,  # noqa: ARG002 - `measure` has kept the sum
        residual: torch.Tensor | None,  # noqa: ARG002 - as above
        norms: torch.Tensor,
        values: torch.Tensor,
        *,
        divisor: float | torch.Tensor,
        memory: Memory,
    ) -> None:
        """See `Chunker.take`."""
        finite = is_finite(norms)
        # The choice among equal norms must be the same on all ranks, so the sort is stable.
        self._chosen = (
            torch.sort(norms, descending=True, stable=True)
            .indices[: self._layout.sent_chunks]
            .sort()
            .values
        )
        torch.index_select(self._total, 0, self._chosen, out=values)
        if "residual" in memory:
            self._total.index_fill_(0, self._chosen, 0.0)
            put(memory["residual"], self._flat, where=finite)
        if "momentum" in memory:
            put(memory["momentum"], memory["momentum"] * self._unsent(norms), where=finite)
        values.div_(divisor)
        poison(values, unless=finite)

    def _unsent(self, norms: torch.Tensor) -> torch.Tensor:
        """Return 0 for each element that is sent, else 1."""
        unsent = torch.ones_like(norms).index_fill_(0, self._chosen, 0.0)
        return unsent.repeat_interleave(self._layout.chunk)[: self._layout.elements]

    def spread(self, values: torch.Tensor, into: torch.Tensor) -> None:
        """See `Chunker.spread`."""
        self._total.zero_().index_copy_(0, self._chosen, values)
        into.copy_(self._flat)


class NativeChunker:
    """The compiled work of `commbench.hooks.compression` on host memory: two passes over the bucket
    and one after.
    """

    def __init__(self, layout: ChunkLayout) -> None:
        from commbench.hooks.compression import kernels

        self._kernels = kernels
        self._chunk = layout.chunk
        self._chosen = torch.zeros(layout.sent_chunks, dtype=torch.int32).numpy()

    def measure(
        self, gradient: torch.Tensor, residual: torch.Tensor | None, norms: torch.Tensor
    ) -> None:
        """See `Chunker.measure`."""
        old = None if residual is None else residual.numpy()
        self._kernels.measure_chunks(gradient.numpy(), old, self._chunk, norms.numpy())

    def take(
        self,
        gradient: torch.Tensor,
        residual: torch.Tensor | None,
        norms: torch.Tensor,
        values: torch.Tensor,
        *,
        divisor: float | torch.Tensor,
        memory: Memory,
    ) -> None:
        """See `Chunker.take`."""
        if not self._kernels.choose_chunks(norms.numpy(), self._chosen):
            values.fill_(torch.nan)
            return
        old, new = (
            (None, None) if residual is None else (residual.numpy(), memory["residual"].numpy())
        )
        self._kernels.take_chunks(
            gradient.numpy(), old, new, self._chosen, float(divisor), values.numpy()
        )
        if "momentum" in memory:
            self._kernels.clear_chunks(self._chosen, self._chunk, memory["momentum"].numpy())

    def spread(self, values: torch.Tensor, into: torch.Tensor) -> None:
        """See `Chunker.spread`."""
        self._kernels.spread_chunks(values.numpy(), self._chosen, into.numpy())


def make_chunker(layout: ChunkLayout, device: torch.device, *, fast: bool) -> Chunker:
    """Return the compiled work if ``fast`` and the device has it, else torch's."""
    return NativeChunker(layout) if fast and is_compiled(device) else TorchChunker(layout, device)


def is_compiled(device: torch.device) -> bool:
    """Return whether the work on chunks is compiled for a device."""
    return device.type == "cpu" and importlib.util.find_spec("numba") is not None


def prepare(device: torch.device) -> None:
    """Compile the work for a device, or load it from a cache, so that no step waits for it."""
    if not is_compiled(device):
        return
    chunker = NativeChunker(ChunkLayout.of(4, density=0.5, chunk=2))
    gradient, norms, values = torch.ones(4), torch.ones(2), torch.ones(1, 2)
    for memory in ({}, {"residual": torch.zeros(4), "momentum": torch.zeros(4)}):
        chunker.measure(gradient, memory.get("residual"), norms)
        chunker.take(gradient, memory.get("residual"), norms, values, divisor=1.0, memory=memory)
    chunker.spread(values, gradient)


class ChunkChannel:
    """The exchange of one bucket, with buffers that are reused in every step.

    The ranks sum the norms of their chunks. They have the same sums, so they choose the same
    chunks.
    """

    def __init__(self, layout: ChunkLayout, like: torch.Tensor, *, fast: bool) -> None:
        self._chunker = make_chunker(layout, like.device, fast=fast)
        self._norms = like.new_zeros(layout.chunks)
        self._values = like.new_zeros((layout.sent_chunks, layout.chunk))

    def measure(self, gradient: torch.Tensor, residual: torch.Tensor | None) -> None:
        """Compute the norms of the chunks of gradient + residual."""
        self._chunker.measure(gradient, residual, self._norms)

    def sum_norms(self, group: dist.ProcessGroup) -> dist.Work:
        """Begin to sum the norms over the ranks."""
        return dist.all_reduce(self._norms, group=group, async_op=True)

    def sum_values(
        self,
        group: dist.ProcessGroup,
        gradient: torch.Tensor,
        residual: torch.Tensor | None,
        *,
        divisor: float | torch.Tensor,
        memory: Memory,
        watch: Stopwatch,
    ) -> tuple[dist.Work, torch.Tensor]:
        """Choose chunks by the sums of the norms, and begin to sum their values.

        NaN if a norm is not finite.

        Args:
            group: of the collective.
            gradient: as given to `measure`.
            residual: as given to `measure`.
            divisor: of the sums.
            memory: the new memory of the bucket, see `Chunker.take`.
            watch: takes the times.
        """
        start = watch.clock()
        self._chunker.take(
            gradient, residual, self._norms, self._values, divisor=divisor, memory=memory
        )
        watch.worked(start)
        return dist.all_reduce(self._values, group=group, async_op=True), self._values

    def spread(self, buffer: torch.Tensor) -> torch.Tensor:
        """Write the sums of the chosen chunks to ``buffer``, and zeros elsewhere."""
        self._chunker.spread(self._values, buffer)
        return buffer
