"""Tests of launches started by a person's mpirun or torchrun."""

import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import make_case, make_record
from launching import make_request, marked_environment, mpirun, open_store, wait_until

from commbench.collectives.cases import Sweep
from commbench.engine.control import run_threads
from commbench.errors import InputError
from commbench.launch.diagnosis import Ending
from commbench.launch.events import (
    CaseFinished,
    CasesEnded,
    CaseStarted,
    Listener,
    SessionStarted,
    SilentListener,
)
from commbench.launch.identity import Identity
from commbench.launch.ledger import Ledger, Remaining
from commbench.launch.standalone import OwnLaunch, _Standalone
from commbench.results import Store, load_run
from commbench.results.plan import RunRequest, Stage, TimePlan, plan_launch
from commbench.results.record_types import AnyRecord

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("forks")]

#: What the command line does under a launcher; ``harm`` comes in between.
SCRIPT = """
import os, sys, time
from commbench.stats.budgets import Budget
from commbench.collectives.cases import Sweep
from commbench.launch import rank
from commbench.results.plan import RunRequest
from commbench.launch.standalone import run_standalone
from commbench.launch.identity import identify
from commbench.results import Store
out, backend, harm, more = sys.argv[1:]
identity = identify(os.environ)
visit, seen = rank.CaseRun.visit, []
def sabotaged(measurement):
    seen.append(measurement.case)
    if len(seen) == 3:
        exec(harm)
    return visit(measurement)
rank.CaseRun.visit = sabotaged
def ask(name, operations):
    sweep = Sweep(backends=[backend], sizes=[8, 1024], operations=operations, sync="dissemination")
    budget = Budget(name="quick", launches=6, relative_half_width=0.5, slice_s=0.05)
    return RunRequest(
        cases=sweep.cases(identity.world_size), ranks=identity.world_size, seed=1, budget=budget,
        case_timeout_s=float(os.environ.get("CASE_TIMEOUT_S", 60)), name=name,
    )
first = ask("first", ["all_reduce", "broadcast"])
def second(records):
    assert identity.rank == 0 and {record.case.operation for record in records} >= {"all_reduce", "broadcast"}
    return ask("second", ["all_gather"])
plan = {"cases": [case.key for case in first.cases], "seed": 1}
stages = [lambda _: first] + ([second] if more else [])
def finish(store): open(out + ".finished", "a").write(store.info["status"])
run_standalone(stages, identity, lambda: Store.open(out, {"plan": plan}), finish=finish)
"""


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Fail if a test leaves a process behind."""
    yield from marked_environment(monkeypatch)


def command(path: Path, *, backend: str = "mpi", harm: str = "", more: str = "") -> list[str]:
    """Return a person's command: each rank runs ``harm`` at its third case, ``more`` adds a stage."""
    script = path.with_suffix(".py")
    script.write_text(SCRIPT)
    words = [str(script), str(path), backend, harm, more]
    if backend == "mpi":
        return mpirun().command(2, words)
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2"
    return [sys.executable, *torchrun.split(), *words]


def start(
    path: Path, variables: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Start one launch with further variables, and wait until it exits."""
    environment = {**os.environ, **mpirun().environment(), **(variables or {})}
    return subprocess.run(
        command(path, **options),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def state(path: Path) -> tuple[str, list[tuple[int, str]], list[int]]:
    """Return status, launches with how they ended, and measured cases per launch."""
    info = json.loads((path / "run.json").read_text())
    records = [record for record in load_run(path).records if record.status == "ok"]
    counts = [sum(record.launch == launch for record in records) for launch in range(3)]
    return (
        info["status"],
        [(entry["launch"], entry["status"]) for entry in info["launches"]],
        counts,
    )


def test_each_invocation_adds_a_launch_to_every_stage(tmp_path: Path) -> None:
    """Add one launch of each stage with the same ranks, the second based on the first."""
    path = tmp_path / "run"
    assert [0, 0] == [start(path, more="more").returncode for _ in range(2)]
    assert ("complete", [(launch, "ok") for launch in (0, 0, 1, 1)], [6, 6, 0]) == state(path)
    info = json.loads((path / "run.json").read_text())
    assert (2, "quick", "openmpi") == (info["world_size"], info["budget"], info["launcher"])
    assert 7 == len((path / "collectives.csv").read_text().splitlines())
    assert ["first", "second", "first", "second"] == [entry["stage"] for entry in info["launches"]]
    assert all(entry["startup_s"] <= entry["seconds"] for entry in info["launches"])
    assert "completecomplete" == path.with_suffix(".finished").read_text()


def test_a_rank_that_raises_ends_all_and_the_launch_is_completed_next(tmp_path: Path) -> None:
    """Keep the measurements when a rank raises; the next call completes that launch."""
    path = tmp_path / "run"
    failed = start(path, harm="if identity.rank == 1: raise ValueError('boom')")
    assert 0 != failed.returncode
    assert f"commbench: rank 1 on host {os.uname().nodename}: ValueError: boom" in failed.stderr
    assert ("partial", [(0, "failed")], [2, 0, 0]) == state(path)
    assert 0 == start(path).returncode
    assert ("complete", [(0, "failed"), (0, "ok")], [4, 0, 0]) == state(path)


def test_a_hang_ends_by_itself(tmp_path: Path) -> None:
    """Detect a hang without a conductor while rank 1 is stopped."""
    path = tmp_path / "run"
    hung = start(
        path,
        {"CASE_TIMEOUT_S": "2"},
        harm="import signal\nif identity.rank == 1: signal.raise_signal(signal.SIGSTOP)",
    )
    assert 0 != hung.returncode
    assert "commbench: rank 0" in hung.stderr
    assert "no progress for 2 s in mpi " in hung.stderr
    assert ("partial", [(0, "hung")], [2, 0, 0]) == state(path)
    assert "hung" == load_run(path).records[-1].status


def test_a_terminated_launcher_leaves_a_partial_run(tmp_path: Path) -> None:
    """Record the end by SIGTERM although the main thread is blocked."""
    path = tmp_path / "run"
    words = command(path, harm="open(out + '.ready', 'w').close(); time.sleep(600)")
    with subprocess.Popen(
        words, env={**os.environ, **mpirun().environment()}, stderr=subprocess.DEVNULL
    ) as launcher:
        assert wait_until((tmp_path / "run.ready").exists)
        launcher.send_signal(signal.SIGTERM)
        assert 0 != launcher.wait(60)
    info = json.loads((path / "run.json").read_text())
    assert ("partial", 2) == (
        info["status"],
        len([r for r in load_run(path).records if r.status == "ok"]),
    )
    assert 0 == start(path).returncode
    assert ("complete", [4, 0, 0]) == (state(path)[0], state(path)[2])


@pytest.mark.parametrize("backend", ["mpi", pytest.param("gloo", marks=pytest.mark.slow)])
def test_ctrl_c_lets_all_ranks_finish_the_case(tmp_path: Path, backend: str) -> None:
    """Finish the current case on SIGINT to all ranks, mark the run interrupted, and resume."""
    path = tmp_path / "run"
    harm = "import signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(1)"
    ended = start(path, backend=backend, harm=harm)
    assert 0 != ended.returncode
    assert 1 == ended.stderr.count("commbench: finishing the case; press Ctrl-C again to stop now.")
    assert ("interrupted", [(0, "interrupted")], [3, 0, 0]) == state(path)
    assert "interrupted by SIGINT" == json.loads((path / "run.json").read_text())["reason"]
    assert 0 == start(path, backend=backend).returncode
    assert ("complete", [4, 0, 0]) == (state(path)[0], state(path)[2])


@pytest.mark.slow
def test_ctrl_c_twice_stops_a_rank_at_once(tmp_path: Path) -> None:
    """Abort the current case on a second SIGINT."""
    path = tmp_path / "run"
    harm = (
        "import signal\nif identity.rank == 0:\n    os.kill(os.getpid(), signal.SIGINT);"
        " time.sleep(1)\n"
    )
    harm += "    os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(600)"
    assert 0 != start(path, harm=harm).returncode
    assert ("interrupted", [(0, "interrupted")], [2, 0, 0]) == state(path)


SIDE = Sweep(backends=["fake"], sizes=[8, 1024], operations=["all_gather"]).cases(2)
CASES = Sweep(backends=["fake"], sizes=[8, 1024], operations=["all_reduce", "broadcast"]).cases(2)
FIRST, SECOND = (
    make_request(cases, name=name) for cases, name in ((CASES, "first"), (SIDE, "second"))
)


class Invocation:
    """Runs one invocation on two ranks that are threads, on the fake backend."""

    def __init__(self, path: Path, stages: Sequence[Stage], seed: int = 1) -> None:
        self.finished: list[str] = []
        identities = [
            Identity(role="rank", rank=rank, world_size=2, launcher="openmpi") for rank in range(2)
        ]
        self.ranks = [
            _Standalone(
                stages, identity, lambda: self.open(path, seed), SilentListener(), self.finish
            )
            for identity in identities
        ]

    def open(self, path: Path, seed: int) -> Store:
        """Open or resume the run."""
        self.store = Store.open(path, {"plan": {"seed": seed}})
        return self.store

    def finish(self, store: Store) -> None:
        """Record the status of the run when it is printed."""
        self.finished.append(store.info["status"])

    def run(self, at_case: Callable[[int], None] = lambda _: None) -> int:
        """Measure, calling ``at_case`` when rank 0 begins a case; return rank 0's exit code."""
        rank_0 = self.ranks[0]
        begun = itertools.count(1)
        enter = rank_0.heart.enter

        def noting(case: int, text: str) -> None:
            enter(case, text)
            if case >= 0:
                at_case(next(begun))

        rank_0.heart.enter = noting  # type: ignore[method-assign]
        try:
            run_threads(2, lambda control: self.ranks[control.rank]._work(control))
        finally:
            self.store.close()
        return rank_0.code


@pytest.fixture
def no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the test process's signal handlers."""
    monkeypatch.setattr("commbench.launch.standalone.SignalFeed", lambda *_: None)


def refuse(_: Sequence[AnyRecord]) -> RunRequest:
    """Refuse to go on."""
    raise InputError("Nothing to go on with.")


@pytest.mark.usefixtures("no_signals")
@pytest.mark.parametrize(
    ("limit_s", "second", "code", "status", "end"),
    [
        (None, lambda _: None, 0, "complete", (0, "ok")),
        (None, refuse, 2, "partial", (0, "ok")),
        (0.001, lambda _: SECOND, 3, "partial", (0, "cut")),
    ],
    ids=["nothing to do", "refused", "time limit"],
)
def test_a_stage_that_is_not_measured(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    limit_s: float | None,
    second: Stage,
    code: int,
    status: str,
    end: tuple[int, str],
) -> None:
    """Complete a run whose stage has no request, keep what precedes a refusal, obey a limit."""
    first = dataclasses.replace(FIRST, time_limit_s=limit_s)
    invocation = Invocation(tmp_path / "run", [lambda _: first, second])
    assert code == invocation.run()
    measured = 0 if limit_s else 4
    assert (status, [end], [measured, 0, 0]) == state(tmp_path / "run")
    assert (1 if code == 2 else 0) == capsys.readouterr().err.count("Nothing to go on with.")
    assert (code == 2) == (invocation.finished == [])


@pytest.mark.usefixtures("no_signals")
@pytest.mark.parametrize(
    ("case", "ending", "measured", "reason"),
    [
        (3, "interrupted", 3, "interrupted by SIGINT"),
        (4, "ok", 4, "interrupted by SIGINT between stages"),
    ],
)
def test_ctrl_c_begins_no_further_case(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    case: int,
    ending: str,
    measured: int,
    reason: str,
) -> None:
    """Finish the current case on Ctrl-C, and start neither another case nor a stage."""
    invocation = Invocation(tmp_path / "run", [lambda _: FIRST, lambda _: SECOND])

    def interrupt(begun: int) -> None:
        if begun == case:
            for rank in invocation.ranks:
                rank._on_signal(signal.SIGINT)

    assert 128 + signal.SIGINT == invocation.run(interrupt)
    assert 1 == capsys.readouterr().err.count(
        "commbench: finishing the case; press Ctrl-C again to stop now."
    )
    assert ("interrupted", [(0, ending)], [measured, 0, 0]) == state(tmp_path / "run")
    assert reason == json.loads((tmp_path / "run" / "run.json").read_text())["reason"]


@pytest.mark.usefixtures("no_signals")
def test_another_plan_is_refused_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refuse another plan with one sentence of rank 0 and code 2, and write nothing."""
    assert 0 == Invocation(tmp_path / "run", [lambda _: FIRST]).run()
    before = (tmp_path / "run" / "run.json").read_bytes()
    other = Invocation(tmp_path / "run", [lambda _: FIRST], seed=2)
    other.store = Store.open(tmp_path / "other", {})
    assert 2 == other.run()
    assert 1 == capsys.readouterr().err.count(
        "holds a run with another plan (seed is 1 there and 2 here)"
    )
    assert before == (tmp_path / "run" / "run.json").read_bytes()


def make_launch(path: Path, display: Listener | None = None) -> OwnLaunch:
    """Return a launch in its first case."""
    request = make_request([make_case()])
    plan = plan_launch(request, [], 0)
    ledger = Ledger(
        open_store(path, request),
        display or SilentListener(),
        "openmpi",
        fail_fast=True,
        status="partial",
    )
    times = TimePlan(budget=request.budget, begun=0.0)
    remaining = Remaining.of(request, [request.cases], total=1)
    launch = OwnLaunch(
        ledger, request, plan, times=times, begun=time.monotonic(), remaining=remaining
    )
    launch.on(CaseStarted(index=0))
    return launch


def test_a_launch_that_fails_keeps_its_case_and_how_it_ended(tmp_path: Path) -> None:
    """Write the failed case and the end of the launch once."""
    launch = make_launch(tmp_path)
    launch.on(SESSION)
    for _ in range(2):
        launch.fail(Ending(status="failed", reason="rank 1 raised ValueError"))
    assert ("partial", [(0, "failed")], [0, 0, 0]) == state(tmp_path)
    assert [("failed", "rank 1 raised ValueError")] == [
        (r.status, r.reason) for r in load_run(tmp_path).records
    ]
    info = launch.ledger.store.info
    assert {"launcher": "openmpi", "budget": "quick"}.items() <= info.items()
    assert (
        f"rank 1 raised ValueError, in case {make_case()}"
        == info["reason"]
        == info["launches"][0]["reason"]
    )
    assert 2 == len((tmp_path / "collectives.csv").read_text().splitlines())


CONDITIONS = {
    "environment": {
        "hosts": [{"hostname": "n0", "timer_tick_s": 1e-8}],
        "versions": {},
        "variables": {},
    },
    "ranks": [{"rank": 0, "host": "n0", "pid": 1, "cpus": [0]}],
    "libraries": {},
    "mpi_init_s": 0.1,
    "shared_clock": True,
    "oversubscribed": False,
}
SESSION = SessionStarted(facts=CONDITIONS)


def test_a_launch_that_is_killed_leaves_a_partial_run(tmp_path: Path) -> None:
    """Mark a launch as unfinished from its start."""
    launch = make_launch(tmp_path)
    launch.on(SESSION)
    info = launch.ledger.store.info
    assert ("partial", "launch 1 has begun and not ended") == (info["status"], info["reason"])


def test_a_run_that_is_cut_before_its_first_case_is_partial(tmp_path: Path) -> None:
    """Mark a run as cut if each case has a launch, else as partial with code 3."""
    none, some = (make_launch(tmp_path / name) for name in ("none", "some"))
    some.on(CaseFinished(record=make_record(make_case())))
    for launch in (none, some):
        launch.on(CasesEnded(is_complete=False))
    assert ["partial", "cut"] == [state(tmp_path / name)[0] for name in ("none", "some")]
    assert [3, 0] == [none.code, some.code]
    assert none.ledger.store.info["reason"].endswith("; 1 of 1 case has no launch")


def test_wrong_data_outranks_a_case_that_cannot_be_trained(tmp_path: Path) -> None:
    """Exit with 4 for wrong data despite a failed case; an interrupt outranks both."""
    launch = make_launch(tmp_path / "run")
    launch.on(CaseFinished(record=make_record(make_case(), status="wrong")))
    launch.ledger.leave_out(make_case(message_bytes=64), "it does not train")
    launch.on(CasesEnded(is_complete=True))
    assert (4, "partial") == (launch.code, launch.ledger.store.info["status"])
    launch.is_last_case = True
    launch.on(CasesEnded(is_complete=False))
    assert (130, "interrupted") == (launch.code, launch.ledger.store.info["status"])


def test_a_disk_that_fails_keeps_no_rank_from_ending_all(tmp_path: Path) -> None:
    """Ignore a disk error while ending the ranks."""
    launch = make_launch(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("in the way")
    launch.fail(Ending(status="failed", reason="the disk is full"))
    assert "in the way" == (tmp_path / "run").read_text()


def test_torchrun_measures_gloo(tmp_path: Path) -> None:
    """Measure Gloo by torchrun without MPI."""
    pytest.importorskip("torch")
    path = tmp_path / "run"
    assert 0 == start(path, backend="gloo").returncode
    assert ("complete", [(0, "ok")], [4, 0, 0]) == state(path)
    assert "torchrun" == json.loads((path / "run.json").read_text())["launcher"]
