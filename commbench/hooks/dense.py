"""Hooks that send every gradient element, in float32 or in half the bytes."""

from __future__ import annotations

import torch
import torch.distributed as dist

from commbench.hooks import catalogue
from commbench.hooks.base import Finish, Hook, Stopwatch


class PassThrough(catalogue.PassThrough, Hook):
    """The same all-reduce as DDP's without a hook; measures the overhead of a hook."""

    def launch(
        self, bucket: dist.GradBucket, watch: Stopwatch
    ) -> tuple[torch.futures.Future, Finish]:
        """Divide, then sum."""
        buffer = bucket.buffer().div_(self.world_size)
        watch.encoded()
        watch.started()
        return (
            dist.all_reduce(buffer, group=self._group, async_op=True).get_future(),
            lambda _: buffer,
        )


class _Half(catalogue.Dense, Hook):
    """Sends and adds gradients in a type of two bytes.

    Gradients are divided before the cast, in their original type. Sent and summed values are then
    never larger than the largest gradient, so fewer overflow than if sums were divided. The result
    has the gradients' type.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sent: dict[int, torch.Tensor] = {}

    def launch(
        self, bucket: dist.GradBucket, watch: Stopwatch
    ) -> tuple[torch.futures.Future, Finish]:
        """Divide, cast, sum, cast back."""
        buffer = bucket.buffer()
        half = self._buffer(bucket.index(), buffer).copy_(buffer.div_(self.world_size))
        watch.encoded()
        watch.started()
        future = dist.all_reduce(half, group=self._group, async_op=True).get_future()
        return future, lambda _: buffer.copy_(half)

    def _buffer(self, index: int, buffer: torch.Tensor) -> torch.Tensor:
        """Return the send buffer of a bucket, reused in every step: newly allocated pages cost as
        much as the cast.
        """
        half = self._sent.get(index)
        if half is None or half.shape != buffer.shape or half.device != buffer.device:
            dtype = getattr(torch, self.sent_dtype)
            half = self._sent[index] = torch.empty_like(buffer, dtype=dtype)
        return half


class FP16(catalogue.FP16, _Half):
    """IEEE half precision: 11 bits of precision, overflow above 65504, underflow below 6e-8."""


class BF16(catalogue.BF16, _Half):
    """bfloat16: the range of float32 with 8 bits of precision.

    Also works on CPUs, unlike torch's own hook.
    """
