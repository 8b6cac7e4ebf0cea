"""Tests of bucket sizes: which candidates are measured, and the best list against all ways to cut a
small model.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import pytest
from effort import repetitions
from hypothesis import given, settings
from hypothesis import strategies as st
from step_builders import MIB, LinearNetwork, make_facts, make_step_model
from training_builders import make_training_case

from commbench.analysis.prediction.bucketing import (
    best_cuts,
    best_list,
    candidate_caps,
    unique_layouts,
)
from commbench.analysis.prediction.calibration import Calibration, Sharing
from commbench.analysis.prediction.steps import HookCost, StepModel
from commbench.analysis.prediction.timeline import overlapped
from commbench.ddp.plan.cases import TrainingCase, canonical_cap
from commbench.ddp.plan.layout import case_layout
from commbench.ddp.plan.workload import WorkloadFacts

CASE = make_training_case()


def layout_of(cap: str, facts: WorkloadFacts) -> tuple[tuple[int, ...], ...]:
    """Return the parameters of each bucket that DDP makes."""
    return case_layout(dataclasses.replace(CASE, bucket_cap_mb=cap), facts)


def all_cuts(parameters: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield the end indices of buckets for every way to cut the parameters into at most ``most``
    buckets.
    """
    for count in range(most):
        for inner in itertools.combinations(range(1, parameters), count):
            yield (*inner, parameters)


def end_of(model: StepModel, cuts: Sequence[int]) -> float:
    """Return when the backward pass with these buckets ends if communication does not slow
    computation.
    """
    order = model.facts.ready_order
    work = [
        model.bucket_of(CASE, order[start:end]) for start, end in itertools.pairwise([0, *cuts])
    ]
    return overlapped(work, model.backward_ms, servers=1).end_ms


@settings(max_examples=repetitions(25))
@given(
    sizes=st.lists(st.floats(min_value=0.01, max_value=4), min_size=2, max_size=7),
    gaps=st.lists(st.floats(min_value=0, max_value=30), min_size=7, max_size=7),
    network=st.builds(
        LinearNetwork,
        alpha_us=st.sampled_from([0, 300, 5000]),
        beta_us_per_byte=st.sampled_from([1e-4, 5e-3, 2e-2]),
    ),
    encode_ms=st.sampled_from([0.0, 2.0]),
    most=st.integers(min_value=1, max_value=5),
)
def test_no_cut_of_a_small_model_is_better(
    sizes: list[float], gaps: list[float], network: LinearNetwork, encode_ms: float, most: int
) -> None:
    """Find by dynamic programming the minimum over all cuts, with one server and any ready
    times.
    """
    ready_ms = list(itertools.accumulate(gaps[: len(sizes)]))
    facts = make_facts(sizes, ready_ms=ready_ms, backward_ms=max(1.0, ready_ms[-1]))
    model = make_step_model(facts, network, hooks={"none": HookCost(encode_ms=encode_ms)})
    shortest_ms = min(end_of(model, cuts) for cuts in best_cuts(model, CASE, most=most))
    assert shortest_ms == pytest.approx(
        min(end_of(model, cuts) for cuts in all_cuts(len(sizes), most)), rel=1e-3
    )


#: Gradients come in bursts of 3, 6 and 4 MiB: a list that fits them beats any single size.
BURSTS = make_facts(
    [1.0] * 13, ready_ms=[10, 11, 12, *range(49, 55), 92, 93, 94, 95], backward_ms=100
)


def make_bursts(servers: int = 1) -> StepModel:
    """Return a model of the bursts on a network where every collective costs 12 ms and every MiB
    5.2 ms.
    """
    return make_step_model(
        BURSTS, LinearNetwork(alpha_us=12000, beta_us_per_byte=5e-3, servers=servers)
    )


def test_the_best_list_makes_the_buckets_that_it_was_found_for() -> None:
    """Return a list that makes one bucket per burst and beats every single size by 3 %."""
    model = make_bursts()
    text = best_list(model, CASE, most=4)
    assert text is not None
    assert canonical_cap(text) == text
    assert [3, 6, 4] == [len(bucket) for bucket in layout_of(text, BURSTS)]
    singles = [predicted(model, CASE, cap) for cap in candidate_caps(BURSTS)]
    assert predicted(model, CASE, text) < 0.97 * min(singles)


def test_a_list_that_gains_little_is_not_returned() -> None:
    """Return None if one bucket size is as good."""
    model = make_step_model(
        make_facts([1.0] * 20), LinearNetwork(alpha_us=1, beta_us_per_byte=1e-5)
    )
    assert best_list(model, CASE) is None


def test_a_list_within_the_error_of_the_model_is_not_returned() -> None:
    """Return None if the model's calibration error exceeds the gain."""
    model = make_bursts()
    sharing = {"none": Sharing(contention=0.0)}
    for error, is_returned in ((0.0, True), (0.3, False)):
        calibration = Calibration(likely=sharing, least=sharing, most=sharing, error=error)
        text = best_list(dataclasses.replace(model, calibration=calibration), CASE)
        assert is_returned == (text is not None)


#: Twelve tensors of 1 MiB, each before a bias of 64 bytes, in bursts as those above.
BIASED = make_facts(
    [size for _ in range(12) for size in (1.0, 64 / MIB)],
    ready_ms=[time for time in [10, 11, 12, *range(49, 55), 92, 93, 94] for _ in range(2)],
    backward_ms=100,
)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("alpha_us", [0, 5000])
def test_lists_are_short_and_round_and_their_buckets_no_crumbs(servers: int, alpha_us: int) -> None:
    """Return at most 4 sizes of at most 3 digits and no bucket of a bias alone, also at zero
    latency.
    """
    model = make_step_model(
        BIASED, LinearNetwork(alpha_us=alpha_us, beta_us_per_byte=8e-3, servers=servers)
    )
    order = BIASED.ready_order
    for ends in best_cuts(model, CASE, most=8, smallest_mb=0.25):
        buckets = (order[start:end] for start, end in itertools.pairwise([0, *ends]))
        assert all(
            sum(BIASED.parameters[i].numel for i in bucket) * 4 >= 0.25 * MIB for bucket in buckets
        )
    text = best_list(model, CASE)
    if text is None:
        assert alpha_us == 0 or servers == 2
        return
    assert text.count("+") < 4
    assert all(len(part.replace(".", "").strip("0")) <= 3 for part in text.split("+"))
    assert all(len(bucket) >= 2 for bucket in layout_of(text, BIASED))


def test_the_shortest_of_equal_lists_is_taken() -> None:
    """Add no third size for a gain below the resolution."""
    facts = make_facts([3.0, 6.0, 0.5, 0.5], ready_ms=[10, 50, 99.9, 100], backward_ms=100)
    model = make_step_model(facts, LinearNetwork(alpha_us=10, beta_us_per_byte=5e-3))
    best = min(predicted(model, CASE, cap) for cap in ("2+5+0.4+0.4", "2+5+0.4", "2+5"))
    text = best_list(model, CASE)
    assert text is None or text.count("+") < 3
    assert text is None or predicted(model, CASE, text) <= 1.005 * best


def test_a_model_of_several_types_gets_no_list() -> None:
    """Return None for mixed data types, because DDP applies the list to each type separately."""
    facts = make_bursts().facts
    mixed = dataclasses.replace(facts.parameters[0], dtype="bfloat16", itemsize=2)
    model = dataclasses.replace(
        make_bursts(), facts=dataclasses.replace(facts, parameters=(mixed, *facts.parameters[1:]))
    )
    assert best_list(model, CASE) is None


@pytest.mark.parametrize("hook", ["none", "powersgd:2", "topk:0.01:scope=parameter"])
@pytest.mark.parametrize("trace", ["resnet50", pytest.param("many-tiny", marks=pytest.mark.slow)])
def test_real_models_get_sensible_lists(trace: str, hook: str) -> None:
    """Return a list only if its predicted step is 3 % shorter than with any single size, for every
    hook.
    """
    facts = facts_of(trace)
    case = make_training_case(hook)
    model = make_step_model(
        facts,
        LinearNetwork(alpha_us=500, beta_us_per_byte=8e-3),
        hooks={case.hook_name: HookCost(encode_ms=0.1)},
    )
    text = best_list(model, case)
    if text is None:
        return
    singles = [predicted(model, case, cap) for cap in candidate_caps(facts)]
    assert predicted(model, case, text) < 0.97 * min(singles)


def predicted(model: StepModel, case: TrainingCase, cap: str) -> float:
    """Return the predicted step time in milliseconds."""
    return model.predict(dataclasses.replace(case, bucket_cap_mb=cap)).step_ms


def facts_of(trace: str) -> WorkloadFacts:
    """Return the workload facts of a recorded model."""
    from commbench.ddp.plan.workload import ParameterFacts
    from commbench.ddp.traces import load_trace

    recorded = load_trace(trace)
    return WorkloadFacts(
        parameters=tuple(
            ParameterFacts(
                name=p.name,
                numel=p.numel,
                itemsize=4,
                dtype=p.dtype,
                ready_ms=p.ready_ms,
                shape=tuple(p.shape),
            )
            for p in recorded.parameters
        ),
        ready_order=recorded.ready_order,
        buffer_bytes=0,
        batch_size=recorded.batch,
        forward_ms=recorded.forward_ms,
        backward_ms=recorded.backward_ms,
        optimizer_ms=recorded.optimizer_ms,
        metric="",
        target=None,
        steps=None,
    )


@pytest.mark.parametrize("trace", ["resnet50", "many-tiny", "gpt2-small"])
@pytest.mark.parametrize("most", [5, 12])
def test_candidates_have_layouts_of_their_own(trace: str, most: int) -> None:
    """List the default first, one single bucket last, and no layout twice."""
    facts = facts_of(trace)
    caps = candidate_caps(facts, most=most)
    layouts = [layout_of(cap, facts) for cap in caps]
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
