"""Tests of the search of a tuning on a simulated machine."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from fields import fields_of
from step_builders import FACTORS, STEP_MS, true_ms
from training_builders import make_training_case

from commbench.ddp.plan.cases import TrainingCase
from commbench.tuner.screening import FIRST_ROUNDS, Search

BLOCK_STEPS = 5


def make_cases(hooks: Sequence[str]) -> list[TrainingCase]:
    """Return each hook with each bucket size, the default first, and the step without DDP."""
    cases = [make_training_case(hook, cap) for hook in hooks for cap in FACTORS]
    return [*cases, make_training_case("local")]


def play(
    cases: Sequence[TrainingCase],
    *,
    seconds: float = 100.0,
    room: int = 100,
    seed: int = 0,
    failing: str = "",
    withheld: Sequence[str] = (),
) -> list[list[TrainingCase]]:
    """Return the cases of each round."""
    search = Search(cases, seconds=seconds, seed=str(seed), withheld=withheld)
    noise = random.Random(seed)
    rounds = []
    while members := search.plan_round(room):
        rounds.append([cases[index] for index in members])
        for index in members:
            case = cases[index]
            step_ms = true_ms(case) * noise.lognormvariate(0, 0.01)
            if case.hook_name == failing:
                search.leave_out(index)
            else:
                search.add_block(index, step_ms, BLOCK_STEPS * step_ms / 1e3)
    return rounds


def test_hooks_come_first_and_bucket_sizes_of_those_that_are_left_follow():
    """Compare hooks in default buckets and the step without DDP, then sizes; end with the best."""
    rounds = play(make_cases(["none", "fp16", "bf16", "topk:0.01"]))
    for members in rounds[:FIRST_ROUNDS]:
        assert {"default"} == set(fields_of(members, "bucket_cap_mb"))
    assert STEP_MS.keys() == set(fields_of(rounds[0], "hook_name"))
    later = rounds[FIRST_ROUNDS]
    assert {"none", "fp16", "topk:0.01"} == set(fields_of(later, "hook_name"))
    last = set(fields_of(rounds[-1], "hook_name", "bucket_cap_mb"))
    assert {("none", "default"), ("none", "5"), ("topk:0.01", "5")} <= last


@pytest.mark.parametrize("hook", ["none", "fp16"])
def test_a_tuning_of_one_hook_tries_its_bucket_sizes_at_once(hook):
    """Wait for no comparison of hooks where there is one beside the default at most."""
    cases = [make_training_case(cap=cap) for cap in FACTORS]
    if hook != "none":
        cases = [cases[0], make_training_case(hook)]
    (first, *_) = play(cases)
    assert set(cases) == set(first)


def test_time_limits_the_bucket_sizes_but_not_the_hooks():
    """Measure every hook however little time there is, and the size of the fastest hook first."""
    cases = make_cases(["none", "fp16", "topk:0.01"])
    rounds = play(cases, seconds=0.1)
    assert FIRST_ROUNDS == len(rounds)
    assert {"default"} == {case.bucket_cap_mb for members in rounds for case in members}
    hooks_s = FIRST_ROUNDS * BLOCK_STEPS * sum(STEP_MS.values()) / 1e3
    some = play(cases, seconds=hooks_s + 3.3)
    tried = Counter(
        case.hook_name for case in some[FIRST_ROUNDS] if case.bucket_cap_mb != "default"
    )
    assert set(tried) == {"topk:0.01"}


def test_each_hook_has_a_bucket_size_before_one_has_two():
    """Try the middle size of each hook first, and those of a withheld hook last."""
    cases = make_cases(["none", "fp16", "topk:0.01"])
    rounds = play(cases, room=5, withheld=["topk:0.01"])
    tried = [case for case in rounds[FIRST_ROUNDS] if case.bucket_cap_mb != "default"]
    assert {("none", "5"), ("fp16", "5")} == set(fields_of(tried, "hook_name", "bucket_cap_mb"))


def test_memory_limits_the_cases_of_a_round():
    """Hold no more cases in a round than fit into memory."""
    rounds = play(make_cases(["none", "fp16", "topk:0.01"]), room=5)
    assert 5 == max(len(members) for members in rounds[FIRST_ROUNDS:])


def test_what_cannot_be_trained_is_left_out():
    """Go on without a hook that fails; without the default there is nothing to search."""
    cases = make_cases(["none", "fp16"])
    rounds = play(cases, failing="fp16")
    assert "fp16" not in {case.hook_name for members in rounds[1:] for case in members}
    assert 1 == len(play(cases, failing="none"))


def test_the_order_follows_from_the_seed():
    """Repeat a search, and draw another order for another seed."""
    cases = make_cases(["none", "fp16", "topk:0.01"])
    assert play(cases) == play(cases)
    assert play(cases)[0] != play(cases, seed=1)[0]
