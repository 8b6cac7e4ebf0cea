"""The primitives of a backend, from which operations are composed, and their buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from commbench.findings import UnsupportedError

BufferT = TypeVar("BufferT")
CallT_co = TypeVar("CallT_co", covariant=True)
Ends = Sequence[tuple[BufferT, int]]
"""Buffers, each with the rank that it goes to or comes from."""


class Primitives(ABC, Generic[BufferT, CallT_co]):
    """The primitives of a backend: each returns a prepared call that can be repeated.

    Each backend has its own type of buffers. It overrides the primitives that it has; others raise
    `UnsupportedError`.
    """

    backend: str
    rank: int
    size: int

    def all_reduce(self, send: BufferT, receive: BufferT, redop: str) -> CallT_co:  # noqa: ARG002
        raise self._cannot("all_reduce")

    def all_gather(self, send: BufferT, receive: BufferT) -> CallT_co:  # noqa: ARG002
        raise self._cannot("all_gather")

    def reduce_scatter(self, send: BufferT, receive: BufferT, redop: str) -> CallT_co:  # noqa: ARG002
        raise self._cannot("reduce_scatter")

    def all_to_all(self, send: BufferT, receive: BufferT) -> CallT_co:  # noqa: ARG002
        raise self._cannot("all_to_all")

    def broadcast(self, buffer: BufferT, root: int) -> CallT_co:  # noqa: ARG002
        raise self._cannot("broadcast")

    def reduce(self, send: BufferT, receive: BufferT | None, redop: str, root: int) -> CallT_co:  # noqa: ARG002
        raise self._cannot("reduce")

    def gather(self, send: BufferT, receive: BufferT | None, root: int) -> CallT_co:  # noqa: ARG002
        raise self._cannot("gather")

    def scatter(self, send: BufferT | None, receive: BufferT, root: int) -> CallT_co:  # noqa: ARG002
        raise self._cannot("scatter")

    def iall_reduce(self, send: BufferT, receive: BufferT, redop: str) -> Sequence[CallT_co]:  # noqa: ARG002
        """Return the start and the completion."""
        raise self._cannot("non-blocking all_reduce")

    def iall_gather(self, send: BufferT, receive: BufferT) -> Sequence[CallT_co]:  # noqa: ARG002
        """Return the start and the completion."""
        raise self._cannot("non-blocking all_gather")

    def barrier(self) -> CallT_co:
        raise self._cannot("barrier")

    def send(self, buffer: BufferT, peer: int) -> CallT_co:  # noqa: ARG002
        raise self._cannot("send")

    def receive(self, buffer: BufferT, peer: int) -> CallT_co:  # noqa: ARG002
        raise self._cannot("receive")

    def send_receive(self, send: BufferT, target: int, receive: BufferT, source: int) -> CallT_co:  # noqa: ARG002
        raise self._cannot("send_receive")

    def exchange_window(
        self,
        sends: Ends[BufferT],  # noqa: ARG002
        receives: Ends[BufferT],  # noqa: ARG002
        window: int,  # noqa: ARG002
    ) -> CallT_co:
        """Post ``window`` receives and sends with each of the peers, then wait for all."""
        raise self._cannot("a window of messages")

    @abstractmethod
    def empty(self) -> BufferT:
        """Return a buffer without elements, for acknowledgements."""

    @abstractmethod
    def part(self, buffer: BufferT, offset: int, count: int) -> BufferT:
        """Return ``count`` elements of ``buffer`` from ``offset`` on: the same memory."""

    @abstractmethod
    def like(self, buffer: BufferT, count: int) -> BufferT:
        """Return a new buffer of ``count`` elements of the type of ``buffer``."""

    def _cannot(self, what: str) -> UnsupportedError:
        return UnsupportedError("missing", backend=self.backend, what=what)


@dataclass(frozen=True, kw_only=True)
class Buffers(Generic[BufferT]):
    """The buffers of one rank.

    In place, ``send`` and ``receive`` are (parts of) the same memory.
    """

    send: BufferT | None
    receive: BufferT | None
