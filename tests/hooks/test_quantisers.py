"""Tests of quantisation to int8: exact where it can be, else within half a step.

By torch, by compiled code, and by CUDA kernels that are compiled for the host, bit for bit alike.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import cuda_on_host
import numpy as np
import pytest
from effort import repetitions
from gradients import DISTRIBUTIONS, draw_small, make
from hypothesis import given, settings
from hypothesis import strategies as st
from margins import check_margins, guarded

torch = pytest.importorskip("torch")

from commbench.hooks import quantisers
from commbench.hooks.compression import quantisation
from commbench.hooks.message import QuantisedLayout
from commbench.hooks.quantisers import (
    CudaQuantiser,
    NativeQuantiser,
    TorchQuantiser,
    prepare,
)

HOST = torch.device("cpu")
#: Not a multiple of a block, a shard or a warp.
N = 5003
#: Blocks of little more than a row of a warp, of the default, and of more than a warp's registers
#: hold; then of others.
BLOCKS = (33, 256, 1000, 1, 31, 32, 257, 512, 10**6)
#: What float32 rounds, relative to the largest element.
ROUNDING = 2.0**-20


def make_cuda(layout: QuantisedLayout) -> CudaQuantiser:
    """Return the quantiser by kernels."""
    return CudaQuantiser(layout, HOST)


Make = Callable[[QuantisedLayout], TorchQuantiser]
QUANTISERS = [NativeQuantiser, TorchQuantiser]
if cuda_on_host.find_compiler():
    QUANTISERS.append(make_cuda)


@pytest.fixture(autouse=True, scope="module")
def _cuda():
    """Compile kernels with blocks of few threads."""
    with cuda_on_host.installed():
        yield


class Ranks:
    """The quantised all-reduce of several ranks in one process, without collectives.

    Everything lies between margins that nobody may touch.
    """

    def __init__(self, make: Make, elements: int, ranks: int, block: int = 16) -> None:
        self.layout = QuantisedLayout.of(elements, shards=ranks, block=block)
        self.quantiser = make(self.layout)
        self.residuals = [guarded(np.zeros(elements, np.float32)) for _ in range(ranks)]
        """Of each rank."""
        self.sent = []
        """All payloads."""

    def average(self, gradients: Sequence[Any]) -> Any:
        """Return the average that all ranks receive."""
        layout, ranks, rows = self.layout, len(gradients), []
        for rank, gradient in enumerate(gradients):
            payload = guarded(np.full(layout.shards * layout.row_bytes, 0xAA, dtype=np.uint8))
            source, residual = guarded(np.asarray(gradient)), self.residuals[rank]
            self.quantiser.encode(
                tensor_of(source), tensor_of(residual), tensor_of(payload).view(ranks, -1)
            )
            check_margins(source, residual, payload)
            assert np.array_equal(gradient, source, equal_nan=True)
            rows.append(payload.reshape(ranks, -1))
        sums = guarded(np.full(layout.shards * layout.row_bytes, 0xAA, dtype=np.uint8))
        for shard, residual in enumerate(self.residuals):
            mine = tensor_of(residual[layout.span(shard)])
            received = tensor_of(np.stack([row[shard] for row in rows]))
            own = tensor_of(sums).view(ranks, -1)[shard]
            self.quantiser.combine(received, own, divisor=float(ranks), residual=mine)
            check_margins(residual, sums)
        into = guarded(np.full(layout.elements, 7, dtype=np.float32))
        self.quantiser.decode(tensor_of(sums).view(ranks, -1), tensor_of(into))
        check_margins(into)
        self.sent += [row.tobytes() for row in (*rows, sums)]
        return tensor_of(into)


def tensor_of(array: Any) -> Any:
    """Return the array as a tensor of the same memory."""
    return torch.from_numpy(array)


def draw(elements: int, ranks: int, seed: int = 0) -> list[Any]:
    """Return gradients of very different sizes, some of them zero."""
    numbers = torch.Generator().manual_seed(seed)
    spread = torch.randn((2 * ranks, elements), generator=numbers)
    gradients = spread[::2] * (3 * spread[1::2]).exp()
    return list(torch.where(spread[0] > 1, 0.0, gradients))


def check_alike(gradient: Any, residual: Any, *, block: int, ranks: int) -> None:
    """Compare what ranks send, receive and keep that have rotations of the same data."""
    results = []
    gradients = [np.roll(gradient, rank) for rank in range(ranks)]
    for quantiser in QUANTISERS:
        sharing = Ranks(quantiser, len(gradient), ranks, block)
        sharing.residuals = [guarded(residual) for _ in gradients]
        average = sharing.average(gradients)
        kept: list[Any] = [rest.tobytes() for rest in sharing.residuals]
        if quantiser is TorchQuantiser:  # zeros have another sign
            kept = [np.nan_to_num(rest).tolist() for rest in sharing.residuals]
        results.append((sharing.sent, kept, average.nan_to_num(nan=1e9).tolist()))
    (sent, kept, average), by_torch, *by_cuda = results
    values = [np.nan_to_num(np.frombuffer(rest, dtype=np.float32)).tolist() for rest in kept]
    assert (sent, values, average) == by_torch
    for other in by_cuda:
        assert (sent, kept, average) == other


@pytest.mark.parametrize(
    ("elements", "shards", "block"),
    [(1, 1, 1), (1, 7, 256), (3, 2, 10**9), (4, 3, 6), (1000, 2, 6), (1000, 7, 1), (4099, 3, 256)],
)
def test_shards_hold_every_element_once(elements, shards, block):
    """Divide a bucket into equal aligned shards that end with it, and shards into blocks."""
    layout = QuantisedLayout.of(elements, shards=shards, block=block)
    spans = [range(elements)[layout.span(shard)] for shard in range(shards)]
    assert list(range(elements)) == [element for span in spans for element in span]
    assert 0 == layout.shard % 4
    assert 0 == layout.row_bytes % 4
    assert layout.blocks * layout.block >= layout.shard > (layout.blocks - 1) * layout.block
    assert layout.row_bytes == layout.shard + 4 * math.ceil(layout.shard / block)


@pytest.mark.parametrize(("number", "name"), list(enumerate(DISTRIBUTIONS)))
def test_all_send_the_same(number, name):
    """Send, receive and keep the same bits, for all kinds of data and blocks."""
    gradient, block = make(name, N // 3, 3), BLOCKS[number % len(BLOCKS)]
    check_alike(gradient, make(name, N // 3, 1), block=block, ranks=3)


@settings(max_examples=repetitions(150), deadline=None)
@given(data=st.data())
def test_any_small_array(data):
    """Send the same for a few elements of any size, also where shards lie beyond the bucket."""
    n, ranks, block = (data.draw(st.integers(1, most)) for most in (40, 5, 45))
    gradient, residual = draw_small(data, n)
    check_alike(gradient, residual, block=block, ranks=ranks)


@pytest.mark.parametrize("n", [1, 3, 5, 31, 33, 255, 257, 1023])
def test_every_end_of_a_row_and_a_block(n):
    """Read and write all elements and no others."""
    for block in (4, 32, 256, 300):
        check_alike(make("gauss", n), make("gauss", n, 1), block=block, ranks=2)


@pytest.mark.parametrize(
    ("bad", "block"), [(np.nan, 16), (-np.nan, 256), (np.inf, 600), (-np.inf, 16), (2.0**127, 256)]
)
def test_values_that_cannot_be_sent_reach_all_ranks(bad, block):
    """Make the block of such a value NaN and keep its residual; average all other blocks."""
    gradient, residual = make("gauss", 2000), make("gauss", 2000, 1)
    for broken in (gradient, residual):
        before, broken[1990] = broken[1990], bad
        check_alike(gradient, residual, block=block, ranks=2)
        sharing = Ranks(NativeQuantiser, 2000, 2, block)
        sharing.residuals = [guarded(residual), guarded(residual)]
        average = sharing.average([gradient, gradient])
        first = 1000 + 990 // block * block
        distorted = np.s_[first : min(first + block, 2000)]
        assert bool(average[distorted].isnan().all())
        assert np.isfinite(np.delete(average.numpy(), distorted)).all()
        assert np.array_equal(residual[distorted], sharing.residuals[1][distorted], equal_nan=True)
        broken[1990] = before


def test_blocks_of_full_size(monkeypatch):
    """Send the same with a GPU's number of threads per block."""
    monkeypatch.setattr(quantisers, "THREADS", 256)
    check_alike(make("few values"), make("gauss", seed=1), block=256, ranks=2)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_averages_of_representable_values_are_exact(ranks):
    """Lose nothing if gradients and their sum are whole multiples of one step in every block."""
    numbers = torch.Generator().manual_seed(ranks)
    levels = torch.randint(-127, 128, (1000,), generator=numbers).float()
    levels[::4] = 127.0
    gradients = [levels * 2.0**-11 * (rank + 1) for rank in range(ranks)]
    sharing = Ranks(NativeQuantiser, 1000, ranks)
    expected = torch.stack(gradients).double().mean(dim=0)
    for _ in range(3):
        assert torch.equal(expected.float(), sharing.average(gradients))
    assert [0.0] * ranks == [float(abs(residual).max()) for residual in sharing.residuals]


@settings(max_examples=repetitions(40), deadline=None)
@given(st.integers(1, 300), st.sampled_from([1, 5, 64, 1000]), st.integers(0, 100))
def test_errors_are_at_most_half_a_step(elements, block, seed):
    """Round to the nearest of the values that can be sent in a block."""
    [gradient] = draw(elements, 1, seed)
    sharing = Ranks(NativeQuantiser, elements, 1, block)
    errors = sharing.average([gradient]) - gradient
    block = sharing.layout.block
    for error, part in zip(errors.split(block), gradient.split(block), strict=True):
        half = float(part.abs().max()) / 127 / 2
        assert float(error.abs().max()) <= half * (1 + 254 * ROUNDING)


def test_averages_and_residuals_add_up_to_all_gradients():
    """Lose nothing over 50 steps: averages times ranks plus all residuals are the sum of all
    gradients.
    """
    sharing = Ranks(NativeQuantiser, 500, 3)
    received, expected = torch.zeros((2, 500), dtype=torch.float64)
    for step in range(50):
        gradients = draw(500, 3, seed=step)
        received += 3 * sharing.average(gradients).double()
        expected += torch.stack(gradients).double().sum(dim=0)
    residual = sum(tensor_of(each).double() for each in sharing.residuals)
    near = {"rtol": 1e-5, "atol": 1e-5 * float(expected.abs().max())}
    assert torch.allclose(expected, received + residual, **near)
    assert not torch.allclose(expected, received, **near)


def test_a_sum_that_overflows_is_nan():
    """Make a block NaN if only the sum of its elements is too large."""
    large = np.full(8, 2.0**126, dtype=np.float32)
    assert bool(Ranks(NativeQuantiser, 8, 2).average([large, large]).isnan().all())
    assert bool(Ranks(NativeQuantiser, 8, 2).average([large, -large]).isfinite().all())
    check_alike(large, np.zeros_like(large), block=4, ranks=2)


@pytest.mark.parametrize("tiny", [-0.0, 1e-44, 2.0**-120, 1.0])
def test_tiny_values_are_kept_or_sent(tiny):
    """Send zeros in place of values too small for a scale, and keep them in the residual."""
    sharing, values = Ranks(NativeQuantiser, 40, 2), torch.full((40,), tiny)
    average = sharing.average([values, values])
    assert torch.allclose(values, average + tensor_of(sharing.residuals[0]), rtol=1e-6, atol=0.0)
    assert (tiny >= 2.0**-119) == bool(average.any())


def test_a_loss_scale_may_lie_on_the_device():
    """Divide by a tensor as by the number in it."""
    layout = QuantisedLayout.of(100, shards=1, block=64)
    payload, residual = torch.zeros((1, layout.row_bytes), dtype=torch.uint8), torch.zeros(100)
    for make_quantiser in QUANTISERS:
        quantiser, owns = make_quantiser(layout), []
        quantiser.encode(draw(100, 1)[0], residual, payload)
        for divisor in (3 / 1024, torch.tensor(3 / 1024), 1.0):
            owns.append(torch.zeros_like(payload[0]))
            quantiser.combine(payload, owns[-1], divisor=divisor, residual=residual)
        assert torch.equal(owns[0], owns[1])
        assert not torch.equal(owns[0], owns[2])


def test_nothing_is_compiled_after_preparing():
    """Compile everything in ``prepare``, and release the interpreter lock in it."""
    prepare(HOST)
    kernels = (quantisation.quantise, quantisation.combine, quantisation.dequantise)
    before = [len(kernel.signatures) for kernel in kernels]
    Ranks(NativeQuantiser, 100, 2).average(draw(100, 2))
    assert before == [len(kernel.signatures) for kernel in kernels]
    assert all(kernel.targetoptions["nogil"] for kernel in kernels)
