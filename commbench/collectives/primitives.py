"""The primitives of a backend, from which operations are composed, and their buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from commbench.findings import UnsupportedError

BufferT = TypeVar("BufferT")
CallT_co = TypeVar("CallT_co", covariant=True)
Ends = Sequence[tuple[BufferT, int]]
"""Buffers, each with the rank that it goes to or comes from."""


@dataclass(frozen=True)
class Request(Generic[BufferT]):
    """A primitive with its arguments, of which each primitive uses some.

    A collective has ``send`` and ``receive``; ``broadcast`` has ``receive`` only. ``send``,
    ``receive``, ``send_receive`` and ``window`` have ``sends`` and ``receives``. A window posts
    ``window`` messages with each peer, then waits for all.
    """

    name: str
    send: BufferT | None = None
    receive: BufferT | None = None
    redop: str = ""
    root: int = 0
    sends: Ends[BufferT] = ()
    receives: Ends[BufferT] = ()
    window: int = 1

    @property
    def buffers(self) -> list[BufferT]:
        """The send and the receive buffer of a collective, as far as this rank has them."""
        return [buffer for buffer in (self.send, self.receive) if buffer is not None]

    def mapped(self, function: Callable[[BufferT], Any]) -> Request[Any]:
        """Return the request with ``function`` of each buffer in its place."""
        send, receive = self.send, self.receive
        if send is not None:
            send = function(send)
        if receive is not None:
            receive = function(receive)
        sends = [(function(buffer), peer) for buffer, peer in self.sends]
        receives = [(function(buffer), peer) for buffer, peer in self.receives]
        return replace(self, send=send, receive=receive, sends=sends, receives=receives)

    def among(self, ranks: Sequence[int]) -> Request[BufferT]:
        """Return the request with the rank of ``ranks`` at each peer's number in its place."""
        sends = [(buffer, ranks[peer]) for buffer, peer in self.sends]
        receives = [(buffer, ranks[peer]) for buffer, peer in self.receives]
        return replace(self, sends=sends, receives=receives)

    def read(self, rank: int) -> list[BufferT]:
        """Return the buffers that ``rank`` reads, as often as it sends them."""
        if self.name == "broadcast":
            return self.buffers[-1:] if rank == self.root else []
        if self.send is not None:
            return [self.send]
        return [buffer for buffer, _ in self.sends] * self.window

    def written(self, rank: int) -> list[BufferT]:
        """Return the buffers that ``rank`` writes, as often as it receives into them."""
        if self.name == "broadcast" and rank == self.root:
            return []
        if self.receive is not None:
            return [self.receive]
        return [buffer for buffer, _ in self.receives] * self.window


class Primitives(ABC, Generic[BufferT, CallT_co]):
    """The primitives of a backend, which has its own type of buffers."""

    backend: str
    rank: int
    size: int

    def call(self, request: Request[BufferT]) -> CallT_co:
        """Return a prepared call that can be repeated.

        Raises:
            UnsupportedError: the backend lacks the primitive.
        """
        return _old(self, request, request.name)

    def begin(self, request: Request[BufferT]) -> Sequence[CallT_co]:
        """Return the start and the completion of a non-blocking collective.

        Raises:
            UnsupportedError: the backend lacks the primitive.
        """
        return _old(self, request, f"i{request.name}")

    @abstractmethod
    def empty(self) -> BufferT:
        """Return a buffer without elements, for acknowledgements."""

    @abstractmethod
    def allocate(self, dtype: Any, count: int) -> BufferT:  # noqa: ANN401 - a DataType, which datatypes.py defines
        """Return a buffer of ``count`` elements."""

    def _cannot(self, what: str) -> UnsupportedError:
        return UnsupportedError("missing", backend=self.backend, what=what)


@dataclass(frozen=True, kw_only=True)
class Buffers(Generic[BufferT]):
    """The buffers of one rank.

    In place, ``send`` and ``receive`` are (parts of) the same memory.
    """

    send: BufferT | None
    receive: BufferT | None


def _old(backend: Any, request: Request[Any], name: str) -> Any:
    """Call the primitive of a backend that is not yet asked by a request."""
    words = {
        "all_reduce": (request.send, request.receive, request.redop),
        "reduce_scatter": (request.send, request.receive, request.redop),
        "all_gather": (request.send, request.receive),
        "all_to_all": (request.send, request.receive),
        "broadcast": (request.receive, request.root),
        "reduce": (request.send, request.receive, request.redop, request.root),
        "gather": (request.send, request.receive, request.root),
        "scatter": (request.send, request.receive, request.root),
        "iall_reduce": (request.send, request.receive, request.redop),
        "iall_gather": (request.send, request.receive),
        "barrier": (),
        "send": (*request.sends,)[:1] and request.sends[0],
        "receive": (*request.receives,)[:1] and request.receives[0],
        "send_receive": [x for end in (*request.sends, *request.receives) for x in end],
        "window": (request.sends, request.receives, request.window),
    }[name]
    method = getattr(backend, {"window": "exchange_window"}.get(name, name), None)
    if method is None:
        raise backend._cannot(f"non-blocking {name[1:]}" if name.startswith("i") else name)
    return method(*words)
