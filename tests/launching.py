"""Runs, displays and launchers for tests that start processes, and a search for what they leave
behind.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import read_info, read_records, read_rows
from fields import fields_of
from places import HERE

from commbench.launch.events import CaseFinished, CaseProgress, Event, Notice, RankOutput
from commbench.launch.launchers.base import Placement
from commbench.launch.launchers.choice import choose_launcher
from commbench.launch.launchers.mpirun import MpirunLauncher
from commbench.results import Store
from commbench.results.info import RunInfo
from commbench.results.plan import RunRequest
from commbench.results.record_types import AnyCase, AnyRecord
from commbench.stats.budgets import Budget

#: The directory of the tests.
RANKS = HERE / "ranks"
#: The type of the fixture ``run_ranks``.
RunRanks = Callable[..., Any]
MARK = "COMMBENCH_TEST_MARK"
#: Open MPI's ofi component costs a second in every start and has nothing to carry on one host.
NO_OFI = {"OMPI_MCA_btl": "^ofi"}


def make_request(
    cases: Sequence[AnyCase], *, ranks: int = 2, launches: int = 2, **options: float
) -> RunRequest:
    """Return a request that measures each case for a moment only."""
    budget = Budget(name="quick", launches=launches, relative_half_width=0.5, slice_s=0.05)
    return RunRequest(cases=cases, ranks=ranks, seed=1, budget=budget, **options)


def open_store(path: Path, request: RunRequest) -> Store:
    """Open or resume the run of ``request``."""
    header = {"plan": {"cases": fields_of(request.cases, "key"), "ranks": request.ranks}}
    return Store.open(path, header | RunInfo(env=request.envs) if any(request.envs) else header)


class Recorder:
    """Records events; calls ``at_case`` when case number ``when`` of this invocation starts."""

    def __init__(self, at_case: Callable[[], None] = lambda: None, when: int = 1) -> None:
        self.warnings = []
        self.lines = []
        self.progress = []
        self.records = []
        self._at_case = at_case
        self._when = when

    def on(self, event: Event) -> None:
        """Record an event."""
        match event:
            case CaseProgress(done=done, total=total):
                self.progress.append((done, total))
                if len(self.progress) == self._when:
                    self._at_case()
            case CaseFinished(record=record):
                self.records.append(record)
            case Notice(text=text):
                self.warnings.append(text)
            case RankOutput(lines=lines):
                self.lines.extend(lines)


def mpirun(**options: object) -> MpirunLauncher:
    """Return the real mpirun; skip without one."""
    pytest.importorskip("mpi4py")
    launcher = choose_launcher(placement=Placement(oversubscribe=True))
    if not isinstance(launcher, MpirunLauncher):
        pytest.skip("needs Open MPI's mpirun")
    return MpirunLauncher(path=launcher.path, oversubscribe=True, **options)


class ScriptLauncher:
    """Starts one Python process that simulates the ranks by `PLAYER` and ``script``."""

    name = "script"
    hostfile = None
    oversubscribe = False
    forwards_signals = False
    environ = os.environ

    def __init__(self, script: str) -> None:
        self.script = script
        self.started = 0
        self.envs = []

    def with_env(self, env: str) -> "ScriptLauncher":
        """Note the environment of a start; the script reads it from its plan."""
        self.envs.append(env)
        return self

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:
        """Return the command of the script, for any program."""
        self.started += 1
        return [sys.executable, "-c", PLAYER + self.script]

    def environment(self) -> dict[str, str]:
        """Return no variables."""
        return {}

    def slots(self) -> int:
        """Return two slots."""
        return 2


PLAYER = """
import json, os, sys, time
from commbench.results.plan import LaunchPlan
from commbench.launch.events import CaseFinished, CasesEnded, CaseStarted, EventWriter, Heartbeat
from commbench.launch.events import RankError, SessionStarted, say
from commbench.engine.records import Record
from commbench.ddp.plan.records import TrainingRecord
plan = LaunchPlan.from_json(sys.stdin.readline())
writer = EventWriter(sys.stdout)
def session(selection=None, **changes):
    host = {"hostname": "n0", "cpu_model": "abacus", "timer_tick_s": 1e-8, **changes}
    environment = {"hosts": [host], "versions": {}, "variables": {}}
    writer.on(SessionStarted(facts={"environment": environment,
        "ranks": [{"rank": r, "host": "n0", "pid": os.getpid(), "cpus": [r]} for r in (0, 1)],
        "libraries": {}, "mpi_init_s": 0.1, "shared_clock": True, "oversubscribed": False,
        **({"fast_selection": selection} if selection else {})}))
def begin(index):
    writer.on(CaseStarted(index=index))
    return plan.cases[index]
def measured(index, share=1.0, **changes):
    made = {"times_us": [1.0, 2.0, 3.0], "warmups": 7, "launch": plan.launch, **changes}
    writer.on(CaseFinished(record=Record(case=begin(index), **made), share=share))
def trained(index, **changes):
    made = {"step_ms": [5.0, 6.0, 7.0], "block_steps": 5, "block_lengths": [3], "discarded": 2}
    made |= {"measuring_s": 0.1, "launch": plan.launch, **changes}
    writer.on(CaseFinished(record=TrainingRecord(case=begin(index), **made)))
def end(is_complete=True):
    writer.on(CasesEnded(is_complete=is_complete))
def fail(rank, message, is_bad_input=False):
    say(RankError(rank=rank, host=f"n{rank}", case=0, message=message, is_bad_input=is_bad_input))
def beat(rank, entered=1):
    say(Heartbeat(rank=rank, host="elsewhere", pid=1, entered=entered, left=0, cpu_ms=0, case=0))
"""


@contextlib.contextmanager
def serve_forks(directory: Path) -> Iterator[str]:
    """Yield the path of a ``python`` that runs programs as forks of one process, shared by the
    users of ``directory``.

    The directory is the ``bin`` of what scripts take for a virtual environment.

    The first user starts that process. It ends when the last user has closed the pipe ``users``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    users = directory / "users"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not users.exists():
            write_fork_programs(directory)
            os.mkfifo(users)
            server = [sys.executable, str(HERE / "forks" / "server.py"), str(directory)]
            reader = os.open(users, os.O_RDONLY | os.O_NONBLOCK)
            writer = os.open(users, os.O_WRONLY)
            own = {name: value for name, value in os.environ.items() if name != MARK}
            subprocess.run(server, stdin=reader, stdout=subprocess.DEVNULL, env=own, check=True)
            os.close(reader)
        else:
            writer = os.open(users, os.O_WRONLY)
    try:
        yield str(directory / "python")
    finally:
        os.close(writer)


def write_fork_programs(directory: Path) -> None:
    """Write ``python``, which requests a fork, and commbench and MPI's programs beside it."""
    program = directory / "python"
    scripts = {
        "python": f"#!{sys.executable} -IS\n" + (HERE / "forks" / "client.py").read_text(),
        "commbench": f'#!/bin/sh\nexec {program} -m commbench "$@"\n',
    }
    scripts |= {
        path.name: f'#!/bin/sh\nexec {path} "$@"\n'
        for path in Path(sys.executable).parent.glob("mpi*")
    }
    for name, text in scripts.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)


def marked(mark: str, variable: str = MARK) -> list[psutil.Process]:
    """Return the living processes that inherited the mark."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_marked = process.environ().get(variable) == mark
            if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def find_marked(mark: str) -> list[str]:
    """Return the command lines of living processes that inherited the mark."""
    command_lines = []
    for process in marked(mark):
        with contextlib.suppress(psutil.Error):
            command_lines.append(" ".join(process.cmdline()))
    return command_lines


def has_ended(process: int) -> bool:
    """Return whether the process is gone or a zombie."""
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Wait for a condition; the time only bounds a failure."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def marked_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mark all processes started; fail if one of them remains."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    for name, value in NO_OFI.items():
        monkeypatch.setenv(name, value)
    yield mark
    wait_until(lambda: not find_marked(mark))
    assert [] == find_marked(mark)


def finished(
    *words: object, seconds: float | None = 120, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end; return it with its output."""
    command = [str(word) for word in words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, **options
    )


def assert_code(done: "subprocess.CompletedProcess[str]", code: int) -> None:
    """Check the exit status of a program; show its output if it is another."""
    assert code == done.returncode, done.stdout + done.stderr


def succeeded(*words: object, **options: Any) -> str:
    """Return what a program prints, which must succeed."""
    done = finished(*words, **options)
    assert_code(done, 0)
    return done.stdout


def assert_same_form(here: Path, there: Path) -> None:
    """Check that two runs have the same files, entries of run.json, columns and cases, of MPI and
    Gloo.
    """
    forms = []
    for out in (here, there):
        rows = read_rows(out)
        names = ("backend", "operation", "message_bytes", "status")
        cases = [[row[name] for name in names] for row in rows]
        assert {("mpi", "ok"), ("gloo", "ok")} == {(case[0], case[3]) for case in cases}
        info = read_info(out)
        forms.append((set(fields_of(out.iterdir(), "name")), info.keys(), rows[0].keys(), cases))
    assert forms[0] == forms[1]


def records_from_lab(
    out: Path, *arguments: str, lab: Sequence[str] = (), timeout_s: float = 120
) -> list[AnyRecord]:
    """Run ``commbench run`` in an emulated cluster, by default with one launch.

    Return its records.
    """
    commbench = [sys.executable, "-m", "commbench"]
    command = [*commbench, "run", "--launches", "1", *arguments, "--out", out]
    succeeded(*commbench, "lab", "run", *lab, "--", *command, seconds=timeout_s)
    return list(read_records(out))
