"""MPI on buffers in GPU memory: passed to a CUDA-aware MPI, or staged through host memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
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
from commbench.engine.timing.loops import Call, Progress, Timer
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

    @abstractmethod
    def mpi_side(self, buffer: Any) -> Any:  # noqa: ANN401 - as the carrier takes it
        """Return the buffer that the carrier gets in place of a device buffer."""

    @abstractmethod
    def with_copies(self, call: Call, out: Sequence[Any], into: Sequence[Any]) -> Call:
        """Return the carrier's call with the copies that it needs.

        On this rank, it reads ``out``, writes ``into``.
        """

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

    def call(self, request: Request) -> Call:
        """Prepare the carrier's call, with the copies that it needs."""
        call = self._carrier.call(request.mapped(self.mpi_side))
        return self.with_copies(call, request.read(self.rank), request.written(self.rank))


class CudaMpiCommunicator(DeviceMpiCommunicator):
    """CUDA-aware MPI, called with addresses in GPU memory; another MPI would crash on them.

    Raises:
        InputError: the library does not report that it accepts GPU memory.
    """

    backend = "mpi-cuda"
    loops = ("native", "python")

    def __init__(
        self,
        control: Control,
        carrier: MpiCommunicator,
        parent: DeviceMpiCommunicator | None = None,
    ) -> None:
        if not carrier.takes_gpu_memory:
            raise InputError(
                f"Backend mpi-cuda passes GPU memory to MPI, and {carrier.library()} does not"
                " report support for it (MPIX_Query_cuda_support); use an MPI that is built for"
                " CUDA, or --backend mpi-staged."
            )
        super().__init__(control, carrier, parent)

    def mpi_side(self, buffer: Any) -> Any:  # noqa: ANN401 - see the base
        """Return the buffer itself."""
        return buffer

    def with_copies(self, call: Call, out: Sequence[Any], into: Sequence[Any]) -> Call:  # noqa: ARG002 - MPI copies
        """Return the call itself."""
        return call


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

    def poison(self, buffer: Any) -> None:  # noqa: ANN401 - a StagedBuffer
        """See `Communicator.poison`; also overwrites earlier results in host memory."""
        super().poison(buffer)
        buffer.host.memory.view(np.uint8)[:] = STALE

    def mpi_side(self, buffer: Any) -> Any:  # noqa: ANN401 - see the base
        """Return the buffer's host memory."""
        return buffer.host

    def with_copies(self, call: Call, out: Sequence[Any], into: Sequence[Any]) -> Call:
        """Return a call that copies from the GPU, runs the operation, and copies to the GPU."""
        before = [self._copy(buffer, to_host=True) for buffer in out if buffer.count]
        after = [self._copy(buffer, to_host=False) for buffer in into if buffer.count]
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

        return Call(run=run, keep=(call, *out, *into))

    def _copy(self, buffer: StagedBuffer, *, to_host: bool) -> Callable[[], object]:
        runtime = cupy.cuda.runtime
        ends, kind = [buffer.address, buffer.host.address], runtime.memcpyHostToDevice
        if to_host:
            ends.reverse()
            kind = runtime.memcpyDeviceToHost
        return partial(runtime.memcpyAsync, *ends, buffer.nbytes, kind, self._stream.ptr)
