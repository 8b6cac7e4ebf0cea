"""Tests of quantisation's CUDA kernels, compiled for the host: payloads, residuals and elements are
the host's bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import cuda_on_host
import numpy as np
import pytest
from effort import cases, repetitions
from gradients import DISTRIBUTIONS, ELEMENTS, Floats, make
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from test_cuda import at, check_margins, guarded

pytest.importorskip("numba")

from commbench.hooks.compression import quantisation
from commbench.hooks.message import QuantisedLayout

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not cuda_on_host.find_compiler(), reason="needs a C++ compiler"),
]

#: Not a multiple of a block, a shard or a warp.
N = 5003
#: Blocks of little more than a row of a warp, of the default, and of more than a warp's registers
#: hold; then of others.
BLOCKS = (33, 256, 1000, 1, 31, 32, 257, 512, 10**6)


@dataclass
class Cuda:
    """The module over a simulated cupy, and its record of launches."""

    module: ModuleType
    launches: cuda_on_host.Launches

    def quantise(
        self, layout: QuantisedLayout, gradient: Floats, residual: Any, *, rest: str
    ) -> tuple[Any, Any]:
        """Return payload and rounding errors of one step.

        These go to the residual, ``beside`` it, or ``nowhere``.
        """
        source, old = guarded(gradient), None if residual is None else guarded(residual)
        new = {"residual": old, "beside": guarded(np.full_like(gradient, 3)), "nowhere": None}[rest]
        payload = guarded(np.full(layout.shards * layout.row_bytes, 0xAA, dtype=np.uint8))
        self.module.CudaInt8(layout).quantise(
            at(source), at(old), at(payload), out_residual=at(new)
        )
        check_margins(source, old, new, payload)
        assert np.array_equal(gradient, source, equal_nan=True)
        assert (
            rest == "residual" or residual is None or np.array_equal(residual, old, equal_nan=True)
        )
        return payload, new

    def combine(
        self, layout: QuantisedLayout, rows: Any, divisor: float, residual: Any
    ) -> tuple[Any, Any]:
        """Return the row of the sum, and the residual."""
        own = guarded(np.full(layout.row_bytes, 0xAA, dtype=np.uint8))
        received, number, rest = guarded(rows), guarded(np.float32([divisor])), None
        if residual is not None:
            rest = guarded(residual)
        sharing = {"residual": at(rest), "elements": 0 if rest is None else len(rest)}
        self.module.CudaInt8(layout).combine(at(received), at(own), divisor=at(number), **sharing)
        check_margins(received, own, number, rest)
        return own, rest

    def dequantise(self, layout: QuantisedLayout, payload: Any) -> Any:
        """Return the elements of a payload."""
        into = guarded(np.full(layout.elements, 3, dtype=np.float32))
        self.module.CudaInt8(layout).dequantise(at(guarded(payload)), at(into))
        check_margins(into)
        return into


@pytest.fixture(scope="module")
def cuda() -> Iterator[Cuda]:
    """Return the module with blocks of few threads."""
    with cuda_on_host.installed(cuda_on_host.QUANTISATION) as (module, launches):
        yield Cuda(module, launches)


def views(payload: NDArray[np.uint8], rows: int) -> tuple[Any, Any]:
    """Return a payload as float32 words and as bytes, by row."""
    return payload.view(np.float32).reshape(rows, -1), payload.view(np.int8).reshape(rows, -1)


def quantise_on_host(
    layout: QuantisedLayout, gradient: Floats, residual: Any, *, rest: str
) -> tuple[Any, Any]:
    """Quantise by the host's compiled code, which has its own tests."""
    payload = np.full(layout.shards * layout.row_bytes, 0xAA, dtype=np.uint8)
    old = None if residual is None else residual.copy()
    new = {"residual": old, "beside": np.full_like(gradient, 3), "nowhere": None}[rest]
    quantisation.quantise(
        gradient, old, new, layout.block, layout.shard, *views(payload, layout.shards)
    )
    return payload, new


def combine_on_host(
    layout: QuantisedLayout, rows: Any, divisor: float, residual: Any
) -> tuple[Any, Any]:
    """Combine as `quantise_on_host` quantises."""
    own = np.full(layout.row_bytes, 0xAA, dtype=np.uint8)
    rest = None if residual is None else residual.copy()
    own_words, own_values = own.view(np.float32), own.view(np.int8)
    sizes = layout.block, layout.shard
    quantisation.combine(*views(rows, layout.shards), *sizes, divisor, rest, own_words, own_values)
    return own, rest


def same(expected: Any, actual: Any) -> bool:
    """Return whether two arrays have the same bits, or both are None."""
    if expected is None or actual is None:
        return expected is actual
    return expected.tobytes() == actual.tobytes()


def check(
    cuda: Cuda, gradient: Floats, residual: Any, *, block: int, ranks: int, divisor: float = 3.0
) -> None:
    """Compare every part of an exchange of ranks that have rotations of the same data."""
    layout = QuantisedLayout.of(len(gradient), shards=ranks, block=block)
    payloads = []
    for rank in range(ranks):
        data = np.roll(gradient, rank)
        for rest in ("nowhere", "beside", *(["residual"] if residual is not None else [])):
            expected = quantise_on_host(layout, data, residual, rest=rest)
            actual = cuda.quantise(layout, data, residual, rest=rest)
            assert all(same(*pair) for pair in zip(expected, actual, strict=True))
        payloads.append(actual[0].reshape(ranks, -1))
    sums = np.zeros((ranks, layout.row_bytes), dtype=np.uint8)
    for shard in range(ranks):
        rows = np.concatenate([payload[shard] for payload in payloads])
        mine = None if residual is None else residual[layout.span(shard)].copy()
        expected = combine_on_host(layout, rows, divisor, mine)
        actual = cuda.combine(layout, rows, divisor, mine)
        assert all(same(*pair) for pair in zip(expected, actual, strict=True))
        sums[shard] = actual[0]
    into = np.full(len(gradient), 7, dtype=np.float32)
    quantisation.dequantise(*views(sums.reshape(-1), ranks), layout.block, layout.shard, into)
    np.testing.assert_array_equal(into, cuda.dequantise(layout, sums.reshape(-1)))


@pytest.mark.parametrize(("number", "name"), list(enumerate(DISTRIBUTIONS)))
def test_the_host_sends_the_same(cuda: Cuda, number: int, name: str) -> None:
    """Produce the host's payloads, residuals and sums for all kinds of data and blocks."""
    ranks, block = 3, BLOCKS[number % len(BLOCKS)]
    check(cuda, make(name, N // ranks, 3), make(name, N // ranks, 1), block=block, ranks=ranks)


@pytest.mark.parametrize("ranks", cases([1, 2], [4, 7]))
def test_any_number_of_ranks(cuda: Cuda, ranks: int) -> None:
    """Add up the shards of any number of ranks in their order, with and without residual."""
    for residual in (make("student t2", N, 2), None):
        check(cuda, make("gauss", N, 1), residual, block=256, ranks=ranks, divisor=ranks / 1024)


def test_a_shard_beyond_the_bucket_touches_nothing(cuda: Cuda) -> None:
    """Keep memory behind a residual, whatever ranks send for elements that the bucket does not
    have.
    """
    layout = QuantisedLayout.of(600, shards=3, block=64)
    rows = np.concatenate(
        [
            quantise_on_host(layout, make("gauss", 600, rank), None, rest="nowhere")[0]
            for rank in (1, 2, 3)
        ]
    )
    received = rows.reshape(9, -1)[::3].reshape(-1)
    for elements in (1, 33, 150, 199, 200):
        residual = make("gauss", elements)
        actual = cuda.combine(layout, received, 3.0, residual)
        assert all(
            same(*pair)
            for pair in zip(combine_on_host(layout, received, 3.0, residual), actual, strict=True)
        )


@settings(max_examples=repetitions(150))
@given(data=st.data())
def test_any_small_array(cuda: Cuda, data: st.DataObject) -> None:
    """Produce the host's bits for a few elements of any size, also where shards lie beyond the
    bucket.
    """
    n, ranks, block = (data.draw(st.integers(1, most)) for most in (40, 5, 45))
    gradient = data.draw(arrays(np.float32, n, elements=ELEMENTS))
    residual = data.draw(st.none() | arrays(np.float32, n, elements=ELEMENTS))
    check(
        cuda,
        gradient,
        residual,
        block=block,
        ranks=ranks,
        divisor=data.draw(st.sampled_from([1.0, 3.0, 2e-4])),
    )


@pytest.mark.parametrize("n", [1, 3, 5, 31, 33, 255, 257, 1023])
def test_every_end_of_a_row_and_a_block(cuda: Cuda, n: int) -> None:
    """Read and write all elements and no others."""
    for block in (4, 32, 256, 300):
        check(cuda, make("gauss", n), make("gauss", n, 1), block=block, ranks=2)


@pytest.mark.parametrize(
    ("bad", "block"), [(np.nan, 16), (-np.nan, 256), (np.inf, 600), (-np.inf, 16), (2.0**127, 256)]
)
def test_a_block_that_is_not_finite_is_nan(cuda: Cuda, bad: float, block: int) -> None:
    """Send NaN for the block of such a value, keep its residual, and send all other blocks."""
    gradient, residual = make("gauss", 2000), make("gauss", 2000, 1)
    layout = QuantisedLayout.of(2000, shards=2, block=block)
    place = 1990
    for broken in (gradient, residual):
        before, broken[place] = broken[place], bad
        check(cuda, gradient, residual, block=block, ranks=2)
        payload, rest = cuda.quantise(layout, gradient, residual, rest="residual")
        elements = cuda.dequantise(layout, payload)
        first = 1000 + (place - 1000) // layout.block * layout.block
        end = min(first + layout.block, 2000)
        assert np.isnan(elements[first:end]).all()
        assert np.isfinite(np.delete(elements, np.s_[first:end])).all()
        assert np.array_equal(residual[first:end], rest[first:end], equal_nan=True)
        broken[place] = before


def test_blocks_of_full_size(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Produce the host's bits with a GPU's number of threads per block."""
    monkeypatch.setattr(cuda.module, "THREADS", 256)
    check(cuda, make("few values", 20_003), make("gauss", 20_003, 1), block=256, ranks=2)


@pytest.mark.parametrize("architecture", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90"])
def test_the_source_compiles_for_gpus(cuda: Cuda, architecture: str) -> None:
    """Compile without warnings and without spilling, in registers that let at least half of all
    warps be resident.
    """
    registers = cuda_on_host.registers_on_gpu(cuda.module, architecture, 256)
    assert 65_536 // 1_024 >= max(registers)
