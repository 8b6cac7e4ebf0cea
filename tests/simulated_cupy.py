"""cupy and NCCL in host memory, for ranks that are threads: what an operation means, and nothing of how fast it is.

Each call is carried out when it is made, or where it stands in a group when the group ends: first all sends, which
never wait, then collectives and receives. What NCCL would refuse (a size, a type, a peer) is asserted.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import defaultdict
from queue import Queue
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from commbench.datatypes import DTYPES, DataType

#: ncclDataType_t and ncclRedOp_t (nccl.h).
CODES = {"int8": 0, "int32": 2, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
REDOPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_TYPES = {code: DTYPES[name] for name, code in CODES.items()}
_FOLDS = {0: np.add, 1: np.multiply, 2: np.maximum, 3: np.minimum, 4: np.add}
SECONDS = 20


class Array(np.ndarray):  # type: ignore[type-arg] # of any type
    """Host memory that shows where it is as device memory does."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.ctypes.data, False)}


class NcclError(RuntimeError):
    """What cupy raises where NCCL refuses."""


class _Room:
    """What the ranks of a communicator share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.slots: list[Any] = [None] * size
        self.mail: defaultdict[tuple[int, int], Queue[Any]] = defaultdict(Queue)


class _State(threading.local):
    """What a rank has open."""

    depth = 0
    queued: list[tuple[int, Any]]


_ROOMS: dict[bytes, _Room] = {}
_LOCK = threading.Lock()
#: Every communicator that was made.
COMMUNICATORS: list[NcclCommunicator] = []
_STATE = _State()


def _memory(address: int, count: int, dtype: DataType) -> Any:
    raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype=dtype.storage)


class NcclCommunicator:
    """As cupy's of the same name; ``calls`` are the names of what was asked for."""

    def __init__(self, size: int, identity: bytes, rank: int) -> None:
        with _LOCK:
            self._room = _ROOMS.setdefault(identity, _Room(size))
        self.size, self.rank = size, rank
        self.calls: list[str] = []
        self.asked = os.environ.get("NCCL_ALGO", "")
        COMMUNICATORS.append(self)
        self._room.barrier.wait(SECONDS)

    def destroy(self) -> None:
        """Leave."""
        self._room.barrier.wait(SECONDS)

    def abort(self) -> None:
        """Leave without a word."""
        self.calls.append("abort")

    def _do(self, name: str, order: int, work: Any) -> None:
        self.calls.append(name)
        if _STATE.depth:
            _STATE.queued.append((order, work))
        else:
            work()

    def _together(self, mine: Any) -> list[Any]:
        """What every rank has brought, by rank."""
        self._room.slots[self.rank] = mine
        self._room.barrier.wait(SECONDS)
        everything = list(self._room.slots)
        self._room.barrier.wait(SECONDS)
        return everything

    def _reduced(self, send: int, count: int, code: int, redop: int) -> Any:
        dtype = _TYPES[code]
        parts = self._together((count, code, redop, _memory(send, count, dtype).copy()))
        assert len({part[:3] for part in parts}) == 1, "ranks do not agree"
        values = [dtype.decode(part[3]) for part in parts]
        total = values[0]
        for value in values[1:]:
            total = _FOLDS[redop](total, value)
        return dtype.encode(total / len(values) if redop == REDOPS["avg"] else total)

    def allReduce(self, send: int, receive: int, count: int, code: int, redop: int, _stream: int) -> None:  # noqa: N802
        """Everyone gets the reduction, but for an algorithm that there is no hardware for."""
        if self.asked.startswith("nvls"):
            raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage")

        def work() -> None:
            _memory(receive, count, _TYPES[code])[:] = self._reduced(send, count, code, redop)

        self._do("allReduce", 1, work)

    def reduce(  # noqa: PLR0917 - NCCL's own
        self, send: int, receive: int, count: int, code: int, redop: int, root: int, _stream: int
    ) -> None:
        """The root gets the reduction."""

        def work() -> None:
            found = self._reduced(send, count, code, redop)
            if self.rank == root:
                _memory(receive, count, _TYPES[code])[:] = found

        self._do("reduce", 1, work)

    def reduceScatter(self, send: int, receive: int, count: int, code: int, redop: int, _stream: int) -> None:  # noqa: N802
        """Everyone gets a block of the reduction."""

        def work() -> None:
            found = self._reduced(send, count * self.size, code, redop)
            _memory(receive, count, _TYPES[code])[:] = found[self.rank * count : (self.rank + 1) * count]

        self._do("reduceScatter", 1, work)

    def allGather(self, send: int, receive: int, count: int, code: int, _stream: int) -> None:  # noqa: N802
        """Everyone gets every block."""

        def work() -> None:
            blocks = self._together(_memory(send, count, _TYPES[code]).copy())
            _memory(receive, count * self.size, _TYPES[code])[:] = np.concatenate(blocks)

        self._do("allGather", 1, work)

    def broadcast(self, send: int, receive: int, count: int, code: int, root: int, _stream: int) -> None:
        """Everyone gets the root's message."""

        def work() -> None:
            messages = self._together(_memory(send, count, _TYPES[code]).copy())
            _memory(receive, count, _TYPES[code])[:] = messages[root]

        self._do("broadcast", 1, work)

    def send(self, buffer: int, count: int, code: int, peer: int, _stream: int) -> None:
        """Put a message where the peer looks for it."""
        assert 0 <= peer < self.size
        mail = self._room.mail[self.rank, peer]
        self._do("send", 0, lambda: mail.put((count, code, _memory(buffer, count, _TYPES[code]).copy())))

    def recv(self, buffer: int, count: int, code: int, peer: int, _stream: int) -> None:
        """Wait for a message of the peer."""
        assert 0 <= peer < self.size

        def work() -> None:
            *sent, message = self._room.mail[peer, self.rank].get(timeout=SECONDS)
            assert [count, code] == sent, "the sender has another count or type"
            _memory(buffer, count, _TYPES[code])[:] = message

        self._do("recv", 2, work)


def _group_start() -> None:
    if not _STATE.depth:
        _STATE.queued = []
    _STATE.depth += 1


def _group_end() -> None:
    _STATE.depth -= 1
    if not _STATE.depth:
        for _, work in sorted(_STATE.queued, key=lambda pair: pair[0]):
            work()


class _Stream:
    ptr = 7

    def __init__(self, *, non_blocking: bool) -> None:
        assert non_blocking, "the default stream would be waited for"

    def __enter__(self) -> None:
        """Queue what cupy does here."""

    def __exit__(self, *_: object) -> None:
        """Leave."""

    def synchronize(self) -> None:
        """Everything has been carried out already."""


class _Event:
    stamp_s = 0.0

    def record(self, stream: _Stream) -> None:
        assert stream.ptr == _Stream.ptr
        self.stamp_s = time.perf_counter()

    def synchronize(self) -> None:
        """It has taken place."""
        assert self.stamp_s


class _Device:
    def __init__(self, number: int = 0) -> None:
        self.id = number

    def use(self) -> None:
        """Every rank has the same memory."""


def simulated(devices: int = 8) -> dict[str, ModuleType]:
    """Modules to put in place of cupy, on hosts of so many GPUs."""
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
        get_elapsed_time=lambda first, last: 1e3 * (last.stamp_s - first.stamp_s),
        runtime=SimpleNamespace(
            getDeviceCount=lambda: devices,
            getDeviceProperties=lambda number: {"name": f"Simulated GPU {number}".encode()},
            CUDARuntimeError=RuntimeError,
        ),
    )
    cupy = ModuleType("cupy")
    vars(cupy).update(
        cuda=cuda,
        zeros=lambda count, dtype: np.zeros(count, dtype=dtype).view(Array),
        asarray=np.asarray,
    )
    return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.nccl": nccl}
