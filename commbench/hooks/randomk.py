"""Random-k sparsification with a shared seed: all ranks send the same elements, so no indices are
sent.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar

import torch
import torch.distributed as dist

from commbench.hooks.base import Finish, Stopwatch
from commbench.hooks.feedback import FeedbackHook, Slot, accumulate, is_finite, on_host, put
from commbench.hooks.layout import Layout
from commbench.hooks.message import (
    BucketShape,
    Message,
    check_density,
    kept_elements,
    random_k_messages,
)


class RandomK(FeedbackHook):
    """Sums k = ceil(density x n) elements of each bucket, drawn again every step from (seed, step,
    first parameter).

    With error feedback the unsent part is kept; without it the sum is scaled by n/k, which makes it
    unbiased. The first ``start`` steps send everything.
    """

    name: ClassVar[str] = "randomk"

    def __init__(
        self, *, density: float = 0.01, seed: int = 0, feedback: bool = True, start: int = 0
    ) -> None:
        super().__init__(feedback=feedback, start=start)
        self.density = check_density(self.name, density)
        self.seed = seed
        self._under_way: dict[Layout, tuple[torch.Tensor, torch.Tensor]] = {}

    def exchange(
        self, buffer: torch.Tensor, layout: Layout, slot: Slot, watch: Stopwatch
    ) -> tuple[torch.futures.Future, Finish]:
        """Gather the drawn elements, sum them, scatter them."""
        if self.is_dense:
            return self.send_dense(buffer, slot, watch)
        count = kept_elements(layout.numel, self.density)
        indices = _moved(draw(layout.numel, count, self._generator(layout)), buffer.device)
        values = self._take(buffer, slot, indices)
        values.div_(self.divisor if self.feedback else self.divisor * count / layout.numel)
        # On a GPU another stream uses both until the next step; memory that is freed earlier would
        # be reused too soon.
        self._under_way[layout] = indices, values
        watch.encoded()
        watch.started()
        future = dist.all_reduce(values, group=self._group, async_op=True).get_future()
        return future, lambda _: buffer.zero_().index_copy_(0, indices, values)

    def _take(self, buffer: torch.Tensor, slot: Slot, indices: torch.Tensor) -> torch.Tensor:
        """Return the values to send, shape (k,), removed from the new residual.

        All NaN if a gradient is not finite.

        The infinite element may not be among the drawn elements, and every rank must detect it.
        """
        finite = is_finite(buffer)
        if not on_host(finite):
            return torch.where(
                finite, self._take_on_device(buffer, slot, indices, finite), torch.nan
            )
        if not finite:
            return torch.full_like(indices, torch.nan, dtype=buffer.dtype)
        if not self.feedback:
            return buffer[indices]
        residual = torch.add(buffer, slot.old["residual"], out=slot.new["residual"])
        values = residual[indices]
        residual.index_fill_(0, indices, 0.0)
        return values

    def _take_on_device(
        self, buffer: torch.Tensor, slot: Slot, indices: torch.Tensor, finite: torch.Tensor
    ) -> torch.Tensor:
        """Return the values, finite or not; write the residual if all gradients are finite."""
        values = accumulate(buffer, slot)[indices]
        if self.feedback:
            put(slot.new["residual"], buffer.index_fill_(0, indices, 0.0), where=finite)
        return values

    def _generator(self, layout: Layout) -> torch.Generator:
        """Return the generator of this step and bucket, the same on every rank.

        Torch's global one stays unchanged.
        """
        return seeded(self.seed, self.step, layout.spans[0].name)

    def forget(self, layout: Layout) -> None:
        """Drop the bucket's indices and values."""
        self._under_way.pop(layout, None)

    def messages(self, bucket: BucketShape) -> tuple[Message, ...]:
        """See `Hook.messages`."""
        return random_k_messages(bucket, density=self.density)


def seeded(*parts: object) -> torch.Generator:
    """Return a generator seeded by all parts and nothing else."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def draw(n: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Draw k different indices below n, int64 of shape (k,): one in each of k equal intervals, then
    a random rotation.

    Each index is drawn with probability exactly k/n. The bias and the variance of random-k depend
    on nothing else. A uniformly drawn subset would cost a pass over all n.
    """
    edges = torch.arange(k + 1, dtype=torch.int64).mul_(n).div_(k, rounding_mode="floor")
    length = edges[1:] - edges[:-1]
    offsets = (torch.rand(k, generator=generator, dtype=torch.float64) * length).to(torch.int64)
    turn = torch.randint(n, (1,), generator=generator)
    return (edges[:-1] + torch.minimum(offsets, length - 1) + turn).remainder_(n)


def _moved(indices: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy indices to a device without waiting for it.

    Drawn on the host, because draws depend on the GPU's model.
    """
    return indices if device.type == "cpu" else indices.pin_memory().to(device, non_blocking=True)
