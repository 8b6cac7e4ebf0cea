"""MPI on buffers in GPU memory: passed to a CUDA-aware MPI, or staged through host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cupy
import numpy as np

from commbench.backends.cupy_device import CupyMemory, DeviceBuffer
from commbench.backends.mpi import MpiCommunicator
from commbench.backends.mpi_control import MpiControl
from commbench.collectives.datatypes import DataType
from commbench.collectives.layouts import Shape
from commbench.collectives.operations import Operation
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Request
from commbench.engine.communicator import STALE, HostBuffer
from commbench.engine.control import Control
from commbench.engine.timing.loops import Call, Progress, Step, Timer
from commbench.engine.timing.sync import Synchroniser
from commbench.errors import InputError


class DeviceMpiCommunicator(CupyMemory):
    """MPI on buffers in GPU memory; ``carrier`` is the communicator on host memory that it calls.

    A group's communicator uses the GPU and the stream of its ``parent``.
    """

    most_elements = 2**31 - 1  # the C functions count in an int

    def __init__(
        self,
        control: Control,
        carrier: MpiCommunicator,
        parent: DeviceMpiCommunicator | None = None,
    ) -> None:
        self._control = control
        self._carrier = carrier
        self.rank, self.size = carrier.rank, carrier.size
        self._is_whole = parent is None
        if parent is None:
            self.use_assigned_gpu(control)
        else:
            self._stream = parent._stream  # noqa: SLF001 - of the same class
        self.read_gpu_properties()

    @classmethod
    def connect(cls, control: MpiControl) -> DeviceMpiCommunicator:
        """Open the backend among all ranks of ``control``; collective."""
        return cls(control, MpiCommunicator(control))

    @property
    def takes_gpu_memory(self) -> bool:
        """Whether the carrier's library accepts GPU memory."""
        return self._carrier.takes_gpu_memory

    def library(self) -> str:
        """Return the MPI library, e.g. ``Open MPI 5.0.11``."""
        return self._carrier.library()

    def transport(self) -> str:
        """Return the carrier's transport."""
        return self._carrier.transport()

    def algorithm(self, operation: str) -> str:
        """Return the carrier's algorithm."""
        return self._carrier.algorithm(operation)

    def timer(self, loop: str, sync: Synchroniser, progress: Progress) -> Timer:
        """Return the carrier's timer on the host: an operation ends when MPI's function returns."""
        return self._carrier.timer(self.loops[0] if loop == "auto" else loop, sync, progress)

    def result_offset(self, operation: Operation, shape: Shape) -> int:
        """Return the carrier's offset."""
        return self._carrier.result_offset(operation, shape)

    def _split(self, groups: Sequence[Group]) -> DeviceMpiCommunicator | None:
        part = self._carrier.split(groups)
        return type(self)(self._control, part, self) if isinstance(part, MpiCommunicator) else None

    def close(self) -> None:
        """Free the communicator; the carrier frees its own parts."""
        super().close()
        self.complete()
        if self._is_whole:
            self._carrier.close()

    def poison(self, buffer: DeviceBuffer) -> None:
        """See `Communicator.poison`; wait, because MPI does not synchronise with the stream."""
        super().poison(buffer)
        self.complete()


class CudaMpiCommunicator(DeviceMpiCommunicator):
    """CUDA-aware MPI, called with addresses in GPU memory; another MPI would crash on them."""

    backend = "mpi-cuda"
    loops = ("native", "python")

    @classmethod
    def connect(cls, control: MpiControl) -> CudaMpiCommunicator:
        """See `DeviceMpiCommunicator.connect`.

        Raises:
            InputError: the library does not report that it accepts GPU memory.
        """
        carrier = MpiCommunicator(control)
        if not carrier.takes_gpu_memory:
            raise InputError(
                f"Backend mpi-cuda passes GPU memory to MPI, and {carrier.library()} does not"
                " report support for it (MPIX_Query_cuda_support); use an MPI that is built for"
                " CUDA, or --backend mpi-staged."
            )
        return cls(control, carrier)

    def call(self, request: Request) -> Call:
        """Prepare the carrier's call on the same buffers."""
        return self._carrier.call(request)


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
        """Prepare copies from the GPU, the carrier's call on host memory, and copies to the GPU."""
        call = self._carrier.call(request.mapped(lambda buffer: buffer.host))
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
