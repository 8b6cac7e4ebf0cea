"""Tests of one rank: the order of its events, with the fake backend and ranks that are threads."""

import math
import os
import queue
import signal
import subprocess
import sys
import threading
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faking import FakeCommunicator
from fields import fields_of
from launching import finished, has_ended, succeeded, wait_until
from threads import ThreadControl, run_threads

from commbench.collectives.cases import Sweep
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.terms import Terms
from commbench.errors import InputError
from commbench.launch.events import (
    MAIN,
    CaseFinished,
    CasesEnded,
    CaseStarted,
    Event,
    SessionStarted,
    Stack,
    split_line,
)
from commbench.launch.heartbeat import Heart, stack_in
from commbench.launch.identity import Identity
from commbench.launch.rank import RankProcess
from commbench.results.plan import LaunchPlan
from commbench.stats.budgets import BUDGETS

CASES = Sweep(backends=["gloo"], sizes=[8, 1024], operations=["all_reduce", "broadcast"]).cases(2)
ONE_VISIT = replace(BUDGETS["quick"], visits=1)
PLAN = LaunchPlan(launch=3, budget=ONE_VISIT, collectives=CASES)


class ThreadRank(RankProcess):
    """A rank that is a thread."""

    work = leave_off = lambda *_: None


class Launched:
    """What two ranks do that are threads, with the events of rank 0."""

    def __init__(self, *plans: LaunchPlan, most_events: int = 1000) -> None:
        self.events = []
        self.opened = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("commbench.launch.rank.open_backend", self.open)
            patch.setattr("commbench.launch.rank.SignalFeed", lambda _: None)
            self.ranks = [ThreadRank(Identity(role="rank", rank=rank)) for rank in range(2)]

            def work(control: ThreadControl) -> None:
                rank = self.ranks[control.rank]
                rank.control = control
                rank.leave_off = lambda: len(self.events) > most_events
                for plan in plans:
                    rank.make_launch(plan, self if control.rank == 0 else None)

            run_threads(2, work)

    def open(self, name: str, control: ThreadControl) -> Any:
        """Open a backend that needs no library."""
        if name == "mpi":
            raise InputError("install it")
        self.opened.append(name)
        return FakeCommunicator(control)

    def on(self, event: Event) -> None:
        """Record an event."""
        self.events.append(event)

    @property
    def kinds(self) -> list[type]:
        """The types of the events."""
        return [type(event) for event in self.events]

    @property
    def finished(self) -> list[CaseFinished]:
        """The events about records."""
        return [event for event in self.events if isinstance(event, CaseFinished)]


def test_a_rank_reports_everything_in_order():
    """Report the session, each case with its record, and the end; keep backends open."""
    launched = Launched(PLAN, PLAN)
    one = [SessionStarted, *[CaseStarted, CaseFinished] * len(CASES), CasesEnded]
    assert 2 * one == launched.kinds
    assert 2 == len(launched.events[0].facts["ranks"])
    assert CasesEnded(is_complete=True) == launched.events[-1]
    begun = [event.index for event in launched.events if isinstance(event, CaseStarted)]
    assert 2 * [*range(len(CASES))] == begun
    records = fields_of(launched.finished, "record")
    assert 2 * CASES == fields_of(records, "case")
    assert {(3, "ok")} == set(fields_of(records, "launch", "status"))
    assert [len(CASES) - 1] * 2 == fields_of(launched.ranks, "case")
    assert str(CASES[-1]) == launched.ranks[1].progress.case
    assert ["gloo", "gloo"] == launched.opened


def test_a_rank_visits_each_case_several_times():
    """Visit the cases in order, then in shuffled rounds, and report each numbered visit."""
    finished = Launched(replace(PLAN, budget=BUDGETS["quick"])).finished
    assert CASES == fields_of(finished[: len(CASES)], "record.case")
    for case in CASES:
        visits = [event for event in finished if event.record.case == case]
        assert len(visits) > 1
        assert [*range(1, len(visits) + 1)] == fields_of(visits, "record.visit")
        assert 1 == pytest.approx(sum(event.share for event in visits))


def test_no_case_begins_after_the_deadline_or_the_last_that_is_wanted():
    """Stop on all ranks before a case that would exceed the deadline, or after the current one."""
    late = Launched(replace(PLAN, deadline_s=0.0))
    assert [SessionStarted, CasesEnded] == late.kinds
    assert [-1, -1] == fields_of(late.ranks, "case")
    left_off = Launched(PLAN, most_events=2)
    assert [SessionStarted, CaseStarted, CaseFinished, CasesEnded] == left_off.kinds
    assert [CasesEnded(is_complete=False)] * 2 == [late.events[-1], left_off.events[-1]]


@pytest.mark.parametrize("deadline_s", [math.inf, 0.0])
def test_training_on_gpus_states_its_library(monkeypatch, stub, deadline_s):
    """Open Gloo for control but no cupy NCCL, report torch's NCCL, and obey the deadline."""
    device = types.SimpleNamespace(
        backend="nccl", ranks_per_gpu=2, library=lambda: "torch NCCL 2.28.9", close=lambda: None
    )

    def launch(*, is_out_of_time: Any, **_: Any) -> Any:
        return types.SimpleNamespace(train=lambda: not is_out_of_time())

    monkeypatch.setattr("commbench.ddp.session.TrainingLaunch", launch)
    stub("commbench.ddp.session.fast_selection", "cupy")
    stub("commbench.ddp.devices.open_device", device)
    case = TrainingCase(workload="tiny", world_size=2, batch_per_rank=4, backend="nccl")
    terms = Terms(seed=7, block_s=0.1, steps=5)
    launched = Launched(replace(PLAN, trainings=[case], training=terms, deadline_s=deadline_s))
    assert ["gloo", "gloo"] == launched.opened
    facts = launched.events[0].facts
    assert {"gloo": "commbench fake", "torch-nccl": "torch NCCL 2.28.9"} == facts["libraries"]
    assert (2, "cupy") == (facts["ranks_per_gpu"], facts["fast_selection"])
    assert CasesEnded(is_complete=deadline_s > 0) == launched.events[-1]


def test_a_backend_that_cannot_be_opened_is_bad_input():
    """Raise the backend's sentence as bad input."""
    case = replace(CASES[0], backend="mpi")
    with pytest.raises(InputError, match="install it"):
        Launched(replace(PLAN, collectives=[case]))


def test_a_heartbeat_reports_progress():
    """Send the counters of a timed loop from another thread."""
    heart = Heart(5)
    heard = queue.SimpleQueue()
    heart.report = heard.put
    heart.enter(2, "a case")
    heart.progress.counters[:] = (7, 6)
    heart.start()
    beat = heard.get(timeout=30)
    heart.stop()
    expected = {"rank": 5, "pid": os.getpid(), "entered": 7, "left": 6, "case": 2}
    assert expected == {name: getattr(beat, name) for name in expected}


@pytest.mark.programs
def test_a_stalled_rank_notices_by_itself():
    """Call once after the timeout without progress."""
    stalled = threading.Event()
    heart = Heart(0, startup_s=0.6)
    heart.on_stall = stalled.set
    heart.progress.counters += 1
    heart.enter(0, "a case")
    heart.start()
    assert stalled.wait(30)
    heart.stop()


def test_a_rank_has_more_time_to_start():
    """Use the start-up timeout until the first repetition, then the case timeout."""
    heart = Heart(0, startup_s=60.0)
    heart.limit(2.0)
    limits = [heart.limit_s]
    heart.enter(0, "a case")
    limits.append(heart.limit_s)
    heart.progress.counters += 1
    limits.append(heart.limit_s)
    assert [60.0, 60.0, 2.0] == limits


RANK = f"""
import os, signal, sys
sys.path.append({str(Path(__file__).parents[1])!r})
from threads import ThreadControl, _Rendezvous
from commbench.launch import rank
from commbench.launch.identity import Identity
from commbench.launch.events import RankError, say
rank.connect_control = lambda *_, **__: ThreadControl(0, 1, _Rendezvous(1))
class Rank(rank.RankProcess):
    code = {{code}}
    def report(self, event):
        if isinstance(event, {{reports}}): say(event)
    def work(self):
        self.enter(0, "a case")
{{body}}
    leave_off = work
Rank(Identity(role="rank", rank=3, launcher={{launcher!r}}), {{startup_s}}).run()
"""


def script_of(body: str, **options: object) -> str:
    """Return the script of a rank with the code ``body``."""
    body = "\n".join(f"        {line}" for line in body.splitlines())
    return RANK.format(
        body=body,
        **{"code": 0, "reports": "RankError", "startup_s": 60.0, "launcher": "", **options},
    )


def run(body: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a rank with the code ``body`` in a process."""
    return finished(sys.executable, "-c", script_of(body, **options))


def test_a_rank_flushes_its_output_and_exits_with_its_status():
    """Flush the streams before os._exit, although another thread still runs."""
    body = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    process = run(f"{body}sys.stdout.write('all of it')", code=4)
    assert (4, "all of it", "") == (process.returncode, process.stdout, process.stderr)


@pytest.mark.parametrize(
    ("error", "code", "said", "bad_input"),
    [
        ("ValueError", 1, "ValueError: boom", "false"),
        ("InputError", 2, "boom", "true"),
        ("LaunchError", 3, "boom", "false"),
    ],
)
def test_a_rank_that_raises_reports_the_error(error, code, said, bad_input):
    """Report an error to the conductor; print a traceback unless it is our own."""
    process = run(f"from commbench.errors import InputError, LaunchError\nraise {error}('boom')")
    assert code == process.returncode
    assert f'"message":"{said}","is_bad_input":{bad_input}' in process.stderr
    is_foreign = error in said
    assert is_foreign == ('"stack":["<string>:' in process.stderr)
    assert is_foreign == ("Traceback" in process.stderr)


def test_a_rank_prints_its_stacks_when_asked():
    """Print the stacks on SIGUSR2 without another thread, and continue."""
    process = run("os.kill(os.getpid(), signal.SIGUSR2)")
    assert 0 == process.returncode
    assert ["work"] == [
        frame.rpartition(" ")[2] for frame in stack_in(process.stderr.splitlines())[:1]
    ]


def listen(body: str, **options: object) -> tuple[int, list[Stack], str]:
    """Run a rank that reports as one of the conductor's does.

    Return its exit status, the reported stacks and the rest of stderr.
    """
    process = run(body, reports="object", **options)
    lines = [split_line(line) for line in process.stderr.splitlines()]
    stacks = [event for _, event in lines if isinstance(event, Stack)]
    return process.returncode, stacks, "".join(foreign for foreign, _ in lines)


@pytest.mark.programs
def test_a_rank_reports_its_stacks_on_sigusr1():
    """Report all stacks by rank and thread although the main thread is busy."""
    body = "import threading, time\nother = threading.Event()\n"
    body += "threading.Thread(target=other.wait, name='flow', daemon=True).start()\n"
    body += "os.kill(os.getpid(), signal.SIGUSR1); time.sleep(1)"
    code, stacks, _ = listen(body)
    assert (0, [3, 3]) == (code, fields_of(stacks, "rank"))
    frames = {stack.thread: stack.stack for stack in stacks}
    assert {"flow", MAIN} == frames.keys()
    assert frames[MAIN][0].endswith(" in work")
    assert "threading.py" in frames["flow"][0]


@pytest.mark.programs
def test_a_terminated_rank_reports_its_stack():
    """Report the stack on SIGTERM and die, although the main thread runs native code."""
    body = "import threading\nos.kill(os.getpid(), signal.SIGTERM); threading.Lock().acquire(); "
    body += "lock = threading.Lock(); lock.acquire(); lock.acquire()"
    code, stacks, _ = listen(body)
    assert -signal.SIGTERM == code
    assert [MAIN] == fields_of(stacks, "thread")


@pytest.mark.programs
def test_a_child_of_a_rank_takes_no_signals_for_it():
    """Ignore in the rank a SIGTERM sent to a forked child."""
    body = (
        "import time\nready, up = os.pipe()\nchild = os.fork()\nif not child: os.write(up, b'.');"
        " time.sleep(60)\n"
    )
    body += "os.read(ready, 1); os.kill(child, signal.SIGTERM)\n"
    body += "assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM\ntime.sleep(1)"
    assert (0, []) == listen(body)[:2]


FORKING = """
import os, threading, time
from multiprocessing import get_context
from commbench.launch.rank import PipedRank
rank = object.__new__(PipedRank)
rank._is_last_case = threading.Event()
print(rank._read_plan(), end="", flush=True)
time.sleep(0.5)
child = get_context("fork").Process(target=print, args=("child",))
child.start()
child.join(20)
print(child.exitcode, flush=True)
child.kill()
os._exit(0)
"""


@pytest.mark.programs
def test_a_child_of_a_rank_that_waits_for_its_conductor_works():
    """Run a forked process, as data loaders do, while a thread reads the conductor's lines."""
    command = [sys.executable, "-c", FORKING]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write("plan\n")
        process.stdin.flush()
        assert ["plan", "child", "0"] == process.stdout.read().split()


def test_a_rank_that_nobody_ends_leaves(monkeypatch):
    """Exit some time after a hang if no conductor ends the rank."""
    body = (
        "import commbench.launch.heartbeat as h, time\nh.ABANDONED_S ="
        " 0.5\nself.progress.counters[0] += 1\n"
    )
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    assert 1 == listen(f"{body}time.sleep(600)", startup_s=0.5)[0]


ORPHAN = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {script!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
os._exit(0)
"""


@pytest.mark.programs
def test_a_rank_leaves_when_its_launcher_is_gone():
    """Exit when the parent process has ended."""
    script = script_of("import time; print(flush=True); time.sleep(600)", launcher="openmpi")
    orphan = int(succeeded(sys.executable, "-c", ORPHAN.format(script=script)))
    assert wait_until(lambda: has_ended(orphan))


def test_a_longer_limit_arms_the_net_again(monkeypatch):
    """Extend the interpreter's own timeout when the limit grows."""
    armed = []
    monkeypatch.setattr(
        "faulthandler.dump_traceback_later", lambda seconds, **_: armed.append(seconds)
    )
    heart = Heart(0, startup_s=1.0)
    heart.start()
    assert wait_until(lambda: len(armed) == 1)
    heart.limit(100.0)
    assert wait_until(lambda: len(armed) == 2)
    heart.stop()
    assert 198.0 == armed[1] - armed[0]


def test_a_process_that_did_not_run_notes_its_stall(stub):
    """Note a heartbeat that is much too late, unless the process used its CPU meanwhile."""
    heart = Heart(0)
    progress = heart.progress
    stub("time.monotonic", 100.0)
    stub("time.process_time", 7.0)
    heart._note_stall(99.4, 7.0)
    assert [] == progress.take_stalls()
    heart._note_stall(90.0, 1.0)  # e.g. a compiler that holds the interpreter's lock
    assert [] == progress.take_stalls()
    heart._note_stall(90.0, 6.9)
    ((_, lasted_s),) = progress.take_stalls()
    assert 9.75 == lasted_s
