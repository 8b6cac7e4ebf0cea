"""Compiled work of hooks on tensors: by numba on the host, by cupy's CUDA kernels on a GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from commbench.errors import InputError

#: As in device.cu: threads of a warp.
WARP = 32
_FOLDER = Path(__file__).parent / "compression"


def find_compiler(device: torch.device) -> str | None:
    """Return the package that compiles for a device, ``numba`` or ``cupy``; None without it.

    torch's device type ``cuda`` includes AMD's GPUs, for which cupy's kernels are not meant.
    """
    compilers = {"cpu": "numba"}
    if torch.version.cuda is not None:
        compilers["cuda"] = "cupy"
    compiler = compilers.get(device.type)
    if compiler is None or importlib.util.find_spec(compiler) is None:
        return None
    return compiler


def prepare(device: torch.device, run_all: Callable[[], object]) -> None:
    """Compile for a device, or load from a cache, what the function runs, so that no step waits.

    Args:
        device: of the work.
        run_all: runs each kernel once: a GPU's driver may load it at its first launch.

    Raises:
        InputError: cupy cannot compile; the message names what is missing.
    """
    compiler = find_compiler(device)
    if compiler == "numba":
        run_all()
    if compiler != "cupy":
        return
    try:
        run_all()
    except Exception as error:  # of many types if a library or CUDA's headers are missing
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"The hook works on this GPU by kernels that cupy cannot compile ({reason:.200}): pip"
            f" install '{cupy_wheel()}', or uninstall cupy: torch then does the work."
        ) from error


def cupy_wheel() -> str:
    """Return the cupy package for torch's CUDA version, with compiler and headers."""
    return f"cupy-cuda{str(torch.version.cuda).partition('.')[0]}x[ctk]"


class Kernels:
    """The kernels of a source file on one GPU.

    To launch one neither allocates nor waits for the device.
    """

    def __init__(
        self,
        file: str,
        names: tuple[str, ...],
        *,
        threads: int,
        busy_blocks: int,
        device: torch.device,
    ) -> None:
        """Compile the kernels, or take them from the cache.

        Args:
            file: name of the source.
            names: of its kernels.
            threads: of a thread block.
            busy_blocks: the most thread blocks that have something to do.
            device: the GPU.
        """
        import cupy

        self._cupy = cupy
        self._threads = threads
        self._device = device
        self._blocks = {}
        with cupy.cuda.Device(device.index or 0) as gpu:
            self._kernels = _compile(file, names, threads)
            processors = int(gpu.attributes["MultiProcessorCount"])
            for name, kernel in self._kernels.items():  # how many are resident, registers decide
                each = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
                    kernel.kernel.ptr, threads, 0
                )
                self._blocks[name] = min(int(each) * processors, busy_blocks)

    def launch(self, name: str, *arguments: Tensor | int) -> None:
        """Queue a kernel on the current stream: tensors by their addresses, int as unsigned int."""
        values: list[np.unsignedinteger[Any]] = []
        for argument in arguments:
            if isinstance(argument, Tensor):
                values.append(np.uint64(argument.data_ptr()))
            else:
                values.append(np.uint32(argument))
        queue = Queue(stream_of(self._device))
        with self._cupy.cuda.Device(self._device.index or 0):
            blocks = (self._blocks[name],)
            self._kernels[name](blocks, (self._threads,), tuple(values), stream=queue)


class Queue(NamedTuple):
    """A stream for cupy's kernels, which read only its handle."""

    ptr: int


def stream_of(device: torch.device) -> int:
    """Return the handle of a GPU's current stream."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def source_of(file: str) -> str:
    """Return the source of kernels, after the source that all kernels share."""
    return "".join((_FOLDER / name).read_text(encoding="utf-8") for name in ("device.cu", file))


@cache
def _compile(file: str, names: tuple[str, ...], threads: int) -> dict[str, Any]:
    """Return every kernel by its name; cupy loads a kernel at its first use on each device."""
    import cupy

    module = cupy.RawModule(code=source_of(file), options=("-std=c++17", f"-DTHREADS={threads}"))
    return {name: module.get_function(name) for name in names}
