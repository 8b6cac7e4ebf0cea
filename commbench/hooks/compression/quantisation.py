"""Compiled quantisation to int8 with error feedback, on host arrays: one pass over gradient and
residual.

A block of elements is sent as one float32 scale and one int8 per element. The scale is the block's
largest magnitude divided by 127. The work goes block by block: sums and magnitudes stay in the
nearest cache until they are packed.

A payload has one row per shard: the scales of its blocks, then its int8 values (`QuantisedLayout`).
"""

# numba's decorators and the functions that it compiles are untyped
# mypy: allow-untyped-decorators, no-warn-return-any

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from commbench.system.compiling import compiled

Floats: TypeAlias = NDArray[np.float32]
Bytes: TypeAlias = NDArray[np.int8]

#: Bits of a float32's magnitude, and of 2**127: larger sums are sent as NaN, because 127 x scale
#: may overflow.
MAGNITUDE, TOO_LARGE = 0x7FFFFFFF, 0x7F000000
#: Bits of 2**-126: with a smaller scale, 1 / scale could overflow, so the block is sent as zeros.
LEAST_SCALE = 0x00800000
#: The largest int8 that is sent; -128 is not used.
STEPS = np.float32(127.0)
#: 1.5 x 2**23: adding it rounds to a whole number, ties to even, in the low bits of the sum.
ROUNDER = np.float32(12582912.0)


@compiled
def _find_largest(sums: Floats) -> np.int32:
    """Return the bits of the largest magnitude."""
    largest = np.int32(0)
    for i in range(sums.shape[0]):
        magnitude = np.float32(sums[i]).view(np.int32) & np.int32(MAGNITUDE)
        largest = max(largest, magnitude)
    return largest


@compiled
def _scale_of(largest: int) -> np.float32:
    """Return the scale of a block by its largest magnitude's bits: NaN if it cannot be sent, 0 if
    it is too small.
    """
    if largest >= TOO_LARGE:
        return np.float32(np.nan)
    scale = np.float32(np.int32(largest).view(np.float32) / STEPS)
    return scale if scale.view(np.int32) >= LEAST_SCALE else np.float32(0.0)


@compiled
def _pack(sums: Floats, scale: float, values: Bytes, errors: Floats) -> None:
    """Write the int8 values of a block and their rounding errors.

    With scale 0 or NaN all values are 0.
    """
    if not scale > 0:
        for i in range(sums.shape[0]):
            values[i] = 0
            errors[i] = sums[i]
        return
    inverse = np.float32(1.0) / np.float32(scale)
    for i in range(sums.shape[0]):
        rounded = sums[i] * inverse + ROUNDER
        values[i] = np.int8(np.float32(rounded).view(np.int32))
        errors[i] = sums[i] - (rounded - ROUNDER) * np.float32(scale)


@compiled
def _multiply(values: Bytes, scale: float, into: Floats) -> None:
    """Write value x scale for each value."""
    for i in range(values.shape[0]):
        into[i] = np.float32(values[i]) * np.float32(scale)


@compiled
def quantise(gradient: Floats, residual: Floats, block: int, shard: int, payload: Bytes) -> None:
    """Write the payload of gradient + residual; its rounding errors are the new residual.

    Args:
        gradient: shape (n,).
        residual: shape (n,), unchanged in blocks that are not finite.
        block: elements of a block.
        shard: elements of a shard.
        payload: shape (shards, row bytes).
    """
    n, blocks, scales = gradient.shape[0], -(-shard // block), payload.view(np.float32)
    scratch = np.empty(block, dtype=np.float32)
    for row in range(payload.shape[0]):
        for number in range(blocks):
            begin, most = number * block, min(shard - number * block, block)
            start, at = min(n, row * shard + begin), 4 * blocks + begin
            end = min(n, start + most)
            sums = scratch[: end - start]
            for i in range(end - start):
                sums[i] = gradient[start + i] + residual[start + i]
            scales[row, number] = scale = _scale_of(_find_largest(sums))
            packed = payload[row, at : at + most]
            packed[:] = 0
            if scale >= 0:
                _pack(sums, scale, packed[: end - start], residual[start:end])


@compiled
def combine(  # noqa: PLR0917 - numba compiles positional arguments only
    payload: Bytes,
    block: int,
    shard: int,
    divisor: float,
    rest: Floats,
    own: Bytes,
) -> None:
    """Sum one shard over the ranks, in their order, and write the payload of the sum divided by
    ``divisor``.

    Args:
        payload: shape (ranks, row bytes), a row of each rank.
        block: elements of a block.
        shard: elements of the shard.
        divisor: of the sum.
        rest: the shard's elements of the bucket, at most ``shard``: the rounding errors of the sum
            are added, except in blocks that are not finite.
        own: shape (row bytes,), written.
    """
    scales, own_scales = payload.view(np.float32), own.view(np.float32)
    blocks, scratch = -(-shard // block), np.empty(block, dtype=np.float32)
    errors = np.empty(block, dtype=np.float32)
    for number in range(blocks):
        begin = number * block
        size, at = min(shard - begin, block), 4 * blocks + begin
        sums = scratch[:size]
        _multiply(payload[0, at : at + size], scales[0, number], sums)
        for row in range(1, payload.shape[0]):
            for i in range(size):
                sums[i] += np.float32(payload[row, at + i]) * scales[row, number]
        scale = _scale_of(_find_largest(sums))
        own_scales[number] = scale / np.float32(divisor)
        _pack(sums, scale, own[at : at + size], errors)
        if scale >= 0:
            chunk_rest = rest[begin : begin + size]
            for i in range(chunk_rest.shape[0]):
                chunk_rest[i] += errors[i]


@compiled
def dequantise(payload: Bytes, block: int, shard: int, into: Floats) -> None:
    """Write the elements of a payload to ``into``, shape (n,); arguments as for `quantise`."""
    n, blocks, scales = into.shape[0], -(-shard // block), payload.view(np.float32)
    for row in range(payload.shape[0]):
        for number in range(blocks):
            begin, at = number * block, 4 * blocks + number * block
            start = min(n, row * shard + begin)
            target = into[start : min(n, start + block, (row + 1) * shard)]
            _multiply(payload[row, at : at + target.shape[0]], scales[row, number], target)
