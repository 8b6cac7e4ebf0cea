"""Aligned top-k: all ranks send the same chunks of a bucket, so that values are all-reduced and no indices are sent."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from commbench.hooks.base import Stopwatch
from commbench.hooks.feedback import is_finite, poison, put
from commbench.hooks.message import ChunkLayout


class ChunkChannel:
    """The exchange of one bucket, with buffers that are reused in every step.

    The ranks sum the norms of their chunks. They have the same sums, so they choose the same chunks.
    """

    def __init__(self, layout: ChunkLayout, like: torch.Tensor) -> None:
        self._layout = layout
        self._total = like.new_zeros((layout.chunks, layout.chunk))
        self._norms = like.new_zeros(layout.chunks)
        self._values = like.new_zeros((layout.kept, layout.chunk))
        self._chosen = torch.arange(layout.kept, device=like.device)

    @property
    def _flat(self) -> torch.Tensor:
        """The chunks as one tensor of the bucket's shape; only the last chunk reaches beyond it."""
        return self._total.view(-1)[: self._layout.elements]

    def take(self, gradient: torch.Tensor, residual: torch.Tensor | None) -> None:
        """Add gradient and residual, and compute the norms of the chunks."""
        self._total.view(-1)[self._layout.elements :] = 0.0  # NaN after a step that was not finite
        torch.add(gradient, 0.0 if residual is None else residual, out=self._flat)
        torch.linalg.vector_norm(self._total, dim=1, out=self._norms)

    def sum_norms(self, group: dist.ProcessGroup) -> dist.Work:
        """Begin to sum the norms over the ranks."""
        return dist.all_reduce(self._norms, group=group, async_op=True)

    def sum_values(
        self,
        group: dist.ProcessGroup,
        divisor: float | torch.Tensor,
        memory: Mapping[str, torch.Tensor],
        watch: Stopwatch,
    ) -> tuple[dist.Work, torch.Tensor]:
        """Choose chunks by the sums of the norms, and begin to sum their values; NaN if a norm is not finite.

        Args:
            group: of the collective.
            divisor: of the sums.
            memory: the new ``residual`` and ``momentum`` of the bucket, if it has them: both are written, unless a norm
                is not finite.
            watch: takes the times.
        """
        start = watch.clock()
        finite = is_finite(self._norms)
        # The choice among equal norms must be the same on all ranks, so the sort is stable.
        self._chosen = torch.sort(self._norms, descending=True, stable=True).indices[: self._layout.kept]
        torch.index_select(self._total, 0, self._chosen, out=self._values)
        if "residual" in memory:
            self._total.index_fill_(0, self._chosen, 0.0)
            put(memory["residual"], self._flat, where=finite)
        if "momentum" in memory:
            put(memory["momentum"], memory["momentum"] * self._unsent(), where=finite)
        self._values.div_(divisor)
        poison(self._values, unless=finite)
        watch.worked(start)
        return dist.all_reduce(self._values, group=group, async_op=True), self._values

    def _unsent(self) -> torch.Tensor:
        """Return 0 for each element that is sent, else 1."""
        unsent = torch.ones_like(self._norms).index_fill_(0, self._chosen, 0.0)
        return unsent.repeat_interleave(self._layout.chunk)[: self._layout.elements]

    def spread(self, buffer: torch.Tensor) -> torch.Tensor:
        """Write the sums of the chosen chunks to ``buffer``, and zeros elsewhere."""
        self._total.zero_().index_copy_(0, self._chosen, self._values)
        return buffer.copy_(self._flat)
