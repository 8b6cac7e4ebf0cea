"""Layouts: what a rank's buffer holds, in words.

A layout is one of

- ``message of RANKS``, ``block of RANKS``: a message or a block of each rank's own, one after the
  other;
- ``block for RANKS``, ``block from RANKS``: this rank's block for each rank, or each rank's block
  for this one;
- ``reduction``, ``block of reduction``: the reduced message, or this rank's block of it;

and `Shape.ranks` names the ranks: ``message of left+right``. With ranks before it, only these have
it: ``root: block of all``. A semicolon separates the layouts of different ranks. An empty layout
has no elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    members: Sequence[int] = ()
    """The numbers by which the backend knows the ranks; empty: as they count here."""
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

    def number(self, rank: int) -> int:
        """Return the number by which the backend knows a rank."""
        if not self.members:
            return rank
        return self.members[rank]

    def ranks(self, names: str) -> list[int]:
        """Return the ranks that ``names`` stands for, one or several names with ``+`` between."""
        by_name = {
            "all": range(self.size),
            "self": [self.rank],
            "root": [self.root],
            "others": [rank for rank in range(self.size) if rank != self.root],
            "first": [0],
            "last": [self.last],
            "opposite": [self.last - self.rank],
            "left": [(self.rank - 1) % self.size],
            "right": [(self.rank + 1) % self.size],
        }
        return [rank for name in names.split("+") for rank in by_name[name]]


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


def spans_of(layout: str, shape: Shape) -> list[Span]:
    """Return the spans of a layout in this rank's buffer."""
    spans = []
    for held in _held(layout, shape):
        spans += _spans(held, shape)
    return spans


def count_of(layout: str, shape: Shape) -> int:
    """Return the elements of a layout in this rank's buffer."""
    return sum(span.count for span in spans_of(layout, shape))


def peers_of(words: str, shape: Shape) -> list[int]:
    """Return the ranks to which this rank sends: ``right``, or ``first: last; last: first``."""
    peers = []
    for held in _held(words, shape):
        peers += shape.ranks(held)
    return peers


def _held(words: str, shape: Shape) -> Iterator[str]:
    """Yield the parts that apply to this rank, without the ranks before them."""
    for part in filter(None, words.split("; ")):
        holders, _, held = part.rpartition(": ")
        if shape.rank in shape.ranks(holders or "all"):
            yield held


def _spans(layout: str, shape: Shape) -> list[Span]:
    block = shape.block
    if layout == "reduction":
        return [Span(offset=0, count=shape.elements, source=None)]
    if layout == "block of reduction":
        return [Span(offset=0, count=block, source=None, start=shape.rank * block)]
    what, preposition, ranks = layout.split()
    count = block if what == "block" else shape.elements
    spans = []
    for index, other in enumerate(shape.ranks(ranks)):
        source, target = other, 0
        if preposition == "for":
            source, target = shape.rank, other
        elif preposition == "from":
            target = shape.rank
        spans.append(Span(offset=index * count, count=count, source=source, target=target))
    return spans
