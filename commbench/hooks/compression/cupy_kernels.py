"""CUDA kernels of one source file, compiled by cupy and launched on arrays by address."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

#: As in device.cu: threads of a warp.
WARP = 32
_FOLDER = Path(__file__).parent


class Kernels:
    """The kernels of a source file on one device.

    To launch one neither allocates nor waits for the device.
    """

    def __init__(
        self, file: str, names: tuple[str, ...], *, threads: int, busy_blocks: int, device: int
    ) -> None:
        """Compile the kernels, or take them from the cache.

        Args:
            file: name of the source beside this module.
            names: of its kernels.
            threads: of a thread block.
            busy_blocks: the most thread blocks that have something to do.
            device: the number of the GPU.
        """
        self._threads = threads
        self._device = device
        with cupy.cuda.Device(device):
            self._kernels = _compile(file, names, threads)
            self._blocks = {
                name: min(_resident_blocks(kernel, threads), busy_blocks)
                for name, kernel in self._kernels.items()
            }

    def launch(self, name: str, *arguments: np.unsignedinteger[Any], stream: int) -> None:
        """Queue a kernel on the stream with this handle.

        The arguments have the types of its parameters.
        """
        with cupy.cuda.Device(self._device):
            self._kernels[name](
                (self._blocks[name],), (self._threads,), arguments, stream=Queue(stream)
            )


class Queue(NamedTuple):
    """A stream for cupy's kernels, which read only its handle."""

    ptr: int


def source_of(file: str) -> str:
    """Return the source of kernels, after the source that all kernels share."""
    return "".join((_FOLDER / name).read_text(encoding="utf-8") for name in ("device.cu", file))


@cache
def _compile(file: str, names: tuple[str, ...], threads: int) -> dict[str, Any]:
    """Return every kernel by its name; cupy loads a kernel at its first use on each device."""
    module = cupy.RawModule(code=source_of(file), options=("-std=c++17", f"-DTHREADS={threads}"))
    return {name: module.get_function(name) for name in names}


def _resident_blocks(kernel: Any, threads: int) -> int:  # noqa: ANN401 - cupy's
    """Return how many blocks of a kernel can be resident on the current device.

    Its registers decide.
    """
    each = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.kernel.ptr, threads, 0)
    return int(each) * int(cupy.cuda.Device().attributes["MultiProcessorCount"])
