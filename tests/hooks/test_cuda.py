"""Tests of the selection's CUDA kernels, compiled for the host: payload and residual equal the
host's bytes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import cuda_on_host
import numpy as np
import pytest
from effort import repetitions
from gradients import DISTRIBUTIONS, ELEMENTS, Floats, make
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

pytest.importorskip("numba")

from commbench.hooks.compression.selection import TopKSelector, decode_add
from commbench.hooks.message import payload_bytes

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not cuda_on_host.find_compiler(), reason="needs a C++ compiler"),
]

#: Several chunks, the last one in part.
N = 5003
DENSITIES = (0.01, 0.001, 0.3, 1.0)
VALUE_TYPES = ("float32", "float16")
#: Elements before and behind every array, which nobody may touch; odd, for nothing need be aligned
#: to a vector.
MARGIN, UNTOUCHED = 33, -7.75


@dataclass
class Cuda:
    """The module over a simulated cupy, and its record of launches."""

    module: ModuleType
    launches: cuda_on_host.Launches

    def selector(self, n: int, k: int, value_dtype: Any = "float32") -> Any:
        """Return a selector whose scratch memory has guard margins."""
        scratch = guarded(np.zeros(self.module.scratch_bytes(n) + 4, dtype=np.uint8))[4:]
        assert not at(scratch) % 8
        selector = self.module.CudaTopK(n, k, scratch=at(scratch), value_dtype=value_dtype)
        selector.scratch = scratch
        return selector

    def encode(
        self, gradient: Floats, residual: Floats | None, k: int, **options: Any
    ) -> tuple[Any, Floats | None]:
        """Encode one step on a new selector, in place unless ``beside``.

        Return payload and residual.
        """
        selector = self.selector(len(gradient), k, options.get("value_dtype", "float32"))
        return encode(selector, gradient, residual, **options)


@pytest.fixture(scope="module")
def cuda() -> Iterator[Cuda]:
    """Return the module with blocks of few threads."""
    with cuda_on_host.installed() as (module, launches):
        yield Cuda(module, launches)


def guarded(values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy with guard margins."""
    whole = np.full(len(values) * values.itemsize // 4 + 2 * MARGIN, UNTOUCHED, dtype=np.float32)
    inner = whole[MARGIN:-MARGIN].view(values.dtype)
    inner[:] = values
    return inner


def check_margins(*spans: NDArray[Any] | None) -> None:
    """Check that nothing was written beside an array from `guarded`."""
    for array in spans:
        if array is not None:
            whole = array.base if array.base.base is None else array.base.base
            assert {UNTOUCHED} == set(whole[:MARGIN].tolist()) | set(whole[-MARGIN:].tolist())


def at(array: NDArray[Any] | None) -> int:
    """Return the address of an array, or 0 for None."""
    return 0 if array is None else array.ctypes.data


def encode(
    selector: Any,
    gradient: Floats,
    residual: Floats | None,
    *,
    beside: bool = False,
    step: int = 0,
    **_: Any,
) -> tuple[Any, Floats | None]:
    """Encode one step in copies of the arrays; the payload and what stays."""
    source = guarded(gradient)
    old = None if residual is None else guarded(residual)
    new = guarded(np.full_like(gradient, 3)) if beside else old
    sums = guarded(np.full_like(gradient, 3)) if new is None else new
    payload = guarded(np.full(selector.payload_bytes, 0xAA, dtype=np.uint8))
    selector.encode(at(source), at(old), at(payload), out_residual=at(sums), step=step)
    check_margins(source, old, sums, payload, selector.scratch)
    if beside and old is not None:
        assert np.array_equal(residual, old, equal_nan=True)
    return payload, new


def encode_on_host(
    gradient: Floats,
    residual: Floats | None,
    k: int,
    *,
    step: int = 0,
    value_dtype: Any = "float32",
    beside: bool = False,
) -> tuple[Any, Floats | None]:
    """Encode by the host's selection, which has its own tests."""
    selector = TopKSelector(len(gradient), k, value_dtype=value_dtype)
    payload = np.full(selector.payload_bytes, 0xAA, dtype=np.uint8)
    old = None if residual is None else residual.copy()
    new = np.full_like(gradient, 3) if beside else old
    selector.encode(gradient, old, payload, out_residual=new, step=step)
    return payload, new


def check(cuda: Cuda, gradient: Floats, residual: Floats | None, k: int, **options: Any) -> None:
    """Check that device and host send and keep the same bits."""
    payload, rest = cuda.encode(gradient, residual, k, **options)
    expected, expected_rest = encode_on_host(gradient, residual, k, **options)
    assert np.array_equal(expected, payload)
    assert (rest is None) == (expected_rest is None)
    if rest is not None and expected_rest is not None:
        assert np.array_equal(expected_rest.view(np.uint32), rest.view(np.uint32))


@pytest.mark.parametrize(("number", "name"), list(enumerate(DISTRIBUTIONS)))
def test_the_host_sends_the_same(cuda: Cuda, number: int, name: str) -> None:
    """Produce the host's payload and residual for all kinds of data, with and without residual."""
    density, value_dtype = DENSITIES[number % 4], VALUE_TYPES[number % 2]
    k = math.ceil(density * N)
    check(cuda, make(name, N, 3), make(name, N, 1), k, value_dtype=value_dtype, step=5)
    check(cuda, make(name, N, 3), None, k, value_dtype=value_dtype)
    check(cuda, make(name, N, 3), make("gauss", N, 2), k, value_dtype=value_dtype, beside=True)


@settings(max_examples=repetitions(150))
@given(data=st.data())
def test_any_small_array(cuda: Cuda, data: st.DataObject) -> None:
    """Produce the host's bytes for a few elements of any size."""
    n = data.draw(st.integers(1, 40))
    k, step = data.draw(st.integers(1, n)), data.draw(st.integers(0, 2**40))
    gradient = data.draw(arrays(np.float32, n, elements=ELEMENTS))
    residual = data.draw(st.none() | arrays(np.float32, n, elements=ELEMENTS))
    value_dtype = data.draw(st.sampled_from(VALUE_TYPES))
    check(cuda, gradient, residual, k, step=step, value_dtype=value_dtype)


@settings(max_examples=repetitions(40))
@given(
    n=st.integers(1, 4000),
    density=st.floats(0, 1),
    levels=st.integers(1, 50),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_number_of_equal_elements(
    cuda: Cuda, n: int, density: float, levels: int, seed: int
) -> None:
    """Produce the host's bytes for whole and partial chunks with any number of equal elements."""
    rng = np.random.default_rng(seed)
    gradient, residual = (rng.integers(-levels, levels + 1, n).astype(np.float32) for _ in range(2))
    check(cuda, gradient, residual, max(1, int(density * n)), step=seed)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 255, 1023, 1024, 1025, 4 * 1024, 4 * 1024 + 1])
def test_every_end_of_a_row_and_a_chunk(cuda: Cuda, n: int) -> None:
    """Read all elements and no others."""
    gradient = np.arange(1, n + 1, dtype=np.float32)
    for k in sorted({1, max(1, n // 3), n}):
        check(cuda, gradient, np.zeros(n, dtype=np.float32), k)


@pytest.mark.parametrize(
    ("bad", "position", "value_dtype"),
    [
        (np.nan, 0, "float32"),
        (np.inf, 2500, "float16"),
        (-np.inf, N - 1, "float32"),
        (3e38, 2500, "float16"),
    ],
)
def test_values_that_are_not_finite_reach_all_ranks(
    cuda: Cuda, bad: float, position: int, value_dtype: Any
) -> None:
    """Keep the residual and send NaN, also if two finite numbers overflow."""
    gradient, residual = make("gauss", N), make("gauss", N, 1)
    broken, before = gradient.copy(), residual.copy()
    broken[position] = before[position] = bad
    selector = cuda.selector(N, 55, value_dtype)
    for beside in (False, True):
        payload, rest = encode(selector, broken, before, beside=beside)
        expected, _ = encode_on_host(broken, before, 55, value_dtype=value_dtype)
        assert np.array_equal(expected, payload)
        assert np.isnan(payload[220:].view(value_dtype)[:55]).all()
        assert np.array_equal(np.full(N, 3) if beside else before, rest, equal_nan=True)
    after, _ = encode(selector, gradient, residual)
    assert np.array_equal(encode_on_host(gradient, residual, 55, value_dtype=value_dtype)[0], after)


@pytest.mark.parametrize("value_dtype", VALUE_TYPES)
def test_payloads_of_several_ranks_add_up(cuda: Cuda, value_dtype: Any) -> None:
    """Add every rank's payload from one buffer as the host does, unused slots included."""
    k, size = 133, payload_bytes(133, value_dtype)
    gathered = np.empty(5 * size, dtype=np.uint8)
    expected = make("mostly zeros", N, 9)
    into = guarded(expected)
    selector = cuda.selector(N, k, value_dtype)
    for rank, name in enumerate(("gauss", "huge", "mostly zeros", "denormals", "all zero")):
        part = gathered[rank * size : (rank + 1) * size]
        TopKSelector(N, k, value_dtype=value_dtype).encode(make(name, N, rank), None, part)
        decode_add(part, N, k, value_dtype, expected)
        selector.add(at(part), at(into))
    assert np.array_equal(expected, into)
    check_margins(into)


@pytest.mark.parametrize("index", [-1, N])
def test_an_index_that_is_not_there_is_seen(cuda: Cuda, index: int) -> None:
    """Write nothing beyond the bucket for an invalid index, and report it to all ranks."""
    payload, _ = encode_on_host(make("gauss", N), None, 5)
    payload[:20].view(np.int32)[3] = index
    into = guarded(np.zeros(N, dtype=np.float32))
    cuda.selector(N, 5).add(at(payload), at(into))
    check_margins(into)
    assert 1 == np.isnan(into).sum()


def test_launches_do_not_depend_on_the_data(cuda: Cuda) -> None:
    """Launch the same kernels in the same sizes for all data."""
    names = ["survey", "divide", "refine", "refine", "tally", "emit"]
    broken = make("gauss", N)
    broken[7] = np.nan
    for gradient in (make("gauss", N), make("all zero", N), make("all equal", N), broken):
        cuda.launches.clear()
        cuda.encode(gradient, make("gauss", N, 1), 50)
        assert [(name, cuda_on_host.RESIDENT.get(name, 2)) for name in names] == cuda.launches


@pytest.mark.parametrize("name", ["few values", pytest.param("gauss", marks=pytest.mark.slow)])
def test_blocks_of_full_size(cuda: Cuda, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Produce the host's bytes with a GPU's number of threads per block."""
    monkeypatch.setattr(cuda.module, "THREADS", 1024)
    check(cuda, make(name, 200_003), make(name, 200_003, 1), 2001, step=3)


@pytest.mark.parametrize("chunks", [64, 65, 129, 200])
def test_more_chunks_than_threads_add_up(cuda: Cuda, chunks: int) -> None:
    """Produce the host's bytes if threads of the last block have several chunks or none."""
    n = 1024 * chunks - 5
    check(cuda, make("few values", n), make("gauss", n, 1), n // 90, step=3)


@pytest.mark.parametrize("architecture", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90"])
def test_the_source_compiles_for_gpus(cuda: Cuda, architecture: str) -> None:
    """Compile without warnings and without spilling, in the 32 registers per thread of a full
    multiprocessor.
    """
    assert 65_536 // 2_048 >= max(cuda_on_host.registers_on_gpu(cuda.module, architecture, 1024))
