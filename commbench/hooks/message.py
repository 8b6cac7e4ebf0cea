"""Messages of a hook for a bucket: the collectives with their sizes, and the layout of a sparse
payload in bytes.

A payload is a byte array that collectives send unchanged: k indices (int32), then k values (float32
or float16). If k is odd and values take two bytes, two bytes of zero follow, so that payloads in
one buffer stay aligned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from commbench.collectives.datatypes import DTYPES
from commbench.errors import InputError, check_choice

if TYPE_CHECKING:
    from typing_extensions import Self

ValueType: TypeAlias = Literal["float32", "float16"]
Scope: TypeAlias = Literal["bucket", "parameter"]
Exchange: TypeAlias = Literal["gather", "aligned"]
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

    elements: int
    world_size: int
    shapes: Shapes | None = None
    """None: only the number of elements is known."""
    dtype: str = "float32"
    """Type of the gradients; hooks that select elements take only float32."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One collective that a hook issues for a bucket."""

    operation: Literal["all_reduce", "all_gather", "all_to_all"]
    dtype: str
    """Type of the elements that are summed; other operations sum none, so their ``float32`` has
    no meaning."""
    message_bytes: float
    """Size as in ``collectives.csv``: all_gather and all_to_all count the parts of all ranks."""


def sent_bytes(messages: Sequence[Message], world_size: int) -> int:
    """Return the bytes that one rank sends in theory for these messages.

    An all_reduce is a ring, see `ring_bytes`. In an all_gather a rank sends its part once for every
    other rank; in an all_to_all it sends every other rank one part.
    """
    reduced = sum(
        message.message_bytes for message in messages if message.operation == "all_reduce"
    )
    moved = sum(message.message_bytes for message in messages if message.operation != "all_reduce")
    return round(ring_bytes(reduced, world_size) + (world_size - 1) * moved / world_size)


def ring_bytes(nbytes: float, world_size: int) -> float:
    """Return the bytes that one rank sends in a ring all-reduce: 2 (p-1)/p of them (Patarasuk and
    Yuan, 2009).
    """
    return 2 * (world_size - 1) * nbytes / world_size


def dense_messages(bucket: BucketShape, *, dtype: str | None = None) -> tuple[Message, ...]:
    """Return one all_reduce of every element, as ``dtype``; None: in the type of the gradients."""
    return (_all_reduce(bucket.elements, dtype or bucket.dtype),)


def top_k_messages(bucket: BucketShape, selection: Selection) -> tuple[Message, ...]:
    """Return one all_gather of payloads and tensors sent whole.

    One all_reduce if all tensors are sent whole.
    """
    payload = selection.layout([(bucket.elements, 1)] if bucket.shapes is None else bucket.shapes)
    if not payload.sparse:
        return (_all_reduce(bucket.elements),)
    gathered = bucket.world_size * payload.nbytes
    return (Message(operation="all_gather", dtype="float32", message_bytes=gathered),)


def aligned_messages(bucket: BucketShape, *, density: float, chunk: int) -> tuple[Message, ...]:
    """Return two all_reduces: the norms of all chunks, then the values of the chosen chunks."""
    layout = ChunkLayout.of(bucket.elements, density=density, chunk=chunk)
    return (_all_reduce(layout.chunks), _all_reduce(layout.sent_chunks * layout.chunk))


def quantised_messages(bucket: BucketShape, *, block: int) -> tuple[Message, ...]:
    """Return the two halves of a quantised all-reduce: an all_to_all of shards, and an all_gather
    of their sums.
    """
    layout = QuantisedLayout.of(bucket.elements, shards=bucket.world_size, block=block)
    nbytes = bucket.world_size * layout.row_bytes
    return (
        Message(operation="all_to_all", dtype="float32", message_bytes=nbytes),
        Message(operation="all_gather", dtype="float32", message_bytes=nbytes),
    )


def power_sgd_messages(
    bucket: BucketShape, *, rank: int, min_compression_rate: float, values: str = "float32"
) -> tuple[Message, ...]:
    """Return two all_reduces: the left factors with all tensors that are sent whole, then the right
    factors.

    Without shapes the bucket counts as one square matrix.
    """
    side = max(1, math.isqrt(bucket.elements))
    left = right = 0
    for shape in (
        [(side, max(1, bucket.elements // side))] if bucket.shapes is None else bucket.shapes
    ):
        factors = matrix_factors(shape, rank=rank, min_compression_rate=min_compression_rate)
        left += factors.rows * factors.rank if factors else math.prod(shape)
        right += factors.columns * factors.rank if factors else 0
    return (_all_reduce(left, values), *([_all_reduce(right, values)] if right else []))


def _all_reduce(elements: int, dtype: str = "float32") -> Message:
    return Message(
        operation="all_reduce", dtype=dtype, message_bytes=elements * DTYPES[dtype].itemsize
    )


# ---------------------------------------------------------------------------------- sparse payloads


def payload_bytes(k: int, value_dtype: ValueType = "float32") -> int:
    """Return the bytes of a payload of ``k`` slots, a multiple of 4."""
    return INDEX_BYTES * k + -(-np.dtype(value_dtype).itemsize * k // 4) * 4


def check_slots(n: int, k: int, value_dtype: str) -> None:
    """Raise InputError if ``k`` of ``n`` elements cannot be sent, or not in this type."""
    if not 1 <= n <= LARGEST_N or not 1 <= k <= n:
        raise InputError(f"Cannot send {k} of {n} elements; give 1 <= k <= n < 2**31.")
    check_choice("type of sent values", value_dtype, get_args(ValueType))


def check_density(hook: str, density: float) -> float:
    """Return k/n; raise InputError if it is outside (0, 1]."""
    if not 0 < density <= 1:
        raise InputError(
            f"Hook {hook} was given density {density:g}: it is k/n, above 0 and at most 1."
        )
    return density


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
class Selection:
    """The selection of top-k: the density, the scope, and the tensors that are sent whole."""

    density: float
    values: ValueType = "float32"
    scope: Scope = "bucket"
    dense_below: int = 0
    dense_vectors: bool = False

    def at(self, density: float) -> Self:
        """Return the same selection at another density."""
        return replace(self, density=density)

    def layout(self, shapes: Shapes) -> PayloadLayout:
        """Lay out the message of a bucket whose tensors have these shapes."""
        sparse: list[tuple[int, int, int]] = []  # start, elements, elements that count for k
        dense: list[tuple[int, int]] = []  # start, elements
        start = offset = 0
        for shape in shapes:
            numel = math.prod(shape)
            if numel == 0:
                continue
            if self._is_dense(shape, numel):
                dense.append((start, numel))
            else:
                sparse.append((start, numel, numel))
            start += numel
        if self.scope == "bucket" and sparse:
            # One selection over the whole bucket: the tensors sent whole are zeroed first, so none
            # is selected.
            sparse = [(0, start, sum(numel for _, numel, _ in sparse))]
        sparse_parts, dense_parts = [], []
        for first, numel, count in sparse:
            k = kept_elements(count, self.density)
            nbytes = payload_bytes(k, self.values)
            sparse_parts.append(
                PayloadPart(start=first, numel=numel, k=k, offset=offset, nbytes=nbytes)
            )
            offset += nbytes
        for first, numel in dense:
            nbytes = FLOAT32_BYTES * numel
            dense_parts.append(
                PayloadPart(start=first, numel=numel, k=0, offset=offset, nbytes=nbytes)
            )
            offset += nbytes
        return PayloadLayout(sparse=tuple(sparse_parts), dense=tuple(dense_parts), nbytes=offset)

    def _is_dense(self, shape: Sequence[int], numel: int) -> bool:
        return numel < self.dense_below or (self.dense_vectors and len(shape) <= 1)


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
        """Return the elements of the bucket that belong to a shard."""
        return slice(
            min(shard * self.shard, self.elements), min((shard + 1) * self.shard, self.elements)
        )


def check_length(hook: str, option: str, elements: int) -> int:
    """Return the number of elements that an option gives; raise InputError if it is below 1."""
    if elements < 1:
        raise InputError(
            f"Hook {hook} was given {option} {elements}: it is a number of elements, at least 1."
        )
    return elements


# ----------------------------------------------------------------------------------- matrix factors


class MatrixFactors(NamedTuple):
    """A tensor as the matrix that PowerSGD factorises: factors of shapes (rows, rank) and (columns,
    rank).
    """

    rows: int
    columns: int
    rank: int


def matrix_factors(
    shape: Sequence[int], *, rank: int, min_compression_rate: float, stride: Sequence[int] = ()
) -> MatrixFactors | None:
    """Return the factors of a tensor; None if it is sent whole.

    Args:
        shape: of the tensor.
        rank: the largest number of columns of the factors.
        min_compression_rate: the tensor is sent whole unless it shrinks by more than this.
        stride: the tensor's memory order; empty: the order of its dimensions.
    """
    numel = math.prod(shape)
    if len(shape) < 2 or numel == 0:  # noqa: PLR2004 - a matrix has two sides
        return None
    outermost = max(range(len(shape)), key=lambda dim: (stride[dim], shape[dim])) if stride else 0
    rows = shape[outermost]
    columns = numel // rows
    r = min(rank, rows, columns)
    return (
        MatrixFactors(rows, columns, r)
        if numel > min_compression_rate * r * (rows + columns)
        else None
    )
