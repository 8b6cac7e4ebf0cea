"""cupy and NCCL simulated in host memory, for ranks that are threads: results of operations, and
times of events.

A call executes at once. In a group it executes when the group ends: first sends, which never wait,
then collectives and receives. On a capturing stream it executes at each launch of the graph.
Whatever NCCL would refuse (a size, a type, a peer) fails an assertion.

Time is virtual: a call takes the host `CALL_NS`, an operation the device `OPERATION_NS`. Operations
run in sequence. An event occurs when the device reaches it.
"""

# ruff: noqa: N802, PLR0917 - names and arguments of NCCL
from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from queue import Queue
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from commbench.collectives.datatypes import DTYPES, DataType

#: ncclDataType_t and ncclRedOp_t (nccl.h).
CODES = {"int8": 0, "int32": 2, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
REDOPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_TYPES = {code: DTYPES[name] for name, code in CODES.items()}
_FOLDS = {0: np.add, 1: np.multiply, 2: np.maximum, 3: np.minimum, 4: np.add}
SECONDS = 20
#: What NCCL answers to an all-reduce by an algorithm that there is no hardware for.
REFUSED = {"nvls": 5, "nvlstree": 6}
#: Of a simulated GPU.
L2_BYTES, MEMORY_BYTES = 64 * 1024, 2**30
#: What the host takes to queue something, what the device takes for an operation, and how fast its
#: clock runs.
CALL_NS, OPERATION_NS, CYCLES_PER_NS = 1000, 5000, 1.5


class Array(np.ndarray):  # of any type
    """Host memory with the interface of a cupy array."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.ctypes.data, False)}


#: The answers of NCCL that cupy 13 knows (nccl.pyx).
_NAMES = {
    1: "UNHANDLED_CUDA_ERROR",
    2: "SYSTEM_ERROR",
    3: "INTERNAL_ERROR",
    4: "INVALID_ARGUMENT",
    5: "INVALID_USAGE",
}


class NcclError(RuntimeError):
    """cupy's NCCL error; like cupy's, it cannot be made from an unknown code."""

    def __init__(self, status: int) -> None:
        super().__init__(f"NCCL_ERROR_{_NAMES[status]}")
        self.status = status


class _Room:
    """State shared by the ranks of a communicator."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.slots = [None] * size
        self.mail = defaultdict(Queue)


class _State(threading.local):
    """The open state of a rank."""

    depth = 0
    queued: list[tuple[int, Any]]
    stream: _Stream


_ROOMS = {}
_LOCK = threading.Lock()
#: Every communicator that was made.
COMMUNICATORS = []
_STATE = _State()


def _memory(address: int, count: int, dtype: DataType) -> Any:
    raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype=dtype.storage)


def _put(address: int, code: int, values: Any) -> None:
    _memory(address, len(values), _TYPES[code])[:] = values


class NcclCommunicator:
    """cupy's class of this name, which also records ``calls`` by name and ``streams`` by pointer.

    ``addresses``: the addresses that executed operations read. ``graphs``: the number of graphs
    that hold operations.
    """

    def __init__(self, size: int, identity: bytes, rank: int) -> None:
        with _LOCK:
            self._room = _ROOMS.setdefault(identity, _Room(size))
        self.size, self.rank = size, rank
        self.calls = []
        self.asked = os.environ.get("NCCL_ALGO", "")
        if self.asked == "collnetdirect":
            raise NcclError(6)  # as where a peer is gone
        COMMUNICATORS.append(self)
        self.streams = set()
        self.addresses = []
        self.graphs = 0
        self._room.barrier.wait(SECONDS)

    def destroy(self) -> None:
        """Leave the communicator."""
        assert not self.graphs, "NCCL would wait for ever for a graph that holds its operations"
        self._room.barrier.wait(SECONDS)

    def abort(self) -> None:
        """Leave the communicator without notice."""
        self.calls.append("abort")

    def _do(
        self,
        name: str,
        work: Callable[[], object],
        address: int,
        stream: int,
        into: int = 0,
        order: int = 1,
    ) -> None:
        def carry_out() -> None:
            self.addresses.append(address)
            work()

        self.calls.append(name)
        self.streams.add(stream)
        if self.size == 1 and into == address:
            return  # as ncclLaunchOneRank does
        if _STATE.depth:
            _STATE.queued.append((order, lambda: _STREAMS[stream].take(self, carry_out)))
        else:
            _STREAMS[stream].take(self, carry_out)

    def _together(self, mine: Any) -> list[Any]:
        """Return every rank's value, by rank."""
        self._room.slots[self.rank] = mine
        self._room.barrier.wait(SECONDS)
        everything = list(self._room.slots)
        self._room.barrier.wait(SECONDS)
        return everything

    def _messages(self, send: int, count: int, code: int) -> list[Any]:
        return self._together(_memory(send, count, _TYPES[code]).copy())

    def _reduced(self, send: int, count: int, code: int, redop: int) -> Any:
        dtype = _TYPES[code]
        parts = self._together((count, code, redop, _memory(send, count, dtype).copy()))
        assert len({part[:3] for part in parts}) == 1, "ranks do not agree"
        values = [dtype.decode(part[3]) for part in parts]
        total = values[0]
        for value in values[1:]:
            total = _FOLDS[redop](total, value)
        return dtype.encode(total / len(values) if redop == REDOPS["avg"] else total)

    def _reduce(
        self,
        name: str,
        shape: tuple[int, int, int],
        send: int,
        receive: int,
        part: slice,
        stream: int,
    ) -> None:
        """Return part of the reduction of ``shape``: count, type and reduction."""

        def work() -> None:
            _put(receive, shape[1], self._reduced(send, *shape)[part])

        self._do(name, work, send, stream, 0 if shape[2] == REDOPS["avg"] else receive)

    def allReduce(
        self, send: int, receive: int, count: int, code: int, redop: int, stream: int
    ) -> None:
        """Return the reduction to all ranks; refuse an algorithm without hardware."""
        if self.asked in REFUSED:
            raise NcclError(REFUSED[self.asked])
        self._reduce("allReduce", (count, code, redop), send, receive, slice(count), stream)

    def reduce(
        self, send: int, receive: int, count: int, code: int, redop: int, root: int, stream: int
    ) -> None:
        """Return the reduction to the root."""
        part = slice(count if self.rank == root else 0)
        self._reduce("reduce", (count, code, redop), send, receive, part, stream)

    def reduceScatter(
        self, send: int, receive: int, count: int, code: int, redop: int, stream: int
    ) -> None:
        """Return a block of the reduction to each rank."""
        part = slice(self.rank * count, (self.rank + 1) * count)
        shape = count * self.size, code, redop
        self._reduce("reduceScatter", shape, send, receive, part, stream)

    def allGather(self, send: int, receive: int, count: int, code: int, stream: int) -> None:
        """Return every block to all ranks."""

        def work() -> None:
            _put(receive, code, np.concatenate(self._messages(send, count, code)))

        self._do("allGather", work, send, stream, receive)

    def broadcast(
        self, send: int, receive: int, count: int, code: int, root: int, stream: int
    ) -> None:
        """Return the root's message to all ranks."""

        def work() -> None:
            _put(receive, code, self._messages(send, count, code)[root])

        self._do("broadcast", work, send, stream, receive)

    def send(self, buffer: int, count: int, code: int, peer: int, stream: int) -> None:
        """Store a message for the peer."""
        assert 0 <= peer < self.size
        mail = self._room.mail[self.rank, peer]

        def work() -> None:
            mail.put((count, code, _memory(buffer, count, _TYPES[code]).copy()))

        self._do("send", work, buffer, stream, order=0)

    def recv(self, buffer: int, count: int, code: int, peer: int, stream: int) -> None:
        """Wait for the peer's message."""
        assert 0 <= peer < self.size

        def work() -> None:
            *sent, message = self._room.mail[peer, self.rank].get(timeout=SECONDS)
            assert [count, code] == sent, "the sender has another count or type"
            _put(buffer, code, message)

        self._do("recv", work, buffer, stream, order=2)


def _group_start() -> None:
    if not _STATE.depth:
        _STATE.queued = []
    _STATE.depth += 1


def _group_end() -> None:
    _STATE.depth -= 1
    if not _STATE.depth:
        for _, work in sorted(_STATE.queued, key=lambda pair: pair[0]):
            work()


class Graph:
    """A captured graph: its steps with their ranks."""

    def __init__(self, steps: Sequence[tuple[NcclCommunicator, Callable[[], object]]]) -> None:
        self._steps = steps
        self._communicators = {communicator for communicator, _ in steps}
        for communicator in self._communicators:
            communicator.graphs += 1

    def __del__(self) -> None:
        for communicator in self._communicators:
            communicator.graphs -= 1

    def upload(self, stream: _Stream) -> None:
        """Do nothing."""
        assert stream.captured is None

    def launch(self, stream: _Stream) -> None:
        """Execute the captured steps."""
        assert stream.captured is None
        stream.queue(OPERATION_NS * len(self._steps))
        for _, work in self._steps:
            work()


class _Stream:
    """A stream: ``host_ns`` is the host's time, ``end_ns`` the time when queued work ends."""

    _numbers = itertools.count(7)

    def __init__(self, *, non_blocking: bool) -> None:
        assert non_blocking, "the default stream would be waited for"
        with _LOCK:
            self.ptr = next(self._numbers)
            _STREAMS[self.ptr] = self
        self.captured = None
        self.host_ns = self.end_ns = 0.0

    def __enter__(self) -> None:
        """Make the stream current."""
        assert self.captured is None, "memory would be written when the graph is launched"
        _STATE.stream = self

    def __exit__(self, *_: object) -> None:
        """Restore the previous stream."""

    def queue(self, lasting_ns: float) -> None:
        """Queue work on the device."""
        self.host_ns += CALL_NS
        self.end_ns = max(self.end_ns, self.host_ns) + lasting_ns

    def wait_until(self, instant_ns: float) -> None:
        """Block the host until a device time."""
        self.host_ns = max(self.host_ns, instant_ns)

    def synchronize(self) -> None:
        """Wait for all queued work."""
        assert self.captured is None, "CUDA refuses to wait for a stream that captures"
        self.wait_until(self.end_ns)

    def take(self, communicator: NcclCommunicator, work: Callable[[], object]) -> None:
        """Execute a request of a communicator, or capture it."""
        if self.captured is None:
            self.queue(OPERATION_NS)
            work()
        else:
            self.captured.append((communicator, work))

    def begin_capture(self) -> None:
        """Capture requests instead of executing them."""
        assert self.captured is None
        self.captured = []

    def end_capture(self) -> Graph:
        """Return the captured requests; those of a single rank may be empty."""
        assert self.captured is not None
        steps, self.captured = self.captured, None
        return Graph(steps)


_STREAMS = {}


class _Event:
    at_ns = 0.0
    _stream: _Stream

    def record(self, stream: _Stream) -> None:
        assert stream.captured is None
        stream.queue(0)
        self._stream, self.at_ns = stream, stream.end_ns

    @property
    def done(self) -> bool:
        """Return whether the event has occurred."""
        return self._stream.host_ns >= self.at_ns

    def synchronize(self) -> None:
        """Wait until it has taken place."""
        self._stream.wait_until(self.at_ns)


def _elapsed_ms(first: _Event, last: _Event) -> float:
    assert first.done
    assert last.done, "CUDA says that the device is not ready"
    return (last.at_ns - first.at_ns) / 1e6


class _Kernel:
    """The kernel that spins on the current stream."""

    def __init__(self, code: str, name: str) -> None:
        assert f"void {name}(long long cycles)" in code
        assert "clock64()" in code

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[int]) -> None:
        assert (1,) == grid == block
        _STATE.stream.queue(arguments[0] / CYCLES_PER_NS)


class OutOfMemoryError(MemoryError):
    """cupy's error for full device memory."""


def _zeros(count: int, dtype: Any) -> Any:
    nbytes = count * np.dtype(dtype).itemsize
    if nbytes > MEMORY_BYTES // 4:
        raise OutOfMemoryError(f"Out of memory allocating {nbytes:,} bytes")
    return np.zeros(count, dtype=dtype).view(Array)


class _Device:
    def __init__(self, number: int = 0) -> None:
        self.id = number

    def use(self) -> None:
        """Do nothing, as all ranks share host memory."""


def _copy(target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
    assert kind in {1, 2}
    assert _STREAMS[stream].captured is None
    ctypes.memmove(target, source, nbytes)


def simulated(devices: int = 8) -> dict[str, ModuleType]:
    """Return modules in place of cupy, on hosts with this many GPUs."""
    numbers = iter(range(10**9))

    def new_identity() -> bytes:
        with _LOCK:
            return f"{time.perf_counter_ns()}-{next(numbers)}".encode()

    nccl = ModuleType("cupy.cuda.nccl")
    names = {f"NCCL_{name.upper()}": code for name, code in {**CODES, **REDOPS}.items()}
    vars(nccl).update(
        **names,
        NcclCommunicator=NcclCommunicator,
        NcclError=NcclError,
        get_unique_id=new_identity,
        get_version=lambda: 22809,
        groupStart=_group_start,
        groupEnd=_group_end,
    )
    cuda = ModuleType("cupy.cuda")
    vars(cuda).update(
        nccl=nccl,
        Stream=_Stream,
        Event=_Event,
        Device=_Device,
        alloc_pinned_memory=bytearray,
        get_elapsed_time=_elapsed_ms,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        runtime=SimpleNamespace(
            getDeviceCount=lambda: devices,
            getDeviceProperties=lambda number: {
                "name": f"Simulated GPU {number}".encode(),
                "l2CacheSize": L2_BYTES,
            },
            deviceGetPCIBusId=lambda number: f"0000:{number:02x}:00.0",
            runtimeGetVersion=lambda: 13000,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            memcpyAsync=_copy,
            CUDARuntimeError=RuntimeError,
        ),
    )
    cupy = ModuleType("cupy")
    vars(cupy).update(
        __version__="14.0.1",
        cuda=cuda,
        RawKernel=_Kernel,
        zeros=_zeros,
        asarray=np.asarray,
    )
    return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.nccl": nccl}
