"""MPI on buffers in GPU memory: handed to an MPI that takes them, or carried through host memory on both sides."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy
import numpy as np

from commbench.backends.cupy_device import CupyMemory, DeviceBuffer
from commbench.backends.mpi import MpiCommunicator
from commbench.backends.mpi_control import MpiControl
from commbench.collectives.datatypes import DTYPES, DataType
from commbench.collectives.operations import Operation, Shape
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Ends
from commbench.engine.communicator import STALE, HostBuffer
from commbench.engine.control import Control
from commbench.engine.timing.loops import Call, Progress, Timer
from commbench.engine.timing.sync import SyncPlan
from commbench.errors import InputError


class DeviceMpiCommunicator(CupyMemory):
    """Another communicator of MPI, ``carrier``, that carries what is in GPU memory.

    The carrier is that of host memory: `commbench.backends.mpi.MpiCommunicator`, or what behaves like it.
    """

    most_elements = 2**31 - 1  # the C functions count in an int

    def __init__(
        self,
        control: Control,
        carrier: Any,  # noqa: ANN401 - see the class
        whole: DeviceMpiCommunicator | None = None,
    ) -> None:
        self._control = control
        self._carrier = carrier
        self.rank, self.size = carrier.rank, carrier.size
        self._is_whole = whole is None
        if whole is None:
            self.take_gpu(control)
        else:
            self._stream = whole._stream  # noqa: SLF001 - of the same class
        self.know_gpu()

    @classmethod
    def connect(cls, control: MpiControl, launch: int = 0) -> DeviceMpiCommunicator:  # noqa: ARG003 - the fake alone draws by launch
        """Open the backend among all ranks of ``control``, all ranks together."""
        return cls(control, MpiCommunicator.connect(control))

    @abstractmethod
    def given(self, buffer: Any) -> Any:  # noqa: ANN401 - or None, as the carrier takes it
        """What the carrier is given in place of a buffer."""

    @abstractmethod
    def carried(self, call: Call, out: Sequence[Any], into: Sequence[Any]) -> Call:
        """The carrier's call with all that belongs to it; ``out`` are read and ``into`` written on this rank."""

    @property
    def takes_gpu_memory(self) -> bool:
        """As the carrier's library says."""
        return bool(self._carrier.takes_gpu_memory)

    def library(self) -> str:
        """The MPI library, e.g. ``Open MPI 5.0.11``."""
        return str(self._carrier.library())

    def transport(self) -> str:
        """As the carrier says."""
        return str(self._carrier.transport())

    def algorithm(self, operation: str) -> str:
        """As the carrier says."""
        return str(self._carrier.algorithm(operation))

    def timer(self, loop: str, plan: SyncPlan, progress: Progress) -> Timer:
        """The carrier's, on the host: an operation has ended when MPI's function has returned."""
        timer: Timer = self._carrier.timer(self.loops[0] if loop == "auto" else loop, plan, progress)
        return timer

    def null_calls(self) -> list[Call]:
        """The carrier's."""
        return list(self._carrier.null_calls())

    def result_offset(self, operation: Operation, shape: Shape) -> int:
        """As the carrier does it."""
        return int(self._carrier.result_offset(operation, shape))

    def _split(self, groups: Sequence[Group]) -> DeviceMpiCommunicator | None:
        part = self._carrier.split(groups)
        return None if part is None else type(self)(self._control, part, self)

    def close(self) -> None:
        """Free the communicator; the carrier does so with its parts."""
        super().close()
        self.complete()
        if self._is_whole:
            self._carrier.close()

    def poison(self, buffer: DeviceBuffer) -> None:
        """See `Communicator.poison`; MPI knows nothing of the stream."""
        super().poison(buffer)
        self.complete()

    def empty(self) -> DeviceBuffer:
        """See `Communicator.empty`."""
        return self.allocate(DTYPES["int8"], 0)

    # Primitives

    def all_reduce(self, send: DeviceBuffer, receive: DeviceBuffer, redop: str) -> Call:
        """MPI_Allreduce."""
        return self.carried(self._carrier.all_reduce(self.given(send), self.given(receive), redop), [send], [receive])

    def all_gather(self, send: DeviceBuffer, receive: DeviceBuffer) -> Call:
        """MPI_Allgather."""
        return self.carried(self._carrier.all_gather(self.given(send), self.given(receive)), [send], [receive])

    def reduce_scatter(self, send: DeviceBuffer, receive: DeviceBuffer, redop: str) -> Call:
        """MPI_Reduce_scatter_block."""
        call = self._carrier.reduce_scatter(self.given(send), self.given(receive), redop)
        return self.carried(call, [send], [receive])

    def all_to_all(self, send: DeviceBuffer, receive: DeviceBuffer) -> Call:
        """MPI_Alltoall."""
        return self.carried(self._carrier.all_to_all(self.given(send), self.given(receive)), [send], [receive])

    def broadcast(self, buffer: DeviceBuffer, root: int) -> Call:
        """MPI_Bcast."""
        call, here = self._carrier.broadcast(self.given(buffer), root), self.rank == root
        return self.carried(call, [buffer] if here else [], [] if here else [buffer])

    def reduce(self, send: DeviceBuffer, receive: DeviceBuffer | None, redop: str, root: int) -> Call:
        """MPI_Reduce."""
        call = self._carrier.reduce(self.given(send), self.given(receive), redop, root)
        return self.carried(call, [send], [receive] if receive else [])

    def gather(self, send: DeviceBuffer, receive: DeviceBuffer | None, root: int) -> Call:
        """MPI_Gather."""
        call = self._carrier.gather(self.given(send), self.given(receive), root)
        return self.carried(call, [send], [receive] if receive else [])

    def scatter(self, send: DeviceBuffer | None, receive: DeviceBuffer, root: int) -> Call:
        """MPI_Scatter."""
        call = self._carrier.scatter(self.given(send), self.given(receive), root)
        return self.carried(call, [send] if send else [], [receive])

    def barrier(self) -> Call:
        """MPI_Barrier."""
        return self.carried(self._carrier.barrier(), [], [])

    def send(self, buffer: DeviceBuffer, peer: int) -> Call:
        """MPI_Send."""
        return self.carried(self._carrier.send(self.given(buffer), peer), [buffer], [])

    def receive(self, buffer: DeviceBuffer, peer: int) -> Call:
        """MPI_Recv."""
        return self.carried(self._carrier.receive(self.given(buffer), peer), [], [buffer])

    def send_receive(self, send: DeviceBuffer, target: int, receive: DeviceBuffer, source: int) -> Call:
        """MPI_Sendrecv."""
        call = self._carrier.send_receive(self.given(send), target, self.given(receive), source)
        return self.carried(call, [send], [receive])

    def exchange_window(self, sends: Ends[DeviceBuffer], receives: Ends[DeviceBuffer], window: int) -> Call:
        """MPI_Irecv and MPI_Isend ``window`` times with each peer, then MPI_Waitall; each message counts."""
        there, back = ([(self.given(buffer), peer) for buffer, peer in side] for side in (sends, receives))
        call = self._carrier.exchange_window(there, back, window)
        return self.carried(call, [b for b, _ in sends] * window, [b for b, _ in receives] * window)


class CudaMpiCommunicator(DeviceMpiCommunicator):
    """MPI that is given addresses in GPU memory: one that does not take them would read them as the host's, and die.

    Raises:
        InputError: the library does not say that it takes them.
    """

    backend = "mpi-cuda"
    loops = ("native", "python")

    def __init__(
        self,
        control: Control,
        carrier: Any,  # noqa: ANN401 - see the class
        whole: DeviceMpiCommunicator | None = None,
    ) -> None:
        if not carrier.takes_gpu_memory:
            raise InputError(
                f"Backend mpi-cuda hands GPU memory to MPI, and {carrier.library()} does not say that it takes it "
                "(MPIX_Query_cuda_support); use an MPI that is built for CUDA, or --backend mpi-staged."
            )
        super().__init__(control, carrier, whole)

    def given(self, buffer: Any) -> Any:  # noqa: ANN401 - see the base
        """The buffer itself."""
        return buffer

    def carried(self, call: Call, out: Sequence[Any], into: Sequence[Any]) -> Call:  # noqa: ARG002 - MPI sees to them
        """The call itself."""
        return call


@dataclass(frozen=True)
class StagedBuffer(DeviceBuffer):
    """Device memory and as much page-locked host memory, through which MPI sees it."""

    host: HostBuffer


class StagedMpiCommunicator(DeviceMpiCommunicator):
    """MPI on host memory, with a copy from the GPU before and one to it after each operation, both of which count."""

    backend = "mpi-staged"
    loops = ("python",)

    def allocate(self, dtype: DataType, count: int) -> StagedBuffer:
        """See `Communicator.allocate`."""
        device = super().allocate(dtype, count)
        room = cupy.cuda.alloc_pinned_memory(max(1, device.nbytes))
        host = np.frombuffer(room, dtype=np.uint8)[: device.nbytes].view(dtype.storage)
        return StagedBuffer(device.memory, dtype, HostBuffer(host, dtype))

    def part(self, buffer: Any, offset: int, count: int) -> StagedBuffer:  # noqa: ANN401 - a StagedBuffer
        """See `Communicator.part`."""
        device = super().part(buffer, offset, count)
        return StagedBuffer(
            device.memory, buffer.dtype, HostBuffer(buffer.host.memory[offset : offset + count], buffer.dtype)
        )

    def poison(self, buffer: Any) -> None:  # noqa: ANN401 - a StagedBuffer
        """See `Communicator.poison`: what lies in host memory from before is no answer either."""
        super().poison(buffer)
        buffer.host.memory.view(np.uint8)[:] = STALE

    def given(self, buffer: Any) -> Any:  # noqa: ANN401 - see the base
        """Its host memory."""
        return None if buffer is None else buffer.host

    def carried(self, call: Call, out: Sequence[Any], into: Sequence[Any]) -> Call:
        """Copies from the GPU, the call, copies to it."""
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
        here, there = (buffer.host.address, buffer.address) if to_host else (buffer.address, buffer.host.address)
        kind = runtime.memcpyDeviceToHost if to_host else runtime.memcpyHostToDevice
        return partial(runtime.memcpyAsync, here, there, buffer.nbytes, kind, self._stream.ptr)
