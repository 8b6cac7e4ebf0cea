"""Quantisation of buckets to int8: compiled for the host or a GPU, or by torch on any device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from commbench.hooks import compilers
from commbench.hooks.compilers import WARP, Kernels
from commbench.hooks.message import FLOAT32_BYTES, LARGEST_N, QuantisedLayout

#: The largest int8 that is sent.
STEPS = 127.0
#: Larger sums are sent as NaN, because 127 x scale may overflow; with a smaller scale 1 / scale
#: may.
TOO_LARGE, LEAST_SCALE = 2.0**127, 2.0**-126
#: The longest block, in elements, for CUDA kernels: a warp works on each block, and few long blocks
#: leave a GPU idle.
LONGEST_CUDA_BLOCK = 4096

SOURCE = "quantisation.cu"
KERNELS = ("quantise", "combine", "dequantise")
#: Threads of a block.
THREADS = 256


class TorchQuantiser:
    """Quantises the shards of a bucket. By torch operations on any device; the reference for
    compiled work, which inherits it.

    A payload is uint8, shape (shards, row_bytes), see `QuantisedLayout`.

    A block with a sum that is not finite, or that is too large, has the scale NaN: all its elements
    become NaN. On a device everything is queued on the current stream; the host never waits.
    """

    def __init__(self, layout: QuantisedLayout) -> None:
        self._layout = layout

    def encode(self, gradient: Tensor, residual: Tensor, payload: Tensor) -> None:
        """Write the payload of gradient + residual; its rounding errors are the new residual.

        Blocks that are not finite keep their residual.
        """
        layout = self._layout
        whole = gradient.new_zeros((layout.shards, layout.shard))
        flat = whole.view(-1)[: layout.elements]
        torch.add(gradient, residual, out=flat)
        errors, is_sent = self._pack(whole, payload)
        _put(residual, errors, is_sent)

    def combine(
        self,
        payload: Tensor,
        own: Tensor,
        *,
        divisor: float | Tensor,
        residual: Tensor,
    ) -> None:
        """Sum one shard over the ranks in their order.

        Write the sum / ``divisor`` to the row ``own``.

        The rounding errors of the sum are added to ``residual``, the shard's elements, except in
        blocks that are not finite.
        """
        total = self._unpack(payload[:1])
        for row in payload[1:]:
            total += self._unpack(row.unsqueeze(0))
        errors, is_sent = self._pack(total, own.unsqueeze(0))
        self._scales(own.unsqueeze(0)).div_(divisor)
        _put(residual, residual + errors.view(-1)[: residual.numel()], is_sent)

    def decode(self, payload: Tensor, into: Tensor) -> Tensor:
        """Write all elements of a payload to ``into``, shape (elements,), and return it."""
        return into.copy_(self._unpack(payload).reshape(-1)[: self._layout.elements])

    def _pack(self, sums: Tensor, payload: Tensor) -> tuple[Tensor, Tensor]:
        """Write scales and values of shards, shape (rows, shard).

        Return rounding errors, and which are finite.
        """
        largest = self._blocks(sums).abs().amax(dim=-1)
        is_sent = largest < TOO_LARGE
        scales = largest / STEPS
        scales = torch.where(scales >= LEAST_SCALE, scales, 0.0)
        self._scales(payload).copy_(torch.where(is_sent, scales, torch.nan))
        factors = self._by_element(torch.where(scales > 0, 1.0 / scales, 0.0))
        sent_elements = self._by_element(is_sent)
        rounded = torch.where(sent_elements, (sums * factors).round_(), 0.0)
        self._values(payload).copy_(rounded)
        return sums - rounded * self._by_element(scales), sent_elements

    def _unpack(self, payload: Tensor) -> Tensor:
        """Return the elements of shards, shape (rows, shard)."""
        return self._values(payload) * self._by_element(self._scales(payload))

    def _blocks(self, sums: Tensor) -> Tensor:
        """Return shards as (rows, blocks, block), the last block filled up with zeros."""
        layout = self._layout
        padding = layout.blocks * layout.block - layout.shard
        return torch.nn.functional.pad(sums, (0, padding)).view(
            len(sums), layout.blocks, layout.block
        )

    def _by_element(self, by_block: Tensor) -> Tensor:
        """Repeat a value per block for each of its elements; shape (rows, shard)."""
        return by_block.repeat_interleave(self._layout.block, dim=1)[:, : self._layout.shard]

    def _scales(self, payload: Tensor) -> Tensor:
        return payload.view(torch.float32)[:, : self._layout.blocks]

    def _values(self, payload: Tensor) -> Tensor:
        return payload.view(torch.int8)[:, FLOAT32_BYTES * self._layout.blocks :]


class NativeQuantiser(TorchQuantiser):
    """The compiled quantisation of `commbench.hooks.compression` on host memory."""

    def __init__(self, layout: QuantisedLayout) -> None:
        from commbench.hooks.compression import quantisation

        super().__init__(layout)
        self._kernels = quantisation
        self._block, self._shard = layout.block, layout.shard

    def encode(self, gradient: Tensor, residual: Tensor, payload: Tensor) -> None:
        """See `TorchQuantiser.encode`."""
        summands = gradient.numpy(), residual.numpy()
        self._kernels.quantise(*summands, self._block, self._shard, _bytes(payload))

    def combine(
        self,
        payload: Tensor,
        own: Tensor,
        *,
        divisor: float | Tensor,
        residual: Tensor,
    ) -> None:
        """See `TorchQuantiser.combine`."""
        shape = self._block, self._shard
        rest = residual.numpy()
        self._kernels.combine(_bytes(payload), *shape, float(divisor), rest, _bytes(own))

    def decode(self, payload: Tensor, into: Tensor) -> Tensor:
        """See `TorchQuantiser.decode`."""
        self._kernels.dequantise(_bytes(payload), self._block, self._shard, into.numpy())
        return into


class CudaQuantiser(TorchQuantiser):
    """The kernels of quantisation.cu, whose bits are the host's, except those of a NaN among the
    elements that `decode` writes.

    Each part of the exchange is one launch that reads and writes every element once. A block of
    more than 256 elements is read twice. Bytes of memory traffic per element: 13 to quantise with a
    residual, 9 plus the number of ranks to add up a shard, 5 to multiply out a payload.
    """

    def __init__(self, layout: QuantisedLayout, device: torch.device) -> None:
        super().__init__(layout)
        busy = -(-layout.shards * layout.blocks // (THREADS // WARP))
        self._kernels = Kernels(SOURCE, KERNELS, threads=THREADS, busy_blocks=busy, device=device)
        self._shape = layout.elements, layout.shards, layout.shard, layout.block
        self._divisor = torch.ones((), device=device)

    def encode(self, gradient: Tensor, residual: Tensor, payload: Tensor) -> None:
        """See `TorchQuantiser.encode`."""
        self._kernels.launch("quantise", gradient, residual, *self._shape, payload)

    def combine(
        self,
        payload: Tensor,
        own: Tensor,
        *,
        divisor: float | Tensor,
        residual: Tensor,
    ) -> None:
        """See `TorchQuantiser.combine`."""
        self._divisor.fill_(divisor)  # a loss scale lies on the device
        sums = self._divisor, residual, residual.numel(), own
        self._kernels.launch("combine", payload, *self._shape[1:], *sums)

    def decode(self, payload: Tensor, into: Tensor) -> Tensor:
        """See `TorchQuantiser.decode`."""
        self._kernels.launch("dequantise", payload, *self._shape, into)
        return into


def make_quantiser(layout: QuantisedLayout, device: torch.device) -> TorchQuantiser:
    """Return the compiled quantisation if the device has one that suits the layout, else
    torch's.
    """
    compiler = compilers.find_compiler(device)
    if compiler == "numba":
        return NativeQuantiser(layout)
    suits_kernels = layout.block <= LONGEST_CUDA_BLOCK and layout.elements <= LARGEST_N
    return (
        CudaQuantiser(layout, device)
        if compiler == "cupy" and suits_kernels
        else TorchQuantiser(layout)
    )


def prepare(device: torch.device) -> None:
    """Compile the quantisation for a device, see `compilers.prepare`."""

    def run_all() -> None:
        layout = QuantisedLayout.of(4, shards=1, block=4)
        quantiser = make_quantiser(layout, device)
        elements, residual = torch.ones((2, 4), device=device)
        payload = torch.zeros((1, layout.row_bytes), dtype=torch.uint8, device=device)
        quantiser.encode(elements, residual, payload)
        quantiser.combine(payload, payload[0].clone(), divisor=1.0, residual=residual)
        quantiser.decode(payload, elements)

    compilers.prepare(device, run_all)


def _bytes(payload: Tensor) -> Any:
    """Return a payload as int8."""
    return payload.view(torch.int8).numpy()


def _put(into: Tensor, values: Tensor, where: Tensor) -> None:
    """Write the values of the elements for which ``where`` holds to ``into``, shape (n,); the
    others may be longer.
    """
    n = into.numel()
    torch.where(where.reshape(-1)[:n], values.reshape(-1)[:n], into, out=into)
