"""MPI on buffers in GPU memory: passed to a CUDA-aware MPI, or staged through host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import cupy
import numpy as np

from commbench.backends.cupy_device import CupyMemory, DeviceBuffer
from commbench.backends.mpi import MpiCommunicator
from commbench.backends.mpi_control import MpiControl
from commbench.collectives.datatypes import DataType
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Request
from commbench.engine.communicator import PERSISTENT, STALE, HostBuffer
from commbench.engine.control import Control
from commbench.engine.timing.loops import Call, Step
from commbench.errors import InputError


class DeviceMpiCommunicator(CupyMemory, MpiCommunicator):
    """MPI on buffers in GPU memory, in blocking operations only.

    Args:
        control: the ranks.
        of_group: what else `MpiCommunicator` takes for a group; none for all ranks.
    """

    def __init__(self, control: MpiControl, *of_group: Any) -> None:
        super().__init__(control, *of_group)
        if not of_group:
            self.use_assigned_gpu(control)

    def _split(self, groups: Sequence[Group], own: Group | None) -> MpiCommunicator | None:
        """See `MpiCommunicator._split`; a group uses the same GPU and stream."""
        part = super()._split(groups, own)
        if isinstance(part, DeviceMpiCommunicator):
            part._stream = self._stream  # noqa: SLF001 - of the same class
        return part

    def begin(self, request: Request) -> NoReturn:
        """See `Communicator.begin`."""
        raise self._cannot(f"non-blocking {request.name}")

    def persistent(self) -> NoReturn:
        """See `Communicator.persistent`."""
        raise self._cannot(PERSISTENT)

    def close(self) -> None:
        """See `MpiCommunicator.close`; nothing on the GPU uses its buffers any more."""
        self.complete()
        super().close()

    def poison(self, buffer: DeviceBuffer) -> None:
        """See `Communicator.poison`; wait, because MPI does not synchronise with the stream."""
        super().poison(buffer)
        self.complete()


class CudaMpiCommunicator(DeviceMpiCommunicator):
    """CUDA-aware MPI, called with addresses in GPU memory; another MPI would crash on them."""

    backend = "mpi-cuda"

    def use_assigned_gpu(self, control: Control) -> None:
        """See `CupyMemory.use_assigned_gpu`.

        Raises:
            InputError: the library does not report that it accepts GPU memory.
        """
        if not self.takes_gpu_memory:
            raise InputError(
                f"Backend mpi-cuda passes GPU memory to MPI, and {self.library()} does not report"
                " support for it (MPIX_Query_cuda_support); use an MPI that is built for CUDA, or"
                " --backend mpi-staged."
            )
        super().use_assigned_gpu(control)


@dataclass(frozen=True)
class StagedBuffer(DeviceBuffer):
    """Device memory, and page-locked host memory of the same size that MPI is called with."""

    host: HostBuffer

    def part(self, offset: int, count: int) -> StagedBuffer:
        """See `Buffer.part`."""
        device = super().part(offset, count)
        return replace(device, host=self.host.part(offset, count))


class StagedMpiCommunicator(DeviceMpiCommunicator):
    """MPI on host memory.

    The copies from the GPU before and to the GPU after an operation count in its time.
    """

    backend = "mpi-staged"
    loops = ("python",)

    def allocate(self, dtype: DataType, count: int) -> StagedBuffer:
        """See `Communicator.allocate`."""
        device = super().allocate(dtype, count)
        room = cupy.cuda.alloc_pinned_memory(max(1, device.nbytes))
        host = np.frombuffer(room, dtype=np.uint8)[: device.nbytes].view(dtype.storage)
        return StagedBuffer(device.memory, dtype, HostBuffer(host, dtype))

    def poison(self, buffer: Any) -> None:
        """See `Communicator.poison`; also overwrites earlier results in host memory."""
        super().poison(buffer)
        buffer.host.memory.view(np.uint8)[:] = STALE

    def call(self, request: Request) -> Call:
        """Prepare copies from the GPU, the call on host memory, and copies to the GPU."""
        call = super().call(request.mapped(lambda buffer: buffer.host))
        before = self._copies(request.read(self.rank), to_host=True)
        after = self._copies(request.written(self.rank), to_host=False)
        operation, wait = call.run, self._stream.synchronize

        def run() -> None:
            for copy in before:
                copy()
            if before:
                wait()
            operation()
            for copy in after:
                copy()
            if after:
                wait()

        return Call(run=run, keep=(call, request))

    def _copies(self, buffers: Sequence[Any], *, to_host: bool) -> list[Step]:
        runtime = cupy.cuda.runtime
        copies: list[Step] = []
        for buffer in buffers:
            ends, kind = [buffer.address, buffer.host.address], runtime.memcpyHostToDevice
            if to_host:
                ends.reverse()
                kind = runtime.memcpyDeviceToHost
            copy = partial(runtime.memcpyAsync, *ends, buffer.nbytes, kind, self._stream.ptr)
            if buffer.count:
                copies.append(copy)
        return copies
