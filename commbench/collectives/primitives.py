"""The primitives of a backend, from which operations are composed, and their buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from typing_extensions import Self

from commbench.collectives.datatypes import DataType

Backend: TypeAlias = Any
"""A `commbench.engine.communicator.Communicator`, from whose calls operations are composed."""


@dataclass(frozen=True)
class Buffer(ABC):
    """Elements in memory: ``memory`` has shape (count,) in the data type's storage."""

    memory: Any
    dtype: DataType

    @property
    @abstractmethod
    def address(self) -> int:
        """Address of the first element."""

    @property
    def count(self) -> int:
        """Number of elements."""
        return len(self.memory)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.count * self.dtype.itemsize

    def shares_memory(self, other: Buffer) -> bool:
        """Return whether both buffers overlap: the operation is in place."""
        end, other_end = self.address + self.nbytes, other.address + other.nbytes
        return self.address < other_end and other.address < end

    def part(self, offset: int, count: int) -> Self:
        """Return ``count`` elements from ``offset`` on: the same memory."""
        return replace(self, memory=self.memory[offset : offset + count])


Ends = Sequence[tuple[Any, int]]
"""Of type `Buffer`, each with the rank that it goes to or comes from."""


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """The buffers of one rank, each a `Buffer`, or None if the rank has none.

    In place, ``send`` and ``receive`` are (parts of) the same memory.
    """

    send: Any
    receive: Any


@dataclass(frozen=True)
class Request:
    """A primitive with its arguments, of which each primitive uses some.

    A collective has ``send`` and ``receive``; ``broadcast`` has ``receive`` only. ``send``,
    ``receive``, ``send_receive`` and ``window`` have ``sends`` and ``receives``. A window posts
    ``window`` messages with each peer, then waits for all.
    """

    name: str
    send: Buffer | None = None
    receive: Buffer | None = None
    redop: str = ""
    root: int = 0
    sends: Ends = ()
    receives: Ends = ()
    window: int = 1

    @property
    def buffers(self) -> list[Buffer]:
        """The send and the receive buffer of a collective, as far as this rank has them."""
        return [buffer for buffer in (self.send, self.receive) if buffer is not None]

    @property
    def in_place(self) -> bool:
        """Whether a collective's send and receive buffer overlap."""
        if self.send is None or self.receive is None:
            return False
        return self.send.shares_memory(self.receive)

    def mapped(self, function: Callable[[Any], Buffer]) -> Request:
        """Return the request with ``function`` of each buffer in its place."""
        send, receive = self.send, self.receive
        if send is not None:
            send = function(send)
        if receive is not None:
            receive = function(receive)
        sends = [(function(buffer), peer) for buffer, peer in self.sends]
        receives = [(function(buffer), peer) for buffer, peer in self.receives]
        return replace(self, send=send, receive=receive, sends=sends, receives=receives)

    def read(self, rank: int) -> list[Buffer]:
        """Return the buffers that ``rank`` reads, as often as it sends them."""
        buffer = self.send
        if self.name == "broadcast":
            buffer = self.receive if rank == self.root else None
        if buffer is not None:
            return [buffer]
        return [buffer for buffer, _ in self.sends] * self.window

    def written(self, rank: int) -> list[Buffer]:
        """Return the buffers that ``rank`` writes, as often as it receives into them."""
        if self.name == "broadcast" and rank == self.root:
            return []
        if self.receive is not None:
            return [self.receive]
        return [buffer for buffer, _ in self.receives] * self.window
