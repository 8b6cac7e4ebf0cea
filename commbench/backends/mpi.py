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
from commbench.backends.mpi_report import algorithm_of, takes_gpu_memory
from commbench.collectives.datatypes import DTYPES, DataType
from commbench.collectives.operations import Operation, Shape
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Ends
from commbench.engine.communicator import HostBuffer, HostCommunicator
from commbench.engine.control import gather_everywhere
from commbench.engine.timing.loops import Call, Progress, PythonTimer, Timer, address_of
from commbench.engine.timing.native import METHODS, NativeTimer, SyncCalls
from commbench.engine.timing.sync import Synchroniser, SyncPlan
from commbench.findings import UnsupportedError

TAG = 7

# mpi4py's documented way to hand its objects to C code.
_c_handle = MPI._handleof  # noqa: SLF001
_c_size = MPI._sizeof  # noqa: SLF001

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
    loops = ("native", "python")
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
        on_host, off_host = control.connections
        spans_hosts, shares_host = (
            len(set(self._hosts)) > 1,
            len(set(self._hosts)) < len(self._hosts),
        )
        connections = [*([on_host] if shares_host else []), *([off_host] if spans_hosts else [])]
        self._transport = "+".join(filter(None, connections))

    @classmethod
    def connect(cls, control: MpiControl, launch: int = 0) -> MpiCommunicator:  # noqa: ARG003 - the fake alone draws by launch
        """Open the backend among all ranks of ``control``; collective."""
        return cls(control)

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
        return self._transport if self.size > 1 else "self"

    def algorithm(self, operation: str) -> str:
        """Return the component of Open MPI that carries a collective, e.g. ``coll/tuned``."""
        return algorithm_of(self._component, operation)

    def timer(self, loop: str, plan: SyncPlan, progress: Progress) -> Timer:
        """Return the native loop unless the Python loop is requested."""
        sync = Synchroniser(self._control, plan)
        if loop == "python":
            return PythonTimer(sync, progress)
        return NativeTimer(sync, self._sync_calls(plan), progress)

    def _sync_calls(self, plan: SyncPlan) -> SyncCalls:
        handle, instant = _c_handle(self._control.comm), self._control.instant
        broadcast = self._c_call(
            "MPI_Bcast", instant.ctypes.data, 1, _c_handle(MPI.INT64_T), 0, handle
        )
        barrier = [self._c_call("MPI_Barrier", handle)]
        if (
            plan.method == "barrier"
        ):  # of the operation's communicator, as in OSU and IMB: its memory is in the cache
            barrier = [self._c_call("MPI_Barrier", self._handle)]
        if plan.method == "dissemination":
            barrier = [
                self._c_exchange(distance, handle)
                for distance in _powers_of_two_below(self._control.size)
            ]
        assert plan.method in METHODS  # noqa: S101 - choose_method yields nothing else
        return SyncCalls(barrier=barrier, broadcast=[broadcast], instant=instant)

    def _c_exchange(self, distance: int, comm: int) -> tuple[int, ...]:
        """Return one round of a dissemination barrier: empty messages to rank + distance and from
        rank - distance.
        """
        address, byte = self._control.instant.ctypes.data, _c_handle(MPI.BYTE)
        rank, size = self._control.rank, self._control.size
        target, source = (rank + distance) % size, (rank - distance) % size
        ends = (address, 0, byte, target, TAG, address, 0, byte, source, TAG)
        return self._c_call("MPI_Sendrecv", *ends, comm, int(self._status.ctypes.data))

    def _c_call(self, name: str, *arguments: int) -> tuple[int, ...]:
        return (address_of(getattr(self._library, name)), *arguments)

    def _call(self, name: str, python_arguments: Sequence[Any], *arguments: int) -> Call:
        """Return the call of ``MPI_name``, by mpi4py and by address.

        The communicator is its last argument in C.
        """
        row = self._c_call(f"MPI_{name}", *arguments, self._handle)
        return Call(run=partial(getattr(self._comm, name), *python_arguments), rows=[row])

    def _split(self, groups: Sequence[Group]) -> MpiCommunicator | None:
        """Make all groups by one MPI_Comm_split."""
        number = next((i for i, group in enumerate(groups) if self.rank in group), MPI.UNDEFINED)
        make = partial(self._comm.Split, number, self.rank)
        if number == MPI.UNDEFINED:
            make()
            return None
        return type(self)(self._control, make, [self._hosts[rank] for rank in groups[number]])

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

    def empty(self) -> HostBuffer:
        """See `Communicator.empty`."""
        return self.allocate(DTYPES["int8"], 0)

    # Collectives

    def all_reduce(self, send: HostBuffer, receive: HostBuffer, redop: str) -> Call:
        """Prepare MPI_Allreduce."""
        op, datatype, count = _op(redop), _reduction_type(receive.dtype), receive.count
        spec = [receive.memory, count, datatype]
        source, address = self._source(send, receive, send.count, datatype)
        return self._call(
            "Allreduce",
            (source, spec, op),
            *(address, receive.address, count, _c_handle(datatype), _c_handle(op)),
        )

    def all_gather(self, send: HostBuffer, receive: HostBuffer) -> Call:
        """Prepare MPI_Allgather."""
        datatype, block = _transfer_type(receive.dtype), receive.count // self.size
        spec = [receive.memory, block, datatype]
        source, address = self._source(send, receive, block, datatype)
        handle = _c_handle(datatype)
        return self._call(
            "Allgather",
            (source, spec),
            *(address, block, handle, receive.address, block, handle),
        )

    def reduce_scatter(self, send: HostBuffer, receive: HostBuffer, redop: str) -> Call:
        """Prepare MPI_Reduce_scatter_block."""
        op, datatype, block = _op(redop), _reduction_type(send.dtype), send.count // self.size
        in_place = send.shares_memory(receive)
        target = send if in_place else receive
        # mpi4py counts both sides of this function in elements of one block.
        spec = [target.memory, block, datatype]
        source, address = self._source(send, target, block, datatype)
        return self._call(
            "Reduce_scatter_block",
            (source, spec, op),
            *(address, target.address, block, _c_handle(datatype), _c_handle(op)),
        )

    def all_to_all(self, send: HostBuffer, receive: HostBuffer) -> Call:
        """Prepare MPI_Alltoall."""
        datatype, block = _transfer_type(receive.dtype), receive.count // self.size
        spec = [receive.memory, block, datatype]
        source, address = self._source(send, receive, block, datatype)
        handle = _c_handle(datatype)
        return self._call(
            "Alltoall",
            (source, spec),
            *(address, block, handle, receive.address, block, handle),
        )

    def broadcast(self, buffer: HostBuffer, root: int) -> Call:
        """Prepare MPI_Bcast."""
        datatype = _transfer_type(buffer.dtype)
        spec = [buffer.memory, buffer.count, datatype]
        return self._call(
            "Bcast",
            (spec, root),
            *(buffer.address, buffer.count, _c_handle(datatype), root),
        )

    def reduce(self, send: HostBuffer, receive: HostBuffer | None, redop: str, root: int) -> Call:
        """Prepare MPI_Reduce."""
        op, datatype = _op(redop), _reduction_type(send.dtype)
        spec = [receive.memory, receive.count, datatype] if receive else None
        source, address = self._source(send, receive, send.count, datatype)
        target = receive.address if receive else 0
        return self._call(
            "Reduce",
            (source, spec, op, root),
            *(address, target, send.count, _c_handle(datatype), _c_handle(op), root),
        )

    def gather(self, send: HostBuffer, receive: HostBuffer | None, root: int) -> Call:
        """Prepare MPI_Gather."""
        datatype, block = _transfer_type(send.dtype), send.count
        spec = [receive.memory, block, datatype] if receive else None
        source, address = self._source(send, receive, block, datatype)
        handle, target = _c_handle(datatype), receive.address if receive else 0
        return self._call(
            "Gather",
            (source, spec, root),
            *(address, block, handle, target, block, handle, root),
        )

    def scatter(self, send: HostBuffer | None, receive: HostBuffer, root: int) -> Call:
        """Prepare MPI_Scatter; in place, MPI_IN_PLACE replaces the root's receive buffer."""
        datatype, block = _transfer_type(receive.dtype), receive.count
        spec = [send.memory, block, datatype] if send else None
        target, address = self._source(receive, send, block, datatype)
        handle, source = _c_handle(datatype), send.address if send else 0
        return self._call(
            "Scatter",
            (spec, target, root),
            *(source, block, handle, address, block, handle, root),
        )

    def iall_reduce(self, send: HostBuffer, receive: HostBuffer, redop: str) -> list[Call]:
        """Prepare MPI_Iallreduce and MPI_Wait."""
        op, datatype, count = _op(redop), _reduction_type(receive.dtype), receive.count
        spec = [receive.memory, count, datatype]
        source, address = self._source(send, receive, send.count, datatype)
        return self._start_and_wait(
            "MPI_Iallreduce",
            lambda: self._comm.Iallreduce(source, spec, op),
            *(address, receive.address, count, _c_handle(datatype), _c_handle(op)),
        )

    def iall_gather(self, send: HostBuffer, receive: HostBuffer) -> list[Call]:
        """Prepare MPI_Iallgather and MPI_Wait."""
        datatype, block = _transfer_type(receive.dtype), receive.count // self.size
        spec = [receive.memory, block, datatype]
        source, address = self._source(send, receive, block, datatype)
        handle = _c_handle(datatype)
        return self._start_and_wait(
            "MPI_Iallgather",
            lambda: self._comm.Iallgather(source, spec),
            *(address, block, handle, receive.address, block, handle),
        )

    def _start_and_wait(
        self, name: str, start: Callable[[], MPI.Request], *arguments: int
    ) -> list[Call]:
        """Return the two calls of a non-blocking collective, with the request that they share."""
        pending: list[MPI.Request] = []
        room, status = np.zeros(_c_size(MPI.Request), dtype=np.uint8), _statuses(1)
        request = int(room.ctypes.data)
        begin = self._c_call(name, *arguments, self._handle, request)
        end = self._c_call("MPI_Wait", request, int(status.ctypes.data))
        return [
            Call(run=lambda: pending.append(start()), rows=[begin], keep=(room,)),
            Call(run=lambda: pending.pop().Wait(), rows=[end], keep=(room, status)),
        ]

    def barrier(self) -> Call:
        """Prepare MPI_Barrier."""
        return self._call("Barrier", ())

    # Point to point

    def send(self, buffer: HostBuffer, peer: int) -> Call:
        """Prepare MPI_Send."""
        datatype = _transfer_type(buffer.dtype)
        spec = [buffer.memory, buffer.count, datatype]
        return self._call(
            "Send",
            (spec, peer, TAG),
            *(buffer.address, buffer.count, _c_handle(datatype), peer, TAG),
        )

    def receive(self, buffer: HostBuffer, peer: int) -> Call:
        """Prepare MPI_Recv."""
        datatype = _transfer_type(buffer.dtype)
        spec = [buffer.memory, buffer.count, datatype]
        status = _statuses(1)
        row = self._c_call(
            "MPI_Recv",
            *(buffer.address, buffer.count, _c_handle(datatype), peer, TAG),
            *(self._handle, int(status.ctypes.data)),
        )
        return Call(run=lambda: self._comm.Recv(spec, peer, TAG), rows=[row], keep=(status,))

    def send_receive(self, send: HostBuffer, target: int, receive: HostBuffer, source: int) -> Call:
        """Prepare MPI_Sendrecv."""
        datatype = _transfer_type(send.dtype)
        handle = _c_handle(datatype)
        out, into = [send.memory, send.count, datatype], [receive.memory, receive.count, datatype]
        status = _statuses(1)
        row = self._c_call(
            "MPI_Sendrecv",
            *(send.address, send.count, handle, target, TAG),
            *(receive.address, receive.count, handle, source, TAG),
            *(self._handle, int(status.ctypes.data)),
        )
        return Call(
            run=lambda: self._comm.Sendrecv(out, target, TAG, into, source, TAG),
            rows=[row],
            keep=(status,),
        )

    def exchange_window(
        self, sends: Ends[HostBuffer], receives: Ends[HostBuffer], window: int
    ) -> Call:
        """Prepare MPI_Irecv and MPI_Isend ``window`` times with each peer, then MPI_Waitall."""
        posts: list[tuple[str, Callable[..., MPI.Request], HostBuffer, int]] = [
            *(("MPI_Irecv", self._comm.Irecv, buffer, peer) for buffer, peer in receives),
            *(("MPI_Isend", self._comm.Isend, buffer, peer) for buffer, peer in sends),
        ]
        size, total = _c_size(MPI.Request), len(posts) * window
        requests, statuses = np.zeros(total * size, dtype=np.uint8), _statuses(total)
        slots = iter(
            range(int(requests.ctypes.data), int(requests.ctypes.data) + total * size, size)
        )
        rows = []
        for name, _, buffer, peer in posts:
            arguments = (
                buffer.address,
                buffer.count,
                _c_handle(_transfer_type(buffer.dtype)),
                peer,
                TAG,
                self._handle,
            )
            rows += [self._c_call(name, *arguments, next(slots)) for _ in range(window)]
        rows.append(
            self._c_call("MPI_Waitall", total, int(requests.ctypes.data), int(statuses.ctypes.data))
        )
        specs = [
            (function, [b.memory, b.count, _transfer_type(b.dtype)], peer)
            for _, function, b, peer in posts
        ]

        def run() -> None:
            MPI.Request.Waitall(
                [function(spec, peer, TAG) for function, spec, peer in specs for _ in range(window)]
            )

        return Call(run=run, rows=rows, keep=(requests, statuses))

    # Helpers

    def _source(
        self, buffer: HostBuffer, other: HostBuffer | None, count: int, datatype: MPI.Datatype
    ) -> tuple[Any, int]:
        """Return a rank's own buffer as an argument of MPI: MPI_IN_PLACE if it lies in the other
        buffer.
        """
        if other is not None and buffer.shares_memory(other):
            return MPI.IN_PLACE, int(MPI.IN_PLACE)
        return [buffer.memory, count, datatype], buffer.address


class PersistentMpiCommunicator(MpiCommunicator):
    """Collectives as persistent requests of MPI 4: initialised once, then started and completed by
    each call.
    """

    def algorithm(self, operation: str) -> str:  # noqa: ARG002 - the query finds the component of other collectives
        """Return an empty text: the component of persistent collectives is unknown."""
        return ""

    def _call(self, name: str, python_arguments: Sequence[Any], *_: int) -> Call:
        """Initialise a request by ``MPI_name_init``; return the call of MPI_Start and MPI_Wait.

        Raises:
            UnsupportedError: the library has no such function.
        """
        function = f"{name}_init"
        try:
            request = _Request(getattr(self._comm, function)(*python_arguments))
        except NotImplementedError as error:
            raise UnsupportedError(
                "not_persistent", library=self.library(), function=f"MPI_{function}"
            ) from error
        status = _statuses(1)
        rows = [
            self._c_call("MPI_Start", request.address),
            self._c_call("MPI_Wait", request.address, int(status.ctypes.data)),
        ]
        return Call(run=request.run, rows=rows, keep=(request, status))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:  # noqa: ANN401 - the arguments of any primitive
        """Refuse a primitive that is no blocking collective."""
        raise self._cannot("persistent form of this operation; use --cadence isolated")

    send = receive = send_receive = exchange_window = iall_reduce = iall_gather = _refuse


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


def _powers_of_two_below(size: int) -> list[int]:
    """Return the powers of two below ``size``."""
    return [1 << i for i in range((size - 1).bit_length())]


def _reduction_type(dtype: DataType) -> MPI.Datatype:
    """Return the MPI type for reductions.

    Raises:
        UnsupportedError: the library has no such type.
    """
    datatype = getattr(MPI, _REDUCTION_TYPES[dtype.name], MPI.DATATYPE_NULL)
    if datatype == MPI.DATATYPE_NULL:
        raise UnsupportedError("dtype_not_reduced", dtype=dtype.name)
    return datatype


def _transfer_type(dtype: DataType) -> MPI.Datatype:
    """Return the MPI type for transfers without arithmetic."""
    datatype: MPI.Datatype = getattr(
        MPI, _TRANSFER_TYPES.get(dtype.name, _REDUCTION_TYPES[dtype.name])
    )
    return datatype


def _op(redop: str) -> MPI.Op:
    """Return the MPI operation for a reduction.

    Raises:
        UnsupportedError: MPI has no such operation.
    """
    if redop not in _REDOPS:
        raise UnsupportedError("redop_missing", redop=redop)
    return _REDOPS[redop]
