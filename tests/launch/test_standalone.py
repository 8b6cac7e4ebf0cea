"""Tests of rank 0 of a launch that the user has started, with ranks that are threads."""

import dataclasses
import itertools
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from builders import read_info
from faking import open_fake
from fields import fields_of
from launching import Recorder, make_request
from threads import ThreadControl, run_threads

from commbench.collectives.cases import Sweep
from commbench.errors import InputError, LaunchError
from commbench.launch.events import RankError
from commbench.launch.identity import Identity
from commbench.launch.standalone import OwnRank
from commbench.launch.tables import write_tables
from commbench.results import Store, load_run
from commbench.results.plan import RunRequest, Stage
from commbench.results.record_types import AnyRecord


@pytest.fixture(autouse=True)
def no_signals(monkeypatch, stub):
    """Keep the test process's signal handlers, and open a backend with scripted times."""
    stub("commbench.launch.rank.SignalFeed", None)
    monkeypatch.setattr("commbench.launch.rank.open_backend", open_fake)


def state(path: Path) -> tuple[str, list[tuple[int, str]], int]:
    """Return status, launches with how they ended, and the number of measured cases."""
    info = read_info(path)
    ends = fields_of(info["launches"], "launch", "status")
    measured = [record for record in load_run(path).records if record.status == "ok"]
    return info["status"], ends, len(measured)


SIDE = Sweep(backends=["gloo"], sizes=[8, 1024], operations=["all_gather"]).cases(2)
CASES = Sweep(backends=["gloo"], sizes=[8, 1024], operations=["all_reduce", "broadcast"]).cases(2)
FIRST, SECOND = (
    make_request(cases, name=name) for cases, name in ((CASES, "first"), (SIDE, "second"))
)


class Invocation:
    """Runs one invocation on two ranks that are threads, on the fake backend."""

    def __init__(self, path: Path, stages: Sequence[Stage], seed: int = 1) -> None:
        self.finished = []
        self.display = Recorder()
        open_run = partial(self.open, path, seed)
        identities = [
            Identity(role="rank", rank=rank, world_size=2, launcher="openmpi") for rank in range(2)
        ]
        self.ranks = [
            OwnRank(stages, identity, open_run, self.display, self.finish)
            for identity in identities
        ]

    def open(self, path: Path, seed: int) -> Store:
        """Open or resume the run."""
        self.store = Store.open(path, {"plan": {"seed": seed}})
        return self.store

    def finish(self, store: Store) -> None:
        """Record the status of the run when it is printed."""
        self.finished.append(store.info["status"])

    def work(self, control: ThreadControl) -> None:
        """Be one of the ranks."""
        rank = self.ranks[control.rank]
        rank.control = control
        rank.work()

    def run(self, at_case: Callable[[int], object] = int) -> int:
        """Measure, calling ``at_case`` when rank 0 begins a case; return rank 0's exit code."""
        rank_0 = self.ranks[0]
        begun = itertools.count(1)
        enter = rank_0.enter

        def noting(case: int, text: str) -> None:
            enter(case, text)
            if case >= 0:
                at_case(next(begun))

        rank_0.enter = noting
        try:
            run_threads(2, self.work)
        finally:
            self.store.close()
        return rank_0.code


def first_stage(_: Sequence[AnyRecord]) -> RunRequest:
    """Return the first request."""
    return FIRST


def second_stage(_: Sequence[AnyRecord]) -> RunRequest:
    """Return the second request."""
    return SECOND


def no_stage(_: Sequence[AnyRecord]) -> None:
    """Return no request."""


def refuse(_: Sequence[AnyRecord]) -> RunRequest:
    """Refuse to go on."""
    raise InputError("Nothing to go on with.")


@pytest.mark.parametrize(
    ("limit_s", "second", "code", "status", "end"),
    [
        (None, no_stage, 0, "complete", (0, "ok")),
        (None, refuse, 2, "partial", (0, "ok")),
        (0.001, no_stage, 3, "partial", (0, "cut")),
    ],
    ids=["nothing to do", "refused", "time limit"],
)
def test_a_stage_that_is_not_measured(
    tmp_path,
    capsys,
    *,
    limit_s,
    second,
    code,
    status,
    end,
):
    """Complete a run whose stage has no request, keep what precedes a refusal, obey a limit."""

    def first(_: Sequence[AnyRecord]) -> RunRequest:
        return dataclasses.replace(FIRST, time_limit_s=limit_s)

    invocation = Invocation(tmp_path / "run", [first, second])
    assert code == invocation.run()
    measured = 0 if limit_s else 4
    assert (status, [end], measured) == state(tmp_path / "run")
    assert (1 if code == 2 else 0) == capsys.readouterr().err.count("Nothing to go on with.")
    assert (code == 2) == (invocation.finished == [])


def test_ctrl_c_in_the_last_case_begins_no_further_stage(tmp_path):
    """Finish the launch on Ctrl-C, and start no other stage."""
    invocation = Invocation(tmp_path / "run", [first_stage, second_stage])

    def interrupt(begun: int) -> None:
        if begun == len(CASES):
            for rank in invocation.ranks:
                rank.on_signal(signal.SIGINT)

    assert 128 + signal.SIGINT == invocation.run(interrupt)
    assert 1 == len(invocation.display.warnings)
    assert ("interrupted", [(0, "ok")], 4) == state(tmp_path / "run")
    reason = read_info(tmp_path / "run")["reason"]
    assert "interrupted by SIGINT" == reason


def test_ctrl_c_waits_until_results_are_written(tmp_path, monkeypatch):
    """Write what a launch has measured on Ctrl-C, and start no other stage."""
    invocation = Invocation(tmp_path / "run", [first_stage, second_stage])
    rank_0, left = invocation.ranks[0], list[int]()

    def write(store: Store) -> None:
        if not rank_0.interrupts.number:
            rank_0.on_signal(signal.SIGINT)
        write_tables(store)

    monkeypatch.setattr("commbench.launch.ledger.write_tables", write)
    monkeypatch.setattr("commbench.launch.standalone.leave", left.append)
    assert 128 + signal.SIGINT == invocation.run()
    assert not left
    assert ("interrupted", [(0, "ok")], 4) == state(tmp_path / "run")


def test_another_plan_is_refused_once(tmp_path, capsys):
    """Refuse another plan with one sentence of rank 0 and code 2, and write nothing."""
    assert 0 == Invocation(tmp_path / "run", [first_stage]).run()
    before = (tmp_path / "run" / "run.json").read_bytes()
    other = Invocation(tmp_path / "run", [first_stage], seed=2)
    other.store = Store.open(tmp_path / "other", {})
    assert 2 == other.run()
    assert 1 == capsys.readouterr().err.count(
        "holds a run with another plan (seed is 1 there and 2 here)"
    )
    assert before == (tmp_path / "run" / "run.json").read_bytes()


def test_an_error_on_rank_0_is_entered_once(tmp_path):
    """Enter how the launch ended, and the run."""
    path = tmp_path / "run"
    invocation = Invocation(path, [first_stage])

    def break_down(begun: int) -> None:
        if begun < 3:
            return
        error = RankError(rank=0, host="n0", case=2, message="ValueError: boom")
        for _ in range(2):
            invocation.ranks[0].report(error)
        raise LaunchError("boom")

    with pytest.raises(LaunchError, match="boom"):
        invocation.run(break_down)
    assert ("partial", [(0, "failed")], 2) == state(path)
