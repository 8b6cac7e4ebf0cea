"""Quantisation to int8 on a GPU: the kernels of quantisation.cu, on arrays by address.

Payloads equal the host's.

Each part of the exchange is one launch that reads and writes every element once. A block of more
than `TILE` elements is read twice. Bytes of memory traffic per element: 13 to quantise with a
residual, 9 plus the number of ranks to add up a shard, 5 to multiply out a payload.

Nothing here allocates, waits for the device or copies from it.
"""

from __future__ import annotations

import numpy as np

from commbench.hooks.compression.cupy_kernels import WARP, Kernels
from commbench.hooks.message import QuantisedLayout

SOURCE = "quantisation.cu"
KERNELS = ("quantise", "combine", "dequantise")
#: Threads of a block.
THREADS = 256
#: As in quantisation.cu: elements that a warp holds in registers.
TILE = 256


class CudaInt8:
    """Quantises the shards of a bucket, as `commbench.hooks.compression.quantisation` does on the
    host.

    The bits are the host's. Only the bits of a NaN among the elements that `dequantise` writes are
    the GPU's own.
    """

    def __init__(self, layout: QuantisedLayout, *, device: int = 0) -> None:
        """Prepare to quantise buckets of a layout of fewer than 2**31 elements on the GPU with this
        number.
        """
        busy = -(-layout.shards * layout.blocks // (THREADS // WARP))
        self._kernels = Kernels(SOURCE, KERNELS, threads=THREADS, busy_blocks=busy, device=device)
        self._elements, self._shards = np.uint32(layout.elements), np.uint32(layout.shards)
        self._sizes = np.uint32(layout.shard), np.uint32(layout.block)

    def quantise(
        self, gradient: int, residual: int, payload: int, *, out_residual: int, stream: int = 0
    ) -> None:
        """Queue the quantisation of gradient + residual, with arrays given by their addresses on
        the device.

        Args:
            gradient: float32, shape (elements,); not changed.
            residual: float32, shape (elements,); 0 for none.
            payload: uint8, shape (shards, row_bytes), aligned to 4 bytes; written.
            out_residual: float32, shape (elements,), becomes the rounding errors, except in blocks
                that are not finite; ``residual`` itself or disjoint from it; 0: not written.
            stream: the handle of the stream.
        """
        arrays = np.uint64(gradient), np.uint64(residual), np.uint64(out_residual)
        shape = self._elements, self._shards, *self._sizes
        self._kernels.launch("quantise", *arrays, *shape, np.uint64(payload), stream=stream)

    def combine(
        self, payload: int, own: int, *, divisor: int, residual: int, elements: int, stream: int = 0
    ) -> None:
        """Queue the sum of one shard over the ranks, in their order, divided and quantised again.

        Args:
            payload: uint8, shape (shards, row_bytes): a row from each rank.
            own: uint8, shape (row_bytes,), written.
            divisor: float32, one number.
            residual: float32, shape (elements,), the rounding errors are added, except in blocks
                that are not finite; 0: not written.
            elements: of the shard that belong to the bucket.
            stream: the handle of the stream.
        """
        sums = np.uint64(divisor), np.uint64(residual), np.uint32(elements), np.uint64(own)
        self._kernels.launch(
            "combine", np.uint64(payload), self._shards, *self._sizes, *sums, stream=stream
        )

    def dequantise(self, payload: int, into: int, *, stream: int = 0) -> None:
        """Queue the multiplication of a payload's values by their scales.

        ``into`` is float32, shape (elements,).
        """
        shape = self._elements, self._shards, *self._sizes
        self._kernels.launch(
            "dequantise", np.uint64(payload), *shape, np.uint64(into), stream=stream
        )
