"""Tests of top-k selection with error feedback: sent elements, residual, and conservation.

By compiled code, and by CUDA kernels that are compiled for the host, bit for bit alike.
"""

import math
from dataclasses import dataclass
from typing import Any

import cuda_on_host
import numpy as np
import pytest
from cuda_on_host import needs_compiler
from effort import repetitions
from gradients import DISTRIBUTIONS, Floats, N, draw_small, make
from hypothesis import given, settings
from hypothesis import strategies as st
from margins import check_margins, guarded
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from commbench.hooks import selectors
from commbench.hooks.compression import kernels
from commbench.hooks.message import payload_bytes
from commbench.hooks.selectors import (
    CudaSelector,
    NativeSelector,
    TorchSelector,
    prepare,
)

HOST = torch.device("cpu")
DENSITIES = (0.001, 0.01, 0.03, 0.3, 1.0)
VALUE_TYPES = ("float32", "float16")
#: What float32 rounds: the rest of a value that is cut.
ROUNDING = 2.0**-23


@pytest.fixture(autouse=True, scope="module")
def launches():
    """Return the launches of kernels with blocks of few threads."""
    with cuda_on_host.installed() as launches:
        yield launches


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One step: the parsed payload, and the residual."""

    indices: NDArray[np.int32]
    values: NDArray[np.floating]
    payload: NDArray[np.uint8]
    rest: Floats


def send(
    selector: Any,
    gradient: Floats,
    residual: Floats,
    k: int,
    values: Any = "float32",
) -> Sent:
    """Encode a step in copies of the arrays with margins."""
    source, payload = guarded(gradient), guarded(np.zeros(payload_bytes(k, values), dtype=np.uint8))
    rest = guarded(residual)
    tensors = [torch.from_numpy(array) for array in (source, rest, payload)]
    selector.encode(*tensors)
    check_margins(source, rest, payload)
    sent_values = payload[4 * k :].view(values)[:k]
    return Sent(
        indices=payload[: 4 * k].view(np.int32), values=sent_values, payload=payload, rest=rest
    )


def make_selectors(n: int, k: int, values: Any = "float32") -> list[Any]:
    """Return the compiled selector, and that of kernels if they can be compiled."""
    made = [NativeSelector(k, values)]
    if cuda_on_host.find_compiler():
        cuda = CudaSelector(n, k, values, HOST)
        cuda.scratch = []
        for name in ("_before", "_counts", "_histogram", "_state"):
            cuda.scratch.append(guarded(getattr(cuda, name).numpy()))
            setattr(cuda, name, torch.from_numpy(cuda.scratch[-1]))
        made.append(cuda)
    return made


def send_alike(gradient: Floats, residual: Floats, k: int, *options: Any) -> Sent:
    """Send by all selectors, which must send and keep the same bits."""
    made = make_selectors(len(gradient), k, *options)
    sent, *others = [send(each, gradient, residual, k, *options) for each in made]
    for other in others:
        assert np.array_equal(sent.payload, other.payload)
        assert np.array_equal(sent.rest.view(np.uint32), other.rest.view(np.uint32))
    for selector in made[1:]:
        check_margins(*selector.scratch)
    return sent


def decoded(sent: Sent, n: int) -> Floats:
    """Return the values that receivers add."""
    total = torch.zeros(n)
    value_dtype = sent.values.dtype.name
    NativeSelector(len(sent.indices), value_dtype).add(torch.from_numpy(sent.payload), total)
    return total.numpy()


def check(gradient: Floats, residual: Floats, k: int, *options: Any) -> None:
    """Check that k slots hold the largest elements, and that sent values and residual add up."""
    sent = send_alike(gradient, residual, k, *options)
    total = gradient + residual
    filled = min(k, int(np.count_nonzero(total)))
    assert 0 <= sent.indices.min()
    assert sent.indices.max() < len(total)
    chosen, added = np.split(sent.indices, [filled])
    assert filled == len(np.unique(chosen))
    assert k - filled == len(added)
    assert not sent.values[filled:].any()
    kept = np.delete(np.abs(total), chosen)
    assert not filled or not len(kept) or np.abs(total[chosen]).min() >= kept.max()
    rounding = ROUNDING
    if sent.values.dtype == np.float32:
        rounding = 0.0
        assert np.array_equal(total[chosen], sent.values[:filled])
        assert not sent.rest[chosen].any()
    arrived = sent.rest.astype(np.float64)
    np.add.at(arrived, sent.indices, sent.values.astype(np.float64))
    assert np.allclose(total, arrived, rtol=rounding, atol=0.0)


@pytest.mark.parametrize(("number", "name"), list(enumerate(DISTRIBUTIONS)))
def test_the_largest_are_sent_and_nothing_is_lost(number, name):
    """Fill k slots with the largest elements; sent plus residual is exactly the input."""
    k = math.ceil(DENSITIES[number % len(DENSITIES)] * N)
    gradient, values = make(name, seed=3), VALUE_TYPES[number % 2]
    check(gradient, make(name, seed=1), k, values)


@settings(max_examples=repetitions(150), deadline=None)
@given(st.data())
def test_any_small_array(data):
    """Send the largest and lose nothing, for a few elements of any size."""
    n = data.draw(st.integers(1, 40))
    k = data.draw(st.integers(1, n))
    gradient, residual = draw_small(data, n)
    check(gradient, residual, k, data.draw(st.sampled_from(VALUE_TYPES)))


@settings(max_examples=repetitions(60), deadline=None)
@given(st.integers(1, 4000), st.floats(0, 1), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_any_number_of_equal_elements(n, density, levels, seed):
    """Send the largest and lose nothing, for whole and partial blocks with any number of equal
    elements.
    """
    rng = np.random.default_rng(seed)
    gradient, residual = rng.integers(-levels, levels + 1, (2, n)).astype(np.float32)
    check(gradient, residual, max(1, int(density * n)))


@pytest.mark.parametrize("n", [1, 31, 32, 33, 255, 1023, 1024, 1025, 4 * 1024, 4 * 1024 + 1])
def test_every_end_of_a_row_and_a_chunk(n):
    """Read all elements and no others."""
    for k in sorted({1, max(1, n // 3), n}):
        check(np.arange(1, n + 1, dtype=np.float32), np.zeros(n, dtype=np.float32), k)


@pytest.mark.parametrize("chunks", [64, 65, 129, 200])
def test_more_chunks_than_threads_add_up(chunks):
    """Add up if threads of the last block have several chunks or none."""
    n = 1024 * chunks - 5
    check(make("few values", n), make("gauss", n, 1), n // 90)


def test_blocks_of_full_size(monkeypatch):
    """Send the same with a GPU's number of threads per block."""
    monkeypatch.setattr(selectors, "THREADS", 1024)
    check(make("few values", 200_003), make("few values", 200_003, 1), 2001)


def test_no_more_candidates_than_there_is_room_for():
    """Handle the maximum number of candidates: all of all blocks but one."""
    n, k = 100_000, 100
    gradient = np.linspace(1, 2, n, dtype=np.float32)
    rows, columns = kernels.MOST_ROWS, kernels.COLUMNS
    gradient[: rows * columns].reshape(rows, columns)[:, : k - 1] += 10  # a block is a column
    check(gradient, np.zeros(n, dtype=np.float32), k)


@pytest.mark.parametrize(
    ("bad", "position", "values"),
    [
        (np.nan, 0, "float32"),
        (np.inf, 5000, "float16"),
        (-np.inf, N - 1, "float32"),
        (3e38, 77, "float16"),
    ],
)
def test_values_that_are_not_finite_reach_all_ranks(bad, position, values):
    """Send NaN in valid slots and keep the residual, also if two finite numbers overflow; the next
    step is as if this one had not happened.
    """
    gradient, residual = make("gauss"), make("gauss", seed=1)
    broken, before = gradient.copy(), residual.copy()
    broken[position] = before[position] = bad
    sent = send_alike(broken, before, 55, values)
    assert 55 == np.isnan(decoded(sent, N)).sum()
    assert np.array_equal(before, sent.rest, equal_nan=True)
    for selector in make_selectors(N, 55, values):
        send(selector, broken, before, 55, values)
        after = send(selector, gradient, residual, 55, values)
        fresh = send_alike(gradient, residual, 55, values)
        assert np.array_equal(fresh.payload, after.payload)


@pytest.mark.parametrize("values", VALUE_TYPES)
@pytest.mark.parametrize("bad", [0.0, np.nan, -np.inf])
def test_torch_sends_the_same_elements(values, bad):
    """Send and keep by torch what compiled code does, with rounding and overflow."""
    gradient, residual = 3e4 * make("gauss"), 3e4 * make("gauss", seed=1)
    gradient[4] += bad
    made = (TorchSelector(99, values), NativeSelector(99, values))
    sent = [send(each, gradient, residual, 99, values) for each in made]
    (one, one_rest), (other, other_rest) = [(decoded(each, N), each.rest) for each in sent]
    assert np.array_equal(one_rest, other_rest)
    assert np.isfinite(bad) == np.array_equal(one, other)
    assert np.isfinite(bad) == bool(np.isfinite(one).all())


def test_float16_values_are_rounded_as_numpy_rounds():
    """Send the nearest float16, ties to even, and decode every float16."""
    rng = np.random.default_rng(0)
    numbers = np.ldexp(rng.uniform(-2, 2, N), rng.integers(-28, 15, N)).astype(np.float32)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves[:-1] + halves[1:]) / np.float32(2)
    above = np.nextafter(between, np.float32(1e9))
    for gradient in (numbers, halves, -halves, between, above):
        sent = send_alike(gradient, np.zeros_like(gradient), len(gradient), "float16")
        assert np.array_equal(gradient.astype(np.float16), decoded(sent, len(gradient)))


def test_float16_values_are_cut_not_infinite():
    """Clamp to 65504, and keep the rest."""
    large = [65504, -65519, 65520, 1e5, 2.0**29, -(2.0**38) - 2.0**15, 2.0**39, 3e38]
    gradient = np.array(large, dtype=np.float32)
    sent = send_alike(gradient, np.zeros(8, dtype=np.float32), 8, "float16")
    arrived = decoded(sent, 8)
    assert [65504, -65504, 65504, 65504, 65504, -65504, 65504, 65504] == arrived.tolist()
    total = arrived.astype(np.float64) + sent.rest
    assert np.allclose(gradient.astype(np.float64), total, rtol=ROUNDING, atol=0.0)


@pytest.mark.parametrize("values", VALUE_TYPES)
def test_payloads_of_several_ranks_add_up(values):
    """Add every rank's payload, also with an odd number of slots and unused ones."""
    k, expected = 133, make("mostly zeros", seed=9)
    made = make_selectors(N, k, values)
    totals = [guarded(expected) for _ in made]
    for rank, name in enumerate(("gauss", "huge", "mostly zeros", "denormals", "all zero")):
        sent = send_alike(make(name, seed=rank), make("all zero"), k, values)
        np.add.at(expected, sent.indices, sent.values.astype(np.float32))
        for selector, total in zip(made, totals, strict=True):
            selector.add(torch.from_numpy(sent.payload), torch.from_numpy(total))
    for total in totals:
        assert np.array_equal(expected, total)
        check_margins(total)


@pytest.mark.parametrize("index", [-1, N])
def test_an_index_that_is_not_there_is_seen(index):
    """Write nothing beyond the bucket; refuse it on the host, and report it to all ranks on a
    GPU.
    """
    sent = send_alike(make("gauss"), make("all zero"), 5)
    sent.indices[3] = index
    payload, into = torch.from_numpy(sent.payload), guarded(np.zeros(N, dtype=np.float32))
    native, *others = make_selectors(N, 5)
    with pytest.raises(IndexError):
        native.add(payload, torch.from_numpy(into))
    into[:] = 0
    for cuda in others:
        cuda.add(payload, torch.from_numpy(into))
        assert 1 == np.isnan(into).sum()
    check_margins(into)


def test_nothing_is_compiled_after_preparing():
    """Compile everything in ``prepare``, and release the interpreter lock in it."""
    prepare(HOST)
    before = len(kernels.select.signatures)
    for values in VALUE_TYPES:
        selector = NativeSelector(9, values)
        decoded(send(selector, make("gauss"), make("gauss", seed=1), 9, values), N)
    assert before == len(kernels.select.signatures)
    assert kernels.select.targetoptions["nogil"]


@needs_compiler
def test_launches_do_not_depend_on_the_data(launches):
    """Launch the same kernels in the same sizes for all data."""
    names = ["survey", "divide", "refine", "refine", "tally", "emit"]
    broken = make("gauss")
    broken[7] = np.nan
    for gradient in (make("gauss"), make("all zero"), make("all equal"), broken):
        launches.clear()
        send(CudaSelector(N, 50, "float32", HOST), gradient, make("gauss", seed=1), 50)
        assert [(name, cuda_on_host.RESIDENT.get(name, 2)) for name in names] == launches
