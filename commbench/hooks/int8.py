"""A quantised all-reduce: gradients travel as int8 with a float32 scale per block, and are summed
in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from commbench.hooks import catalogue, quantisers
from commbench.hooks.base import Launched, Stopwatch
from commbench.hooks.feedback import Layout, Slot
from commbench.hooks.message import QuantisedLayout
from commbench.hooks.ordering import Ending, OrderedHook, all_gather
from commbench.hooks.quantisers import TorchQuantiser, make_quantiser


@dataclass(frozen=True, kw_only=True)
class _Channel:
    """One bucket's quantiser, and its buffers, uint8, reused in every step."""

    layout: QuantisedLayout
    quantiser: TorchQuantiser
    sent: Tensor
    """Shape (world_size, row_bytes): a row for every rank, and later the sums of all ranks."""
    received: Tensor
    """Shape (world_size, row_bytes): a row from every rank."""
    own: Tensor
    """Shape (row_bytes,): the sum of this rank's shard."""


class Int8(catalogue.Int8, OrderedHook):
    """Sends int8 values with a scale per block: a quantised all-reduce, summed in float32.

    Each rank owns one shard of a bucket and sums it. All ranks, the owner included, use the
    quantised sum, so that they have the same bits. A block with an element that is not finite
    becomes NaN on all ranks.

    With feedback, rounding errors of gradients and, on the shard's owner, of sums are kept.
    """

    opens = True

    def prepare(self, device: torch.device) -> None:
        """Compile the quantisation, see `quantisers.prepare`."""
        quantisers.prepare(device)

    def exchange_bucket(self, buffer: Tensor, slot: Slot, watch: Stopwatch) -> Launched:
        """Quantise and begin to exchange shards on the autograd thread.

        Sum and exchange sums in an ordered job.
        """
        if self.is_dense:
            return self.send_dense(buffer, watch)
        channel, residual = self.channel_of(slot, buffer), slot.residual
        channel.quantiser.encode(buffer, residual, channel.sent)
        watch.started()

        def send_shards(group: dist.ProcessGroup) -> dist.Work:
            received, sent = channel.received.view(-1), channel.sent.view(-1)
            return dist.all_to_all_single(received, sent, group=group, async_op=True)

        future = self.submit_opened(
            send_shards, lambda wait: self._reduce(channel, residual, wait, watch)
        )
        return future, lambda _: channel.quantiser.decode(channel.sent, buffer)

    def _reduce(
        self,
        channel: _Channel,
        residual: Tensor,
        wait: Callable[[], object],
        watch: Stopwatch,
    ) -> Ending:
        """Sum this rank's shard when all shards are there, and gather the sums.

        The rounding error of a sum joins the residual of the shard's owner: the next sum contains
        it once.
        """
        wait()
        start = watch.clock()
        mine = residual[channel.layout.span(self._group.rank())]
        channel.quantiser.combine(
            channel.received, channel.own, divisor=self.divisor, residual=mine
        )
        watch.worked(start)
        work = all_gather(channel.sent.view(-1), channel.own, group=self._private, async_op=True)
        return Ending(work, channel.sent)

    def make_channel(self, layout: Layout, like: Tensor) -> _Channel:
        """See `FeedbackHook.make_channel`."""
        quantised = QuantisedLayout.of(layout.numel, shards=self.world_size, block=self.block)
        shape = self.world_size, quantised.row_bytes
        sent = torch.zeros(shape, dtype=torch.uint8, device=like.device)
        return _Channel(
            layout=quantised,
            quantiser=make_quantiser(quantised, like.device),
            sent=sent,
            received=torch.zeros_like(sent),
            own=torch.zeros_like(sent[0]),
        )
