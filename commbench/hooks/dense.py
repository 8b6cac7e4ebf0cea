"""Hooks that send every gradient element, in float32 or in half the bytes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import GradBucket

from commbench.hooks import catalogue
from commbench.hooks.base import Hook, Launched, Stopwatch


class PassThrough(catalogue.PassThrough, Hook):
    """The same all-reduce as DDP's without a hook; measures the overhead of a hook."""

    def launch(self, bucket: GradBucket, watch: Stopwatch) -> Launched:
        """Divide, then sum."""
        return self.reduce_whole(bucket.buffer().div_(self.world_size), watch)


class _Half(catalogue.Dense, Hook):
    """Sends and adds gradients in a type of two bytes.

    Gradients are divided before the cast, in their original type. Sent and summed values are then
    never larger than the largest gradient, so fewer overflow than if sums were divided. The result
    has the gradients' type.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sent: dict[int, Tensor] = {}

    def launch(self, bucket: GradBucket, watch: Stopwatch) -> Launched:
        """Divide, cast, sum, cast back."""
        buffer, index = bucket.buffer(), bucket.index()
        half = self._sent.get(index)
        if half is None or half.shape != buffer.shape or half.device != buffer.device:
            # Reused in every step: newly allocated pages cost as much as the cast.
            half = torch.empty_like(buffer, dtype=getattr(torch, self.sent_dtype))
            self._sent[index] = half
        half.copy_(buffer.div_(self.world_size))
        future, _ = self.reduce_whole(half, watch)
        return future, lambda _: buffer.copy_(half)


class FP16(catalogue.FP16, _Half):
    """IEEE half precision: 11 bits of precision, overflow above 65504, underflow below 6e-8."""


class BF16(catalogue.BF16, _Half):
    """bfloat16: the range of float32 with 8 bits of precision.

    Also works on CPUs, unlike torch's own hook.
    """
