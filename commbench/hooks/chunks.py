"""Aligned top-k: all ranks send the same chunks of a bucket, so that values are all-reduced and no
indices are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from commbench.hooks.compilers import find_compiler
from commbench.hooks.feedback import is_finite, poison, put
from commbench.hooks.message import ChunkLayout

Memory = Mapping[str, Tensor]
"""The ``residual`` of a bucket, and its ``momentum`` if it has one, each of shape (elements,)."""


class TorchChunks:
    """The exchange of one bucket, with buffers that are reused in every step.

    The ranks sum the norms of their chunks. They have the same sums, so they choose the same
    chunks. The local work is by torch operations on any device, where everything is queued and the
    host never waits; the reference for compiled work, which inherits it.
    """

    def __init__(self, layout: ChunkLayout, device: torch.device) -> None:
        self._layout = layout
        self.norms = torch.zeros(layout.chunks, device=device)
        """Of each chunk."""
        self.values = torch.zeros((layout.sent_chunks, layout.chunk), device=device)
        """Of the chosen chunks."""
        self._chosen = torch.arange(layout.sent_chunks, device=device)
        self._total: Tensor | None = None

    def measure(self, gradient: Tensor, residual: Tensor) -> None:
        """Compute the norms of the chunks of gradient + residual, each of shape (elements,).

        A norm is infinite if an element is above 1.8e19, whose square float32 cannot hold.
        """
        total, flat = self._sums()
        total.view(-1)[self._layout.elements :] = 0.0  # NaN after a step that was not finite
        torch.add(gradient, residual, out=flat)
        torch.linalg.vector_norm(total, dim=1, out=self.norms)

    def take(self, *, divisor: float | Tensor, memory: Memory) -> None:
        """Choose the chunks with the largest norms.

        Write their sums of the gradient and residual that were measured, divided, to ``values``.

        The other chunks become the new residual, and the momentum of chosen chunks becomes zero. If
        a norm is not finite, ``values`` are NaN and ``memory`` is kept. Equal norms give all ranks
        the same choice.

        Args:
            divisor: of the values.
            memory: the new memory of the bucket.
        """
        norms, (total, flat) = self.norms, self._sums()
        finite = is_finite(norms)
        # The choice among equal norms must be the same on all ranks, so the sort is stable.
        order = torch.sort(norms, descending=True, stable=True).indices
        self._chosen = order[: self._layout.sent_chunks].sort().values
        torch.index_select(total, 0, self._chosen, out=self.values)
        total.index_fill_(0, self._chosen, 0.0)
        put(memory["residual"], flat, where=finite)
        if "momentum" in memory:
            unsent = torch.ones_like(norms).index_fill_(0, self._chosen, 0.0)
            unsent = unsent.repeat_interleave(self._layout.chunk)[: self._layout.elements]
            put(memory["momentum"], memory["momentum"] * unsent, where=finite)
        self.values.div_(divisor)
        poison(self.values, unless=finite)

    def spread(self, into: Tensor) -> Tensor:
        """Write the values of the chosen chunks to ``into``, shape (elements,), and zeros
        elsewhere; return it.
        """
        total, flat = self._sums()
        total.zero_().index_copy_(0, self._chosen, self.values)
        return into.copy_(flat)

    def _sums(self) -> tuple[Tensor, Tensor]:
        """Return gradient + residual as chunks, and the elements of the bucket among them: only the
        last chunk reaches beyond it.
        """
        if self._total is None:
            shape = self._layout.chunks, self._layout.chunk
            self._total = torch.zeros(shape, device=self.norms.device)
        return self._total, self._total.view(-1)[: self._layout.elements]


class NativeChunks(TorchChunks):
    """The compiled work of `commbench.hooks.compression` on host memory: two passes over the bucket
    and one after.
    """

    def __init__(self, layout: ChunkLayout) -> None:
        from commbench.hooks.compression import kernels

        super().__init__(layout, torch.device("cpu"))
        self._kernels = kernels
        self._numbers = torch.zeros(layout.sent_chunks, dtype=torch.int32).numpy()
        """Of the chosen chunks."""
        self._measured: tuple[Any, Any] = (None, None)
        """Gradient and residual."""

    def measure(self, gradient: Tensor, residual: Tensor) -> None:
        """See `TorchChunks.measure`."""
        self._measured = gradient.numpy(), residual.numpy()
        self._kernels.measure_chunks(*self._measured, self._layout.chunk, self.norms.numpy())

    def take(self, *, divisor: float | Tensor, memory: Memory) -> None:
        """See `TorchChunks.take`."""
        if not self._kernels.choose_chunks(self.norms.numpy(), self._numbers):
            self.values.fill_(torch.nan)
            return
        values = self.values.numpy()
        self._kernels.take_chunks(*self._measured, self._numbers, float(divisor), values)
        if "momentum" in memory:
            momentum = memory["momentum"].numpy()
            self._kernels.clear_chunks(self._numbers, self._layout.chunk, momentum)

    def spread(self, into: Tensor) -> Tensor:
        """See `TorchChunks.spread`."""
        self._kernels.spread_chunks(self.values.numpy(), self._numbers, into.numpy())
        return into


def make_chunks(layout: ChunkLayout, device: torch.device, *, fast: bool) -> TorchChunks:
    """Return the compiled work if ``fast`` and the device has it, else torch's."""
    if fast and find_compiler(device) == "numba":
        return NativeChunks(layout)
    return TorchChunks(layout, device)


def prepare(device: torch.device) -> None:
    """Compile the work for a device, or load it from a cache, so that no step waits for it."""
    if find_compiler(device) != "numba":
        return
    chunks = NativeChunks(ChunkLayout.of(4, density=0.5, chunk=2))
    gradient = torch.ones(4)
    memory = {"residual": torch.zeros(4), "momentum": torch.zeros(4)}
    chunks.measure(gradient, memory["residual"])
    chunks.take(divisor=1.0, memory=memory)
    chunks.spread(gradient)
