"""Tests of top-k selection with error feedback: sent elements, residual, and conservation."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from effort import repetitions
from gradients import DISTRIBUTIONS, ELEMENTS, Floats, N, make
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

pytest.importorskip("numba")

from commbench.errors import InputError, WrongDataError
from commbench.hooks.compression import kernels
from commbench.hooks.compression.selection import TopKSelector, decode_add, prepare
from commbench.hooks.message import payload_bytes

DENSITIES = (0.001, 0.01, 0.03, 0.3, 1.0)
VALUE_TYPES = ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One step: the parsed payload, and the residual."""

    finite: bool
    indices: NDArray[np.int32]
    values: NDArray[np.floating]
    payload: NDArray[np.uint8]
    rest: Floats | None


def send(selector: TopKSelector, gradient: Floats, residual: Floats | None, **options: Any) -> Sent:
    """Encode a step; copy the residual unless ``out_residual`` is given."""
    payload = np.full(selector.payload_bytes, 0xAA, dtype=np.uint8)
    rest = options.get("out_residual")
    if rest is None and residual is not None:
        rest = residual = residual.copy()
    finite = selector.encode(gradient, residual, payload, **options)
    indices = payload[: 4 * selector.k].view(np.int32)
    values = payload[4 * selector.k :].view(selector.value_dtype)[: selector.k]
    return Sent(finite=finite, indices=indices, values=values, payload=payload, rest=rest)


def decoded(sent: Sent, n: int) -> Floats:
    """Return the values that receivers add."""
    total = np.zeros(n, dtype=np.float32)
    value_dtype: Any = sent.values.dtype.name
    decode_add(sent.payload, n, len(sent.indices), value_dtype, total)
    return total


def check(gradient: Floats, residual: Floats | None, sent: Sent) -> None:
    """Check that k slots hold the largest elements, and that sent values and residual add up."""
    total = gradient if residual is None else gradient + residual
    k = len(sent.indices)
    filled = min(k, int(np.count_nonzero(total)))
    assert sent.finite
    assert 0 <= sent.indices.min()
    assert sent.indices.max() < len(total)
    chosen, added = np.split(sent.indices, [filled])
    assert filled == len(np.unique(chosen))
    assert k - filled == len(added)
    assert not sent.values[filled:].any()
    kept = np.delete(np.abs(total), chosen)
    assert not filled or not len(kept) or np.abs(total[chosen]).min() >= kept.max()
    if sent.values.dtype == np.float32:
        assert np.array_equal(total[chosen], sent.values[:filled])
        assert sent.rest is None or not sent.rest[chosen].any()
    if sent.rest is not None:
        arrived = sent.rest.astype(np.float64)
        np.add.at(arrived, sent.indices, sent.values.astype(np.float64))
        assert np.array_equal(total, arrived)


@pytest.mark.parametrize(("number", "name"), list(enumerate(DISTRIBUTIONS)))
def test_the_largest_are_sent_and_nothing_is_lost(number: int, name: str) -> None:
    """Fill k slots with the largest elements; sent plus residual is exactly the input."""
    density = DENSITIES[number % len(DENSITIES)]
    value_dtype: Any = VALUE_TYPES[number % 2]
    selector = TopKSelector(N, math.ceil(density * N), value_dtype=value_dtype)
    for step, residual in enumerate(
        (np.zeros(N, dtype=np.float32), make(name, seed=1), make("gauss", seed=2))
    ):
        gradient = make(name, seed=3)
        check(gradient, residual, send(selector, gradient, residual, step=step))
        check(gradient, None, send(selector, gradient, None, step=step))


@settings(max_examples=repetitions(150))
@given(st.data())
def test_any_small_array(data: st.DataObject) -> None:
    """Send the largest and lose nothing, for a few elements of any size."""
    n = data.draw(st.integers(1, 40))
    k, step = data.draw(st.integers(1, n)), data.draw(st.integers(0, 2**40))
    gradient = data.draw(arrays(np.float32, n, elements=ELEMENTS))
    residual = data.draw(st.none() | arrays(np.float32, n, elements=ELEMENTS))
    selector = TopKSelector(n, k, value_dtype=data.draw(st.sampled_from(VALUE_TYPES)))
    check(gradient, residual, send(selector, gradient, residual, step=step))


@settings(max_examples=repetitions(60))
@given(st.integers(1, 3000), st.floats(0, 1), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_any_number_of_equal_elements(n: int, density: float, levels: int, seed: int) -> None:
    """Send the largest and lose nothing, for whole and partial blocks with any number of equal
    elements.
    """
    rng = np.random.default_rng(seed)
    gradient = rng.integers(-levels, levels + 1, n).astype(np.float32)
    residual = rng.integers(-levels, levels + 1, n).astype(np.float32)
    selector = TopKSelector(n, max(1, int(density * n)))
    check(gradient, residual, send(selector, gradient, residual, step=seed))


def test_no_more_candidates_than_there_is_room_for() -> None:
    """Handle the maximum number of candidates: all of all blocks but one."""
    n, k = 100_000, 100
    gradient = np.linspace(1, 2, n, dtype=np.float32)
    rows, columns = kernels.MOST_ROWS, kernels.COLUMNS
    gradient[: rows * columns].reshape(rows, columns)[:, : k - 1] += 10  # a block is a column
    residual = np.zeros(n, dtype=np.float32)
    check(gradient, residual, send(TopKSelector(n, k), gradient, residual))


@pytest.mark.parametrize(
    ("levels", "larger"),
    [((1.0,), 0), ((1.0, -1.0), 100), ((1.0, 0.5, 0.25), 100), ((1.0, 0.0), 0)],
)
def test_equal_elements_take_turns_without_feedback(levels: tuple[float, ...], larger: int) -> None:
    """Send each of m equal elements equally often, within ceil(m / free slots) steps."""
    k = 300
    gradient = np.random.default_rng(0).choice(np.array(levels, dtype=np.float32), N)
    gradient[5 : 5 + larger] = 7
    tied = np.flatnonzero(np.abs(gradient) == 1)
    selector, times = TopKSelector(N, k), np.zeros(N, dtype=int)
    steps = math.ceil(len(tied) / (k - larger))
    for step in range(1000, 1000 + steps):
        times[send(selector, gradient, None, step=step).indices] += 1
    assert {1, 2} >= set(times[tied].tolist())


@pytest.mark.parametrize("name", ["all equal", "plus and minus one"])
def test_equal_elements_take_turns_with_feedback(name: str) -> None:
    """Send each of n equal elements once within ceil(n / k) steps."""
    k, gradient = 400, make(name)
    selector, residual, times = (
        TopKSelector(N, k),
        np.zeros(N, dtype=np.float32),
        np.zeros(N, dtype=int),
    )
    for step in range(math.ceil(N / k)):
        sent = send(selector, gradient, residual, step=step)
        assert sent.rest is not None
        residual = sent.rest
        times[sent.indices] += 1
    assert {1, 2} == set(times.tolist())


@pytest.mark.parametrize(
    ("place", "position", "bad"),
    [("gradient", 0, np.nan), ("residual", 5000, np.inf), ("gradient", N - 1, -np.inf)],
)
def test_values_that_are_not_finite_reach_all_ranks(place: str, position: int, bad: float) -> None:
    """Send NaN in valid slots and keep the residual, for either value type."""
    inputs: dict[str, Any] = {"gradient": make("gauss"), "residual": make("gauss", seed=1)}
    inputs[place][position] = bad
    before, other = inputs["residual"].copy(), np.full(N, 3, dtype=np.float32)
    for value_dtype in VALUE_TYPES:
        selector = TopKSelector(N, 55, value_dtype=value_dtype)  # type: ignore[arg-type] # a str by its type only
        payload = np.zeros(selector.payload_bytes, dtype=np.uint8)
        assert not selector.encode(**inputs, payload=payload)
        assert not selector.encode(**inputs, payload=payload, out_residual=other)
        total = np.zeros(N, dtype=np.float32)
        decode_add(payload, N, 55, selector.value_dtype, total)
        assert 55 == np.isnan(total).sum()
    assert np.array_equal(before, inputs["residual"], equal_nan=True)
    assert 3 == other.min() == other.max()


def test_a_sum_that_overflows_is_not_finite() -> None:
    """Detect an infinite sum of two finite numbers."""
    gradient = np.zeros(1000, dtype=np.float32)
    gradient[77] = 3e38
    assert not send(TopKSelector(1000, 3), gradient, gradient.copy()).finite


def test_a_step_that_is_not_finite_does_no_harm_to_the_next() -> None:
    """Continue after a non-finite step as if it had not happened."""
    gradient, residual = make("gauss"), make("gauss", seed=1)
    broken = gradient.copy()
    broken[9] = np.inf
    selector = TopKSelector(N, 55)
    send(selector, broken, residual)
    after, fresh = send(selector, gradient, residual), send(TopKSelector(N, 55), gradient, residual)
    assert np.array_equal(fresh.payload, after.payload)


@pytest.mark.parametrize("value_dtype", VALUE_TYPES)
def test_where_the_new_residual_goes_changes_nothing_else(value_dtype: Any) -> None:
    """Select alike in place, beside, without residual and from zeros; write no other memory."""
    selector = TopKSelector(N, 555, value_dtype=value_dtype)
    gradient, residual = make("student t2"), make("student t2", seed=1)
    kept = gradient.copy(), residual.copy()
    in_place = send(selector, gradient, residual)
    beside = send(selector, gradient, residual, out_residual=np.empty(N, dtype=np.float32))
    same = send(selector, gradient, residual_copy := residual.copy(), out_residual=residual_copy)
    zeros = send(selector, gradient, np.zeros(N, dtype=np.float32))
    from_none = send(selector, gradient, None, out_residual=np.empty(N, dtype=np.float32))
    alone = send(selector, gradient, None)
    for one, other in ((in_place, beside), (in_place, same), (zeros, from_none)):
        assert np.array_equal(one.payload, other.payload)
        assert one.rest is not None
        assert other.rest is not None
        assert np.array_equal(one.rest, other.rest)
    assert np.array_equal(zeros.payload, alone.payload)
    assert alone.rest is None
    assert np.array_equal(kept[0], gradient)
    assert np.array_equal(kept[1], residual)


def test_float16_values_are_rounded_as_numpy_rounds() -> None:
    """Send the nearest float16, ties to even, and decode every float16."""
    rng = np.random.default_rng(0)
    numbers = np.ldexp(rng.uniform(-2, 2, N), rng.integers(-28, 15, N)).astype(np.float32)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between: Floats = (halves[:-1] + halves[1:]) / np.float32(2)
    above: Floats = np.nextafter(between, np.float32(1e9))
    for gradient in (numbers, halves, -halves, between, above):
        sent = send(
            TopKSelector(len(gradient), len(gradient), value_dtype="float16"), gradient, None
        )
        assert np.array_equal(gradient.astype(np.float16), decoded(sent, len(gradient)))


def test_float16_values_are_cut_not_infinite() -> None:
    """Clamp to 65504, or less if float32 cannot hold the exact residual."""
    gradient = np.array(
        [65504, -65519, 65520, 1e5, 2.0**29, -(2.0**38) - 2.0**15, 2.0**39, 3e38], dtype=np.float32
    )
    sent = send(TopKSelector(8, 8, value_dtype="float16"), gradient, np.zeros(8, dtype=np.float32))
    assert [65504, -65504, 65504, 65504, 65472, -32768, 0, 0] == decoded(sent, 8).tolist()
    assert sent.rest is not None
    assert np.array_equal(
        gradient.astype(np.float64), decoded(sent, 8).astype(np.float64) + sent.rest
    )


@pytest.mark.parametrize("value_dtype", VALUE_TYPES)
def test_payloads_of_several_ranks_add_up(value_dtype: Any) -> None:
    """Add every rank's payload from one buffer, also with an odd number of slots."""
    k, size = 33, payload_bytes(33, value_dtype)
    gathered, expected = np.empty(3 * size, dtype=np.uint8), np.ones(N, dtype=np.float32)
    into = expected.copy()
    for rank in range(3):
        part = gathered[rank * size : (rank + 1) * size]
        TopKSelector(N, k, value_dtype=value_dtype).encode(make("gauss", seed=rank), None, part)
        expected[part[: 4 * k].view(np.int32)] += (
            part[4 * k :].view(value_dtype)[:k].astype(np.float32)
        )
        decode_add(part, N, k, value_dtype, into)
    assert np.array_equal(expected, into)


@pytest.mark.parametrize("index", [-1, 1000])
def test_indices_that_are_not_there_are_refused(index: int) -> None:
    """Refuse a payload with an index beyond the bucket before writing."""
    sent = send(TopKSelector(1000, 5), np.ones(1000, dtype=np.float32), None)
    sent.indices[3] = index
    into = np.zeros(1000, dtype=np.float32)
    with pytest.raises(WrongDataError):
        decode_add(sent.payload, 1000, 5, "float32", into)
    assert not into.any()


@pytest.mark.parametrize(
    ("n", "k", "value_dtype"),
    [
        (0, 0, "float32"),
        (5, 0, "float32"),
        (5, 6, "float32"),
        (2**31, 1, "float32"),
        (5, 1, "float64"),
    ],
)
def test_impossible_selectors_are_refused(n: int, k: int, value_dtype: Any) -> None:
    """Refuse an impossible number of elements, in encoding and decoding."""
    with pytest.raises(InputError):
        TopKSelector(n, k, value_dtype=value_dtype)
    with pytest.raises(InputError):
        decode_add(np.zeros(8, dtype=np.uint8), n, k, value_dtype, np.zeros(5, dtype=np.float32))


def wrong_arrays() -> dict[str, dict[str, Any]]:
    """Return invalid arguments of ``encode`` by what is wrong."""
    block = np.zeros(200, dtype=np.float32)
    read_only = np.zeros(100, dtype=np.float32)
    read_only.flags.writeable = False
    return {
        "type": {"gradient": np.zeros(100)},
        "size": {"gradient": np.zeros(99, dtype=np.float32)},
        "shape": {"residual": np.zeros((100, 1), dtype=np.float32)},
        "stride": {"residual": block[::2]},
        "read-only residual": {"residual": read_only},
        "short payload": {"payload": np.zeros(79, dtype=np.uint8)},
        "payload off its word": {"payload": np.zeros(84, dtype=np.uint8)[1:81]},
        "size of the new residual": {"out_residual": np.zeros(101, dtype=np.float32)},
        "new residual is the gradient": {"gradient": block[:100], "out_residual": block[:100]},
        "new residual overlaps the old": {"residual": block[:100], "out_residual": block[50:150]},
    }


@pytest.mark.parametrize("wrong", wrong_arrays())
def test_arrays_that_do_not_fit_are_refused(wrong: str) -> None:
    """Refuse an invalid array by name, before native code reads it."""
    arguments: dict[str, Any] = {
        "gradient": np.zeros(100, dtype=np.float32),
        "residual": np.zeros(100, dtype=np.float32),
        "payload": np.zeros(80, dtype=np.uint8),
    }
    assert TopKSelector(100, 10).encode(**arguments)
    with pytest.raises(InputError):
        TopKSelector(100, 10).encode(**{**arguments, **wrong_arrays()[wrong]})


def test_nothing_is_compiled_after_preparing() -> None:
    """Compile everything in ``prepare``, and release the interpreter lock in it."""
    prepare()
    compiled = (kernels.select, kernels.take, kernels.add)
    before = [len(kernel.signatures) for kernel in compiled]
    for value_dtype in VALUE_TYPES:
        selector = TopKSelector(N, 9, value_dtype=value_dtype)  # type: ignore[arg-type] # a str by its type only
        gradient = make("gauss")
        sent = send(selector, gradient, make("gauss", seed=1))
        send(selector, gradient, None, out_residual=np.empty(N, dtype=np.float32))
        send(selector, gradient, None)
        decoded(sent, N)
    assert before == [len(kernel.signatures) for kernel in compiled]
    assert all(kernel.targetoptions["nogil"] for kernel in compiled)
