"""Buffers in the memory of this rank's GPU, by cupy: what backends have in common whose buffers are there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import cupy

from commbench.communicators.base import STALE, Communicator
from commbench.communicators.cupy_gpus import find_gpus
from commbench.communicators.gpus import place, room_for
from commbench.control import Control
from commbench.datatypes import Content, DataType


@dataclass(frozen=True)
class DeviceBuffer:
    """Elements in device memory: ``memory`` has shape (count,) in the data type's storage."""

    memory: Any
    dtype: DataType

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(self.memory.size)

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.count * self.dtype.itemsize

    @property
    def address(self) -> int:
        """Where the first element is."""
        return self.address_of(0)

    def address_of(self, element: int) -> int:
        """Where an element is."""
        return int(self.memory.__cuda_array_interface__["data"][0]) + element * self.dtype.itemsize

    def shares_memory(self, other: DeviceBuffer) -> bool:
        """Whether the two overlap: the operation is in place."""
        return self.address < other.address_of(other.count) and other.address < self.address_of(self.count)


class CupyMemory(Communicator):
    """A backend whose buffers cupy allocates; what it does with them is queued on ``_stream``."""

    _stream: Any

    def take_gpu(self, control: Control) -> None:
        """Use this rank's GPU from now on, by a stream of its own; all ranks together."""
        placement = place(control, find_gpus(self.backend))
        cupy.cuda.Device(placement.device).use()
        self.ranks_per_gpu = placement.ranks_per_gpu
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def know_gpu(self) -> None:
        """State what the GPU in use is."""
        number = cupy.cuda.Device().id
        self._properties = cupy.cuda.runtime.getDeviceProperties(number)
        self.device = self._properties["name"].decode()
        self.gpu = cupy.cuda.runtime.deviceGetPCIBusId(number)

    def cache_bytes(self) -> int:
        """The GPU's L2."""
        return int(self._properties.get("l2CacheSize", 0))

    def allocate(self, dtype: DataType, count: int) -> DeviceBuffer:
        """See `Communicator.allocate`; cupy's memory begins on 512 bytes."""
        with self._stream, _room_for(count * dtype.itemsize):
            return DeviceBuffer(cupy.zeros(count, dtype=dtype.storage), dtype)

    def part(self, buffer: DeviceBuffer, offset: int, count: int) -> DeviceBuffer:
        """See `Communicator.part`."""
        return DeviceBuffer(buffer.memory[offset : offset + count], buffer.dtype)

    def like(self, buffer: DeviceBuffer, count: int) -> DeviceBuffer:
        """See `Communicator.like`."""
        return self.allocate(buffer.dtype, count)

    def write(self, buffer: DeviceBuffer, content: Content) -> None:
        """See `Communicator.write`."""
        with self._stream, _room_for(buffer.nbytes):
            content.moved(cupy.asarray).write(buffer.memory)
        self.complete()

    def spoil(self, buffer: DeviceBuffer) -> None:
        """See `Communicator.spoil`."""
        with self._stream:
            buffer.memory.view("uint8")[:] = STALE

    def count_wrong(self, buffer: DeviceBuffer, content: Content) -> int:
        """See `Communicator.count_wrong`; compared on the device."""
        with self._stream, _room_for(buffer.nbytes):
            return content.moved(cupy.asarray).count_wrong(buffer.memory)

    def complete(self) -> None:
        """See `Communicator.complete`."""
        self._stream.synchronize()


def _room_for(nbytes: int) -> AbstractContextManager[None]:
    return room_for(nbytes, cupy.cuda.memory.OutOfMemoryError, lambda: int(cupy.cuda.runtime.memGetInfo()[0]))
