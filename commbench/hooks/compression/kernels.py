"""The compiled loops of top-k: exact selection of elements in two passes without sorting, and of
chunks.

The elements are divided into blocks of up to 32. The k-th largest of the blocks' maxima is the
threshold. At least k elements reach it, one in each of k blocks, and fewer than k blocks hold an
element above it. So the elements above the threshold are few: 1.2 k at a density of 1 % if large
elements are scattered, and never 32 k. They contain the k largest elements, except elements equal
to the threshold. All further work is on these few.

Elements are compared by the bits of their magnitude, which order floats as absolute values do.
Denormals and ties are exact, and infinity and NaN are above everything finite.

All kernels are in one file because numba's cache does not detect a change in another file.
"""

# numba's decorators and the functions that it compiles are untyped
# mypy: allow-untyped-decorators, no-warn-return-any

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from commbench.system.compiling import compiled

Floats: TypeAlias = NDArray[np.float32]
Words: TypeAlias = NDArray[np.int32]

#: `select` returns this if an element is not finite.
NOT_FINITE = -1
#: A block is a column of a matrix with this number of columns: comparisons work on whole vectors,
#: and the maxima stay in the nearest cache.
COLUMNS = 512
#: More rows mean fewer maxima to search. More blocks per slot keep the threshold closer to the k-th
#: element.
MOST_ROWS, BLOCKS_PER_SLOT = 32, 2
#: Elements that are added and then compared while they are in the nearest cache.
CHUNK = 4096
#: Elements whose marks, a byte each, are one word: most words are 0 and are skipped.
GROUP = 8
#: Radix selection looks at 11, 10 and 10 bits: (shift, width).
DIGITS = ((20, 11), (10, 10), (0, 10))
#: Copies of each counter, so that counting equal elements does not wait for the previous count.
COPIES = 4

#: Words of float32: all but the sign, and infinity.
MAGNITUDE, INFINITY = 0x7FFFFFFF, 0x7F800000


# ------------------------------------------------------------------------------------------- select


@compiled
def _magnitude(value: float) -> np.int32:
    """Return the bits of a float32 without its sign.

    numba widens the result of an operation on int32 to int64, which would not be vectorised.
    """
    return np.int32(np.float32(value).view(np.int32) & np.int32(MAGNITUDE))


@compiled
def _raise_to(largest: Words, gradient: Floats, residual: Floats) -> None:
    """Take the larger magnitude of each pair, of gradient + residual."""
    for i in range(largest.shape[0]):
        largest[i] = max(largest[i], _magnitude(gradient[i] + residual[i]))


@compiled
def _find_maxima(gradient: Floats, residual: Floats, rows: int) -> Words:
    """Return the largest magnitude of gradient + residual in each block.

    Elements that do not fill a matrix are blocks of their own.
    """
    size = rows * COLUMNS
    whole = gradient.shape[0] // size * size
    maxima = np.empty(whole // rows + gradient.shape[0] - whole, dtype=np.int32)
    for start in range(0, whole, size):
        largest = maxima[start // rows : start // rows + COLUMNS]
        largest[:] = 0
        for row in range(start, start + size, COLUMNS):
            _raise_to(largest, gradient[row : row + COLUMNS], residual[row : row + COLUMNS])
    for i in range(whole, gradient.shape[0]):
        maxima[whole // rows + i - whole] = _magnitude(gradient[i] + residual[i])
    return maxima


@compiled
def _find_kth(magnitudes: Words, k: int) -> tuple[int, int]:
    """Return the k-th largest magnitude, by radix selection, and how many of the k largest are
    equal to it.
    """
    candidates = np.empty_like(magnitudes)
    histogram = np.empty((1 << DIGITS[0][1], COPIES), dtype=np.int32)
    rest, prefix = magnitudes, 0
    for shift, width in DIGITS:
        last = (1 << width) - 1
        histogram[:] = 0
        for i in range(rest.shape[0]):
            histogram[(rest[i] >> shift) & last, i % COPIES] += 1
        digit = last
        count = histogram[digit].sum()
        while count < k:
            k -= count
            digit -= 1
            count = histogram[digit].sum()
        prefix = (prefix << width) | digit
        kept = 0
        for i in range(rest.shape[0]):
            magnitude = rest[i]
            candidates[kept] = magnitude  # the next one overwrites it unless it is counted
            kept += ((magnitude >> shift) & last) == digit
        rest = candidates[:kept]
    return prefix, k


@compiled
def _mark(gradient: Floats, values: Floats, level: int, marks: NDArray[np.uint8]) -> None:
    """Add the gradient to ``values``; write whether each magnitude is above ``level``.

    The comparisons are made while the additions wait for memory.
    """
    for i in range(values.shape[0]):
        values[i] += gradient[i]
        marks[i] = _magnitude(values[i]) > level


@compiled
def _collect(
    gradient: Floats, residual: Floats, level: int, positions: Words, magnitudes: Words
) -> int:
    """Add the gradient to the residual.

    Write ``positions`` and ``magnitudes`` of the elements of the sum that are above ``level``, and
    return their number.
    """
    threshold = np.int32(level)
    words = residual.view(np.int32)
    marks = np.zeros(CHUNK, dtype=np.uint8)
    groups = marks.view(np.uint64)
    marked_groups = np.empty(groups.shape[0], dtype=np.int32)
    above = 0
    for start in range(0, residual.shape[0], CHUNK):
        end = min(start + CHUNK, residual.shape[0])
        marks[end - start :] = 0
        _mark(gradient[start:end], residual[start:end], threshold, marks)
        marked, before = 0, above
        for group in range(groups.shape[0]):
            marked_groups[marked] = group  # the next one overwrites it unless it is counted
            marked += groups[group] != 0
        for group in marked_groups[:marked]:
            for i in range(group * GROUP, group * GROUP + GROUP):
                positions[above] = start + i  # overwritten, too, unless the element is counted
                above += marks[i]
        for j in range(before, above):
            magnitudes[j] = words[positions[j]] & MAGNITUDE
    return above


@compiled
def _take_ties(words: Words, level: int, ties: Words) -> None:
    """Fill ``ties`` with the positions of the first magnitudes that are equal to ``level``."""
    position = 0
    for slot in range(ties.shape[0]):
        while (words[position] & MAGNITUDE) != level:
            position += 1
        ties[slot] = position
        position += 1


@compiled
def _choose(positions: Words, magnitudes: Words, chosen: Words) -> None:
    """Fill ``chosen`` from ``positions``, at least as many."""
    k = chosen.shape[0]
    level, _ = _find_kth(magnitudes, k)
    taken = 0
    for i in range(positions.shape[0]):
        chosen[taken] = positions[i]  # the next one overwrites it unless it is counted
        taken += magnitudes[i] > level
    _take_ties(magnitudes, level, chosen[taken:])
    for i in range(taken, k):
        chosen[i] = positions[chosen[i]]


@compiled
def select(gradient: Floats, residual: Floats, chosen: Words) -> int:
    """Fill ``chosen`` with the positions of the largest elements of gradient + residual, ties last.

    Args:
        gradient: shape (n,).
        residual: shape (n,), becomes gradient + residual, but is unchanged if one is not finite.
        chosen: shape (k,); of equal elements the first ones are chosen.

    Returns:
        How many of ``chosen`` are valid: k, or the number of nonzero elements if they are fewer;
            NOT_FINITE if an element is not finite.
    """
    n, k, rows = gradient.shape[0], chosen.shape[0], MOST_ROWS
    while rows > 1 and rows * BLOCKS_PER_SLOT * k > n:
        rows //= 2
    maxima = _find_maxima(gradient, residual, rows)
    if maxima.max() >= INFINITY:
        return NOT_FINITE
    level, _ = _find_kth(maxima, k)
    room = min(n, k * rows) + GROUP  # whole groups are written
    positions, magnitudes = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32)
    above = _collect(gradient, residual, level, positions, magnitudes)
    if above >= k:
        _choose(positions[:above], magnitudes[:above], chosen)
        return k
    chosen[:above] = positions[:above]
    if level == 0:
        return above
    _take_ties(residual.view(np.int32), level, chosen[above:])
    return k


# ------------------------------------------------------------------------------------------- chunks


@partial(compiled, fastmath={"reassoc"})
def _sum_squares(gradient: Floats, residual: Floats) -> np.float32:
    """Return the sum of squares of gradient + residual.

    The order of the additions is free, so that they are vectorised.
    """
    total = np.float32(0)
    for i in range(gradient.shape[0]):
        element = gradient[i] + residual[i]
        total += element * element
    return total


@compiled
def measure_chunks(gradient: Floats, residual: Floats, chunk: int, norms: Floats) -> None:
    """Write the norm of each chunk of gradient + residual.

    The last chunk may be shorter than ``chunk``. A norm is infinite if an element is above 1.8e19,
    whose square float32 cannot hold.
    """
    n = gradient.shape[0]
    for number in range(norms.shape[0]):
        start, end = number * chunk, min(number * chunk + chunk, n)
        norms[number] = np.sqrt(_sum_squares(gradient[start:end], residual[start:end]))


@compiled
def choose_chunks(norms: Floats, chosen: Words) -> bool:
    """Fill ``chosen`` with the numbers of the chunks with the largest norms, ascending.

    The first of equal norms are chosen.

    Returns whether all norms are finite; if not, the first chunks are chosen.
    """
    words, chunk_count = norms.view(np.int32), chosen.shape[0]
    for number in range(words.shape[0]):
        if (words[number] & MAGNITUDE) >= INFINITY:
            chosen[:] = np.arange(chunk_count)
            return False
    level, ties = _find_kth(words, chunk_count)
    slot = 0
    for number in range(words.shape[0]):
        if words[number] > level or (words[number] == level and ties > 0):
            ties -= words[number] == level
            chosen[slot] = number
            slot += 1
    return True


@compiled
def take_chunks(
    gradient: Floats, residual: Floats, chosen: Words, divisor: float, values: Floats
) -> None:
    """Write the chosen chunks of gradient + residual, divided by ``divisor``, to ``values``; the
    other elements are the new residual.

    Args:
        gradient: shape (n,).
        residual: shape (n,), becomes zero in the chosen chunks.
        chosen: numbers of chunks.
        divisor: of the values.
        values: shape (chosen, chunk); elements beyond the gradient become zero.
    """
    n, chunk = gradient.shape[0], values.shape[1]
    for i in range(n):
        residual[i] += gradient[i]
    for slot in range(chosen.shape[0]):
        start = np.int64(chosen[slot]) * chunk
        end = min(start + chunk, n)
        for i in range(start, end):
            values[slot, i - start] = residual[i] / np.float32(divisor)
        values[slot, end - start :] = 0
        residual[start:end] = 0


@compiled
def clear_chunks(chosen: Words, chunk: int, into: Floats) -> None:
    """Zero the chosen chunks."""
    for slot in range(chosen.shape[0]):
        start = np.int64(chosen[slot]) * chunk
        into[start : start + chunk] = 0


@compiled
def spread_chunks(values: Floats, chosen: Words, into: Floats) -> None:
    """Write the values of the chosen chunks, whose numbers ascend, to ``into``, and zeros
    elsewhere.
    """
    chunk, begin = values.shape[1], 0
    for slot in range(chosen.shape[0]):
        start = np.int64(chosen[slot]) * chunk
        end = min(start + chunk, into.shape[0])
        into[begin:start] = 0
        into[start:end] = values[slot, : end - start]
        begin = end
    into[begin:] = 0
