"""Tests of the rule of DDP's buckets, against DDP itself."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from effort import cases, repetitions
from fields import fields_of
from gloo_ranks import found_by, run_gloo_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from step_builders import make_facts
from training_builders import make_training_case as case

from commbench.ddp.plan.cases import canonical_cap
from commbench.ddp.plan.layout import (
    MIB,
    candidate_caps,
    caps_bytes,
    case_layout,
    group_by_layout,
    rebuilt_layout,
    unique_layouts,
)
from commbench.ddp.plan.workload import ParameterFacts, WorkloadFacts
from commbench.ddp.traces import load_trace

CAPS = (
    "default",
    "0.0001",
    "0.02",
    "0.5",
    "1",
    "4",
    "25",
    "1000",
    "0.001+0.03",
    "1+5+25",
    "2+0.01",
)
#: Workloads of commbench that are looked at too, and their bucket sizes: fewer, for they take
#: longer.
WORKLOAD_CAPS = ("default", "0.5", "5", "25", "1+5+25")
#: Workloads that take long: with all bucket sizes only in the slow test.
HEAVY, HEAVY_CAPS = ("gpt", "mlp", "resnet18", "trace:many-tiny"), ("default", "5")
WORKLOADS = {
    **dict.fromkeys(("digits", "text"), WORKLOAD_CAPS),
    **dict.fromkeys(cases([], HEAVY), HEAVY_CAPS),
}
#: Replayed in as long as they were recorded in: only in the slow test.
LARGE_TRACES = ("trace:resnet50", "trace:bert-base", "trace:gpt2-small")
LARGE_CAPS = ("default", "25", "1+5+25")

#: Models of ranks/ddp_layout.py, of which some are looked at with a static graph, too.
MODELS = ("tiny", "wide", "deep", "huge", "mixed_dtypes", "out_of_order", "convolutions")
STATIC = ("deep", "out_of_order")
#: The bucket sizes of every model and workload.
ASKED = {**dict.fromkeys(MODELS, CAPS), **WORKLOADS}
LARGE = {**dict.fromkeys(LARGE_TRACES, LARGE_CAPS), **dict.fromkeys(HEAVY, WORKLOAD_CAPS)}


# ---------------------------------------------------------------------------------------- the tests


def look(python: str, caps_by_model: Mapping[str, Sequence[str]], store: Path) -> dict[str, Any]:
    """Return the buckets that DDP logs for models and bucket sizes."""
    pytest.importorskip("torch")
    arguments = {
        name: (caps, caps if name in STATIC else []) for name, caps in caps_by_model.items()
    }
    return dict(
        found_by(run_gloo_ranks(python, 1, "ddp_layout.py", json.dumps(arguments), store=store))
    )


@pytest.fixture(scope="module")
def logged(forked_python, tmp_path_factory):
    """Return the buckets of DDP for every model."""
    return look(forked_python, ASKED, tmp_path_factory.mktemp("ddp") / "store")


@pytest.mark.parametrize("name", ASKED)
def test_rebuilt_buckets_match_ddp(logged, name):
    """Predict the parameters of each bucket in sending order."""
    check_rebuilt(logged[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_rebuilt_buckets_of_large_traces_match_ddp(forked_python, tmp_path, name):
    """Predict the buckets of models up to half a gigabyte."""
    check_rebuilt(look(forked_python, {name: LARGE[name]}, tmp_path / "store")[name])


def check_rebuilt(model: dict[str, Any]) -> None:
    """Compare the predicted layouts with DDP's, for each bucket size."""
    parameters = [ParameterFacts(**parameter) for parameter in model["parameters"]]
    for cap, made in model["ddp"].items():
        layout = rebuilt_layout(parameters, model["ready_order"], caps_bytes(cap))
        assert made["indices"] == [list(bucket) for bucket in layout], cap
        sizes = [sum(parameters[index].size_bytes for index in bucket) for bucket in layout]
        assert made["sizes"] == sizes, cap


@pytest.mark.parametrize("name", STATIC)
def test_static_graph_makes_the_same_buckets(logged, name):
    """Predict the same buckets with a static graph."""
    sizes = [
        {cap: ddp["sizes"] for cap, ddp in logged[name][kind].items()} for kind in ("ddp", "static")
    ]
    assert sizes[0] == sizes[1]


def test_models_tell_bucket_sizes_apart(logged):
    """Use models on which default, list and plain sizes differ, or the other tests show little."""
    for cap, another_cap in (
        ("default", "25"),
        ("default", "1"),
        ("1+5+25", "default"),
        ("0.001+0.03", "0.02"),
    ):
        models = [logged[name]["ddp"] for name in MODELS]
        assert any(model[cap]["sizes"] != model[another_cap]["sizes"] for model in models)


DTYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


@settings(max_examples=repetitions(60))
@given(data=st.data())
def test_any_parameters_are_assigned_as_torch_does(data):
    """Match torch's own function for any sizes, dtypes, order and caps."""
    torch = pytest.importorskip("torch")
    parameters = data.draw(
        st.lists(
            st.tuples(st.integers(1, 3000), st.sampled_from(sorted(DTYPES))),
            min_size=1,
            max_size=20,
        )
    )
    order = data.draw(st.permutations(range(len(parameters))))
    caps = data.draw(st.lists(st.integers(0, 20_000), min_size=1, max_size=4))
    tensors = [torch.empty(numel, dtype=getattr(torch, dtype)) for numel, dtype in parameters]
    assigned, _ = torch.distributed._compute_bucket_assignment_by_size(
        [tensors[i] for i in order], caps, [], list(order)
    )
    facts = [
        ParameterFacts(name="", numel=numel, itemsize=DTYPES[dtype], dtype=dtype, shape=(numel,))
        for numel, dtype in parameters
    ]
    predicted = rebuilt_layout(facts, order, caps)
    assert assigned == [list(bucket) for bucket in predicted]


def test_default_is_not_25():
    """Use torch's small first bucket only for the default, not for 25 or lists."""
    torch = pytest.importorskip("torch")
    assert MIB == torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
    assert [MIB, 25 * MIB] == caps_bytes("default")
    assert [25 * MIB] == caps_bytes("25")
    assert [MIB, 5 * MIB, 25 * MIB] == caps_bytes("1+5+25")
    assert [MIB // 2] == caps_bytes("0.5")


# ---------------------------------------------------------------------------------- one for several


def stand_ins(caps: Sequence[str], sizes_mb: Sequence[float]) -> list[str]:
    """Return the bucket size that is measured in place of each."""
    groups = group_by_layout([case(cap=cap) for cap in caps], make_facts(sizes_mb))
    assert list(caps) == fields_of(groups, "bucket_cap_mb")
    return fields_of(groups.values(), "bucket_cap_mb")


def test_same_buckets_are_measured_once():
    """Keep one of the sizes that make one bucket per layer, and DDP's default before others."""
    assert ["0.5", "0.5", "0.5", "5"] == stand_ins(["0.5", "1", "4", "5"], [4, 4, 4])
    assert ["default"] * 3 == stand_ins(["25", "100", "default"], [0.2, 0.1])


def test_other_settings_stay_apart():
    """Merge only settings that differ in nothing but the bucket size, and no step without DDP."""
    changes = [
        {},
        {"hook": "fp16"},
        {"hook": "topk:0.1"},
        {"hook": "topk:0.01"},
        {"bucket_view": True},
        {"accumulation": 2},
        {"unused_parameters": True},
        {"world_size": 4},
    ]
    cases = [case(cap="25", **each) for each in changes]
    cases.append(cases[0].local())
    for sizes_mb in ([2, 1], [0.1]):
        assert {each: each for each in cases} == group_by_layout(cases, make_facts(sizes_mb))


def test_search_for_unused_parameters_keeps_the_first_buckets():
    """Fill buckets in the order of registration, and send the last one first."""
    assert ((2,), (0, 1)) == case_layout(
        case(cap="2", unused_parameters=True), make_facts([1, 1.5, 1])
    )
    assert ((2, 1), (0,)) == case_layout(case(cap="2"), make_facts([1, 1.5, 1]))
    assert ((2, 1), (0,)) == case_layout(
        case(cap="2", unused_parameters=True, static_graph=True), make_facts([1, 1.5, 1])
    )


# ---------------------------------------------------------------------------------- candidate sizes


def facts_of(trace: str) -> WorkloadFacts:
    """Return the workload facts of a recorded model."""
    recorded = load_trace(trace)
    parameters = tuple(
        ParameterFacts(name=p.name, numel=p.numel, itemsize=4, dtype=p.dtype, shape=p.shape)
        for p in recorded.parameters
    )
    return WorkloadFacts(parameters=parameters, ready_order=recorded.ready_order)


@pytest.mark.parametrize("trace", ["resnet50", "many-tiny", "gpt2-small"])
@pytest.mark.parametrize("most", [5, 12])
def test_candidates_have_layouts_of_their_own(trace, most):
    """List the default first, one single bucket last, and no layout twice."""
    facts = facts_of(trace)
    caps = candidate_caps(facts, most=most)
    layouts = [case_layout(case(cap=cap), facts) for cap in caps]
    assert "default" == caps[0]
    assert len(caps) <= most
    assert len(set(layouts)) == len(caps)
    assert 1 == len(layouts[-1])
    assert [canonical_cap(cap) for cap in caps] == caps
    sizes = [float(cap) for cap in caps[1:]]
    assert sorted(sizes) == sizes


def test_a_small_model_has_few_candidates():
    """Offer fractions of a small model's size, not sizes that all make one bucket; one number of
    four bytes has no fractions.
    """
    facts = make_facts([0.1, 0.05, 0.05, 0.05, 0.05])
    caps = candidate_caps(facts)
    assert 2 <= len(caps) <= 6
    assert ["default"] == candidate_caps(make_facts([0.2]))
    assert ["default"] == candidate_caps(make_facts([4 / 2**20]))


def test_equal_layouts_are_one():
    """Keep the first of the sizes that make the same buckets."""
    facts = make_facts([4.0] * 4)
    assert ["2", "5", "100"] == unique_layouts(["2", "4", "5", "8", "100", "200", "2+4"], facts)
