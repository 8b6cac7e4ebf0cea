"""GPUs and NCCL as cupy finds them, and buffers in GPU memory."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy

from commbench.backends.gpu_assignment import assign_gpu, room_for
from commbench.collectives.datatypes import Content, DataType
from commbench.collectives.primitives import Buffer
from commbench.engine.communicator import STALE, Communicator
from commbench.engine.control import Control
from commbench.errors import InputError


def find_gpus(backend: str) -> list[str]:
    """Return the PCI addresses of the GPUs that CUDA shows this process, in CUDA's order: at least
    one.

    Args:
        backend: the backend that needs them, for the message.

    Raises:
        InputError: CUDA can use no GPU of this host.
    """
    runtime = cupy.cuda.runtime
    try:
        addresses = [
            str(runtime.deviceGetPCIBusId(number)) for number in range(runtime.getDeviceCount())
        ]
        reason = ""
    except runtime.CUDARuntimeError as error:
        addresses, reason = [], f" ({str(error).partition(': ')[2] or error})"
    if not addresses:
        raise InputError(
            f"Backend {backend} needs a GPU, and CUDA finds none on {socket.gethostname()}{reason}."
        )
    return addresses


def find_nccl_gpus(backend: str) -> list[str]:
    """Return the GPUs as `find_gpus` does, after checking that cupy can use NCCL.

    Without NCCL, cupy imports without an error and lacks NCCL's functions.

    Raises:
        InputError: there is no GPU, or NCCL is missing or too old for this cupy.
    """
    from cupy.cuda import nccl

    gpus = find_gpus(backend)
    if getattr(nccl, "available", True) and hasattr(nccl, "get_version"):
        return gpus
    cuda = cupy.cuda.runtime.runtimeGetVersion() // 1000
    raise InputError(
        f"Backend nccl needs NCCL, and cupy {cupy.__version__} finds none that it can use on"
        f" {socket.gethostname()}: pip install nvidia-nccl-cu{cuda}."
    )


class DeviceBuffer(Buffer):
    """Elements in device memory, a cupy array."""

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self.memory.__cuda_array_interface__["data"][0])


class CupyMemory(Communicator):
    """A backend whose buffers cupy allocates; its work on them is queued on ``_stream``."""

    _stream: Any

    def use_assigned_gpu(self, control: Control) -> None:
        """Use this rank's GPU from now on, with a stream of its own; collective.

        Set ``device`` and ``gpu`` to its name and its PCI address.
        """
        number, self.ranks_per_gpu = assign_gpu(control, find_gpus(self.backend))
        cupy.cuda.Device(number).use()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._properties = cupy.cuda.runtime.getDeviceProperties(number)
        self.device = self._properties["name"].decode()
        self.gpu = cupy.cuda.runtime.deviceGetPCIBusId(number)

    def cache_bytes(self) -> int:
        """Return the size of the GPU's L2 cache."""
        return int(self._properties.get("l2CacheSize", 0))

    @contextmanager
    def room_for(self, nbytes: int) -> Iterator[None]:
        """See `Communicator.room_for`; the work is queued on the stream."""
        with self._stream, room_for(nbytes, cupy.cuda.memory.OutOfMemoryError):
            yield

    def moved(self, content: Content) -> Content:
        """See `Communicator.moved`."""
        return content.moved(cupy.asarray)

    def allocate(self, dtype: DataType, count: int) -> DeviceBuffer:
        """See `Communicator.allocate`; cupy aligns memory to 512 bytes."""
        with self.room_for(count * dtype.itemsize):
            return DeviceBuffer(cupy.zeros(count, dtype=dtype.storage), dtype)

    def poison(self, buffer: DeviceBuffer) -> None:
        """See `Communicator.poison`."""
        with self._stream:
            buffer.memory.view("uint8")[:] = STALE

    def complete(self) -> None:
        """See `Communicator.complete`."""
        self._stream.synchronize()
