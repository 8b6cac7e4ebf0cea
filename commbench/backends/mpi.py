"""MPI on host memory by mpi4py: every primitive in Python and as the C call that the native loop
makes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from commbench.backends.mpi_control import COMPONENT_QUERY, MpiControl
from commbench.backends.mpi_report import takes_gpu_memory
from commbench.collectives.datatypes import DataType
from commbench.collectives.layouts import Shape
from commbench.collectives.operations import OPERATIONS, Operation
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Request
from commbench.engine.communicator import HostCommunicator
from commbench.engine.control import gather_everywhere
from commbench.engine.timing.loops import Call, Progress, Timer, address_of
from commbench.engine.timing.native import NativeTimer
from commbench.engine.timing.sync import Synchroniser
from commbench.findings import UnsupportedError

TAG = 7

#: The function of each primitive and its arguments in C, in words. mpi4py takes a buffer with its
#: count and type, and knows the communicator and the status.
_FUNCTIONS = {
    "all_reduce": "Allreduce send receive count type op comm",
    "all_gather": "Allgather send count type receive count type comm",
    "reduce_scatter": "Reduce_scatter_block send receive count type op comm",
    "all_to_all": "Alltoall send count type receive count type comm",
    "broadcast": "Bcast receive count type root comm",
    "reduce": "Reduce send receive count type op root comm",
    "gather": "Gather send count type receive count type root comm",
    "scatter": "Scatter send count type receive count type root comm",
    "barrier": "Barrier comm",
    "send": "Send send count type target tag comm",
    "receive": "Recv receive count type source tag comm status",
    "send_receive": (
        "Sendrecv send count type target tag receive count type source tag comm status"
    ),
}

# mpi4py's documented way to hand its objects to C code.
_c_handle = MPI._handleof  # noqa: SLF001
_c_size = MPI._sizeof  # noqa: SLF001

_NOT_PERSISTENT = "persistent form of this operation; use --cadence isolated"
#: MPI's types for reductions; not every library has the 16-bit floats.
_REDUCTION_TYPES = {
    "float64": "DOUBLE",
    "float32": "FLOAT",
    "float16": "FLOAT16_T",
    "bfloat16": "BFLOAT16_T",
    "int32": "INT32_T",
    "int8": "INT8_T",
}
#: Types of the same size for transfers without arithmetic; every library has these.
_TRANSFER_TYPES = {"float16": "UINT16_T", "bfloat16": "UINT16_T"}
_REDOPS = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "prod": MPI.PROD}


class MpiCommunicator(HostCommunicator):
    """A duplicate of MPI_COMM_WORLD, or the communicator of ``make`` on ``hosts``, for measured
    messages only.
    """

    backend = "mpi"
    loops: tuple[str, ...] = ("native", "python")
    most_elements = 2**31 - 1  # the native loop calls C functions whose count is an int

    def __init__(
        self,
        control: MpiControl,
        make: Callable[[], MPI.Comm] = MPI.COMM_WORLD.Dup,
        hosts: Sequence[str] | None = None,
    ) -> None:
        self._control = control
        self._comm, self._component = COMPONENT_QUERY.with_component(make)
        self._hosts = hosts or gather_everywhere(control, MPI.Get_processor_name())
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self._library = ctypes.CDLL(MPI.__file__)
        self._handle = _c_handle(self._comm)
        self._status = _statuses(1)

    def library(self) -> str:
        """Return e.g. ``Open MPI 5.0.11``."""
        name, version = MPI.get_vendor()
        return f"{name} {'.'.join(map(str, version))}"

    @property
    def takes_gpu_memory(self) -> bool:
        """Whether the library reports that it accepts addresses in GPU memory.

        Other libraries crash on them.
        """
        return takes_gpu_memory(self._library)

    def transport(self) -> str:
        """Return the component in use as the library reports it, e.g.

        ``sm``; empty without a report.
        """
        if self.size == 1:
            return "self"
        on_host, off_host = self._control.connections
        hosts = len(set(self._hosts))
        connections = []
        if hosts < self.size:
            connections.append(on_host)
        if hosts > 1:
            connections.append(off_host)
        return "+".join(filter(None, connections))

    def algorithm(self, operation: str) -> str:
        """Return the component of Open MPI that carries a collective, e.g. ``coll/tuned``; empty
        if the preferred one may lack the collective.
        """
        if self._component not in OPERATIONS[operation].open_mpi_components:
            return ""
        return f"coll/{self._component}"

    def timer(self, loop: str, sync: Synchroniser, progress: Progress) -> Timer:
        """Return the native loop, unless the backend lacks it or the Python loop is requested."""
        if loop == "python" or "native" not in self.loops:
            return super().timer(loop, sync, progress)
        control = self._control
        comm, address = _c_handle(control.comm), control.instant.ctypes.data
        barrier = []
        if sync.method == "round-time":
            barrier.append(self._c_call("MPI_Barrier", comm))
        if sync.method == "barrier":
            # of the operation's communicator, as in OSU and IMB: its memory is in the cache
            barrier.append(self._c_call("MPI_Barrier", self._handle))
        if sync.method == "dissemination":
            none = (address, 0, _c_handle(MPI.BYTE))  # empty messages
            status = int(self._status.ctypes.data)
            for target, source in sync.rounds():
                ends = (*none, target, TAG, *none, source, TAG, comm, status)
                barrier.append(self._c_call("MPI_Sendrecv", *ends))
        broadcast = self._c_call("MPI_Bcast", address, 1, _c_handle(MPI.INT64_T), 0, comm)
        return NativeTimer(
            sync, progress, barrier=barrier, broadcast=[broadcast], instant=control.instant
        )

    def _c_call(self, name: str, *arguments: int) -> tuple[int, ...]:
        return (address_of(getattr(self._library, name)), *arguments)

    def _split(self, groups: Sequence[Group], own: Group | None) -> MpiCommunicator | None:
        """Make all groups by one MPI_Comm_split."""
        if own is None:
            self._comm.Split(MPI.UNDEFINED)
            return None
        make = partial(self._comm.Split, groups.index(own), self.rank)
        return type(self)(self._control, make, [self._hosts[rank] for rank in own])

    def persistent(self) -> MpiCommunicator:
        """Return a duplicate whose collectives are persistent requests."""
        return self._persistent

    @cached_property
    def _persistent(self) -> PersistentMpiCommunicator:
        return PersistentMpiCommunicator(self._control, self._comm.Dup, self._hosts)

    def close(self) -> None:
        """Free the communicator, its persistent duplicate and those of its groups."""
        super().close()
        if "_persistent" in vars(self):
            self._persistent.close()
        self._comm.Free()

    def result_offset(self, operation: Operation, shape: Shape) -> int:
        """Return 0 for reduce_scatter: in place, MPI leaves its result at the start of the
        buffer.
        """
        return 0 if operation.has_mpi_result_at_start else super().result_offset(operation, shape)

    def call(self, request: Request) -> Call:
        """Prepare a function of MPI, by mpi4py and by address."""
        if request.name == "window":
            return self._exchange(request)
        name, in_python, in_c = self._arguments(request)
        row = self._c_call(f"MPI_{name}", *in_c)
        run = partial(getattr(self._comm, name), *in_python)
        return Call(run=run, rows=[row], keep=(request, self._status))

    def begin(self, request: Request) -> list[Call]:
        """Prepare a non-blocking function and MPI_Wait, with the MPI_Request that they share."""
        blocking, in_python, in_c = self._arguments(request)
        name = f"I{blocking.lower()}"
        start = partial(getattr(self._comm, name), *in_python)
        pending: list[MPI.Request] = []
        room = np.zeros(_c_size(MPI.Request), dtype=np.uint8)
        address = int(room.ctypes.data)
        begun = self._c_call(f"MPI_{name}", *in_c, address)
        ended = self._c_call("MPI_Wait", address, int(self._status.ctypes.data))
        keep = (request, room, self._status)
        return [
            Call(run=lambda: pending.append(start()), rows=[begun], keep=keep),
            Call(run=lambda: pending.pop().Wait(), rows=[ended], keep=keep),
        ]

    def _arguments(self, request: Request) -> tuple[str, list[Any], list[int]]:
        """Return a primitive's function, its arguments for mpi4py, and its arguments in C.

        Raises:
            UnsupportedError: MPI or this library lacks the reduction.
        """
        name, *words = _FUNCTIONS[request.name].split()
        send, receive = request.send, request.receive
        in_python: dict[str, Any] = {"root": request.root, "tag": TAG}
        if request.sends:
            ((send, in_python["target"]),) = request.sends
        if request.receives:
            ((receive, in_python["source"]),) = request.receives
        in_c: dict[str, int] = dict(in_python)
        in_c |= {"comm": self._handle, "status": int(self._status.ctypes.data)}
        ends = {"send": send, "receive": receive}
        buffers = [buffer for buffer in ends.values() if buffer is not None]
        if buffers:
            datatype = _transfer_type(buffers[0].dtype)
            if "op" in words:
                datatype, in_python["op"] = _reduction(buffers[0].dtype, request.redop)
                in_c["op"] = _c_handle(in_python["op"])
            count = min(buffer.count for buffer in buffers)
            if request.name == "all_to_all":
                count //= self.size
            in_c |= {"count": count, "type": _c_handle(datatype)}
            for word, buffer in ends.items():
                in_python[word], in_c[word] = None, 0
                if buffer is not None:
                    in_python[word] = [buffer.memory, count, datatype]
                    in_c[word] = buffer.address
            if request.in_place:
                own = "receive" if request.name == "scatter" else "send"
                in_python[own], in_c[own] = MPI.IN_PLACE, int(MPI.IN_PLACE)
        return (
            name,
            [in_python[word] for word in words if word in in_python],
            [in_c[word] for word in words],
        )

    def _exchange(self, request: Request) -> Call:
        """Prepare MPI_Irecv and MPI_Isend as often as the window says, then MPI_Waitall."""
        posts = [("Irecv", buffer, peer) for buffer, peer in request.receives]
        posts += [("Isend", buffer, peer) for buffer, peer in request.sends]
        total, size = len(posts) * request.window, _c_size(MPI.Request)
        pending, statuses = np.zeros(total * size, dtype=np.uint8), _statuses(total)
        address = int(pending.ctypes.data)
        rows: list[tuple[int, ...]] = []
        starts: list[Callable[[], MPI.Request]] = []
        for name, buffer, peer in posts:
            datatype = _transfer_type(buffer.dtype)
            spec = [buffer.memory, buffer.count, datatype]
            start = partial(getattr(self._comm, name), spec, peer, TAG)
            end = (buffer.address, buffer.count, _c_handle(datatype), peer, TAG, self._handle)
            for _ in range(request.window):
                rows.append(self._c_call(f"MPI_{name}", *end, address + len(rows) * size))
                starts.append(start)
        rows.append(self._c_call("MPI_Waitall", total, address, int(statuses.ctypes.data)))

        def run() -> None:
            MPI.Request.Waitall([start() for start in starts])

        return Call(run=run, rows=rows, keep=(request, pending, statuses))


class PersistentMpiCommunicator(MpiCommunicator):
    """Collectives as persistent requests of MPI 4: initialised once, then started and completed by
    each call.
    """

    def algorithm(self, operation: str) -> str:
        """Return an empty text: the component of persistent collectives is unknown."""
        return ""

    def call(self, request: Request) -> Call:
        """Initialise a persistent request; return the call of MPI_Start and MPI_Wait.

        Raises:
            UnsupportedError: the library has no such function, or MPI none for the primitive.
        """
        if request.sends or request.receives:
            raise self._cannot(_NOT_PERSISTENT)
        name, in_python, _ = self._arguments(request)
        function = f"{name}_init"
        try:
            persistent = _Request(getattr(self._comm, function)(*in_python))
        except NotImplementedError as error:
            raise UnsupportedError(
                "not_persistent", library=self.library(), function=f"MPI_{function}"
            ) from error
        rows = [
            self._c_call("MPI_Start", persistent.address),
            self._c_call("MPI_Wait", persistent.address, int(self._status.ctypes.data)),
        ]
        return Call(run=persistent.run, rows=rows, keep=(request, persistent, self._status))

    def begin(self, request: Request) -> NoReturn:
        """Refuse a primitive that is no blocking collective."""
        raise self._cannot(_NOT_PERSISTENT)


class _Request:
    """A persistent request, which is freed with the call that starts it."""

    def __init__(self, request: MPI.Prequest) -> None:
        self._request = request
        self.address = MPI._addressof(request)  # noqa: SLF001 - as `_c_handle`

    def run(self) -> None:
        """Start the operation and wait for its end."""
        self._request.Start()
        self._request.Wait()

    def __del__(self) -> None:
        if not MPI.Is_finalized():
            self._request.Free()


def _statuses(count: int) -> NDArray[np.uint8]:
    """Return memory for ``count`` MPI_Status.

    The value of MPI_STATUS_IGNORE differs between libraries.
    """
    return np.zeros(count * _c_size(MPI.Status), dtype=np.uint8)


def _transfer_type(dtype: DataType) -> MPI.Datatype:
    """Return the MPI type for transfers without arithmetic."""
    name = _TRANSFER_TYPES.get(dtype.name, _REDUCTION_TYPES[dtype.name])
    datatype: MPI.Datatype = getattr(MPI, name)
    return datatype


def _reduction(dtype: DataType, redop: str) -> tuple[MPI.Datatype, MPI.Op]:
    """Return the MPI type and the MPI operation of a reduction.

    Raises:
        UnsupportedError: this library lacks the type, or MPI the operation.
    """
    datatype = getattr(MPI, _REDUCTION_TYPES[dtype.name], MPI.DATATYPE_NULL)
    if datatype == MPI.DATATYPE_NULL:
        raise UnsupportedError("dtype_not_reduced", dtype=dtype.name)
    if redop not in _REDOPS:
        raise UnsupportedError("redop_missing", redop=redop)
    return datatype, _REDOPS[redop]
