"""Tests of the collectives that are timed for a training's network."""

import dataclasses

import pytest
from tuning_world import make_facts

from commbench.analysis.prediction.network import LEAST_SIZES
from commbench.collectives.cases import Case
from commbench.tuner.choice import network_cases


def sizes(cases: list[Case]) -> dict[tuple[str, str | None], list[int]]:
    """Return the sizes of each operation and data type."""
    sizes_by_key: dict[tuple[str, str | None], list[int]] = {}
    for case in cases:
        sizes_by_key.setdefault((case.operation, case.dtype), []).append(case.message_bytes)
    return sizes_by_key


def test_each_hook_has_its_collectives_from_small_buckets_to_the_whole_model() -> None:
    """Time each hook's messages for buckets from a few KiB to 40 MiB, by factors of 4."""
    sizes_by_key = sizes(network_cases(["fp16", "topk:0.01"], make_facts(40, 1.0), 2, "gloo"))
    assert {("all_reduce", "float32"), ("all_reduce", "float16"), ("all_gather", "float32")} == set(
        sizes_by_key
    )
    whole = sizes_by_key["all_reduce", "float32"]
    assert 40 << 20 == max(whole)
    assert min(whole) <= 4096
    assert all(
        3.9 <= large / small <= 4.2
        for small, large in zip(sorted(whole), sorted(whole)[1:], strict=False)
    )
    assert len(whole) == len(sizes_by_key["all_reduce", "float16"])
    assert 2 * max(sizes_by_key["all_reduce", "float16"]) == max(whole)


def test_no_hook_is_always_timed() -> None:
    """Time the default's collectives whatever hooks are allowed."""
    assert ("all_reduce", "float32") in sizes(network_cases(["bf16"], make_facts(), 2, "gloo"))


def test_hooks_that_look_at_tensors_are_timed_too() -> None:
    """Treat a bucket as one square matrix for hooks that depend on shapes."""
    for hook in (
        "powersgd:2",
        "topk:0.01:scope=parameter",
        "topk:0.01:dense_below=64",
    ):
        assert len(network_cases([hook], make_facts(), 2, "gloo")) > 8


def test_each_type_of_parameters_is_timed() -> None:
    """Time buckets of every parameter type up to all its parameters."""
    facts = make_facts(40, 1.0)
    halves = [dataclasses.replace(p, dtype="bfloat16", itemsize=2) for p in facts.parameters]
    mixed = dataclasses.replace(facts, parameters=(*facts.parameters[:10], *halves[10:]))
    for requested, expected in (
        (facts, {"float32": 40 << 20}),
        (dataclasses.replace(facts, parameters=tuple(halves)), {"bfloat16": 20 << 20}),
        (mixed, {"float32": 10 << 20, "bfloat16": 15 << 20}),
    ):
        sizes_by_key = sizes(network_cases(["none"], requested, 2, "gloo"))
        assert {("all_reduce", dtype): largest for dtype, largest in expected.items()} == {
            key: max(of_key) for key, of_key in sizes_by_key.items()
        }


@pytest.mark.parametrize(
    ("parameters", "mib", "hook"),
    [
        (1, 4 / 2**20, "powersgd:2"),
        (1, 0.001, "topk:0.00001"),
        (4, 0.004, "topk:0.01"),
        (40, 1.0, "fp16"),
    ],
)
def test_every_curve_can_be_fitted(parameters: int, mib: float, hook: str) -> None:
    """Time at least three sizes, also for a tiny model."""
    sizes_by_key = sizes(network_cases([hook], make_facts(parameters, mib), 3, "gloo"))
    assert all(len(set(of_key)) >= LEAST_SIZES for of_key in sizes_by_key.values())


@pytest.mark.parametrize(("backend", "carrier"), [("gloo", "gloo"), ("nccl", "torch-nccl")])
def test_the_network_is_timed_as_ddp_uses_it(backend: str, carrier: str) -> None:
    """Time NCCL through torch."""
    assert {carrier} == {
        case.backend for case in network_cases(["topk:0.01"], make_facts(), 2, backend)
    }


def test_huge_models() -> None:
    """Time no size above 64 MiB."""
    largest = max(case.message_bytes for case in network_cases([], make_facts(200, 1.0), 3, "gloo"))
    assert 64 << 20 <= largest < (64 << 20) + 3 * 4
