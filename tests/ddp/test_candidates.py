"""Tests of bucket sizes: which candidates are measured."""

import pytest
from step_builders import make_facts
from training_builders import make_training_case

from commbench.ddp.plan.candidates import (
    candidate_caps,
    unique_layouts,
)
from commbench.ddp.plan.cases import canonical_cap
from commbench.ddp.plan.layout import case_layout
from commbench.ddp.plan.workload import ParameterFacts, WorkloadFacts
from commbench.ddp.traces import load_trace


def facts_of(trace: str) -> WorkloadFacts:
    """Return the workload facts of a recorded model."""
    recorded = load_trace(trace)
    parameters = tuple(
        ParameterFacts(name=p.name, numel=p.numel, itemsize=4, dtype=p.dtype)
        for p in recorded.parameters
    )
    return WorkloadFacts(parameters=parameters, ready_order=recorded.ready_order)


@pytest.mark.parametrize("trace", ["resnet50", "many-tiny", "gpt2-small"])
@pytest.mark.parametrize("most", [5, 12])
def test_candidates_have_layouts_of_their_own(trace: str, most: int) -> None:
    """List the default first, one single bucket last, and no layout twice."""
    facts = facts_of(trace)
    caps = candidate_caps(facts, most=most)
    layouts = [case_layout(make_training_case(cap=cap), facts) for cap in caps]
    assert "default" == caps[0]
    assert len(caps) <= most
    assert len(set(layouts)) == len(caps)
    assert 1 == len(layouts[-1])
    assert [canonical_cap(cap) for cap in caps] == caps
    sizes = [float(cap) for cap in caps[1:]]
    assert sorted(sizes) == sizes


def test_a_small_model_has_few_candidates() -> None:
    """Offer fractions of a small model's size, not sizes that all make one bucket."""
    facts = make_facts([0.1, 0.05, 0.05, 0.05, 0.05])
    caps = candidate_caps(facts)
    assert 2 <= len(caps) <= 6
    assert ["default"] == candidate_caps(make_facts([0.2]))


def test_equal_layouts_are_one() -> None:
    """Keep the first of the sizes that make the same buckets."""
    facts = make_facts([4.0] * 4)
    assert ["2", "5", "100"] == unique_layouts(["2", "4", "5", "8", "100", "200", "2+4"], facts)
