"""Tests of the test data: exact in every type at any number of ranks, and distinct."""

from functools import reduce

import numpy as np
import pytest
from effort import cases, repetitions
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.collectives.datatypes import DTYPES, TILE, DataType, KnownData
from commbench.collectives.layouts import Span
from commbench.collectives.operations import REDOPS
from commbench.engine.communicator import STALE
from commbench.findings import UnsupportedError

FOLDS = {"sum": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply, "avg": np.add}
#: Bounds within which every whole number is exact; bfloat16 keeps 8 significant bits.
EXACT_UP_TO = {
    "int8": 127,
    "bfloat16": 256,
    "float16": 2048,
    "float32": 2**24,
    "float64": 2**53,
    "int32": 2**31 - 1,
}

RANKS = st.one_of(st.integers(1, 64), st.sampled_from(cases([100], [257])))
ROUGH = settings(max_examples=repetitions(15))


def contributions(dtype: DataType, size: int, redop: str) -> np.ndarray:
    """Return the data of each rank as stored by the type, shape (size, TILE)."""
    data = KnownData(dtype=dtype, size=size, redop=redop)
    memory = [np.empty(TILE, dtype=dtype.storage) for _ in range(size)]
    for rank, buffer in enumerate(memory):
        data.content([Span(offset=0, count=TILE, source=rank)]).write(buffer)
    return np.stack([dtype.decode(buffer) for buffer in memory])


def moved(source: int, target: int = 0, count: int = TILE, start: int = 0) -> np.ndarray:
    """Return the int32 data of a data movement."""
    buffer = np.empty(count, dtype=np.int32)
    piece = Span(offset=0, count=count, source=source, target=target, start=start)
    KnownData(dtype=DTYPES["int32"], size=8, redop=None).content([piece]).write(buffer)
    return buffer


def exact(name: str, redop: str) -> bool:
    """Return whether operation and type have an exact answer."""
    return redop != "avg" or bool(DTYPES[name].epsilon)


PAIRS = [(name, redop) for name in DTYPES for redop in REDOPS if exact(name, redop)]


@pytest.mark.parametrize(("name", "redop"), PAIRS)
@given(size=RANKS)
@ROUGH
def test_the_answer_is_the_reduction_of_all_ranks(name, redop, size):
    """Match numpy's reduction over ranks in every element."""
    dtype = DTYPES[name]
    folded = reduce(FOLDS[redop], contributions(dtype, size, redop)) / (
        size if redop == "avg" else 1
    )
    answer = KnownData(dtype=dtype, size=size, redop=redop).content(
        [Span(offset=0, count=TILE, source=None)]
    )
    assert 0 == answer.count_wrong(dtype.encode(folded))


@pytest.mark.parametrize(("name", "redop"), [pair for pair in PAIRS if pair[1] != "avg"])
@given(size=RANKS, seed=st.integers(0, 2**32 - 1))
@ROUGH
def test_no_partial_result_is_rounded_or_overflows(name, redop, size, seed):
    """Keep partial reductions in any order within the type's exact whole numbers."""
    held = contributions(DTYPES[name], size, redop)
    order = np.random.default_rng(seed).permutation(size)
    partial = FOLDS[redop].accumulate(held[order], axis=0)
    assert np.abs(partial).max() <= EXACT_UP_TO[name]
    assert (partial == np.rint(partial)).all()


@pytest.mark.parametrize(("name", "redop"), [*PAIRS, *((name, None) for name in DTYPES)])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 64])
def test_stale_buffers_differ_from_every_answer(name, redop, size):
    """Count every element of a stale buffer as wrong."""
    dtype = DTYPES[name]
    stale = np.full(TILE * dtype.itemsize, STALE, dtype=np.uint8).view(dtype.storage)
    source = None if redop else size - 1
    answer = KnownData(dtype=dtype, size=size, redop=redop).content(
        [Span(offset=0, count=TILE, source=source)]
    )
    assert TILE == answer.count_wrong(stale)


def test_whole_numbers_have_no_average():
    """Refuse averages of integers, which libraries round differently."""
    with pytest.raises(UnsupportedError, match="int8"):
        KnownData(dtype=DTYPES["int8"], size=2, redop="avg")


@pytest.mark.parametrize("redop", ["sum", "min", "max", "prod"])
@given(size=st.integers(2, 64))
@ROUGH
def test_every_rank_matters(redop, size):
    """Change the answer if any rank's contribution is omitted."""
    held = contributions(DTYPES["int32"], size, redop)
    whole = reduce(FOLDS[redop], held)
    for rank in range(size):
        without = reduce(FOLDS[redop], np.delete(held, rank, axis=0))
        assert (whole != without).any(), rank


@pytest.mark.parametrize(("name", "redop"), PAIRS)
def test_neutral_data_stays_as_it_is(name, redop):
    """Keep neutral data unchanged over a thousand reductions."""
    dtype = DTYPES[name]
    buffer = np.empty(5, dtype=dtype.storage)
    KnownData(dtype=dtype, size=4, redop=redop).neutral(5).write(buffer)
    value = dtype.decode(buffer)
    assert (value == reduce(FOLDS[redop], [value] * 1000)).all()


@pytest.mark.parametrize(
    ("name", "redop"), [pair for pair in PAIRS if pair[1] not in {"min", "max"}]
)
@given(size=RANKS, target=st.integers(0, 300))
@ROUGH
def test_cancelling_data_reduces_to_neutral(name, redop, size, target):
    """Cancel each element between two ranks, with zeros in the target."""
    dtype, data = DTYPES[name], KnownData(dtype=DTYPES[name], size=size, redop=redop)
    target = min(target, size)
    memory = [np.empty(TILE, dtype=dtype.storage) for _ in range(size)]
    for rank, buffer in enumerate(memory):
        span = Span(offset=0, count=TILE, source=rank, target=target)
        data.content([span], cancelling=True).write(buffer)
    held = np.stack([dtype.decode(buffer) for buffer in memory])
    neutral = dtype.decode(data.neutral(TILE).runs[0][2])
    assert 0 == data.neutral(TILE).count_wrong(dtype.encode(reduce(FOLDS[redop], held)))
    assert (held[target : target + 1] == neutral).all()
    pairs = 2 if size - (target < size) > 1 else 0
    assert {pairs} == set(np.unique((held != neutral).sum(axis=0)))
    assert np.abs(FOLDS[redop].accumulate(held, axis=0)).max() <= EXACT_UP_TO[name]


@given(pair=st.tuples(st.integers(0, 300), st.integers(0, 300)), target=st.integers(0, 300))
@ROUGH
def test_swapped_blocks_are_noticed(pair, target):
    """Distinguish the blocks of any two sources and targets in most elements."""
    a, b = pair
    if a != b:
        assert (moved(a, target) != moved(b, target)).mean() > 0.9
        assert (moved(target, a) != moved(target, b)).mean() > 0.9


@pytest.mark.parametrize("shift", [1 << i for i in range(24)])
def test_shifted_data_is_noticed(shift):
    """Distinguish data from itself shifted by any power of two."""
    data = moved(3, count=2 * TILE)
    assert (data != np.roll(data, shift)).mean() > 0.9


@pytest.mark.parametrize("name", DTYPES)
@given(count=st.integers(1, 9000), data=st.data())
@ROUGH
def test_wrong_elements_are_counted_exactly(name, count, data):
    """Count each flipped element once, also in its lowest bit."""
    dtype = DTYPES[name]
    buffer = np.empty(count + 2, dtype=dtype.storage)
    known = KnownData(dtype=dtype, size=3, redop=None).content(
        [Span(offset=1, count=count, source=2, target=1)]
    )
    known.write(buffer)
    flipped = data.draw(st.sets(st.integers(1, count), max_size=20))
    raw = buffer.view(np.uint8).reshape(-1, dtype.itemsize)
    for element in flipped:
        raw[element, 0] ^= 1
    buffer[[0, -1]] = 0  # outside the piece: not looked at
    assert len(flipped) == known.count_wrong(buffer)


def test_not_a_number_is_wrong():
    """Count NaN as wrong, also with a tolerance."""
    for size in (2, 3):
        data = KnownData(dtype=DTYPES["float32"], size=size, redop="avg").content(
            [Span(offset=0, count=7, source=None)]
        )
        assert 7 == data.count_wrong(np.full(7, np.nan, dtype=np.float32))
