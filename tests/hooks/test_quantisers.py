"""Tests of quantisation to int8: exact where it can be, else within half a step.

Compiled and by torch alike.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cuda_on_host
import pytest
from effort import repetitions
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from commbench.hooks import quantisers  # noqa: E402 - as above
from commbench.hooks.compression import quantisation  # noqa: E402 - as above
from commbench.hooks.message import QuantisedLayout  # noqa: E402 - as above
from commbench.hooks.quantisers import (  # noqa: E402 - as above
    NativeQuantiser,
    TorchQuantiser,
    prepare,
)

needs_compiler = pytest.mark.skipif(not cuda_on_host.find_compiler(), reason="needs a C++ compiler")
QUANTISERS = [NativeQuantiser, TorchQuantiser]
#: A sum of 2**-20 relative to the largest: what float32 rounds in a sum of a few ranks.
ROUNDING = 2.0**-20


@dataclass
class Ranks:
    """The quantised all-reduce of several ranks in one process, without collectives."""

    layout: QuantisedLayout
    quantiser: TorchQuantiser
    residuals: Sequence[Any]
    """A tensor of shape (elements,) or None for each rank."""

    @classmethod
    def make(
        cls, make: Any, elements: int, ranks: int, *, block: int = 16, feedback: bool = True
    ) -> Any:
        """Return ranks with residuals of zero, or without residuals."""
        layout = QuantisedLayout.of(elements, shards=ranks, block=block)
        return cls(
            layout,
            make(layout),
            [torch.zeros(elements) if feedback else None for _ in range(ranks)],
        )

    def average(self, gradients: Sequence[Any]) -> Any:
        """Return the average that all ranks receive."""
        payloads, sums = (
            torch.zeros((len(gradients), self.layout.row_bytes), dtype=torch.uint8)
            for _ in range(2)
        )
        rows = []
        for gradient, residual in zip(gradients, self.residuals, strict=True):
            self.quantiser.encode(gradient.clone(), residual, payloads, out_residual=residual)
            rows.append(payloads.clone())
        for shard, residual in enumerate(self.residuals):
            mine = None if residual is None else residual[self.layout.span(shard)]
            received = torch.stack([row[shard] for row in rows])
            self.quantiser.combine(
                received, sums[shard], divisor=float(len(gradients)), residual=mine
            )
        into = torch.full((self.layout.elements,), 7.0)
        self.quantiser.decode(sums, into)
        return into


def draw(elements: int, ranks: int, seed: int = 0) -> list[Any]:
    """Return gradients of very different sizes, some of them zero."""
    numbers = torch.Generator().manual_seed(seed)
    spread = [torch.randn(elements, generator=numbers) for _ in range(2 * ranks)]
    gradients = [
        size * (3 * power).exp() for size, power in zip(spread[::2], spread[1::2], strict=True)
    ]
    return [torch.where(spread[0] > 1, 0.0, gradient) for gradient in gradients]


def half_steps(values: Any, layout: QuantisedLayout) -> Any:
    """Return half of the step between two values that can be sent, for each element."""
    halves = torch.zeros_like(values)
    for shard in range(layout.shards):
        for part in values[layout.span(shard)].split(layout.block):
            start = part.storage_offset() - values.storage_offset()
            halves[start : start + len(part)] = part.abs().amax() / 127 / 2 if len(part) else 0.0
    return halves


@pytest.mark.parametrize(
    ("elements", "shards", "block"),
    [(1, 1, 1), (1, 7, 256), (3, 2, 10**9), (4, 3, 6), (1000, 2, 6), (1000, 7, 1), (4099, 3, 256)],
)
def test_shards_hold_every_element_once(elements: int, shards: int, block: int) -> None:
    """Divide a bucket into equal aligned shards that end with it, and shards into blocks."""
    layout = QuantisedLayout.of(elements, shards=shards, block=block)
    spans = [range(elements)[layout.span(shard)] for shard in range(shards)]
    assert list(range(elements)) == [element for span in spans for element in span]
    assert (0, 0) == (layout.shard % 4, layout.row_bytes % 4)
    assert layout.blocks * layout.block >= layout.shard > (layout.blocks - 1) * layout.block
    assert layout.row_bytes == layout.shard + 4 * math.ceil(layout.shard / block)


@pytest.mark.parametrize("make", QUANTISERS)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_averages_of_representable_values_are_exact(make: Any, ranks: int) -> None:
    """Lose nothing if gradients and their sum are whole multiples of one step in every block."""
    numbers = torch.Generator().manual_seed(ranks)
    levels = torch.randint(-127, 128, (1000,), generator=numbers).float()
    levels[::4] = 127.0
    gradients = [levels * 2.0**-11 * (rank + 1) for rank in range(ranks)]
    sharing = Ranks.make(make, 1000, ranks)
    expected = torch.stack(gradients).double().mean(dim=0)
    for _ in range(3):
        assert torch.equal(expected.float(), sharing.average(gradients))
    assert [0.0] * ranks == [float(residual.abs().max()) for residual in sharing.residuals]


@pytest.mark.parametrize("make", QUANTISERS)
@settings(max_examples=repetitions(40), deadline=None)
@given(
    st.integers(1, 300), st.integers(1, 5), st.sampled_from([1, 5, 64, 1000]), st.integers(0, 100)
)
def test_errors_are_at_most_half_a_step_of_each_stage(
    make: Any, elements: int, ranks: int, block: int, seed: int
) -> None:
    """Bound the error of an average by half a step of each gradient and half a step of the sum,
    over the ranks.
    """
    gradients = draw(elements, ranks, seed)
    sharing = Ranks.make(make, elements, ranks, block=block, feedback=False)
    errors = sharing.average(gradients).double() - torch.stack(gradients).double().mean(dim=0)
    first = torch.stack([half_steps(gradient, sharing.layout) for gradient in gradients]).sum(dim=0)
    sums = torch.stack(gradients).sum(dim=0)
    largest_sums = half_steps(
        sums.abs() + first, sharing.layout
    )  # what is summed has been rounded before
    bounds = (first + largest_sums).double() / ranks * (
        1 + ROUNDING
    ) + ROUNDING * sums.abs().double()
    assert bool((errors.abs() <= bounds).all())


@pytest.mark.parametrize(("make", "ranks"), [(NativeQuantiser, 3), (TorchQuantiser, 2)])
def test_averages_and_residuals_add_up_to_all_gradients(make: Any, ranks: int) -> None:
    """Lose nothing over 50 steps: averages times ranks plus all residuals are the sum of all
    gradients.
    """
    sharing, received, expected = (
        Ranks.make(make, 500, ranks),
        torch.zeros(500).double(),
        torch.zeros(500).double(),
    )
    for step in range(50):
        gradients = draw(500, ranks, seed=step)
        received += ranks * sharing.average(gradients).double()
        expected += torch.stack(gradients).double().sum(dim=0)
    residual = torch.stack(list(sharing.residuals)).double().sum(dim=0)
    assert residual.abs().max() > 0
    assert torch.allclose(
        expected, received + residual, rtol=1e-5, atol=1e-5 * float(expected.abs().max())
    )
    assert not torch.allclose(
        expected, received, rtol=1e-5, atol=1e-5 * float(expected.abs().max())
    )


@settings(max_examples=repetitions(60), deadline=None)
@given(
    st.integers(1, 400),
    st.integers(1, 5),
    st.sampled_from([1, 7, 64, 1000]),
    st.booleans(),
    st.integers(0, 100),
)
def test_compiled_code_sends_the_bits_of_the_reference(
    elements: int, ranks: int, block: int, feedback: bool, seed: int
) -> None:
    """Receive the same bits and keep the same residuals by compiled code and by torch."""
    results = []
    for make in QUANTISERS:
        sharing = Ranks.make(make, elements, ranks, block=block, feedback=feedback)
        averages = [sharing.average(draw(elements, ranks, seed + step)) for step in range(3)]
        results.append([*averages, *(residual for residual in sharing.residuals if feedback)])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("make", QUANTISERS)
@pytest.mark.parametrize(
    ("bad", "place"), [(math.inf, "gradient"), (math.nan, "residual"), (2.0**127, "gradient")]
)
def test_values_that_cannot_be_sent_reach_all_ranks(make: Any, bad: float, place: str) -> None:
    """Make the block of such a value NaN and keep its residual; average all other blocks."""
    sharing, gradients = Ranks.make(make, 160, 2), draw(160, 2)
    (gradients[1] if place == "gradient" else sharing.residuals[1])[100] = bad
    before = sharing.residuals[1].clone()
    average = sharing.average(gradients)
    block = slice(96, 112)  # of shard 1, elements 80 to 160
    assert bool(average[block].isnan().all())
    assert bool(torch.cat([average[:96], average[112:]]).isfinite().all())
    assert torch.equal(before[block].nan_to_num(), sharing.residuals[1][block].nan_to_num())
    assert not torch.equal(before[:96], sharing.residuals[1][:96])


@pytest.mark.parametrize("make", QUANTISERS)
def test_a_sum_that_overflows_is_nan(make: Any) -> None:
    """Make a block NaN if only the sum of its elements is too large."""
    large = torch.full((8,), 2.0**126)
    assert bool(Ranks.make(make, 8, 2).average([large, large]).isnan().all())
    assert bool(Ranks.make(make, 8, 2).average([large, -large]).isfinite().all())


@pytest.mark.parametrize("make", QUANTISERS)
@pytest.mark.parametrize("tiny", [-0.0, 1e-44, 2.0**-120, 1.0])
def test_tiny_values_are_kept_or_sent(make: Any, tiny: float) -> None:
    """Send zeros in place of values too small for a scale, and keep them in the residual."""
    sharing = Ranks.make(make, 40, 2)
    average = sharing.average([torch.full((40,), tiny)] * 2)
    assert torch.allclose(
        torch.full((40,), tiny), average + sharing.residuals[0], rtol=1e-6, atol=0.0
    )
    assert (tiny >= 2.0**-119) == bool(average.any())


def test_only_the_residual_is_written() -> None:
    """Leave the gradient unchanged, and memory beside a residual."""
    layout = QuantisedLayout.of(100, shards=3, block=16)
    gradient, memory = draw(100, 1)[0], torch.full((120,), 3.0)
    before = gradient.clone()
    payload = torch.zeros((3, layout.row_bytes), dtype=torch.uint8)
    NativeQuantiser(layout).encode(gradient, None, payload, out_residual=memory[10:110])
    assert torch.equal(before, gradient)
    assert [3.0] * 20 == [*memory[:10].tolist(), *memory[110:].tolist()]


def test_nothing_is_compiled_after_preparing() -> None:
    """Compile everything in ``prepare``, and release the interpreter lock in it."""
    prepare(torch.device("cpu"))
    kernels = (quantisation.quantise, quantisation.combine, quantisation.dequantise)
    before = [len(kernel.signatures) for kernel in kernels]
    for feedback in (True, False):
        Ranks.make(NativeQuantiser, 100, 2, feedback=feedback).average(draw(100, 2))
    assert before == [len(kernel.signatures) for kernel in kernels]
    assert all(kernel.targetoptions["nogil"] for kernel in kernels)


HOST, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[cuda_on_host.Launches]:
    """Return kernels compiled for the host, and their record of launches."""
    monkeypatch.setattr(quantisers, "stream_of", lambda _: 7)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with cuda_on_host.installed(cuda_on_host.QUANTISATION) as (_, launches):
        yield launches


@needs_compiler
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("feedback", [True, False])
def test_kernels_send_the_bits_of_compiled_code(feedback: bool) -> None:
    """Receive the same bits and keep the same residuals by kernels and by the host's compiled
    code.
    """
    results = []
    for make in (NativeQuantiser, lambda layout: quantisers.CudaQuantiser(layout, HOST)):
        sharing = Ranks.make(make, 1000, 3, block=64, feedback=feedback)
        averages = [sharing.average(draw(1000, 3, step)) for step in range(3)]
        results.append([*averages, *(residual for residual in sharing.residuals if feedback)])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@needs_compiler
@pytest.mark.usefixtures("cuda")
def test_a_loss_scale_may_lie_on_the_device() -> None:
    """Divide by a tensor as by the number in it."""
    layout, owns = QuantisedLayout.of(100, shards=1, block=64), []
    quantiser, payload = (
        quantisers.CudaQuantiser(layout, HOST),
        torch.zeros((1, layout.row_bytes), dtype=torch.uint8),
    )
    quantiser.encode(draw(100, 1)[0], None, payload, out_residual=None)
    for divisor in (3 / 1024, torch.tensor(3 / 1024), 1.0):
        owns.append(torch.zeros_like(payload[0]))
        quantiser.combine(payload, owns[-1], divisor=divisor, residual=None)
    assert torch.equal(owns[0], owns[1])
    assert not torch.equal(owns[0], owns[2])


@needs_compiler
def test_every_kernel_is_compiled_and_launched_beforehand(cuda: cuda_on_host.Launches) -> None:
    """Compile and load all kernels before the first step."""
    quantisers._prepare_kernels(HOST)
    assert ["quantise", "combine", "dequantise"] == [name for name, _ in cuda]
