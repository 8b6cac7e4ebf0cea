"""The interface between the engine and a backend: primitives, buffers, a timed loop, and facts for
its rows.

A new backend is one file with one class. A backend with buffers in host memory inherits
`HostCommunicator` and implements the primitives only. Others also allocate their
buffers, move content to them, and bring their own timed loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np

from commbench.collectives.algorithms import AUTO
from commbench.collectives.cases import REGISTERED, SYNCS
from commbench.collectives.datatypes import DTYPES, Content, DataType
from commbench.collectives.layouts import Shape
from commbench.collectives.operations import Operation
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Buffer, Request
from commbench.engine.timing.loops import Call, Progress, PythonTimer, Timer
from commbench.engine.timing.sync import Synchroniser
from commbench.findings import UnsupportedError
from commbench.system.topology import last_level_cache_bytes

#: Buffers begin on a page, as in OSU's benchmarks.
ALIGNMENT = 4096
#: Byte in a receive buffer before an operation overwrites it; -91 in int8, which is never a result.
STALE = 0xA5
#: What a backend without persistent requests lacks, and what to do.
PERSISTENT = "persistent operations; use --cadence isolated or pipelined"


class Communicator(ABC):
    """One backend in one launch or in a group of its ranks, seen from one rank.

    ``call`` and ``begin`` return prepared, repeatable `Call`s and raise `UnsupportedError` for what
    the backend cannot do.
    """

    backend: str
    rank: int
    size: int
    device: str
    loops: tuple[str, ...] = ("python",)
    """The timed loops of the backend, the best first."""
    syncs: tuple[str, ...] = SYNCS
    """The supported methods of a synchronised start."""
    most_elements: int | None = None
    """The most elements that one call can take; None: no limit."""
    ranks_per_gpu: int | None = None
    """The most ranks of the launch on one GPU; None without GPUs."""
    gpu: str = ""
    """PCI address of the GPU that this rank uses, ``0000:17:00.0``."""
    own_threads: bool = False
    """Whether threads of the library, rather than the caller, carry out operations."""
    idle_alone: bool = False
    """Whether single-rank in-place calls are no-ops."""

    @abstractmethod
    def library(self) -> str:
        """Return name and version of the library that carries the operations."""

    @abstractmethod
    def transport(self) -> str:
        """Return the transport between the ranks, which is known after the first operation."""

    def algorithm(self, operation: str) -> str:
        """Return the algorithm that the library uses for an operation; empty if unknown."""
        return ""

    def using(self, algorithm: str) -> Communicator:
        """Return the communicator for an algorithm (see `commbench.collectives.algorithms`);
        collective.
        """
        if algorithm == AUTO:
            return self
        raise UnsupportedError("algorithm_not_offered", backend=self.backend)

    def persistent(self) -> Communicator:
        """Return the communicator whose collectives are persistent requests; collective."""
        raise self._cannot(PERSISTENT)

    @contextmanager
    def watched(self, *, replayed: bool = False) -> Iterator[None]:
        """Observe untimed calls, whose algorithm and transport the library may log.

        ``replayed`` calls were logged when they were captured.
        """
        yield

    @abstractmethod
    def timer(self, loop: str, sync: Synchroniser, progress: Progress) -> Timer:
        """Return a new timed loop: one of ``loops``, or ``auto`` for the best."""

    def local_calls(self) -> list[Call]:
        """Return an 8-byte operation on one rank through a framework.

        Empty if calls go to the library directly.
        """
        return []

    def call(self, request: Request) -> Call:
        """Return the prepared call of a primitive.

        Raises:
            UnsupportedError: the backend lacks the primitive.
        """
        raise self._cannot(request.name)

    def begin(self, request: Request) -> Sequence[Call]:
        """Return the start and the completion of a non-blocking collective.

        Raises:
            UnsupportedError: the backend lacks the primitive.
        """
        raise self._cannot(f"non-blocking {request.name}")

    def _cannot(self, what: str) -> UnsupportedError:
        return UnsupportedError("missing", backend=self.backend, what=what)

    @abstractmethod
    def allocate(self, dtype: DataType, count: int) -> Buffer:
        """Return a buffer of ``count`` elements."""

    def token(self) -> Buffer:
        """Return a buffer of one byte, for a message that only acknowledges others."""
        return self.allocate(DTYPES["int8"], 1)

    @contextmanager
    def allocating(self, kind: str) -> Iterator[None]:
        """Allocate buffers of a kind from `commbench.collectives.cases.BUFFERS` inside this
        context.
        """
        if kind in REGISTERED:
            raise self._cannot(f"{kind} buffers; use --backend torch-nccl")
        yield

    def room_for(self, nbytes: int) -> AbstractContextManager[None]:
        """Work on buffers inside this context, which takes up to ``nbytes`` more of their memory.

        The context raises `UnsupportedError` where that memory is full.
        """
        return nullcontext()

    def moved(self, content: Content) -> Content:
        """Return known content in the memory of the buffers."""
        return content

    def write(self, buffer: Any, content: Content) -> None:
        """Fill a buffer with known content."""
        with self.room_for(buffer.nbytes):
            self.moved(content).write(buffer.memory)
        self.complete()

    @abstractmethod
    def poison(self, buffer: Any) -> None:
        """Fill a buffer with bytes that occur in no result."""

    def count_wrong(self, buffer: Any, content: Content) -> int:
        """Return the number of elements that differ from ``content``, compared where they are."""
        with self.room_for(buffer.nbytes):
            return self.moved(content).count_wrong(buffer.memory)

    def complete(self) -> None:  # noqa: B027 - host memory needs no wait
        """Wait until every call issued so far has finished on the device."""

    def cache_bytes(self) -> int:
        """Return the size of the last-level cache in bytes; 0 if unknown."""
        return 0

    def capture(self, calls: Sequence[Call]) -> Call:
        """Return one call that replays several, each of which has run before, without Python in
        between.

        Raises:
            UnsupportedError: the backend has no graphs.
        """
        raise self._cannot("graphs of operations; use --cadence isolated or pipelined")

    def result_offset(self, operation: Operation, shape: Shape) -> int:
        """In place, the element of the whole buffer at which this rank's own block begins."""
        return shape.rank * shape.block

    def split(self, groups: Sequence[Group]) -> Communicator | None:
        """Return the communicator of this rank's group, None in no group.

        Each division is made once.

        Collective over all ranks of the launch, including ranks in no group: libraries identify a
        group by the number of groups that the process has made, which must be equal on all ranks.
        In the result, ``rank`` and ``size`` are the group's. Its timed loops are not used: all
        groups run in the loop of the whole communicator, which synchronises all ranks and closes
        it.

        Args:
            groups: disjoint, each ascending, the same on every rank.
        """
        requested = tuple(groups)
        if requested == (tuple(range(self.size)),):
            return self
        if requested not in self._splits:
            own = next((group for group in requested if self.rank in group), None)
            self._splits[requested] = self._split(requested, own)
        return self._splits[requested]

    @cached_property
    def _splits(self) -> dict[tuple[Group, ...], Communicator | None]:
        return {}

    def _split(self, groups: Sequence[Group], own: Group | None) -> Communicator | None:
        """See `split`; ``own`` is this rank's group, None in no group."""
        raise self._cannot("groups of ranks")

    def close(self) -> None:
        """Release the backend's resources; collective."""
        for part in self._splits.values():
            if part is not None:
                part.close()
        self._splits.clear()


class HostBuffer(Buffer):
    """Elements in host memory, a numpy array."""

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self.memory.ctypes.data)


class HostCommunicator(Communicator):
    """A backend whose buffers are host memory."""

    device = "cpu"

    def timer(self, loop: str, sync: Synchroniser, progress: Progress) -> Timer:
        """Return the Python loop."""
        return PythonTimer(sync, progress)

    def allocate(self, dtype: DataType, count: int) -> Buffer:
        """See `Communicator.allocate`."""
        nbytes = count * dtype.itemsize
        room = np.zeros(nbytes + ALIGNMENT, dtype=np.uint8)
        offset = -room.ctypes.data % ALIGNMENT
        return HostBuffer(room[offset : offset + nbytes].view(dtype.storage), dtype)

    def poison(self, buffer: Any) -> None:
        """See `Communicator.poison`."""
        buffer.memory.view(np.uint8)[:] = STALE

    def cache_bytes(self) -> int:
        """See `Communicator.cache_bytes`."""
        return last_level_cache_bytes()
