"""Top-k selection with error feedback on a GPU: the kernels of selection.cu, compiled by cupy, on
arrays by address.

Memory traffic is 20 bytes per element: gradient and residual are read twice, the sum is written
once. 12 is the least.
If most magnitudes are nearly equal, most elements are marked and the marks are read again: up to 40
bytes. A threshold taken from the step before would save one reading in most steps, but residuals
would then be written before all elements are known to be finite.

Nothing here allocates, waits for the device or copies from it. A payload equals, byte by byte, the
payload that `TopKSelector` makes of the same data on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from commbench.hooks.compression.cupy_kernels import WARP, Kernels
from commbench.hooks.message import ValueType, check_slots, payload_bytes

SOURCE = "selection.cu"
KERNELS = ("survey", "divide", "refine", "tally", "emit", "add")
#: Threads of a block: the maximum, because the last block of a kernel works alone.
THREADS = 1024
#: As in selection.cu: elements of a warp, bins of the first digit, bits of each of the two others,
#: words of the state.
CHUNK, FIRST_BINS, DIGIT_BITS, STATE_WORDS = 1024, 2048, 10, 6


class CudaTopK:
    """Encodes the k elements of largest magnitude, exactly k in every step.

    A selector works on one stream at a time.
    """

    def __init__(
        self, n: int, k: int, *, scratch: int, value_dtype: ValueType = "float32", device: int = 0
    ) -> None:
        """Prepare to send ``k`` of ``n`` elements as ``value_dtype``.

        Args:
            n: elements of a gradient.
            k: how many of them to send.
            scratch: the address of `scratch_bytes` bytes of zeros, aligned to 8, for this selector
                alone.
            value_dtype: the type of the sent values.
            device: the number of the GPU.

        Raises:
            InputError: k is not in 1..n, n does not fit an int32, or the type is neither float32
                nor float16.
        """
        check_slots(n, k, value_dtype)
        self.n = n
        self.k = k
        self.value_dtype: ValueType = value_dtype
        self.payload_bytes = payload_bytes(k, value_dtype)
        self._at: dict[str, np.uint64] = {}
        for name, size in _scratch_parts(n).items():
            self._at[name] = np.uint64(scratch)
            scratch += size
        busy = -(-n // (CHUNK * THREADS // WARP))
        self._kernels = Kernels(SOURCE, KERNELS, threads=THREADS, busy_blocks=busy, device=device)

    def encode(
        self,
        gradient: int,
        residual: int,
        payload: int,
        *,
        out_residual: int,
        step: int = 0,
        stream: int = 0,
    ) -> None:
        """Queue a step of `TopKSelector.encode`, with arrays given by their addresses on the
        device.

        Args:
            gradient: float32, shape (n,); destroyed.
            residual: float32, shape (n,), the unsent part of earlier steps; 0 for none.
            payload: uint8, shape (payload_bytes,), aligned to 4 bytes. All values are NaN if a sum
                is not finite.
            out_residual: float32, shape (n,), becomes the unsent part of the sum, or is left
                unchanged if the sum is not finite; ``residual`` itself or disjoint from it, and
                disjoint from the gradient.
            step: the choice among equal elements rotates with it.
            stream: the handle of the stream.
        """
        n, k, at = np.uint32(self.n), np.uint32(self.k), self._at
        source, old, rest = np.uint64(gradient), np.uint64(residual), np.uint64(out_residual)
        state, counts, before = at["state"], at["counts"], at["before"]

        def launch(name: str, *arguments: np.unsignedinteger[Any]) -> None:
            self._kernels.launch(name, *arguments, stream=stream)

        launch("survey", source, old, n, k, state, at["histogram"])
        launch("divide", source, old, rest, n, state, counts)
        for shift in (DIGIT_BITS, 0):
            launch("refine", source, n, k, np.uint32(shift), state, counts, at["histogram"])
        launch("tally", source, n, state, counts, before)
        step_halves = (np.uint64(step), np.uint32(self.value_dtype == "float16"))
        launch("emit", source, rest, n, k, *step_halves, state, counts, before, np.uint64(payload))

    def add(self, payload: int, into: int, *, stream: int = 0) -> None:
        """Queue the addition of a rank's payload to float32 elements, shape (n,).

        An index out of range makes an element NaN: to raise an error would need a wait for the
        device.
        """
        n, k, halves = (
            np.uint32(self.n),
            np.uint32(self.k),
            np.uint32(self.value_dtype == "float16"),
        )
        self._kernels.launch(
            "add", np.uint64(payload), n, k, halves, np.uint64(into), stream=stream
        )


def scratch_bytes(n: int) -> int:
    """Return the bytes of device memory that a selector of ``n`` elements needs."""
    return sum(_scratch_parts(n).values())


def _scratch_parts(n: int) -> dict[str, int]:
    """Return the bytes of each part in order; parts that must be aligned to 8 come first."""
    chunks = -(-n // CHUNK)
    return {
        "before": 8 * -(-chunks // THREADS) * THREADS,
        "counts": 4 * chunks,
        "histogram": 4 * FIRST_BINS,
        "state": 4 * STATE_WORDS,
    }
