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

    If an element is not finite, or float32 cannot hold its square, all values are NaN, and the
    memory is kept.
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
        is_finite = number != 1 or planted == 0.0
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
