"""Top-k selection with error feedback on a GPU: the kernels of selection.cu, compiled by cupy, on arrays by address.

Gradient and residual are read twice and the sum is written once, 20 bytes an element where 12 are the least there can
be. A threshold guessed from the step before would save one reading in most steps, but residuals would then be written
before it is known that all elements are finite; as it is, every step takes as long whatever the data.

Nothing here waits for the device or copies from it, and a payload is the one that `TopKSelector` makes of the same data
on the host, byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from commbench.compression.payload import ValueType, check_slots, payload_bytes

SOURCE = Path(__file__).with_name("selection.cu")
KERNELS = ("survey", "divide", "refine", "tally", "emit", "add")
#: Threads of a block: as many as there can be, for the last block of a kernel works alone.
THREADS = 1024
#: What a multiprocessor holds at once, where registers allow.
BLOCKS_PER_PROCESSOR = 2
#: As in selection.cu: elements of a warp, bins of the first digit, bits of each of the two others, words of the state.
CHUNK, FIRST_BINS, DIGIT_BITS, STATE_WORDS = 1024, 2048, 10, 6
WARP = 32


class CudaTopK:
    """Sends the k elements of largest magnitude, exactly k in every step; owns the memory that this takes.

    One selector is for one stream at a time.
    """

    def __init__(self, n: int, k: int, *, value_dtype: ValueType = "float32", device: int = 0, stream: int = 0) -> None:
        """Prepare to send ``k`` of ``n`` elements as ``value_dtype``, on a GPU and a stream given by their numbers.

        Raises:
            InputError: k is not in 1..n, n does not fit an int32, or the type is none of the two.
        """
        check_slots(n, k, value_dtype)
        self.n = n
        self.k = k
        self.value_dtype: ValueType = value_dtype
        self.payload_bytes = payload_bytes(k, value_dtype)
        self._device = device
        chunks = -(-n // CHUNK)
        with _current(device, stream):
            self._kernels = _compile(THREADS)
            resident = BLOCKS_PER_PROCESSOR * int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])
            self._scratch = {
                "state": cupy.zeros(STATE_WORDS, dtype="uint32"),
                "histogram": cupy.zeros(FIRST_BINS, dtype="uint32"),
                "counts": cupy.empty(chunks, dtype="uint32"),
                "before": cupy.empty(chunks, dtype="uint64"),
            }
        self._blocks = min(resident, -(-chunks * WARP // THREADS))
        self._at = {name: _address(array) for name, array in self._scratch.items()}

    def encode(
        self, gradient: int, residual: int, payload: int, *, out_residual: int = 0, step: int = 0, stream: int = 0
    ) -> None:
        """Queue a step of `TopKSelector.encode`, with arrays given by their addresses on the device.

        Args:
            gradient: float32, shape (n,); of no use afterwards.
            residual: likewise, what earlier steps did not send; 0 for none.
            payload: uint8, shape (payload_bytes,), aligned to 4 bytes. All values are NaN where a sum is not finite.
            out_residual: float32, shape (n,), becomes the sum without what was sent, or is left alone where the sum is
                not finite; ``residual`` itself or apart from it, and apart from the gradient; 0 to keep nothing.
            step: which of several equal elements are sent moves on with it.
            stream: the number of the stream to queue it on.
        """
        n, k, at = np.uint32(self.n), np.uint32(self.k), self._at
        source, old, state, counts = np.uint64(gradient), np.uint64(residual), at["state"], at["counts"]
        with _current(self._device, stream):
            rest = np.uint64(out_residual) if out_residual else self._unkept()
            self._launch("survey", source, old, n, k, state, at["histogram"])
            self._launch("divide", source, old, rest, n, state, counts)
            for shift in (DIGIT_BITS, 0):
                self._launch("refine", source, n, k, np.uint32(shift), state, counts, at["histogram"])
            self._launch("tally", source, n, state, counts, at["before"])
            step_halves = (np.uint64(step), np.uint32(self.value_dtype == "float16"))
            self._launch("emit", source, rest, n, k, *step_halves, state, counts, at["before"], np.uint64(payload))

    def add(self, payload: int, into: int, *, stream: int = 0) -> None:
        """Queue the addition of what a rank sent to float32 elements, shape (n,).

        An index that is not there cannot be refused without waiting for the device: an element becomes NaN.
        """
        halves = np.uint32(self.value_dtype == "float16")
        with _current(self._device, stream):
            self._launch("add", np.uint64(payload), np.uint32(self.n), np.uint32(self.k), halves, np.uint64(into))

    def _launch(self, name: str, *arguments: np.unsignedinteger[Any]) -> None:
        self._kernels[name]((self._blocks,), (THREADS,), arguments)

    def _unkept(self) -> np.uint64:
        """Where the sum goes when nothing is kept."""
        if "rest" not in self._at:
            self._scratch["rest"] = cupy.empty(self.n, dtype="float32")
            self._at["rest"] = _address(self._scratch["rest"])
        return self._at["rest"]


def prepare(device: int, stream: int = 0) -> None:
    """Compile everything, or load it from cupy's cache, so that no step that is timed has to wait for it."""
    with _current(device, stream):
        gradient, payload = cupy.zeros(4, dtype="float32"), cupy.zeros(16, dtype="uint8")
    selector = CudaTopK(4, 2, device=device, stream=stream)
    selector.encode(int(_address(gradient)), 0, int(_address(payload)), stream=stream)
    selector.add(int(_address(payload)), int(_address(gradient)), stream=stream)


@cache
def _compile(threads: int) -> dict[str, Any]:
    """Every kernel by its name; cupy loads it on each device when it is first used there."""
    module = cupy.RawModule(code=SOURCE.read_text(encoding="utf-8"), options=("-std=c++17", f"-DTHREADS={threads}"))
    return {name: module.get_function(name) for name in KERNELS}


@contextmanager
def _current(device: int, stream: int) -> Iterator[None]:
    """On this device and stream, whatever was current before."""
    with cupy.cuda.Device(device), cupy.cuda.ExternalStream(stream, device):
        yield


def _address(array: Any) -> np.uint64:  # noqa: ANN401 - cupy's
    return np.uint64(array.__cuda_array_interface__["data"][0])
