"""What a buffer holds: ranges of elements of known ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The ranks and the message size of one group: the arguments of an entry's rules for
    buffers.
    """

    rank: int
    size: int
    elements: int
    """Elements of the message: the larger of the send and the receive buffer of any rank."""
    root: int = 0
    window: int = 1
    parts: Sequence[Any] = ()
    """For each of the operation's `divisions`, the communicator of this rank's group."""

    @property
    def block(self) -> int:
        """One rank's share of the message, in elements."""
        return self.elements // self.size

    @property
    def last(self) -> int:
        """The highest rank, the far end of a point-to-point pair."""
        return self.size - 1

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root of a rooted operation."""
        return self.rank == self.root


@dataclass(frozen=True, kw_only=True)
class Span:
    """A range of elements with known content: data from ``source`` for ``target``, or part of a
    reduction.

    ``offset`` and ``count`` are in elements of the buffer; ``start`` is where the span begins
    within the source's data. ``source`` None means the reduction over all ranks.
    """

    offset: int
    count: int
    source: int | None
    target: int = 0
    start: int = 0
