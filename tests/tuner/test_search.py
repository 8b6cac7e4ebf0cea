"""Tests of the search of a tuning, and of the stages that follow, on a simulated machine."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from step_builders import make_facts
from training_builders import make_training_case, make_training_record

from commbench.ddp.plan.cases import CONFIRM, SWEEP, TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.launch.schedule import next_launch, unmeasured_cases
from commbench.results.plan import missing_cases
from commbench.stats.budgets import TRAINING_BUDGETS
from commbench.tuner.plans import TuningPlan
from commbench.tuner.screening import FIRST_ROUNDS
from commbench.tuner.search import Search

#: Milliseconds of a step by hook; another bucket size than the default changes them by a factor.
STEP_MS = {"none": 100.0, "fp16": 60.0, "topk:0.01": 20.0, "bf16": 90.0, "local": 10.0}
FACTORS = {"default": 1.0, "1": 1.2, "5": 0.9, "25": 1.05}
BLOCK_STEPS = 5


def true_ms(case: TrainingCase) -> float:
    """Return the time of a step."""
    return STEP_MS[case.hook_name] * FACTORS[case.bucket_cap_mb]


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
    while members := search.next_round(room):
        rounds.append([cases[index] for index in members])
        for index in members:
            case = cases[index]
            step_ms = true_ms(case) * noise.lognormvariate(0, 0.01)
            if case.hook_name == failing:
                search.leave_out(index)
            else:
                search.add(index, step_ms, BLOCK_STEPS * step_ms / 1e3)
    return rounds


def test_hooks_come_first_and_bucket_sizes_of_those_that_are_left_follow() -> None:
    """Compare hooks in default buckets and the step without DDP, then sizes; end with the best."""
    rounds = play(make_cases(["none", "fp16", "bf16", "topk:0.01"]))
    for members in rounds[:FIRST_ROUNDS]:
        assert {"default"} == {case.bucket_cap_mb for case in members}
    assert STEP_MS.keys() == {case.hook_name for case in rounds[0]}
    later = rounds[FIRST_ROUNDS]
    assert {"none", "fp16", "topk:0.01"} == {case.hook_name for case in later}
    last = {(case.hook_name, case.bucket_cap_mb) for case in rounds[-1]}
    assert {("none", "default"), ("none", "5"), ("topk:0.01", "5")} <= last


@pytest.mark.parametrize("hook", ["none", "fp16"])
def test_a_tuning_of_one_hook_tries_its_bucket_sizes_at_once(hook: str) -> None:
    """Wait for no comparison of hooks where there is one beside the default at most."""
    cases = [make_training_case(cap=cap) for cap in FACTORS]
    if hook != "none":
        cases = [cases[0], make_training_case(hook)]
    (first, *_) = play(cases)
    assert set(cases) == set(first)


def test_time_limits_the_bucket_sizes_but_not_the_hooks() -> None:
    """Measure every hook however little time there is, and the size of the fastest hook first."""
    cases = make_cases(["none", "fp16", "topk:0.01"])
    rounds = play(cases, seconds=0.1)
    assert FIRST_ROUNDS == len(rounds)
    assert {"default"} == {case.bucket_cap_mb for members in rounds for case in members}
    hooks_s = FIRST_ROUNDS * BLOCK_STEPS * sum(STEP_MS.values()) / 1e3
    some = play(cases, seconds=hooks_s + 2.5)
    tried = Counter(
        case.hook_name for case in some[FIRST_ROUNDS] if case.bucket_cap_mb != "default"
    )
    assert set(tried) == {"topk:0.01"}


def test_each_hook_has_a_bucket_size_before_one_has_two() -> None:
    """Try the middle size of each hook first, and those of a withheld hook last."""
    cases = make_cases(["none", "fp16", "topk:0.01"])
    rounds = play(cases, room=5, withheld=["topk:0.01"])
    tried = [case for case in rounds[FIRST_ROUNDS] if case.bucket_cap_mb != "default"]
    assert {("none", "5"), ("fp16", "5")} == {(c.hook_name, c.bucket_cap_mb) for c in tried}


def test_memory_limits_the_cases_of_a_round() -> None:
    """Hold no more cases in a round than fit into memory."""
    rounds = play(make_cases(["none", "fp16", "topk:0.01"]), room=5)
    assert 5 == max(len(members) for members in rounds[FIRST_ROUNDS:])


def test_what_cannot_be_trained_is_left_out() -> None:
    """Go on without a hook that fails; without the default there is nothing to search."""
    cases = make_cases(["none", "fp16"])
    rounds = play(cases, failing="fp16")
    assert "fp16" not in {case.hook_name for members in rounds[1:] for case in members}
    assert 1 == len(play(cases, failing="none"))


def test_the_order_follows_from_the_seed() -> None:
    """Repeat a search, and draw another order for another seed."""
    cases = make_cases(["none", "fp16", "topk:0.01"])
    assert play(cases) == play(cases)
    assert play(cases)[0] != play(cases, seed=1)[0]


# ------------------------------------------------------------------------------------------ stages


def make_plan(**changes: Any) -> TuningPlan:
    """Return a tuning among no hook, FP16 and top-k."""
    fields: dict[str, Any] = {"hooks": ["none", "fp16", "topk:0.01"], "caps": ["1", "5"]}
    return TuningPlan(
        workload="mlp",
        facts=make_facts([1.0] * 12),
        ranks=2,
        seed=3,
        budget=TRAINING_BUDGETS["quick"],
        **{**fields, **changes},
    )


def records_of(plan: TuningPlan, launches: int, gain: float = 0.0) -> list[TrainingRecord]:
    """Return the records of a search and of confirmation launches of its winners.

    Args:
        plan: of the tuning.
        launches: fresh ones.
        gain: of every alternative in them; 0: the true one.
    """
    made = []
    for case in plan.cases:
        made.append(record_of(case, 0, true_ms(case)))
    request = plan.confirm_request(made)
    assert request is not None
    for launch in range(launches):
        for number, case in enumerate(request.cases):
            assert isinstance(case, TrainingCase)
            step_ms = true_ms(case)
            if gain:
                step_ms = 100.0
                if number:
                    step_ms *= (1 + 0.03 * (-1) ** launch) / (1 + gain)
            made.append(record_of(case, launch, step_ms))
    return made


def record_of(case: TrainingCase, launch: int, step_ms: float) -> TrainingRecord:
    """Return a record of equal steps."""
    return make_training_record(case, launch=launch, step_ms=step_ms)


def test_the_winners_of_the_search_are_confirmed() -> None:
    """Confirm the default, the fastest of each effect on learning, and the fastest plain one."""
    plan = make_plan()
    made = records_of(plan, 1)
    fresh = {(r.case.hook_name, r.case.bucket_cap_mb) for r in made if r.case.phase == CONFIRM}
    assert {("none", "default"), ("none", "5"), ("fp16", "5"), ("topk:0.01", "5")} == fresh
    request = plan.confirm_request(made)
    assert request is not None
    assert 6 == request.budget.launches == plan.first_look


@pytest.mark.parametrize(("slower", "blocks"), [(0.05, 3), (1.0, 1), (0.25, 2)])
def test_slow_steps_have_fewer_blocks_in_a_fresh_launch(slower: float, blocks: int) -> None:
    """Make as many blocks as fit into the budget's time, one at least."""
    plan = make_plan()
    made = [record_of(case, 0, slower * true_ms(case)) for case in plan.cases]
    request = plan.confirm_request(made)
    assert request is not None
    assert request.training is not None
    assert blocks == request.training.blocks


@pytest.mark.parametrize(("gain", "more"), [(0.5, False), (0.03, True)])
def test_a_second_look_follows_an_undecided_first_one(gain: float, more: bool) -> None:
    """Make as many launches again, once, unless the first ones decide or are given."""
    plan = make_plan()
    second = plan.second_look_request(records_of(plan, 6, gain))
    assert more == (second is not None)
    if second is not None:
        assert (6, 12) == (second.first_launch, second.budget.launches)
    given = make_plan(confirm_launches=6)
    assert given.second_look_request(records_of(given, 6, gain)) is None


def test_a_search_is_over_when_the_default_has_its_record() -> None:
    """Miss no setting that the search has left out; repeat a search that was interrupted."""
    request = make_plan().first_request()
    assert request.searches
    assert 1 == request.budget.launches
    default = request.cases[0]
    assert isinstance(default, TrainingCase)
    dropped = record_of(make_training_case("topk:0.01", "5"), 0, 20.0)
    assert list(request.cases) == missing_cases(request, [dropped], 0)
    assert 0 == next_launch(request, [dropped])
    done = [dropped, record_of(default, 0, 100.0)]
    assert [] == missing_cases(request, done, 0) == unmeasured_cases(request, done)
    assert 1 == next_launch(request, done)
    assert {SWEEP} == {record.case.phase for record in done}


def test_a_time_limit_shortens_the_search() -> None:
    """Give half of the time to the search."""
    request = make_plan(time_limit_s=30.0).first_request()
    assert request.training is not None
    assert 15.0 == request.training.search_s == request.time_limit_s
