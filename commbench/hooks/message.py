"""Messages of a hook for a bucket: the collectives with their sizes, and the layout of a sparse
payload in bytes.

A payload is a byte array that collectives send unchanged: k indices (int32), then k values (float32
or float16). If k is odd and values take two bytes, two bytes of zero follow, so that payloads in
one buffer stay aligned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from typing_extensions import Self

from commbench.collectives.datatypes import DTYPES

ValueType: TypeAlias = Literal["float32", "float16"]
#: The shape of each tensor of a bucket, in the order of the bucket.
Shapes: TypeAlias = Sequence[Sequence[int]]

#: int32 cannot number more elements.
LARGEST_N = 2**31 - 1
INDEX_BYTES = 4
#: Bytes of an element that is sent without compression.
FLOAT32_BYTES = 4
#: The length of a shard of a quantised bucket is a multiple of it.
SHARD_ALIGNMENT = 4


# -------------------------------------------------------------------------------------- collectives


@dataclass(frozen=True, kw_only=True)
class BucketShape:
    """The properties of a bucket of gradients that determine the size of its messages."""

    shapes: Shapes
    world_size: int
    dtype: str = "float32"
    """Type of the gradients; hooks that select elements take only float32."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return sum(map(math.prod, self.shapes))


@dataclass(frozen=True, kw_only=True)
class Message:
    """One collective that a hook issues for a bucket."""

    operation: Literal["all_reduce", "all_gather", "all_to_all"]
    dtype: str
    """Type of the elements that are summed; other operations sum none, so their ``float32`` has
    no meaning."""
    message_bytes: float
    """Size as in ``collectives.csv``: all_gather and all_to_all count the parts of all ranks."""


def ring_bytes(nbytes: float, world_size: int) -> float:
    """Return the bytes that one rank sends in a ring all-reduce: 2 (p-1)/p of them (Patarasuk and
    Yuan, 2009).
    """
    return 2 * (world_size - 1) * nbytes / world_size


def all_reduce(elements: int, dtype: str = "float32") -> Message:
    """Return one all_reduce of that number of elements."""
    return Message(
        operation="all_reduce", dtype=dtype, message_bytes=elements * DTYPES[dtype].itemsize
    )


# ---------------------------------------------------------------------------------- sparse payloads


def payload_bytes(k: int, value_dtype: ValueType) -> int:
    """Return the bytes of a payload of ``k`` slots, a multiple of 4."""
    return INDEX_BYTES * k + -(-np.dtype(value_dtype).itemsize * k // 4) * 4


def kept_elements(numel: int, density: float) -> int:
    """Return how many of n elements are sent: k = ceil(density x n), at least 1, despite the
    product's rounding.
    """
    return min(numel, max(1, math.ceil(round(density * numel, 6))))


@dataclass(frozen=True, kw_only=True, slots=True)
class PayloadPart:
    """Elements ``start`` to ``start + numel`` of a bucket, and their place in the message, in
    bytes.

    ``k`` elements are sent as k int32 indices (counted from ``start``), k values and padding to a
    multiple of 4 bytes. If ``k`` is 0, all are sent as float32.
    """

    start: int
    numel: int
    k: int
    offset: int
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PayloadLayout:
    """The parts of one bucket's message and its length in bytes."""

    sparse: tuple[PayloadPart, ...]
    dense: tuple[PayloadPart, ...]
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkLayout:
    """The chunks of a bucket in aligned top-k; only the last chunk may reach beyond the bucket."""

    elements: int
    chunk: int
    """Elements of a chunk."""
    chunks: int
    sent_chunks: int
    """Chunks that are sent."""

    @classmethod
    def of(cls, elements: int, *, density: float, chunk: int) -> Self:
        """Return the layout of a bucket; a bucket shorter than ``chunk`` is one chunk."""
        chunk = max(1, min(chunk, elements))
        chunks = -(-elements // chunk)
        return cls(
            elements=elements,
            chunk=chunk,
            chunks=chunks,
            sent_chunks=kept_elements(chunks, density),
        )


# ------------------------------------------------------------------------------- quantised payloads


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantisedLayout:
    """The payload of a bucket in int8: one row per shard, with a float32 scale per block and then
    int8 values.

    Shards are equal and a multiple of 4 elements long, so that rows are aligned; the last ones may
    be partly or wholly beyond the bucket. The last block of a shard may be shorter than the others.
    """

    elements: int
    shards: int
    shard: int
    """Elements of a shard."""
    block: int
    """Elements that share a scale."""

    @classmethod
    def of(cls, elements: int, *, shards: int, block: int) -> Self:
        """Return the layout of a bucket for that number of ranks."""
        shard = SHARD_ALIGNMENT * max(1, -(-elements // (SHARD_ALIGNMENT * shards)))
        return cls(elements=elements, shards=shards, shard=shard, block=min(block, shard))

    @property
    def blocks(self) -> int:
        """Blocks of a shard."""
        return -(-self.shard // self.block)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return FLOAT32_BYTES * self.blocks + self.shard

    def span(self, shard: int) -> slice:
        """Return the elements of a shard, which may end beyond the bucket."""
        return slice(shard * self.shard, (shard + 1) * self.shard)
