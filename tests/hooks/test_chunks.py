"""Tests of the work on chunks in aligned top-k: compiled and by torch alike, in steps that are not
finite, too.
"""

import math
from typing import Any

import pytest
from effort import repetitions
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from commbench.hooks.chunks import (
    NativeChunks,
    TorchChunks,
    make_chunks,
    prepare,
)
from commbench.hooks.message import ChunkLayout

CPU = torch.device("cpu")


def step(work: Any, layout: ChunkLayout, gradient: Any, memory: dict[str, Any]) -> dict[str, Any]:
    """Do one step of one rank, without collectives; return what it writes."""
    work.measure(gradient, memory["residual"])
    norms = work.norms.clone()
    work.take(divisor=2.0, memory=memory)
    result = work.spread(torch.full((layout.elements,), 7.0))
    return {"norms": norms, "values": work.values.clone(), "result": result, **memory}


def draw(elements: int, seed: int) -> Any:
    """Return small whole numbers: their squares are summed without rounding, and many norms are
    equal.
    """
    return torch.randint(-3, 4, (elements,), generator=torch.Generator().manual_seed(seed)).float()


@settings(max_examples=repetitions(60), deadline=None)
@given(
    st.integers(1, 400),
    st.sampled_from([1, 3, 16, 500]),
    st.sampled_from([0.01, 0.2, 1.0]),
    st.sampled_from([("residual",), ("residual", "momentum")]),
    st.sampled_from([0.0, 2e30, math.inf, math.nan]),
)
def test_compiled_work_is_that_of_the_reference(elements, chunk, density, kinds, planted):
    """Choose the same chunks, the first of equal ones, and write the same values and memory.

    If an element is not finite, all values are NaN, and the memory is kept. An element whose square
    float32 cannot hold is finite.
    """
    layout = ChunkLayout.of(elements, density=density, chunk=chunk)
    chunkers = [NativeChunks(layout), TorchChunks(layout, CPU)]
    memories = [
        {kind: draw(elements, number) for number, kind in enumerate(kinds)} for _ in chunkers
    ]
    for number in range(3):
        gradient = draw(elements, seed=10 + number)
        if number == 1:
            gradient[elements // 2] += planted
        results = [
            step(each, layout, gradient, memory)
            for each, memory in zip(chunkers, memories, strict=True)
        ]
        is_finite = number != 1 or math.isfinite(planted)
        assert {True} == {is_finite or bool(result["values"].isnan().all()) for result in results}
        for name in (*(("values", "result", "norms") if is_finite else ()), *kinds):
            assert torch.equal(results[0][name], results[1][name]), name


def test_the_chunks_with_the_largest_norms_are_sent():
    """Send halves of two of four chunks, keep the others, forget the momentum of sent elements."""
    layout = ChunkLayout.of(7, density=0.5, chunk=2)
    memory = {"residual": torch.tensor([0.0, 0, 0, 2, 0, 0, 0]), "momentum": torch.ones(7)}
    result = step(
        make_chunks(layout, CPU, fast=True), layout, torch.tensor([1.0, 0, 2, 2, 0, 0, 3]), memory
    )
    assert [0, 0, 1, 2, 0, 0, 1.5] == result["result"].tolist()
    assert [1, 0, 0, 0, 0, 0, 0] == result["residual"].tolist()
    assert [1, 1, 0, 0, 1, 1, 0] == result["momentum"].tolist()


@pytest.mark.parametrize(("planted", "readings"), [(1.0, 1), (2e30, 2)])
def test_chunks_on_a_host_are_read_again_only_if_a_square_is_too_large(
    monkeypatch, planted, readings
):
    """Compute norms once where float32 holds the squares of all elements."""
    calls = []
    compute = torch.linalg.vector_norm

    def count(*arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments)
        return compute(*arguments, **keywords)

    monkeypatch.setattr(torch.linalg, "vector_norm", count)
    work = TorchChunks(ChunkLayout.of(4, density=0.5, chunk=2), CPU)
    work.measure(torch.tensor([planted, 0.0, 3.0, 4.0]), torch.zeros(4))
    assert readings == len(calls)
    assert [planted, 5.0] == pytest.approx(work.norms.tolist())


def test_work_is_compiled_on_the_host_only():
    """Use torch on other devices and where it is asked for.

    Preparing for another device does nothing.
    """
    layout = ChunkLayout.of(8, density=0.5, chunk=2)
    assert isinstance(make_chunks(layout, CPU, fast=True), NativeChunks)
    assert isinstance(make_chunks(layout, CPU, fast=False), TorchChunks)
    assert isinstance(make_chunks(layout, torch.device("meta"), fast=True), TorchChunks)
    prepare(torch.device("meta"))
    prepare(CPU)
