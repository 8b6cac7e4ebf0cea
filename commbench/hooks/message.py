"""The message of a compressing hook for a bucket: k elements and indices, dense tensors, or matrix factors; bytes.

A payload is a byte array that collectives can carry as it is: k indices (int32), then k values (float32 or float16),
then, where k is odd and values take two bytes, two bytes of zero, so that payloads in one buffer stay aligned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from commbench.errors import InputError

ValueType: TypeAlias = Literal["float32", "float16"]

#: One more element could not be named by an int32.
LARGEST_N = 2**31 - 1


def payload_bytes(k: int, value_dtype: ValueType = "float32") -> int:
    """Bytes of a payload of ``k`` slots, a multiple of 4."""
    return 4 * k + -(-np.dtype(value_dtype).itemsize * k // 4) * 4


def check_slots(n: int, k: int, value_dtype: str) -> None:
    """Raise InputError where ``k`` of ``n`` elements cannot be sent, or not in this type."""
    if not 1 <= n <= LARGEST_N or not 1 <= k <= n:
        raise InputError(f"Cannot send {k} of {n} elements; give 1 <= k <= n < 2**31.")
    if value_dtype not in get_args(ValueType):
        raise InputError(f"Values cannot be sent as {value_dtype!r}; choose float32 or float16.")


if TYPE_CHECKING:
    from typing_extensions import Self

INDEX_BYTES = 4
Values = Literal["float32", "float16"]
VALUE_BYTES = {"float32": 4, "float16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Elements ``start`` to ``start + numel`` of a bucket, and their place in the message, in bytes.

    ``k`` of them are sent as k int32 indices (from ``start``), k values and what fills the last four bytes.
    With ``k`` 0 all are sent, as float32.
    """

    start: int
    numel: int
    k: int
    offset: int
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """The parts of one bucket's message and its length in bytes."""

    sparse: tuple[Part, ...]
    dense: tuple[Part, ...]
    nbytes: int


def check_density(hook: str, density: float) -> float:
    """Return k/n where it is in (0, 1]; raises InputError elsewhere."""
    if not 0 < density <= 1:
        raise InputError(f"Hook {hook} was given density {density:g}: it is k/n, above 0 and at most 1.")
    return density


def kept(numel: int, density: float) -> int:
    """Elements to keep of n: k = ceil(density x n), at least 1; rounding of the product does not count."""
    return min(numel, max(1, math.ceil(round(density * numel, 6))))


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What is selected: how much, over what, and which tensors are left out of it."""

    density: float
    values: Values
    scope: str
    dense_below: int
    dense_vectors: bool

    def at(self, density: float) -> Self:
        """The same at another density."""
        return replace(self, density=density)

    def message(self, shapes: Sequence[Sequence[int]]) -> Message:
        """Lay out the message of a bucket whose tensors have these shapes."""
        sparse: list[tuple[int, int, int]] = []  # start, elements, elements that count for k
        dense: list[tuple[int, int, int]] = []
        start = total = 0
        for shape in shapes:
            numel = math.prod(shape)
            if numel == 0:
                continue
            (dense if self._is_dense(shape, numel) else sparse).append((start, numel, numel))
            start += numel
        if self.scope == "bucket" and sparse:
            # One selection over the whole bucket: the tensors sent whole are zeroed first, so none is selected.
            sparse = [(0, start, sum(numel for _, numel, _ in sparse))]
        parts = []
        for first, numel, counted in sparse:
            k = kept(counted, self.density)
            nbytes = -(-k * (INDEX_BYTES + VALUE_BYTES[self.values]) // INDEX_BYTES) * INDEX_BYTES
            parts.append(Part(start=first, numel=numel, k=k, offset=total, nbytes=nbytes))
            total += nbytes
        whole = []
        for first, numel, _ in dense:
            whole.append(Part(start=first, numel=numel, k=0, offset=total, nbytes=4 * numel))
            total += 4 * numel
        return Message(sparse=tuple(parts), dense=tuple(whole), nbytes=total)

    def _is_dense(self, shape: Sequence[int], numel: int) -> bool:
        return numel < self.dense_below or (self.dense_vectors and len(shape) <= 1)


def matrix_sides(
    shape: Sequence[int], *, rank: int, min_compression_rate: float, stride: Sequence[int] = ()
) -> tuple[int, int, int] | None:
    """Rows, columns and rank of a tensor as the matrix that PowerSGD factorises; None where it is sent whole.

    Args:
        shape: of the tensor.
        rank: columns of the thin factors at most.
        min_compression_rate: it is sent whole unless it shrinks by more than this.
        stride: its memory order; empty where that is the order of its dimensions.
    """
    numel = math.prod(shape)
    if len(shape) < 2 or numel == 0:  # noqa: PLR2004 - a matrix has two sides
        return None
    outermost = max(range(len(shape)), key=lambda dim: (stride[dim], shape[dim])) if stride else 0
    rows = shape[outermost]
    columns = numel // rows
    r = min(rank, rows, columns)
    return (rows, columns, r) if numel > min_compression_rate * r * (rows + columns) else None
