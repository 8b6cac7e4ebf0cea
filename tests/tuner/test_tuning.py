"""Tests of the stages of tuning, on a simulated cluster with known step times."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tuning_world import (
    BLOCK_STEPS,
    Link,
    World,
    default_play,
    default_world,
    make_facts,
    make_plan,
    play,
)

from commbench.cli.options import Settings
from commbench.cli.train import write_recommendation
from commbench.cli.tune import known_facts, tuning_task
from commbench.ddp.plan.cases import CONFIRM, LOCAL, SWEEP, TrainingCase
from commbench.launch.events import SilentListener
from commbench.launch.identity import Identity
from commbench.launch.ledger import Ledger
from commbench.launch.standalone import _Standalone
from commbench.results import Store
from commbench.results.plan import RunRequest, missing_cases, next_launch
from commbench.results.recommendation import Recommendation, setting_of
from commbench.results.record_types import AnyRecord, collective_records, training_records
from commbench.stats.budgets import TUNING_BUDGETS
from commbench.tuner.decision import recommend
from commbench.tuner.learning import Permission
from commbench.tuner.predictions import prediction_rows, with_search
from commbench.tuner.stages import TuningPlan


def names(cases: Sequence[object]) -> list[tuple[str, str]]:
    """Return hook and bucket size of cases."""
    return [
        (case.hook_name, case.bucket_cap_mb) for case in cases if isinstance(case, TrainingCase)
    ]


def conclude(world: World, records: Sequence[AnyRecord]) -> Recommendation:
    """Return the conclusion of a simulated run."""
    recommendation = recommend(training_records(records), world.plan.info)
    assert recommendation is not None
    return recommendation


def chosen(world: World, records: Sequence[AnyRecord]) -> TrainingCase:
    """Return the candidate compared with the default in the end."""
    winner, *_ = [
        r.case
        for r in training_records(records)
        if r.case.phase == CONFIRM and r.case.key != _base(world)
    ]
    return dataclasses.replace(winner, phase=SWEEP)


def _base(world: World) -> str:
    return dataclasses.replace(world.plan.baseline, phase=CONFIRM).key


def stage_names(requests: Sequence[RunRequest]) -> list[str]:
    """Return the names of the stages."""
    return [request.name for request in requests]


def test_the_stages_follow_each_other() -> None:
    """Calibrate, time the network, measure rounds with consecutive launches, and confirm."""
    played = default_play()
    assert ["network", "calibrate", "round 1", "round 2", "round 3", "confirm"] == stage_names(
        played.requests
    )[:6]
    network, _, first, second, third, confirm = played.requests[:6]
    assert network.training is None
    assert [(0, 2), (2, 4), (4, 6)] == [
        (r.first_launch, r.budget.launches) for r in (first, second, third)
    ]
    for request in (first, second, third):
        assert ("none", "default") == names(request.cases)[0]
        assert (LOCAL, "default") == names(request.cases)[-1]
    assert len(first.cases) > len(second.cases) >= len(third.cases)
    assert ("none", "default") == names(confirm.cases)[0]
    assert all(request.is_fixed_length for request in played.requests)
    assert [False, False, True, True, True, True] == [
        request.depends for request in played.requests[:6]
    ]


@pytest.mark.parametrize(
    ("budget", "gbit"),
    [
        ("quick", 1.0),
        pytest.param("standard", 10.0, marks=pytest.mark.slow),
        pytest.param("rigorous", 1000.0, marks=pytest.mark.slow),
    ],
)
def test_the_choice_is_nearly_the_best_at_a_quarter_of_the_steps(budget: str, gbit: float) -> None:
    """Choose within 2 % or noise of the true best, within the cost limit."""
    world = World(plan=make_plan(budget=budget), link=Link(gbit=gbit))
    played = play(world)
    recommendation = conclude(world, played.records)
    assert world.regret(chosen(world, played.records)) <= 0.03
    full_sweep = BLOCK_STEPS * (36 + 2) * TUNING_BUDGETS[budget].training.launches
    assert recommendation.measured_steps <= full_sweep / 4


def test_one_disturbed_block_does_not_cost_the_best_hook_its_place() -> None:
    """Measure every hook again after calibration, and choose the disturbed best one."""
    world = World(plan=make_plan(budget="quick"), link=Link(gbit=1.0), disturbed="topk:0.01")
    played = play(world)
    assert "topk:0.01" in {hook for hook, _ in names(played.requests[2].cases)}
    assert ("change", "topk") == (
        (recommendation := conclude(world, played.records)).verdict,
        recommendation.best.hook,
    )


def test_the_same_run_may_permit_other_hooks_later(tmp_path: Path) -> None:
    """Recommend the same measurements by the permission of the last command."""
    world, refused = default_world(), Permission(named_hooks=[], accepts_loss=False)
    verdicts = []
    with Store.open(tmp_path / "r", {"plan": {}, **world.plan.info, **refused.info}) as store:
        for record in default_play().records:
            store.append(record)
        for permission in (refused, Permission(named_hooks=["topk:0.01"], accepts_loss=True)):
            write_recommendation(store, permission)
            written = json.loads((tmp_path / "r" / "recommendation.json").read_text())
            verdicts.append((written["verdict"], written["best"]["hook"]))
    assert "topk" != verdicts[0][1]
    assert ("change", "topk") == verdicts[1]


def test_a_hook_of_a_file_is_measured_instead_of_predicted(tmp_path: Path) -> None:
    """Choose among hooks of files by calibration and rounds, and predict only the others."""
    (tmp_path / "mine.py").touch()
    permission = Permission(named_hooks=["mine.py:hook"], accepts_loss=True)
    plan = make_plan(
        budget="quick", hooks=["none", f"{tmp_path}/mine.py:hook"], permission=permission
    )
    world = World(plan=plan)
    played = play(world)
    network, calibrate, *later = played.requests
    assert {"all_reduce"} == {
        case.operation for case in network.cases if not isinstance(case, TrainingCase)
    }
    assert ("mine.py:hook", "default") in names(calibrate.cases)
    assert "mine.py:hook" in {hook for hook, _ in names(later[0].cases)}
    assert calibrate.training is not None
    assert (f"{tmp_path}/mine.py:hook",) == calibrate.training.file_hooks
    recommendation = conclude(world, played.records)
    assert ("change", "mine.py:hook") == (recommendation.verdict, recommendation.best.hook)
    trainings = training_records(played.records)
    rows = prediction_rows(collective_records(played.records), trainings, plan.info)
    for row in rows:
        assert (row.hook == "none") == bool(row.predicted_step_ms)


def test_a_gain_that_matters_is_found() -> None:
    """Change to top-k over a slow link."""
    world = default_world()
    recommendation = conclude(world, default_play().records)
    assert ("change", "topk") == (recommendation.verdict, recommendation.best.hook)
    assert recommendation.speedup is not None
    true = world.true_ms(world.plan.baseline) / min(
        world.true_ms(case) for case in world.plan.candidates
    )
    assert true == pytest.approx(recommendation.speedup, rel=0.05)


def test_the_default_is_kept_where_communication_does_not_matter() -> None:
    """Skip the rounds if nothing can gain, and show that the default is as good."""
    world = World(plan=make_plan(), link=Link(gbit=4000.0, latency_us=1.0), misfit=0.0, noise=0.004)
    played = play(world)
    assert ["network", "calibrate", "confirm"] == stage_names(played.requests)[:3]
    recommendation = conclude(world, played.records)
    assert "keep" == recommendation.verdict
    assert setting_of(world.plan.baseline) == setting_of(recommendation.baseline)


@pytest.mark.slow
def test_a_run_that_is_resumed_comes_to_the_same_settings() -> None:
    """Choose equal settings wherever the run was interrupted."""
    world = World(plan=make_plan(budget="quick"), link=Link(gbit=10.0))
    whole = play(world)
    for most in (26, len(whole.records) - 3):
        part = play(world, most=most).records
        rest = play(world, part)
        assert {(r.case.key, r.launch) for r in whole.records} == {
            (r.case.key, r.launch) for r in rest.records
        }
    again = play(world, whole.records)
    assert whole.records == again.records


def test_a_hook_that_cannot_be_trained_is_left_out() -> None:
    """Choose among the hooks that can be trained."""
    world = World(plan=make_plan(budget="quick"), failing="topk:0.01")
    played = play(world)
    trained = {case.hook_name for request in played.requests[2:] for case in request.cases}  # type: ignore[union-attr]
    assert {"none", "fp16", LOCAL} == trained
    assert "fp16" == conclude(world, played.records).best.hook


def test_nothing_follows_where_the_default_cannot_be_trained() -> None:
    """End after the network if the default fails."""
    world = World(plan=make_plan(), failing="none")
    played = play(world)
    assert ["network", "calibrate"] == stage_names(played.requests)
    recommendation = conclude(world, played.records)
    assert ("inconclusive", "default", "none") == (
        recommendation.verdict,
        recommendation.best.bucket_cap_mb,
        recommendation.best.hook,
    )
    assert "boom" in recommendation.reason


def test_an_unmeasured_network_ends_with_a_warning() -> None:
    """Train nothing more if no collective of the default could be timed."""
    world = World(plan=make_plan())
    request = world.plan.calibrate_request()
    records = [world.record(case, 0) for case in request.cases]
    assert world.plan.confirm_request(records) is None
    recommendation = with_search(
        conclude(world, records), [], training_records(records), world.plan.info
    )
    assert "inconclusive" == recommendation.verdict
    assert recommendation.warnings


def test_a_short_sweep_has_a_round_whatever_it_costs() -> None:
    """Measure two settings and the default before confirmation."""
    world = World(plan=make_plan(budget="quick", caps=["default", "5"], hooks=["none", "fp16"]))
    assert (4, (2,)) == (len(world.plan.candidates), world.plan.round_sizes)
    played = play(world)
    assert ["network", "calibrate", "round 1", "confirm"] == stage_names(played.requests)
    assert 4 == world.plan.first_look
    recommendation = conclude(world, played.records)
    assert (2 + 3 + 2 * 4) * BLOCK_STEPS == recommendation.measured_steps


def planned_blocks(plan: TuningPlan) -> int:
    """Return the blocks of calibration, rounds, and fresh launches up to the first look."""
    calibration = plan.allowance - plan._remaining_blocks
    rounds = plan.budget.round_launches * sum(size + 1 for size in plan.round_sizes)
    return calibration + rounds + plan._most_confirmed * plan.first_look


@pytest.mark.parametrize(
    ("budget", "caps", "hooks"),
    [
        ("quick", 3, 4),
        ("quick", 12, 1),
        ("standard", 5, 2),
        ("standard", 8, 3),
        ("rigorous", 12, 4),
    ],
)
def test_a_plan_keeps_to_a_quarter_wherever_a_round_and_four_fresh_launches_fit(
    budget: str, caps: int, hooks: int
) -> None:
    """Plan calibration, rounds and first look within the allowance, at least their minimum."""
    allowed = ["none", "fp16", "bf16", "topk:0.01"][:hooks]
    sizes = ["default", *(str(cap) for cap in (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20))][:caps]
    plan = make_plan(budget=budget, caps=sizes, hooks=allowed)
    calibration, launches = plan.budget.calibrate_launches * hooks, plan.budget.round_launches
    assert plan._most_confirmed in ({2, 3} if hooks > 1 else {2})
    assert planned_blocks(plan) <= max(
        plan.allowance, calibration + launches * (max(2, hooks) + 1) + 8
    )
    assert plan.round_sizes[0] >= max(2, hooks)
    assert 4 <= plan.first_look <= plan.budget.training.confirm_launches
    assert all(
        half == math.ceil(whole / 2)
        for whole, half in zip(plan.round_sizes, plan.round_sizes[1:], strict=False)
    )


def test_an_undecided_first_look_is_followed_by_a_second_one() -> None:
    """Add as many confirmation launches within the cost, and judge at a higher level."""
    plan = make_plan(budget="rigorous", hooks=["none", "fp16", "bf16"])
    world = World(plan=plan, link=Link(gbit=4000.0), misfit=0.0, noise=0.03)
    played = play(world)
    first, more = played.requests[-2:]
    assert ["confirm", "confirm"] == stage_names(played.requests[-2:])
    assert first.cases == more.cases
    assert first.budget.launches == more.first_launch == world.plan.first_look
    assert more.first_launch < more.budget.launches <= 2 * more.first_launch
    assert 0.975 == conclude(world, played.records).level


def test_there_is_no_second_look_where_the_number_of_launches_was_named() -> None:
    """Make exactly the requested number of launches."""
    world = World(
        plan=make_plan(budget="rigorous", confirm_launches=7), link=Link(gbit=1000.0), noise=0.02
    )
    requests = play(world).requests
    assert ("confirm", 7) == (requests[-1].name, requests[-1].budget.launches)
    assert 1 == stage_names(requests).count("confirm")


@pytest.mark.slow
def test_more_fresh_launches_may_be_asked_for_later() -> None:
    """Add confirmation launches to a complete run, and keep all others."""
    world = World(plan=make_plan(budget="quick"), noise=0.02)
    before = play(world)
    later = World(plan=dataclasses.replace(world.plan, confirm_launches=20), noise=0.02)
    added = [r for r in play(later, before.records).records if r not in before.records]
    assert {CONFIRM} == {r.case.phase for r in training_records(added)}
    assert set(range(world.plan.first_look, 20)) >= {r.launch for r in added}
    assert 19 == max(r.launch for r in added)


def test_facts_are_reused_for_the_same_workload_and_batch_only(tmp_path: Path) -> None:
    """Inspect the workload again for another workload or batch."""
    settings = Settings(out=tmp_path)
    assert known_facts(settings, "mlp", None) is None
    header = tuning_task(make_plan()).header()
    with Store.open(tmp_path, header):
        pass
    assert make_facts() == known_facts(settings, "mlp", None) == known_facts(settings, "mlp", 8)
    assert known_facts(settings, "digits", None) is None
    assert known_facts(settings, "mlp", 64) is None


class KeptRun:
    """The part of a store that a rank reads between launches."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []
        self.info: dict[str, Any] = {}

    def update(self, **fields: Any) -> None:
        """Set entries of run.json."""
        self.info |= fields


def invoke(world: World, run: KeptRun) -> list[tuple[str, int]]:
    """Simulate one invocation under mpirun; return its launches."""
    identity = Identity(role="rank", world_size=2)
    ranks = _Standalone(
        world.plan.stages(), identity, lambda: None, SilentListener(), lambda _: None
    )  # type: ignore[arg-type, return-value]
    ledger, made = Ledger(run, SilentListener(), ""), []  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("commbench.launch.ledger.write_tables", lambda _: None)
        while request := ranks._next_request(ledger):
            launch = next_launch(request, run.records)
            run.records += [
                world.record(case, launch) for case in missing_cases(request, run.records, launch)
            ]
            made.append((request.name, launch))
    return made


def test_manual_launches_of_required_stages_use_the_whole_limit() -> None:
    """Start network and calibration within the whole limit, rounds within their share."""
    world = World(plan=make_plan(time_limit_s=100.0))
    ranks = _Standalone(
        [], Identity(role="rank", world_size=2), lambda: None, SilentListener(), lambda _: None
    )  # type: ignore[arg-type, return-value]
    ranks.begun -= 80.0
    made = play(world, stages=2).records
    rounds = world.plan.round_request(1, made)
    assert rounds is not None
    deadlines = []
    for request, records in (
        (world.plan.network_request(), []),
        (world.plan.calibrate_request(), []),
        (rounds, made),
    ):
        run = KeptRun()
        run.records = records
        deadlines.append(ranks._plan(Ledger(run, SilentListener(), ""), request).deadline_s)  # type: ignore[arg-type]
    assert [True, True, False] == [deadline is not None and deadline > 10 for deadline in deadlines]


def test_launches_by_hand_come_to_the_same_as_the_conductor() -> None:
    """Make one training launch per invocation, and reach the conductor's choice."""
    world = World(plan=make_plan(budget="quick"), link=Link(gbit=1.0))
    run, made = KeptRun(), []
    while run.info.get("status") != "complete":
        made.append(invoke(world, run))
    assert [("network", 0), ("calibrate", 0)] == made[0]
    assert [("network", 1), ("round 1", 0)] == made[1]
    assert [[("round 2", 1)], *([("confirm", launch)] for launch in range(6))] == made[2:]
    assert "" == run.info["reason"]
    assert [] == invoke(world, run)
    conducted = play(world).records
    assert {(r.case.key, r.launch) for r in conducted} == {
        (r.case.key, r.launch) for r in run.records
    }
