"""The compiled loops of top-k: selection of elements, exact, in two passes and without sorting.

And chunks.

The elements are divided into blocks of up to 32. The k-th largest of the blocks' maxima is the
threshold. At least k elements reach it, one in each of k blocks, and fewer than k blocks hold an
element above it. So the elements above the
threshold are few: 1.2 k at a density of 1 % if large elements are scattered, and never 32 k. They
contain the k largest elements, except elements equal to the threshold. All further work is on these
few. Where large elements lie together, a sample gives a higher threshold. If fewer than k elements
reach that one, the threshold of the blocks is used after all.

Elements are compared by the bits of their magnitude, which order floats as absolute values do.
Denormals and ties are exact, and infinity and NaN are above everything finite.

All kernels are in one file because numba's cache does not detect a change in another file.
"""

# numba's decorators and the functions that it compiles are untyped
# mypy: allow-untyped-decorators, no-warn-return-any

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from commbench.system.compiling import compiled

Floats: TypeAlias = NDArray[np.float32]
Words: TypeAlias = NDArray[np.int32]
Halves: TypeAlias = NDArray[np.uint16]
"""The bits of float16 numbers; numba has no float16."""

#: `select` returns this if an element is not finite.
NOT_FINITE = -1
#: A block is a column of a matrix with this number of columns: comparisons work on whole vectors,
#: and the maxima stay in the nearest cache.
COLUMNS = 512
#: More rows mean fewer maxima to search. More blocks per slot keep the threshold closer to the k-th
#: element.
MOST_ROWS, BLOCKS_PER_SLOT = 32, 2
#: Elements compared with the threshold at once: one bit each.
LANES = 64
ALL_LANES = np.uint64(2**LANES - 1)
#: Elements that are added and then compared while they are in the nearest cache.
CHUNK = 4096
#: The sample is the first SAMPLED of every SAMPLED_OF elements.
SAMPLED, SAMPLED_OF = 64, 4096
#: Radix selection looks at 11, 10 and 10 bits: (shift, width).
DIGITS = ((20, 11), (10, 10), (0, 10))
#: Copies of each counter, so that counting equal elements does not wait for the previous count.
COPIES = 4

#: Words of float32: all but the sign, and infinity.
MAGNITUDE, INFINITY = 0x7FFFFFFF, 0x7F800000
#: Words of float32: 2**-14, the least normal float16, and 65520, which would round to infinity in
#: float16.
LEAST_NORMAL_HALF, TOO_LARGE_HALF = 0x38800000, 0x477FF000
#: The word of 1/2, whose last place is worth as much as that of float16's denormals.
ONE_HALF = 0x3F000000
#: The difference of the exponents' biases of float32 and float16, in the place of float32's
#: exponent.
REBIAS = 112 << 23
#: Bits of float16: 65504, infinity, the sign.
LARGEST_HALF, HALF_INFINITY, HALF_SIGN = 0x7BFF, 0x7C00, 0x8000


class Scratch(NamedTuple):
    """The working memory of one selection, allocated once."""

    rows: int
    """Elements in a block."""
    maxima: Words
    """The largest magnitude of each block."""
    positions: Words
    """Positions of the elements above the threshold."""
    magnitudes: Words
    """Their magnitudes."""
    equal: Words
    """Elements equal to the threshold, in each CHUNK."""
    sample: Words
    """Magnitudes of some elements."""
    histogram: Words


def make_scratch(n: int, k: int) -> Scratch:
    """Return memory for choosing ``k`` of ``n`` elements.

    The system provides only the used pages.
    """
    rows = MOST_ROWS
    while rows > 1 and rows * BLOCKS_PER_SLOT * k > n:
        rows //= 2
    matrices, left = divmod(n, rows * COLUMNS)
    above = min(n, k * rows)
    return Scratch(
        rows=rows,
        maxima=np.empty(matrices * COLUMNS + left, dtype=np.int32),
        positions=np.empty(above, dtype=np.int32),
        magnitudes=np.empty(above, dtype=np.int32),
        equal=np.empty(-(-n // CHUNK), dtype=np.int32),
        sample=np.empty(n // SAMPLED_OF * SAMPLED, dtype=np.int32),
        histogram=make_histogram(),
    )


def make_histogram() -> Words:
    """Return memory for counting digits."""
    return np.empty((1 << DIGITS[0][1], COPIES), dtype=np.int32)


# -------------------------------------------------- vector instructions, which numba cannot express


@intrinsic
def _lanes_above(_typing: Any, words: Any, _start: Any, _level: Any) -> Any:  # noqa: ANN401 - numba's own protocol
    """Return LANES bits: bit i states whether the magnitude of ``words[start + i]`` exceeds
    ``level``.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ANN401 - as above
        vector = ir.VectorType(ir.IntType(32), LANES)
        array = context.make_array(signature.args[0])(context, builder, values[0])
        pointer = builder.bitcast(builder.gep(array.data, [values[1]]), vector.as_pointer())
        return _exceeding(builder, builder.load(pointer, align=4), values[2])

    return types.uint64(words, types.intp, types.int32), generate


@intrinsic
def _add_lanes(
    _typing: Any,  # noqa: ANN401 - numba's own protocol
    gradient: Any,  # noqa: ANN401
    residual: Any,  # noqa: ANN401
    into: Any,  # noqa: ANN401
    _start: Any,  # noqa: ANN401
    _level: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Write gradient + residual of LANES elements from ``start``.

    Return two masks as `_lanes_above` does.

    The first has the elements above ``level``, the second those above ``level`` - 1. The
    comparisons are made while the additions wait for memory.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ANN401 - as above
        floats, words = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.IntType(32), LANES)

        def point(argument: int) -> Any:  # noqa: ANN401 - as above
            array = context.make_array(signature.args[argument])(context, builder, values[argument])
            return builder.bitcast(builder.gep(array.data, [values[3]]), floats.as_pointer())

        total = builder.fadd(builder.load(point(0), align=4), builder.load(point(1), align=4))
        builder.store(total, point(2), align=4)
        total = builder.bitcast(total, words)
        before = builder.sub(values[4], ir.IntType(32)(1))
        masks = [_exceeding(builder, total, level) for level in (values[4], before)]
        return context.make_tuple(builder, signature.return_type, masks)

    masks = types.UniTuple(types.uint64, 2)
    return masks(gradient, residual, into, types.intp, types.int32), generate


def _exceeding(builder: Any, words: Any, level: Any) -> Any:  # noqa: ANN401 - numba's own protocol
    """Return LANES bits: which of a vector's magnitudes exceed ``level``."""
    vector = ir.VectorType(ir.IntType(32), LANES)
    undefined = ir.Constant(vector, ir.Undefined)
    magnitudes = builder.and_(words, ir.Constant(vector, [MAGNITUDE] * LANES))
    levels = builder.insert_element(undefined, level, ir.IntType(32)(0))
    levels = builder.shuffle_vector(levels, undefined, ir.Constant(vector, [0] * LANES))
    return builder.bitcast(builder.icmp_signed(">", magnitudes, levels), ir.IntType(LANES))


@intrinsic
def _lowest(_typing: Any, _mask: Any) -> Any:  # noqa: ANN401 - numba's own protocol
    """Return the number of the lowest set bit of a mask that is not zero."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:  # noqa: ANN401 - as above
        return builder.cttz(values[0], ir.IntType(1)(1))

    return types.intp(types.uint64), generate


@intrinsic
def _ones(_typing: Any, _mask: Any) -> Any:  # noqa: ANN401 - numba's own protocol
    """Return the number of set bits of a mask."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:  # noqa: ANN401 - as above
        return builder.ctpop(values[0])

    return types.intp(types.uint64), generate


@compiled
def _word(value: float) -> np.int32:
    """Return the bits of a float32."""
    return np.float32(value).view(np.int32)


@compiled
def _above(words: Words, start: int, level: int) -> np.uint64:
    """Return the mask of `_lanes_above`, limited to the end of ``words``."""
    if start + LANES <= words.shape[0]:
        return _lanes_above(words, start, np.int32(level))
    mask = np.uint64(0)
    for i in range(start, words.shape[0]):
        if (words[i] & MAGNITUDE) > level:
            mask |= np.uint64(1) << np.uint64(i - start)
    return mask


# ------------------------------------------------------------------------------------------- select


@compiled
def _magnitude(value: float) -> np.int32:
    """Return the bits of a float32 without its sign.

    numba widens the result of an operation on int32 to int64, which would not be vectorised.
    """
    return np.int32(np.float32(value).view(np.int32) & np.int32(MAGNITUDE))


@compiled
def _raise_to(largest: Words, values: Floats) -> None:
    """Take the larger magnitude of each pair."""
    for i in range(largest.shape[0]):
        largest[i] = max(largest[i], _magnitude(values[i]))


@compiled
def _raise_to_sum(largest: Words, gradient: Floats, residual: Floats) -> None:
    """Take the larger magnitude of each pair, of gradient + residual."""
    for i in range(largest.shape[0]):
        largest[i] = max(largest[i], _magnitude(gradient[i] + residual[i]))


@compiled
def _find_maxima(gradient: Floats, residual: Floats | None, rows: int, maxima: Words) -> bool:
    """Fill ``maxima`` with the largest magnitude of gradient + residual in each block.

    Return whether all are finite.

    Elements that do not fill a matrix are blocks of their own.
    """
    size = rows * COLUMNS
    whole = gradient.shape[0] // size * size
    for start in range(0, whole, size):
        largest = maxima[start // rows : start // rows + COLUMNS]
        largest[:] = 0
        for row in range(start, start + size, COLUMNS):
            if residual is None:
                _raise_to(largest, gradient[row : row + COLUMNS])
            else:
                _raise_to_sum(largest, gradient[row : row + COLUMNS], residual[row : row + COLUMNS])
    for i in range(whole, gradient.shape[0]):
        total = gradient[i] if residual is None else gradient[i] + residual[i]
        maxima[whole // rows + i - whole] = _magnitude(total)
    return bool(maxima.max() < INFINITY)


@compiled
def _count_digits(magnitudes: Words, prefix: int, shift: int, width: int, histogram: Words) -> None:
    """Count the digits at ``shift`` of those magnitudes that begin with ``prefix``."""
    low, last = prefix << (shift + width), (1 << width) - 1
    high = low + (1 << (shift + width)) - 1
    histogram[:] = 0
    for start in range(0, magnitudes.shape[0], LANES):
        mask = _above(magnitudes, start, low - 1) & ~_above(magnitudes, start, high)
        if mask == ALL_LANES:
            for i in range(start, start + LANES):
                histogram[(magnitudes[i] >> shift) & last, i % COPIES] += 1
            continue
        while mask != 0:
            i = start + _lowest(mask)
            histogram[(magnitudes[i] >> shift) & last, i % COPIES] += 1
            mask &= mask - np.uint64(1)


@compiled
def _find_kth(magnitudes: Words, k: int, histogram: Words) -> tuple[int, int]:
    """Return the k-th largest magnitude and how many are equal to it, by radix selection."""
    prefix, larger, equal = 0, 0, 0
    for shift, width in DIGITS:
        _count_digits(magnitudes, prefix, shift, width, histogram)
        digit = (1 << width) - 1
        equal = histogram[digit].sum()
        while larger + equal < k:
            larger += equal
            digit -= 1
            equal = histogram[digit].sum()
        prefix = (prefix << width) | digit
    return prefix, equal


@compiled
def _sampled_level(
    gradient: Floats, residual: Floats | None, k: int, sample: Words, histogram: Words
) -> int:
    """Return a magnitude that k elements probably reach, by the sample; 0 if the sample is too
    small for that.
    """
    expected = k * sample.shape[0] / gradient.shape[0]
    rank = int(1.25 * expected + 4 * np.sqrt(expected) + 4)
    if rank > sample.shape[0]:
        return 0
    for run in range(sample.shape[0] // SAMPLED):
        for i in range(SAMPLED):
            at = run * SAMPLED_OF + i
            word = _word(gradient[at]) if residual is None else _word(gradient[at] + residual[at])
            sample[run * SAMPLED + i] = word & MAGNITUDE
    return _find_kth(sample, rank, histogram)[0]


@compiled
def _sum(gradient: Floats, residual: Floats, into: Floats) -> None:
    """Write gradient + residual.

    Two loops, because a loop that may be in place is not vectorised.
    """
    if residual.ctypes.data == into.ctypes.data:
        for i in range(into.shape[0]):
            into[i] += gradient[i]
    else:
        for i in range(into.shape[0]):
            into[i] = gradient[i] + residual[i]


@compiled
def _collect(
    gradient: Floats | None,
    residual: Floats | None,
    source: Floats,
    threshold: int,
    scratch: Scratch,
) -> tuple[int, int]:
    """Write gradient + residual, if given, to ``source``.

    Collect the elements above the threshold in ``scratch``.

    Returns how many elements are above the threshold and how many equal it.
    """
    words, above, equal = source.view(np.int32), 0, 0
    masks, starts = (
        np.empty(CHUNK // LANES + 1, dtype=np.uint64),
        np.empty(CHUNK // LANES + 1, dtype=np.int64),
    )
    for chunk in range(0, source.shape[0], CHUNK):
        end, nonzero, before = min(chunk + CHUNK, source.shape[0]), 0, equal
        for start in range(
            chunk, end, LANES
        ):  # without a branch on the masks, which would often be mispredicted
            if gradient is not None and residual is not None and start + LANES <= end:
                mask, at_least = _add_lanes(gradient, residual, source, start, np.int32(threshold))
            else:
                if gradient is not None and residual is not None:
                    _sum(gradient[start:end], residual[start:end], source[start:end])
                mask, at_least = (
                    _above(words, start, threshold),
                    _above(words, start, threshold - 1),
                )
            equal += _ones(at_least & ~mask)
            masks[nonzero], starts[nonzero] = mask, start
            nonzero += mask != 0
        scratch.equal[chunk // CHUNK] = equal - before
        for j in range(nonzero):
            mask = masks[j]
            while mask != 0:
                i = starts[j] + _lowest(mask)
                scratch.positions[above], scratch.magnitudes[above] = i, words[i] & MAGNITUDE
                above += 1
                mask &= mask - np.uint64(1)
    return above, equal


@compiled
def _take_equal(  # noqa: PLR0917 - numba compiles positional arguments only
    words: Words, counts: Words, level: int, low: int, high: int, taken: Words
) -> int:
    """Write positions of elements equal to ``level``, numbers ``low`` to ``high`` - 1, to
    ``taken``; return a count.

    ``counts`` has the number of such elements in each CHUNK, or is empty.
    """
    number, count, begin = 0, 0, 0
    for in_chunk in counts:
        if number + in_chunk > low:
            break
        number += in_chunk
        begin += CHUNK
    for start in range(begin, words.shape[0], LANES):
        mask = _above(words, start, level - 1) & ~_above(words, start, level)
        if number + _ones(mask) <= low:
            number += _ones(mask)
            continue
        while mask != 0 and number < high:
            if number >= low:
                taken[count] = start + _lowest(mask)
                count += 1
            number += 1
            mask &= mask - np.uint64(1)
        if number >= high:
            break
    return count


@compiled
def _choose_equal(  # noqa: PLR0917 - as `_take_equal`
    words: Words, counts: Words, level: int, equal: int, step: int, chosen: Words
) -> None:
    """Fill ``chosen`` with positions of the ``equal`` elements equal to ``level``, rotating from
    step to step.
    """
    first = (step % equal) * chosen.shape[0] % equal
    last = first + chosen.shape[0]
    count = _take_equal(words, counts, level, first, min(last, equal), chosen)
    if last > equal:
        _take_equal(words, counts, level, 0, last - equal, chosen[count:])


@compiled
def _choose(  # noqa: PLR0917 - as `select`
    gradient: Floats | None,
    residual: Floats | None,
    source: Floats,
    scratch: Scratch,
    step: int,
    chosen: Words,
) -> int:
    """Make ``source`` as `_collect` does, fill ``chosen`` from it and return how many of these are
    not zero.
    """
    k = chosen.shape[0]
    least, _ = _find_kth(scratch.maxima, k, scratch.histogram)
    sampled = _sampled_level(
        source if gradient is None else gradient, residual, k, scratch.sample, scratch.histogram
    )
    level = max(least, sampled)
    above, equal = _collect(gradient, residual, source, level, scratch)
    if above + equal < k:
        level = least
        above, equal = _collect(None, None, source, level, scratch)
    magnitudes = scratch.magnitudes[:above]
    if above >= k:
        level, equal = _find_kth(magnitudes, k, scratch.histogram)
    taken = 0
    for i in range(above):
        chosen[taken] = scratch.positions[i]  # the next position overwrites it unless it is counted
        taken += magnitudes[i] > level
    if level == 0:
        return taken
    if above < k:
        _choose_equal(source.view(np.int32), scratch.equal, level, equal, step, chosen[taken:])
        return k
    _choose_equal(magnitudes, scratch.equal[:0], level, equal, step, chosen[taken:])
    for slot in range(taken, k):
        chosen[slot] = scratch.positions[chosen[slot]]
    return k


@compiled
def select(  # noqa: PLR0917 - numba compiles positional arguments only
    gradient: Floats,
    residual: Floats | None,
    rest: Floats | None,
    scratch: Scratch,
    step: int,
    chosen: Words,
) -> int:
    """Fill ``chosen`` with the positions of the largest elements of gradient + residual, ties last.

    Args:
        gradient: shape (n,).
        residual: shape (n,); None stands for zeros.
        rest: shape (n,), becomes gradient + residual, but is unchanged if one is not finite;
            ``residual`` itself or disjoint from it. None if ``residual`` is.
        scratch: from ``make_scratch``.
        step: the choice among equal elements rotates with it.
        chosen: shape (k,).

    Returns:
        How many of ``chosen`` are valid: k, or the number of nonzero elements if they are fewer;
            NOT_FINITE if an element is not finite.
    """
    if not _find_maxima(gradient, residual, scratch.rows, scratch.maxima):
        return NOT_FINITE
    if residual is None:
        return _choose(None, None, gradient, scratch, step, chosen)
    return _choose(gradient, residual, rest, scratch, step, chosen)


# -------------------------------------------------------------------------------------------- slots


@compiled
def _half(value: float) -> np.uint16:
    """Return the bits of the float16 that is sent for a finite float32.

    It is the nearest, ties to even, or the largest if the nearest is infinity. From 2**29 on, the
    last place of float32
    is worth more than the last place of 65504: the value is then truncated until float32 can hold
    the remainder.
    """
    word = _word(value)
    magnitude = word & MAGNITUDE
    if magnitude < LEAST_NORMAL_HALF:
        half = _word(np.float32(abs(value)) + np.float32(0.5)) - ONE_HALF
    elif magnitude < TOO_LARGE_HALF:
        half = (magnitude - REBIAS + 0xFFF + ((magnitude >> 13) & 1)) >> 13
    else:
        places = max((magnitude >> 23) - (127 + 28), 0)
        half = (LARGEST_HALF >> places) << places if places < 11 else 0  # noqa: PLR2004 - bits in a significand
    return np.uint16(half | (HALF_SIGN if word < 0 else 0))


@compiled
def _single(half: int) -> np.float32:
    """Return the float32 equal to a float16, given by its bits."""
    magnitude = np.int32(half) & np.int32(HALF_SIGN - 1)
    if magnitude >= HALF_INFINITY:
        value = np.int32((magnitude << 13) | INFINITY).view(np.float32)
    elif magnitude >= 1 << 10:
        value = np.int32((magnitude << 13) + REBIAS).view(np.float32)
    else:
        value = np.float32(magnitude) * np.float32(2.0**-24)
    return -value if half & HALF_SIGN else value


@compiled
def write_singles(
    source: Floats, rest: Floats | None, count: int, indices: Words, values: Floats
) -> None:
    """Write the values of the first ``count`` slots and subtract them from ``rest``.

    The other slots add 0.
    """
    for slot in range(count):
        i = indices[slot]
        values[slot] = source[i]
        if rest is not None:
            rest[i] = 0
    for slot in range(count, indices.shape[0]):
        indices[slot], values[slot] = slot - count, 0


@compiled
def write_halves(
    source: Floats, rest: Floats | None, count: int, indices: Words, values: Halves
) -> None:
    """Do as ``write_singles`` for float16 values; the rounding error stays in ``rest``."""
    for slot in range(count):
        i = indices[slot]
        values[slot] = _half(source[i])
        if rest is not None:
            rest[i] = source[i] - _single(values[slot])
    for slot in range(count, indices.shape[0]):
        indices[slot], values[slot] = slot - count, 0


@compiled
def are_within(indices: Words, n: int) -> bool:
    """Return whether all indices (at least one) are in [0, n)."""
    return bool(indices.min() >= 0 and indices.max() < n)


@compiled
def add_singles(indices: Words, values: Floats, into: Floats) -> None:
    """Add every value to the element at its index."""
    for slot in range(indices.shape[0]):
        into[indices[slot]] += values[slot]


@compiled
def add_halves(indices: Words, values: Halves, into: Floats) -> None:
    """Do as ``add_singles`` for float16 values."""
    for slot in range(indices.shape[0]):
        into[indices[slot]] += _single(values[slot])


# ------------------------------------------------------------------------------------------- chunks


@partial(compiled, fastmath={"reassoc"})
def _sum_squares(values: Floats) -> np.float32:
    """Return the sum of squares.

    The order of the additions is free, so that they are vectorised.
    """
    total = np.float32(0)
    for i in range(values.shape[0]):
        total += values[i] * values[i]
    return total


@partial(compiled, fastmath={"reassoc"})
def _sum_squares_of_sums(gradient: Floats, residual: Floats) -> np.float32:
    """Return the sum of squares of gradient + residual, as `_sum_squares`."""
    total = np.float32(0)
    for i in range(gradient.shape[0]):
        element = gradient[i] + residual[i]
        total += element * element
    return total


@compiled
def measure_chunks(gradient: Floats, residual: Floats | None, chunk: int, norms: Floats) -> None:
    """Write the norm of each chunk of gradient + residual.

    The last chunk may be shorter than ``chunk``.
    """
    n = gradient.shape[0]
    for number in range(norms.shape[0]):
        start, end = number * chunk, min(number * chunk + chunk, n)
        if residual is None:
            norms[number] = np.sqrt(_sum_squares(gradient[start:end]))
        else:
            norms[number] = np.sqrt(_sum_squares_of_sums(gradient[start:end], residual[start:end]))


@compiled
def choose_chunks(norms: Floats, histogram: Words, chosen: Words) -> bool:
    """Fill ``chosen`` with the numbers of the chunks with the largest norms, ascending.

    Of equal norms the first.

    Returns whether all norms are finite; if not, the first chunks are chosen.
    """
    words, chunk_count = norms.view(np.int32), chosen.shape[0]
    for number in range(words.shape[0]):
        if (words[number] & MAGNITUDE) >= INFINITY:
            chosen[:] = np.arange(chunk_count)
            return False
    level, _ = _find_kth(words, chunk_count, histogram)
    larger = 0
    for number in range(words.shape[0]):
        larger += words[number] > level
    slot, equal = 0, chunk_count - larger
    for number in range(words.shape[0]):
        if words[number] > level or (words[number] == level and equal > 0):
            equal -= words[number] == level
            chosen[slot] = number
            slot += 1
    return True


@compiled
def take_chunks(  # noqa: PLR0917 - as `select`
    gradient: Floats,
    residual: Floats | None,
    rest: Floats | None,
    chosen: Words,
    divisor: float,
    values: Floats,
) -> None:
    """Write the chosen chunks of gradient + residual, divided by ``divisor``, to ``values``.

    The others to ``rest``.

    Args:
        gradient: shape (n,).
        residual: shape (n,); None stands for zeros.
        rest: shape (n,), zero in the chosen chunks; ``residual`` itself or disjoint from it. None
            if ``residual`` is.
        chosen: numbers of chunks, ascending.
        divisor: of the values.
        values: shape (chosen, chunk); elements beyond the gradient become zero.
    """
    n, chunk, begin = gradient.shape[0], values.shape[1], 0
    for slot in range(chosen.shape[0]):
        start = np.int64(chosen[slot]) * chunk
        end = min(start + chunk, n)
        if residual is not None and rest is not None:
            _sum(gradient[begin:start], residual[begin:start], rest[begin:start])
        begin = end
        for i in range(start, end):
            total = gradient[i] if residual is None else gradient[i] + residual[i]
            values[slot, i - start] = total / np.float32(divisor)
        values[slot, end - start :] = 0
        if rest is not None:
            rest[start:end] = 0
    if residual is not None and rest is not None:
        _sum(gradient[begin:], residual[begin:], rest[begin:])


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
