"""Selection of the k largest elements of a tensor into a message: compiled for the host or a GPU,
or by torch.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import torch
from torch import Tensor

from commbench.hooks import compilers
from commbench.hooks.compilers import WARP, Kernels
from commbench.hooks.feedback import put
from commbench.hooks.message import INDEX_BYTES, ValueType, payload_bytes

DTYPES = {"float32": torch.float32, "float16": torch.float16}
#: The selection if none is compiled.
SLOW = "torch.topk"

SOURCE = "selection.cu"
KERNELS = ("survey", "divide", "refine", "tally", "emit", "add")
#: Threads of a block: the maximum, because the last block of a kernel works alone.
THREADS = 1024
#: As in selection.cu: elements of a warp, bins of the first digit, bits of each of the two others,
#: words of the state.
CHUNK, FIRST_BINS, DIGIT_BITS, STATE_WORDS = 1024, 2048, 10, 6


class TorchSelector:
    """Selects k of n elements by ``torch.topk``, on any device; compiled selection inherits it.

    A payload is uint8: k int32 indices, then k values.

    On a device everything is queued on the current stream; the host never waits.
    """

    def __init__(self, k: int, values: ValueType) -> None:
        self._k = k
        self._dtype = DTYPES[values]

    def encode(self, gradient: Tensor, residual: Tensor, payload: Tensor) -> None:
        """Write the payload of a = gradient + residual; the unsent part of a is the new residual.

        If a is not finite, the payload's values are NaN and the residual is kept. If fewer than k
        elements are not zero, unused slots add 0. In compiled work strictly larger elements come
        before ties, of which the first ones are sent.

        Args:
            gradient: float32, shape (n,); may be overwritten.
            residual: shape (n,), the unsent part of earlier steps; a sent element becomes zero or,
                with float16 values, the exact rounding error.
            payload: written.
        """
        total = gradient.add_(residual)
        magnitudes, positions = torch.topk(total.abs(), self._k, sorted=False)
        finite = magnitudes.isfinite().all()  # torch.topk treats infinity and NaN as the largest
        indices, values = split(payload, self._k, self._dtype)
        indices.copy_(positions)
        values.fill_(torch.nan)
        limit = torch.finfo(self._dtype).max  # the rest of larger values stays in the residual
        put(values, total[positions].clamp_(-limit, limit), where=finite)
        unsent = total.index_add_(0, positions, values.to(total.dtype), alpha=-1)
        put(residual, unsent, where=finite)

    def add(self, payload: Tensor, into: Tensor) -> None:
        """Add the values of a payload to ``into``, shape (n,), at its indices."""
        indices, values = split(payload, self._k, self._dtype)
        into.index_add_(0, indices, values.to(into.dtype))


class NativeSelector(TorchSelector):
    """The compiled selection of `commbench.hooks.compression` on host memory.

    It releases the GIL while it selects.
    """

    def encode(self, gradient: Tensor, residual: Tensor, payload: Tensor) -> None:
        """See `TorchSelector.encode`."""
        from commbench.hooks.compression import kernels

        rest = residual.numpy()
        indices, values = (part.numpy() for part in split(payload, self._k, self._dtype))
        count = kernels.select(gradient.numpy(), rest, indices)
        if count == kernels.NOT_FINITE:
            indices[:] = np.arange(self._k)
            values[:] = np.nan
            return
        indices[count:] = np.arange(self._k - count)
        values[count:] = 0
        sent = rest[indices[:count]]
        limit = torch.finfo(self._dtype).max  # the rest of larger values stays in the residual
        values[:count] = np.clip(sent, -limit, limit)
        rest[indices[:count]] = sent - values[:count]


class CudaSelector(TorchSelector):
    """The kernels of selection.cu; a payload equals the host's byte by byte.

    Memory traffic is 20 bytes per element: gradient and residual are read twice, the sum is written
    once. 12 is the least. If most magnitudes are nearly equal, most elements are marked and the
    marks are read again: up to 40 bytes. A threshold taken from the step before would save one
    reading in most steps, but residuals would then be written before all elements are known to be
    finite.

    Works on one stream at a time. The gradient is destroyed.
    """

    def __init__(self, n: int, k: int, values: ValueType, device: torch.device) -> None:
        super().__init__(k, values)
        chunks = -(-n // CHUNK)
        self._n = n
        self._before = torch.zeros(
            -(-chunks // THREADS) * THREADS, dtype=torch.int64, device=device
        )
        self._counts, self._histogram, self._state = (
            torch.zeros(size, dtype=torch.int32, device=device)
            for size in (chunks, FIRST_BINS, STATE_WORDS)
        )
        busy = -(-n // (CHUNK * THREADS // WARP))
        self._kernels = Kernels(SOURCE, KERNELS, threads=THREADS, busy_blocks=busy, device=device)

    def encode(self, gradient: Tensor, residual: Tensor, payload: Tensor) -> None:
        """See `TorchSelector.encode`."""
        launch, n, k, state, counts = (
            self._kernels.launch,
            self._n,
            self._k,
            self._state,
            self._counts,
        )
        launch("survey", gradient, residual, n, k, state, self._histogram)
        launch("divide", gradient, residual, n, state, counts)
        for shift in (DIGIT_BITS, 0):
            launch("refine", gradient, n, k, shift, state, counts, self._histogram)
        launch("tally", gradient, n, state, counts, self._before)
        halves = int(self._dtype == torch.float16)
        launch("emit", gradient, residual, n, k, halves, state, counts, self._before, payload)

    def add(self, payload: Tensor, into: Tensor) -> None:
        """See `TorchSelector.add`.

        An index out of range makes an element NaN: to raise an error would need a wait for the
        device.
        """
        halves = int(self._dtype == torch.float16)
        self._kernels.launch("add", payload, self._n, self._k, halves, into)


def make_selector(
    n: int, k: int, values: ValueType, *, fast: bool, device: torch.device
) -> TorchSelector:
    """Return the compiled selection if ``fast`` and the device has one, else torch's."""
    compiler = fast_selection(device) if fast else SLOW
    if compiler == "numba":
        return NativeSelector(k, values)
    return CudaSelector(n, k, values, device) if compiler == "cupy" else TorchSelector(k, values)


def prepare(device: torch.device) -> None:
    """Compile the selection for a device, see `compilers.prepare`."""

    def run_all() -> None:
        elements, residual = torch.ones((2, 4), device=device)
        for values in get_args(ValueType):
            selector = make_selector(4, 2, values, fast=True, device=device)
            payload = torch.zeros(payload_bytes(2, values), dtype=torch.uint8, device=device)
            selector.encode(elements, residual, payload)
            selector.add(payload, elements)

    compilers.prepare(device, run_all)


def fast_selection(device: torch.device) -> str:
    """Return the package behind ``selection=fast`` on a device: ``numba``, ``cupy``, or `SLOW`
    without these.
    """
    return compilers.find_compiler(device) or SLOW


def split(payload: Tensor, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the k int32 indices and the k values of a payload, as views."""
    return payload[: INDEX_BYTES * k].view(torch.int32), payload[INDEX_BYTES * k :].view(dtype)[:k]
