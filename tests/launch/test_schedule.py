"""Tests of the schedule of launches, with ranks that are functions and a clock that they move."""

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import pytest
from builders import make_case, make_record
from fields import fields_of
from launching import make_request

from commbench.ddp.plan.cases import CONFIRM, TrainingSweep
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.terms import Terms
from commbench.findings import Finding
from commbench.launch.clues import Ending
from commbench.launch.events import Event, LaunchStarted, Notice
from commbench.launch.schedule import (
    LEAST_SOAK_S,
    PAUSE_S,
    Launch,
    Schedule,
    Stop,
    exceeds_aim,
    next_launch,
)
from commbench.results.plan import RunRequest, Stage
from commbench.results.record_types import Records

CASES = [make_case(message_bytes=1024 * size) for size in range(1, 5)]
REQUEST = make_request(CASES)
TRAINED = TrainingSweep(bucket_caps=["default"], accumulations=[1, 2]).cases(ranks=2, batch=8)
TERMS = Terms(seed=1, block_s=0.5, blocks=2)
TRAINING = dataclasses.replace(make_request(TRAINED), training=TERMS, name="sweep")
#: How a launch of simulated ranks ends, given what it should measure and what it has been.
Ranks = Callable[["World", Launch], Ending]


class World:
    """What has been measured, the time, and the launches that were made."""

    def __init__(self, *stages: Stage | RunRequest, **options: Any) -> None:
        self.records = Records()
        self.info = {"launches": []}
        self.now = 100.0
        self.warned = []
        self.started = []
        self.paused = []
        self.signals = types.SimpleNamespace(number=0, pause=self.paused.append)
        self.made = []
        """Number of each launch, and of the cases that it should measure."""
        functions = []
        for stage in stages:
            functions.append((lambda _, it=stage: it) if isinstance(stage, RunRequest) else stage)
        self.schedule = Schedule(
            functions,
            self,
            self,
            self.signals,
            self.make,
            clock=lambda: self.now,
            begun=self.now,
            **options,
        )

    def measure(self, launch: Launch, count: int | None = None) -> None:
        """Measure the first cases of a launch."""
        cases = launch.plan.cases[:count]
        launch.has_begun, launch.has_result = True, len(cases) > 0
        for case in cases:
            if launch.request.training:
                self.records.add(TrainingRecord(case=case, launch=launch.plan.launch))
            else:
                self.records.add(make_record(case, launch=launch.plan.launch))

    def on(self, event: Event) -> None:
        """Note a launch, or what the user should read."""
        if isinstance(event, LaunchStarted):
            self.started.append(event)
        elif isinstance(event, Notice):
            self.warned.append(event.text)

    def make(self, launch: Launch) -> Ending:
        """Make a launch."""
        self.made.append((launch.plan.launch, len(launch.plan.cases)))
        begun, self.now = self.now, self.now + 1.0
        ending = self.ranks(self, launch)
        entry = {"stage": launch.request.name, "launch": launch.plan.launch}
        seconds = self.now - begun
        self.info["launches"].append({**entry, "status": ending.status, "seconds": seconds})
        return ending

    def run(self, ranks: Ranks) -> Stop:
        """Make all launches."""
        self.ranks = ranks
        return self.schedule.carry_out()


def whole(world: World, launch: Launch) -> Ending:
    """Measure everything."""
    world.measure(launch)
    return Ending(status="ok")


FAILED = Ending(status="failed", cause=Finding.stated("boom"))


def fails_at(*bad: object) -> Ranks:
    """Return ranks that measure cases in order and fail at the first of some."""

    def ranks(world: World, launch: Launch) -> Ending:
        for index, case in enumerate(launch.plan.cases):
            if case in bad:
                world.measure(launch, index)
                if not launch.request.soak_s:
                    launch.lost[case.key] = "boom"
                return FAILED
        return whole(world, launch)

    return ranks


def no_start(world: World, launch: Launch) -> Ending:  # noqa: ARG001 - as other ranks
    """Fail before the first case."""
    return Ending(status="failed", cause=Finding.stated("no slots"))


def test_every_launch_measures_every_case_until_all_is_done():
    """Plan each launch once, and nothing where all is measured."""
    world = World(REQUEST)
    assert Stop(kind="done") == world.run(whole)
    assert [(0, 4), (1, 4)] == world.made
    assert [LaunchStarted(launch=number, launches=2) for number in range(2)] == world.started
    assert 8 == len(set(fields_of(world.records, "case", "launch")))
    again = World(REQUEST)
    again.records = world.records
    assert Stop(kind="done") == again.run(whole)
    assert [] == again.made


def test_a_launch_goes_on_without_what_failed():
    """Start new ranks for the rest of a launch, and leave the case out of later ones."""
    world = World(REQUEST)
    stop = world.run(fails_at(CASES[1]))
    assert ("failed", True) == (stop.kind, "boom" in stop.reason)
    assert [(0, 4), (0, 1), (1, 3)] == world.made
    assert 1 == len(world.warned)
    assert 6 == len(world.records)


def test_three_failures_in_a_row_end_the_run():
    """Count failures without a result in between."""
    world = World(REQUEST)
    assert "failed" == world.run(fails_at(*CASES)).kind
    assert 3 == len(world.made)

    def one_a_start(world: World, launch: Launch) -> Ending:
        world.measure(launch, 1)
        return FAILED

    world = World(REQUEST)
    assert "done" == world.run(one_a_start).kind
    assert 8 == len(world.made)


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (no_start, {}),
        (fails_at(*CASES), {"fail_fast": True}),
        (fails_at(*CASES), {"once": True}),
        (lambda *how: dataclasses.replace(fails_at(*CASES)(*how), is_host_lost=True), {}),
    ],
    ids=["no case begun", "fail fast", "started by the user", "host lost"],
)
def test_one_failure_that_ends_the_run(ranks, options):
    """End at a failure that new ranks would repeat, or as asked."""
    world = World(REQUEST, **options)
    stop = world.run(ranks)
    assert ("failed", 1) == (stop.kind, len(world.made))


@pytest.mark.parametrize(("fail_fast", "launches"), [(False, 2), (True, 1)])
def test_a_training_that_fails_on_all_ranks_is_left_out(*, fail_fast, launches):
    """Leave out what cannot be trained, and end there only if asked."""

    def ranks(world: World, launch: Launch) -> Ending:
        launch.lost = {TRAINED[1].key: "cannot be trained"}
        return whole(world, launch)

    world = World(TRAINING, fail_fast=fail_fast)
    assert "failed" == world.run(ranks).kind
    assert launches == len(world.made)


def test_a_signal_between_launches_ends_the_run():
    """Begin no launch after a signal."""

    def ranks(world: World, launch: Launch) -> Ending:
        world.signals.number = 2
        return whole(world, launch)

    world = World(REQUEST)
    assert Stop(kind="interrupted", reason="interrupted by SIGINT", signal=2) == world.run(ranks)
    assert 1 == len(world.made)


def cut(count: int) -> Ranks:
    """Return ranks that measure some cases until the time is up."""

    def ranks(world: World, launch: Launch) -> Ending:
        world.measure(launch, count)
        return Ending(status="cut")

    return ranks


@pytest.mark.parametrize(("count", "kind"), [(1, "lacking"), (4, "cut")])
def test_a_time_limit_leaves_launches_or_cases_out(count, kind):
    """Tell cases without a launch from launches that are left out."""
    assert kind == World(REQUEST).run(cut(count)).kind


@pytest.mark.parametrize("once", [False, True])
def test_a_stage_that_is_cut_leaves_the_next_its_time(*, once):
    """Make the launches of the next stage, and keep the first reason."""
    second = make_request([make_case(operation="broadcast")], name="second")
    world = World(dataclasses.replace(REQUEST, name="first"), second, once=once)

    def ranks(world: World, launch: Launch) -> Ending:
        return (cut(1) if launch.request.name == "first" else whole)(world, launch)

    stop = world.run(ranks)
    assert "lacking" == stop.kind
    assert "3 of 4" in stop.reason
    assert {0: 2} | ({} if once else {1: 1}) == {
        number: [made for made, _ in world.made].count(number) for number, _ in world.made
    }


def test_what_a_launch_took_sets_the_times_of_the_next_stage():
    """Carry the learned start-up into the next stage."""
    world = World(REQUEST, make_request([make_case(operation="broadcast")], name="next"))
    startups = []

    def ranks(world: World, launch: Launch) -> Ending:
        startups.append(launch.times.startup_s)
        launch.times.startup_s = 7.0
        return whole(world, launch)

    world.run(ranks)
    assert 7.0 == startups[-1]
    assert "next" == world.started[-1].stage


def test_the_last_cases_are_all_that_remains():
    """Count what is left of a stage in cases, slices and launches."""
    remaining = []

    def ranks(world: World, launch: Launch) -> Ending:
        remaining.append(vars(launch.remaining))
        return whole(world, launch)

    World(REQUEST).run(ranks)
    assert [(8, 8.0, 2, 8), (4, 4.0, 1, 8)] == [tuple(each.values()) for each in remaining]


# ---------------------------------------------------------------------- started by the user


def test_an_invocation_makes_one_launch_of_each_stage():
    """Complete an unfinished launch, else add one, beyond the number of the budget."""
    other = make_request([make_case(operation="broadcast")], name="second")
    records = Records()
    for number in range(3):
        world = World(REQUEST, other, once=True)
        world.records = records
        assert "done" == world.run(whole).kind
        assert [(number, 4), (number, 1)] == world.made


def staged(name: str, launches: int, **options: object) -> RunRequest:
    """Return a stage of training with a fixed number of launches."""
    cases = [dataclasses.replace(case, phase=name) for case in TRAINED]
    request = make_request(cases, launches=launches, name=name)
    terms = TERMS
    if name == "search":
        terms = dataclasses.replace(TERMS, search_s=1.0)
    return dataclasses.replace(request, training=terms, is_fixed_length=True, **options)


def test_a_stage_that_depends_on_launches_waits_for_another_invocation():
    """Make one launch of a fixed number, and name the rest, until all are made."""
    stages = [staged("search", 1), staged(CONFIRM, 2)]
    records, kinds, made = Records(), [], []
    for _ in range(4):
        world = World(*stages, once=True)
        world.records = records
        kinds.append(world.run(whole).kind)
        made.append([number for number, _ in world.made])
    assert ["later", "later", "done", "done"] == kinds
    assert [[0], [0], [1], []] == made


def test_an_invocation_completes_before_it_adds():
    """Plan the lowest unfinished launch, else a new one."""
    request = make_request(CASES[:2])
    assert 0 == next_launch(request, [])
    first = [make_record(case, launch=0) for case in CASES[:2]]
    assert 1 == next_launch(request, first)
    assert 0 == next_launch(request, first[:1])
    assert 0 == next_launch(request, [*first[:1], make_record(CASES[0], launch=1)])


def test_a_case_that_always_fails_holds_no_launch_open():
    """Try a failed case once more, then start the next launch; train it once."""
    request = make_request(CASES[:2])
    good, bad = make_record(CASES[0]), make_record(CASES[1], status="failed")
    assert 0 == next_launch(request, [good, bad])
    assert 1 == next_launch(request, [good, bad, bad])
    later = [dataclasses.replace(record, launch=1) for record in (good, bad)]
    assert 2 == next_launch(request, [good, bad, bad, *later])
    trained = [TrainingRecord(case=case, launch=0) for case in TRAINED]
    failed = dataclasses.replace(trained[1], status="failed")
    assert 1 == next_launch(TRAINING, [trained[0], failed, *trained[2:]])
    assert 0 == next_launch(TRAINING, [trained[0], failed])


@pytest.mark.parametrize(
    ("seconds", "launch", "left_out"),
    [
        ([], 2, False),
        ([(0, 30.0)], 1, False),
        ([(0, 30.0), (1, 20.0)], 2, False),
        ([(0, 30.0), (1, 20.1)], 2, True),
        ([(0, 30.0), (1, 10.0), (1, 10.1)], 2, True),
        ([(0, 30.0), (1, 30.0), (2, 30.0)], 2, False),
    ],
)
def test_launches_beyond_the_aim_are_left_out(seconds, launch, *, left_out):
    """Plan launches by the last one's duration, at least the minimum, and complete started ones."""
    request = dataclasses.replace(TRAINING, aim_s=70.0, fewest_launches=2)
    entries = [{"stage": "sweep", "launch": number, "seconds": time} for number, time in seconds]
    others = [{"stage": "confirm", "launch": number, "seconds": 100.0} for number in range(3)]
    assert left_out == exceeds_aim(request, [*entries, *others], launch)
    assert not exceeds_aim(dataclasses.replace(request, aim_s=None), entries, launch)


# --------------------------------------------------------------------------------------- soaks

SOAK = dataclasses.replace(REQUEST, soak_s=60.0)


def lasting(seconds: float, ranks: Ranks = whole) -> Ranks:
    """Return ranks that take some time."""

    def slow(world: World, launch: Launch) -> Ending:
        world.now += seconds
        return ranks(world, launch)

    return slow


def test_launches_of_a_soak_follow_each_other_until_its_time_is_up():
    """Number launches on, within the time that is left, also of an earlier invocation."""
    world = World(SOAK)
    assert Stop(kind="done") == world.run(lasting(9.0))
    assert [(number, 4) for number in range(6)] == world.made
    assert world.now > 160.0 - LEAST_SOAK_S - 10.0
    again = World(SOAK)
    again.records, again.info = world.records, {"launches": world.info["launches"][:4]}
    assert Stop(kind="done") == again.run(lasting(9.0))
    assert [6, 7] == [number for number, _ in again.made]


def test_a_soak_goes_on_after_a_failure_and_says_so():
    """Go on, a moment later if no case had begun; end with that in mind."""
    turns = iter([whole, no_start, fails_at(*CASES), *[whole] * 9])
    world = World(SOAK)

    def ranks(world: World, launch: Launch) -> Ending:
        return lasting(9.0, next(turns))(world, launch)

    stop = world.run(ranks)
    assert ("faulty", [PAUSE_S]) == (stop.kind, world.paused)
    assert 2 == len(world.warned)
    assert len(world.made) > 4


@pytest.mark.parametrize(("options", "launches"), [({}, 3), ({"fail_fast": True}, 1)])
def test_a_soak_that_never_works_ends(options, launches):
    """End after three failed launches without any result, or at the first if asked."""
    world = World(SOAK, **options)
    assert "failed" == world.run(no_start).kind
    assert launches == len(world.made)
