"""Element types, and test data whose exact result is known in each type.

Content consists of small whole numbers, exact in every type from int8 to float64 at any number of
ranks. A tile of prime length is hashed from the data's source and target rank and repeated: moving
a block, swapping two ranks or shifting by any power of two changes the content.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.collectives.layouts import Span
from commbench.errors import find_entry
from commbench.findings import UnsupportedError

#: Elements after which content repeats: prime, so that no power-of-two shift maps it onto itself.
TILE = 4093
#: Values of moved data are 1 to 101: exact even in bfloat16 (8 significant bits) and int8.
VALUES = 101
#: The most ranks that contribute to one element; all others hold the neutral element, so that no
#: type overflows.
CONTRIBUTORS = {"sum": 8, "min": 8, "max": 8, "prod": 6, "avg": 1}
NEUTRAL = {"sum": 0, "min": 120, "max": -120, "prod": 1, "avg": 0}

Values = NDArray[np.float64]
Raw = NDArray[np.generic]


@dataclass(frozen=True, kw_only=True)
class DataType:
    """An element type: its name in torch, its size in bytes and how values are stored in host
    memory.
    """

    name: str
    itemsize: int
    storage: str
    """numpy type of the raw memory; bfloat16, which numpy lacks, is kept as uint16."""
    epsilon: float = 0.0
    """Distance from 1 to the next value; 0 for whole numbers."""
    nccl_name: str
    """Its name in nccl-tests."""
    mpi_name: str = ""
    """Its name in OSU's and Intel's benchmarks; empty if they lack it."""

    def encode(self, values: Values) -> Raw:
        """Return raw memory, shape of ``values``, for values that are exact in this type."""
        if self.name == "bfloat16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(self.storage)

    def decode(self, raw: Any) -> Any:
        """Return values as float64, shape of ``raw``."""
        if hasattr(raw, "double"):  # a tensor, which knows its type
            return raw.double()
        if self.name == "bfloat16":
            return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return raw.astype(np.float64)


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DataType(
            name="float64",
            itemsize=8,
            storage="float64",
            epsilon=2.0**-52,
            nccl_name="double",
            mpi_name="MPI_DOUBLE",
        ),
        DataType(
            name="float32",
            itemsize=4,
            storage="float32",
            epsilon=2.0**-23,
            nccl_name="float",
            mpi_name="MPI_FLOAT",
        ),
        DataType(name="float16", itemsize=2, storage="float16", epsilon=2.0**-10, nccl_name="half"),
        DataType(
            name="bfloat16", itemsize=2, storage="uint16", epsilon=2.0**-7, nccl_name="bfloat16"
        ),
        DataType(name="int32", itemsize=4, storage="int32", nccl_name="int32", mpi_name="MPI_INT"),
        DataType(name="int8", itemsize=1, storage="int8", nccl_name="int8", mpi_name="MPI_CHAR"),
    )
}


def find_dtype(name: str) -> DataType:
    """Return the data type called ``name``.

    Raises:
        InputError: there is none; the message lists the data types.
    """
    return find_entry("dtype", name, DTYPES)


@dataclass(frozen=True, kw_only=True)
class Content:
    """The known content of a buffer: raw tiles to repeat over runs of elements.

    ``tolerance`` is relative; it is 0 except for averages that no binary fraction represents
    exactly.
    """

    runs: Sequence[tuple[int, int, Raw]]
    """(offset, count, tile): elements ``offset .. offset+count`` repeat ``tile``, shape (TILE,)."""
    dtype: DataType
    tolerance: float = 0.0

    def moved(self, move: Callable[[Raw], Any]) -> Content:
        """Return the content with its tiles moved by ``move``, for example to a device."""
        return dataclasses.replace(
            self, runs=[(offset, count, move(tile)) for offset, count, tile in self.runs]
        )

    def write(self, memory: Any) -> None:
        """Fill ``memory``, a one-dimensional raw array, or a tensor if the tiles are."""
        for offset, count, tile in self.runs:
            part = memory[offset : offset + count]
            whole = count // TILE * TILE
            part[:whole].reshape(-1, TILE)[:] = tile
            part[whole:] = tile[: count - whole]

    def count_wrong(self, memory: Any) -> int:
        """Return the number of elements of ``memory`` that differ from the content."""
        wrong = 0
        for offset, count, tile in self.runs:
            part = memory[offset : offset + count]
            whole = len(part) // TILE * TILE
            wrong += self._differ(part[:whole].reshape(-1, TILE), tile)
            wrong += self._differ(part[whole:], tile[: len(part) - whole])
        return wrong

    def _differ(self, actual: Any, expected: Any) -> int:
        differs = actual != expected
        if self.tolerance:
            exact = self.dtype.decode(expected)
            differs = ~(abs(self.dtype.decode(actual) - exact) <= self.tolerance * abs(exact))
        return int(differs.sum())


@dataclass(frozen=True, kw_only=True)
class KnownData:
    """Makes the known content of buffers for one case: moved data, or a reduction over ``size``
    ranks.

    Raises:
        UnsupportedError: no exact answer exists (an average of whole numbers).
    """

    dtype: DataType
    size: int
    redop: str | None
    members: Sequence[int] = ()
    """The numbers by which the ranks' moved data differ; empty: as the ranks count."""

    def __post_init__(self) -> None:
        if self.redop == "avg" and not self.dtype.epsilon:
            raise UnsupportedError("average_inexact", dtype=self.dtype.name)

    def content(self, spans: Sequence[Span], *, cancelling: bool = False) -> Content:
        """Return the content of a send buffer before the operation, or of a receive buffer after
        it.

        ``cancelling``: inputs whose sum, product or average over ranks is neutral, for repeated
        in-place reductions. For each element one rank holds a value, the next rank its inverse,
        and all others the neutral element. A span's ``target`` reduces its own buffer again in
        each repetition and therefore holds the neutral element. With fewer than two other ranks
        all elements are neutral.
        """
        tolerance = 0.0
        if self.redop == "avg" and self.size & (self.size - 1):  # no power of two
            tolerance = 2 * self.dtype.epsilon
        runs = []
        for span in spans:
            values = self._cancelling_tile(span) if cancelling else self._tile(span)
            tile = np.roll(self.dtype.encode(values), -span.start)
            runs.append((span.offset, span.count, tile))
        return Content(runs=runs, dtype=self.dtype, tolerance=tolerance)

    def neutral(self, count: int) -> Content:
        """Return ``count`` elements that any number of in-place reductions leave unchanged, for
        timed loops.
        """
        tile = self.dtype.encode(np.full(TILE, float(NEUTRAL[self.redop or "sum"])))
        return Content(runs=[(0, count, tile)], dtype=self.dtype)

    def _cancelling_tile(self, span: Span) -> Values:
        neutral = np.full(TILE, float(NEUTRAL[self.redop or "sum"]))
        rank, others = span.source or 0, self.size - (span.target < self.size)
        if rank == span.target or others < 2:  # a pair
            return neutral
        distance = (rank - (rank > span.target) - _first_contributor(others)) % others
        values = _moved_tile(0, 0)
        inverse = -values
        if self.redop == "prod":
            values = inverse = np.full(TILE, -1.0)
        return np.where(distance == 0, values, np.where(distance == 1, inverse, neutral))

    def _tile(self, span: Span) -> Values:
        if self.redop is None:
            source = span.source or 0
            if self.members:
                source = self.members[source]
            return _moved_tile(source, span.target)
        if span.source is None:
            return _reduced_tile(self.redop, self.size)
        return _contribution_tile(self.redop, self.size, span.source)


def _hash(*words: int) -> NDArray[np.uint32]:
    """Return TILE hashed numbers, by MurmurHash3's finaliser over each of ``words`` in turn."""
    state: NDArray[np.uint32] = np.arange(1, TILE + 1, dtype=np.uint32)
    for word in words:
        state ^= np.uint32((word * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFFFFFF)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
            state ^= state >> np.uint32(shift)
            state *= np.uint32(factor)
    return state


@lru_cache(maxsize=256)
def _moved_tile(source: int, target: int) -> Values:
    return (_hash(1, source, target) % VALUES + 1).astype(np.float64)


def _first_contributor(size: int) -> NDArray[np.int64]:
    return (_hash(2) % size).astype(np.int64)


@lru_cache(maxsize=64)
def _contribution_tile(redop: str, size: int, rank: int) -> Values:
    """Return the contribution of ``rank``: sums of 8 stay within 8 * 13 = 104, products of 6
    within 2**6.

    For an average one rank contributes ``size`` times 1, 2, 4 or 8.
    """
    bits = _hash(3, rank)
    values: Any = bits % VALUES
    if redop == "sum":
        values = bits % 13 + 1.0
    elif redop == "prod":
        values = np.where(bits % 2, 2.0, -1.0)
    elif redop == "avg":
        values = size * 2.0 ** (bits % 4)
    distance = (rank - _first_contributor(size)) % size
    return np.where(distance < CONTRIBUTORS[redop], values, float(NEUTRAL[redop]))


_FOLD: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "prod": np.multiply,
    "avg": np.add,
}


@lru_cache(maxsize=64)
def _reduced_tile(redop: str, size: int) -> Values:
    """Return the reduction over all ranks."""
    result: Values = np.full(TILE, float(NEUTRAL[redop]))
    for rank in range(size):
        result = _FOLD[redop](result, _contribution_tile(redop, size, rank))
    if redop == "avg":
        return result / size
    return result
