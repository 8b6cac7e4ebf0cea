"""Tests of the conductor: played ranks for every way a launch can end, real ones by mpirun for what only they show."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from launching import (
    Recorder,
    ScriptLauncher,
    find_marked,
    make_request,
    marked_environment,
    mpirun,
    open_store,
    wait_until,
)

from commbench.cases import Case, Sweep
from commbench.errors import InputError, LaunchError
from commbench.launch.conductor import RunRequest, conduct, single_stage
from commbench.launch.launchers import Launcher, MpirunLauncher
from commbench.launch.signals import Interrupts
from commbench.store import Store, load_run

CASES = Sweep(backends=["mpi"], sizes=[8, 1024], operations=["all_reduce", "broadcast"]).cases(2)
REQUEST = make_request(CASES)
ALL = "session()\nfor i in range(len(plan.cases)): measured(i)\nsink.end(finished=True)\n"


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """No test may leave a process behind."""
    yield from marked_environment(monkeypatch)


def run(
    path: Path,
    launcher: Launcher | str,
    request: RunRequest = REQUEST,
    display: Recorder | None = None,
    *,
    fail_fast: bool = False,
) -> tuple[int, dict[str, Any], Recorder]:
    """Conduct a run; return exit code, run.json and what was shown."""
    launcher = ScriptLauncher(launcher) if isinstance(launcher, str) else launcher
    display = display or Recorder()
    with open_store(path, request) as store:
        code = conduct(single_stage(request), store, launcher, display, fail_fast=fail_fast)
    return code, json.loads((path / "run.json").read_text()), display


def measured(path: Path) -> list[tuple[str, int, str]]:
    """(case key, launch, status) of all records."""
    return [(record.case.key, record.launch, record.status) for record in load_run(path).records]


def crash_in(*bad: Case) -> str:
    """Return what played ranks do that measure everything but raise in some cases."""
    return f"""
session()
for i, planned in enumerate(plan.cases):
    if planned.case.key in {[case.key for case in bad]!r}:
        sink.case(i, planned.case)
        say(LastWords(rank=1, host="n1", case=i, text="ValueError: boom"))
        sys.exit(1)
    measured(i)
sink.end(finished=True)
"""


EVERYTHING = sorted((case.key, launch, "ok") for case in CASES for launch in range(2))


# --------------------------------------------------------------------------------------------------- played ranks


def test_a_run_measures_every_case_in_every_launch(tmp_path: Path) -> None:
    """End with code 0 and everything on disk."""
    code, info, display = run(tmp_path, ALL)
    assert (0, "complete") == (code, info["status"])
    assert EVERYTHING == sorted(measured(tmp_path))
    assert ["ok", "ok"] == [launch["status"] for launch in info["launches"]]
    assert [(done, 8) for done in range(8)] == display.progress
    names = ("world_size", "nodes", "ranks_per_node", "relative_half_width")
    assert [2, 1, 2, 0.5] == [info[name] for name in names]
    assert 5 == len((tmp_path / "collectives.csv").read_text().splitlines())


def test_later_launches_keep_what_the_first_found_out(tmp_path: Path) -> None:
    """Freeze warm-up and batch."""
    check = "assert plan.launch == 0 or all(p.frozen.warmups == 7 for p in plan.cases)\n"
    check += "assert plan.launch == 1 or not any(p.frozen for p in plan.cases)\n"
    assert 0 == run(tmp_path, check + ALL)[0]


def test_noise_on_either_stream_is_no_harm(tmp_path: Path) -> None:
    """Skip foreign and torn lines."""
    noise = (
        "print('hello'); print('{\"frame\":\"record\",\"rec', flush=True); sys.stderr.write('@commbench heartbeat {')\n"
    )
    assert 0 == run(tmp_path, noise + ALL + noise)[0]


def test_wrong_data_is_found_at_the_end(tmp_path: Path) -> None:
    """Finish everything, then end with code 4, also when nothing is left to do."""
    script = ALL.replace("measured(i)", "measured(i, status='wrong' if i == 1 else 'ok')")
    assert 4 == run(tmp_path, script)[0]
    assert 8 == len(measured(tmp_path))
    launcher = ScriptLauncher(ALL)
    assert 4 == run(tmp_path, launcher)[0]
    assert 0 == launcher.started


def test_a_crash_is_partial_and_resumes(tmp_path: Path) -> None:
    """Keep what was measured, blame the rank and the case, and measure the rest the next time."""
    words = "say(LastWords(rank=1, host='n1', case=1, text='ValueError: boom'))\nprint('last', file=sys.stderr)\n"
    crash = f"session(); measured(0)\nsink.case(1, plan.cases[1].case)\n{words}sys.exit(1)"
    code, info, display = run(tmp_path, crash, fail_fast=True)
    reason = "rank 1 on host n1 raised ValueError: boom"
    assert (3, "partial") == (code, info["status"])
    assert [(0, "ok", ""), (0, "failed", reason)] == [
        (record.launch, record.status, record.reason) for record in load_run(tmp_path).records
    ]
    assert f"{reason}, in case {load_run(tmp_path).records[1].case}" == info["reason"]
    assert ["last"] == display.lines
    code, info, display = run(tmp_path, ALL)
    assert (0, "complete", 7) == (code, info["status"], len(display.records))
    assert [(0, "failed"), (0, "ok"), (1, "ok")] == [(entry["launch"], entry["status"]) for entry in info["launches"]]
    assert EVERYTHING == sorted(entry for entry in measured(tmp_path) if entry[2] == "ok")


def test_a_crash_costs_its_case_only(tmp_path: Path) -> None:
    """Go on with new ranks, leave the case out of later launches too, and say at the end how many failed."""
    launcher = ScriptLauncher(crash_in(CASES[1], CASES[2]))
    display = Recorder()
    code, info, _ = run(tmp_path, launcher, display=display)
    assert (3, "partial") == (code, info["status"])
    bad = [case for case, _, status in measured(tmp_path) if status == "failed"]
    assert {CASES[1].key, CASES[2].key} == set(bad)
    assert 2 == len(bad)
    good = sorted((case.key, launch, "ok") for case in (CASES[0], CASES[3]) for launch in range(2))
    assert good == sorted(entry for entry in measured(tmp_path) if entry[2] == "ok")
    first = next(case for case in CASES if case.key == bad[0])
    reason = f"rank 1 on host n1 raised ValueError: boom, in case {first}"
    assert f"2 cases failed, the first: {reason}" == info["reason"]
    assert f"Launch 1 goes on without {first}." == display.warnings[0]
    assert 4 == launcher.started
    assert 0 == run(tmp_path, ALL)[0]
    assert EVERYTHING == sorted(entry for entry in measured(tmp_path) if entry[2] == "ok")


def test_a_hang_costs_its_case_only(tmp_path: Path) -> None:
    """Go on after a hang as after a crash."""
    hang = f"session()\nfor i, p in enumerate(plan.cases):\n    if p.case.key == {CASES[0].key!r}:\n"
    hang += "        sink.case(i, p.case); beat(0, 1); time.sleep(600)\n    measured(i)\nsink.end(finished=True)"
    code, info, _ = run(tmp_path, hang, make_request(CASES, case_timeout_s=0.5))
    assert 3 == code
    assert info["reason"].startswith("1 case failed: no progress for 0.5 s")
    assert ["hung"] + 6 * ["ok"] == sorted(status for _, _, status in measured(tmp_path))


def test_a_case_that_fails_is_tried_once_a_call(tmp_path: Path) -> None:
    """Leave a case out although it failed in the last launch of a call, and try it again in the next call."""
    launcher = ScriptLauncher(crash_in(CASES[1]))
    request = make_request(CASES, launches=1)
    assert [3, 3] == [run(tmp_path, launcher, request)[0] for _ in range(2)]
    assert ["failed", "failed", "ok", "ok", "ok"] == sorted(status for _, _, status in measured(tmp_path))


def test_a_failure_between_cases_ends_no_run(tmp_path: Path) -> None:
    """Start new ranks as long as each start measures something; nothing is missing in the end."""
    launcher = ScriptLauncher("session(); measured(0)\nif len(plan.cases) > 1: sys.exit(1)\nsink.end(finished=True)")
    code, info, display = run(tmp_path, launcher)
    assert (0, "complete", 8) == (code, info["status"], launcher.started)
    assert EVERYTHING == sorted(measured(tmp_path))
    assert display.warnings[0].startswith("Launch 1 goes on after a failure between cases: the launcher ended")


def test_three_failures_in_a_row_end_the_run(tmp_path: Path) -> None:
    """Stop where one case after the other fails; a result in between begins the count anew."""
    launcher = ScriptLauncher("session(); sink.case(0, plan.cases[0].case); sys.exit(1)")
    code, info, _ = run(tmp_path / "row", launcher)
    assert (3, "partial", 3) == (code, info["status"], launcher.started)
    assert info["reason"].startswith("3 cases failed, the first: the launcher ended with exit status 1")
    assert info["reason"].endswith("; stopped after 3 failed launches in a row")
    cases = Sweep(backends=["mpi"], sizes="8:1K").cases(2)
    launcher = ScriptLauncher(
        "session()\nif len(plan.cases) % 3 == 0: measured(1)\nsink.case(0, plan.cases[0].case); sys.exit(1)"
    )
    code, info, _ = run(tmp_path / "between", launcher, make_request(cases, launches=1))
    assert (3, "ok" in {status for _, _, status in measured(tmp_path / "between")}) == (code, True)
    assert info["reason"].startswith("6 cases failed")
    assert "in a row" not in info["reason"]


def test_a_start_that_reaches_no_case_ends_the_run(tmp_path: Path) -> None:
    """Stop at once, also after a case that failed by itself, and name both."""
    (tmp_path / "ready").touch()
    script = f"flag = {str(tmp_path / 'ready')!r}\nif not os.path.exists(flag): sys.exit('no more slots')\n"
    script += "os.remove(flag); session(); sink.case(0, plan.cases[0].case); sys.exit(1)"
    launcher = ScriptLauncher(script)
    code, info, _ = run(tmp_path / "run", launcher)
    assert (3, 2) == (code, launcher.started)
    assert info["reason"].startswith("1 case failed: ")
    assert info["reason"].endswith("; the launcher ended with exit status 1: no more slots")


def test_a_launcher_that_cannot_start_is_partial(tmp_path: Path) -> None:
    """Quote what it said; no case is to blame."""
    code, info, _ = run(tmp_path, "sys.exit('not enough slots')")
    assert (3, []) == (code, measured(tmp_path))
    assert "the launcher ended with exit status 1: not enough slots" == info["reason"]


def test_a_launcher_that_vanishes_is_partial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the first launch where the program is gone before the second, and resume when it is back."""
    launcher = ScriptLauncher(ALL)
    command = launcher.command
    monkeypatch.setattr(launcher, "command", lambda *words, **how: command(*words, **how) if not gone else ["/gone"])
    gone: list[bool] = []
    display = Recorder(lambda: gone.append(True), when=4)
    code, info, _ = run(tmp_path, launcher, display=display)
    assert (3, "partial", 4) == (code, info["status"], len(measured(tmp_path)))
    expected = "/gone cannot be started (No such file or directory); install it again, or load its module"
    assert expected == info["reason"]
    assert 0 == run(tmp_path, ALL)[0]
    assert EVERYTHING == sorted(measured(tmp_path))


def test_results_that_vanish_lose_nothing(tmp_path: Path) -> None:
    """Write what was measured anew where the directory is removed in a running sweep; the same call resumes."""
    out = tmp_path / "run"
    with pytest.raises(LaunchError, match="has vanished or been replaced while the run went on"):
        run(out, ALL, display=Recorder(lambda: shutil.rmtree(out), when=3))
    info = json.loads((out / "run.json").read_text())
    assert ("partial", 2) == (info["status"], len(measured(out)))
    assert "has vanished" in info["reason"]
    assert 0 == run(out, ALL)[0]
    assert EVERYTHING == sorted(measured(out))


def test_a_hang_is_partial_and_names_the_rank(tmp_path: Path) -> None:
    """Tear a launch down in which nothing moves, although ranks are alive; end with code 3."""
    hang = "session(); measured(0); sink.case(1, plan.cases[1].case)\n"
    hang += "while True: beat(0, 2); beat(1, 1); time.sleep(0.1)"
    code, info, _ = run(tmp_path, hang, make_request(CASES, case_timeout_s=1.0), fail_fast=True)
    assert (3, "partial") == (code, info["status"])
    assert "no progress for 1 s: rank 1 on host elsewhere is furthest behind, in case" in info["reason"]
    assert ["ok", "hung"] == [status for _, _, status in measured(tmp_path)]


def test_a_launch_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing behind, neither the launcher nor what it started in a session of its own."""
    monkeypatch.setattr("commbench.launch.process.GRACE_S", 0.5)
    stubborn = "import signal, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    stubborn += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    stubborn += "session(); sink.case(0, plan.cases[0].case); beat(0, 1)\ntime.sleep(600)"
    assert 3 == run(tmp_path, stubborn, make_request(CASES, case_timeout_s=0.5), fail_fast=True)[0]


def test_ranks_that_stay_after_a_complete_launch_are_a_doubt_only(tmp_path: Path) -> None:
    """Keep a launch whose ranks fail to leave, with a warning."""
    code, info, display = run(tmp_path, ALL + "sys.exit(1)")
    assert (0, "complete") == (code, info["status"])
    assert ["Launch 1: the ranks did not leave cleanly", "Launch 2: the ranks did not leave cleanly"] == [
        warning.partition(" after")[0] for warning in display.warnings
    ]


def test_what_ranks_refuse_is_bad_input(tmp_path: Path) -> None:
    """Raise the rank's sentence."""
    refuse = "say(LastWords(rank=0, host='n0', case=-1, text='Install numba.', bad_input=True)); sys.exit(1)"
    with pytest.raises(InputError, match=r"^Install numba\.$"):
        run(tmp_path, refuse)
    assert "partial" == json.loads((tmp_path / "run.json").read_text())["status"]


def test_a_run_does_not_go_on_under_other_conditions(tmp_path: Path) -> None:
    """Refuse to mix, and leave the run as it was."""
    assert 3 == run(tmp_path, "session(); measured(0); sys.exit(1)", fail_fast=True)[0]
    before = (measured(tmp_path), json.loads((tmp_path / "run.json").read_text())["launches"])
    with pytest.raises(InputError, match="cpu_model: abacus vs slide rule"):
        run(tmp_path, ALL.replace("session()", "session(cpu_model='slide rule')"))
    info = json.loads((tmp_path / "run.json").read_text())
    assert (*before, "partial") == (measured(tmp_path), info["launches"], info["status"])


def test_a_complete_run_that_is_refused_stays_as_it_was(tmp_path: Path) -> None:
    """Put back what the start has written already."""
    assert 0 == run(tmp_path, ALL, make_request(CASES, launches=1))[0]
    file = tmp_path / "run.json"
    before = {**json.loads(file.read_text()), "launcher": "another", "budget": "another", "reason": "as it was"}
    file.write_text(json.dumps(before))
    with pytest.raises(InputError, match="cpu_model: abacus vs slide rule"):
        run(tmp_path, ALL.replace("session()", "session(cpu_model='slide rule')"), make_request(CASES, launches=2))
    assert before == json.loads(file.read_text())


def test_conditions_that_change_during_a_run_are_a_warning(tmp_path: Path) -> None:
    """Go on, but say so once."""
    script = ALL.replace("session()", "session(cpu_model=f'model {plan.launch > 0}')")
    code, _, display = run(tmp_path, script, make_request(CASES, launches=3))
    assert 0 == code
    assert [
        "The conditions have changed since the first launch: cpu_model: model False vs model True."
    ] == display.warnings


def test_a_time_limit_ends_the_run_as_complete(tmp_path: Path) -> None:
    """Measure at least one launch, cut it at its deadline, and say what is missing."""
    script = "session(); measured(0); assert plan.deadline_s == 0.0; sink.end(finished=False)"
    code, info, display = run(tmp_path, script, make_request(CASES, time_limit_s=0.5))
    assert (0, "complete", 1) == (code, info["status"], len(measured(tmp_path)))
    assert ["cut"] == [entry["status"] for entry in info["launches"]]
    assert display.warnings[0].startswith("The time limit of 0.5 s was reached after 1 of 2 launches")


def send(*numbers: signal.Signals) -> Callable[[], None]:
    """Return what sends signals to this process, which acts on each before the next."""

    def kill() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    return kill


#: Measures two cases and begins a third that never ends.
ENDLESS = "session(); measured(0); measured(1)\nsink.case(2, plan.cases[2].case); time.sleep(600)"
#: Finishes the case in which it is told to, as real ranks do; without that it would go on for long.
OBEDIENT = """
import threading
told = threading.Event()
def follow():
    if sys.stdin.readline() == "finish\\n": told.set()
threading.Thread(target=follow, daemon=True).start()
session()
for i, planned in enumerate(plan.cases):
    sink.case(i, planned.case)
    over = i == 1 and told.wait(50)
    measured(i)
    if over:
        sink.end(finished=False)
        sys.exit()
sink.end(finished=True)
"""


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ([signal.SIGINT, signal.SIGINT], 130),
        ([signal.SIGTERM], 143),
        ([signal.SIGHUP], 129),
        ([signal.SIGINT, signal.SIGTERM], 130),
    ],
    ids=["Ctrl-C twice", "SIGTERM", "SIGHUP", "Ctrl-C and SIGTERM"],
)
def test_a_signal_interrupts_and_the_run_resumes(tmp_path: Path, numbers: list[signal.Signals], code: int) -> None:
    """Write the table, end with 128 + the signal, leave nothing behind, and go on the next time."""
    display = Recorder(send(*numbers), when=3)
    ended, info, _ = run(tmp_path, ENDLESS, display=display)
    assert (code, "interrupted", f"interrupted by {numbers[0].name}") == (ended, info["status"], info["reason"])
    assert ["ok", "ok"] == [status for _, _, status in measured(tmp_path)]
    assert (tmp_path / "collectives.csv").exists()
    assert 0 == run(tmp_path, ALL)[0]
    assert EVERYTHING == sorted(measured(tmp_path))
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


def test_ctrl_c_lets_the_case_come_to_its_end(tmp_path: Path) -> None:
    """Keep what is being measured, say how to stop at once, and end the launch and the run."""
    display = Recorder(send(signal.SIGINT), when=2)
    ended, info, _ = run(tmp_path, OBEDIENT, display=display)
    assert (130, "interrupted", "interrupted by SIGINT") == (ended, info["status"], info["reason"])
    assert ["Finishing the case; press Ctrl-C again to stop now."] == display.warnings
    assert ["ok", "ok"] == [status for _, _, status in measured(tmp_path)]
    assert ["interrupted"] == [entry["status"] for entry in info["launches"]]


def test_ctrl_c_before_the_first_case_stops_at_once(tmp_path: Path) -> None:
    """Wait for nothing where nothing is measured."""
    begun = time.monotonic()
    launcher = ScriptLauncher("time.sleep(600)")
    threading.Timer(1.0, send(signal.SIGINT)).start()
    assert 130 == run(tmp_path, launcher)[0]
    assert time.monotonic() - begun < 45
    assert 1 == launcher.started


def test_a_run_that_nobody_may_hang_up_ignores_it() -> None:
    """Leave SIGHUP alone where nohup has said so."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.number is None
        assert signal.SIG_IGN == signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_does_not_keep_the_end_from_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write that the run was interrupted even where the signal comes again while the summary is written."""
    write = Store.write_summary

    def impatient(store: Store) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return write(store)

    monkeypatch.setattr(Store, "write_summary", impatient)
    display = Recorder(send(signal.SIGTERM), when=1)
    ended, info, _ = run(tmp_path, "session(); measured(0)\ntime.sleep(600)", display=display)
    assert (143, "interrupted") == (ended, info["status"])


# --------------------------------------------------------------------------------------------------- real ranks

OPERATIONS = ["all_reduce", "broadcast", "all_gather"]
#: Without agreed instants, which ranks on a busy machine may all miss.
MANY = Sweep(backends=["mpi"], sizes=[8, 1024, 65536], operations=OPERATIONS, sync="dissemination").cases(2)

#: On a busy machine the first case of a launch may take seconds to load or compile the native loop, without progress.
PATIENCE_S = 6.0

#: Runs a rank in which a case goes wrong, by default the third after every start.
SABOTAGE = """
import os, sys, time
from commbench.launch import rank
measure = rank.measure
seen = 0
def sabotaged(case, communicator, session, **options):
    global seen
    seen += 1
    if {when} and session.control.rank == {rank}:
        {harm}
    return measure(case, communicator, session, **options)
rank.measure = sabotaged
rank.main()
"""


class SabotagedMpirun(MpirunLauncher):
    """Mpirun with ranks that do harm: ``name`` is the script that they run."""

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:  # noqa: ARG002
        """Return mpirun's command for the script."""
        return super().command(ranks, [self.name], training=training)


def sabotage(tmp_path: Path, harm: str, rank: int = 1, when: str = "seen == 3") -> Launcher:
    """Return a launcher whose rank ``rank`` does ``harm`` where ``when`` holds."""
    script = tmp_path / "sabotage.py"
    script.write_text(SABOTAGE.format(harm=harm, rank=rank, when=when))
    return SabotagedMpirun(mpirun=mpirun().mpirun, oversubscribe=True, name=str(script))


CASES_BY_KEY = {case.key: case for case in MANY}


def failed_key(path: Path) -> str:
    """Return the case that did not end well."""
    return next(key for key, _, status in measured(path) if status != "ok")


def on_rank(path: Path, rank: int, number: signal.Signals) -> Callable[[], None]:
    """Return what sends a signal to a rank of the current launch."""

    def send() -> None:
        ranks = json.loads((path / "run.json").read_text())["ranks"]
        os.kill(ranks[rank]["pid"], number)

    return send


def assert_resumes(path: Path, request: RunRequest) -> None:
    """Check that the same call completes the run, each case of each launch once."""
    code, info, _ = run(path, mpirun(), request)
    assert (0, "complete") == (code, info["status"])
    ok = sorted((key, launch) for key, launch, status in measured(path) if status == "ok")
    assert sorted((case.key, launch) for case in request.cases for launch in range(2)) == ok


def assert_went_on(path: Path, request: RunRequest, status: str) -> None:
    """Check that one case ended as ``status`` in the first launch and that both launches measured all others."""
    entries = measured(path)
    ((bad, launch, _),) = [entry for entry in entries if entry[2] != "ok"]
    assert (0, status) == (launch, next(entry[2] for entry in entries if entry[0] == bad))
    expected = sorted((case.key, launch, "ok") for case in request.cases for launch in range(2) if case.key != bad)
    assert expected == sorted(entry for entry in entries if entry[2] == "ok")
    ends = [(entry["launch"], entry["status"]) for entry in json.loads((path / "run.json").read_text())["launches"]]
    assert [(0, status), (0, "ok"), (1, "ok")] == ends


def find_culprit(path: Path) -> dict[str, Any]:
    """Return what run.json says of the first launch that failed."""
    entries = json.loads((path / "run.json").read_text())["launches"]
    culprit: dict[str, Any] = next(entry["culprit"] for entry in entries if "culprit" in entry)
    assert os.uname().nodename == culprit["host"]
    assert culprit["pid"] > 0
    return culprit


def assert_ended_in_time(path: Path, timeout_s: float) -> None:
    """Check that the launch that failed took no longer than its other work, the deadline and 15 s."""
    entries = json.loads((path / "run.json").read_text())["launches"]
    failed = next(entry for entry in entries if entry["status"] != "ok")
    assert failed["seconds"] < failed["startup_s"] + failed["measuring_s"] + timeout_s + 15


@pytest.mark.mpi
def test_real_ranks_measure(tmp_path: Path) -> None:
    """Measure both launches by mpirun, with the conditions of real hosts."""
    code, info, display = run(tmp_path, mpirun(), make_request(MANY))
    assert (0, "complete", [], []) == (code, info["status"], display.warnings, display.lines)
    assert 2 * len(MANY) == len(measured(tmp_path))
    assert [0, 1] == [rank["rank"] for rank in info["ranks"]]
    assert "Open MPI" in info["environment"]["mpi_library"]
    assert info["mpi_init_s"] > 0
    launch = info["launches"][1]
    assert 0 < launch["startup_s"] < launch["seconds"]


@pytest.mark.mpi
def test_mpi_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Show what MPI_Init writes before it ends a rank; of two, mpirun would hang half the time."""
    monkeypatch.setenv("OMPI_MCA_pml", "nosuch")
    code, _, display = run(tmp_path, mpirun(), make_request(MANY[:1], ranks=1, launches=1))
    assert 3 == code
    assert "An error occurred in MPI_Init_thread" in "\n".join(display.lines)


@pytest.mark.mpi
def test_a_real_rank_that_raises_is_named(tmp_path: Path) -> None:
    """End all ranks, quote the error and show the traceback."""
    request = make_request(MANY)
    code, info, display = run(tmp_path / "run", sabotage(tmp_path, "raise ValueError('boom')"), request, fail_fast=True)
    assert 3 == code
    assert f"rank 1 on host {os.uname().nodename} raised ValueError: boom, in case " in info["reason"]
    assert ["ok", "ok", "failed"] == [status for _, _, status in measured(tmp_path / "run")]
    assert "ValueError: boom" in [line.strip() for line in display.lines]
    culprit = find_culprit(tmp_path / "run")
    assert (1, "raised ValueError: boom") == (culprit["rank"], culprit["state"])
    assert culprit["stack"][0].startswith("sabotage.py:")
    assert_ended_in_time(tmp_path / "run", 0.0)
    assert_resumes(tmp_path / "run", request)


@pytest.mark.mpi
def test_real_ranks_go_on_without_the_cases_that_fail(tmp_path: Path) -> None:
    """Measure on the fake backend all that raises on no rank, in as many starts as there are failures and launches."""
    cases = Sweep(backends=["fake"], sizes=[8, 64, 512], operations=["all_reduce", "broadcast"]).cases(2)
    launcher = sabotage(tmp_path, "raise ValueError('boom')", when="case.message_bytes == 64")
    code, info, _ = run(tmp_path / "run", launcher, make_request(cases))
    assert (3, "partial") == (code, info["status"])
    assert info["reason"].startswith(f"2 cases failed, the first: rank 1 on host {os.uname().nodename} raised")
    bad = [case.key for case in cases if case.message_bytes == 64]
    assert sorted((key, 0, "failed") for key in bad) == sorted(e for e in measured(tmp_path / "run") if e[2] != "ok")
    good = sorted((case.key, launch, "ok") for case in cases for launch in range(2) if case.key not in bad)
    assert good == sorted(entry for entry in measured(tmp_path / "run") if entry[2] == "ok")
    assert [0, 0, 0, 1] == [entry["launch"] for entry in info["launches"]]


@pytest.mark.mpi
def test_a_real_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    """Blame the rank that SIGKILL ended, and measure all other cases of both launches with new ranks."""
    request = make_request(MANY)
    display = Recorder(on_rank(tmp_path, 1, signal.SIGKILL), when=2)
    code, info, _ = run(tmp_path, mpirun(), request, display)
    assert (3, "partial") == (code, info["status"])
    assert info["reason"].startswith(f"1 case failed: rank 1 on host {os.uname().nodename} was killed by signal 9")
    assert_went_on(tmp_path, request, "failed")
    culprit = find_culprit(tmp_path)
    assert (1, str(CASES_BY_KEY[failed_key(tmp_path)])) == (culprit["rank"], culprit["case"])
    assert culprit["state"].startswith("was killed by signal 9")
    assert_ended_in_time(tmp_path, 0.0)
    assert_resumes(tmp_path, request)


@pytest.mark.mpi
def test_a_real_rank_that_crashes_shows_where(tmp_path: Path) -> None:
    """Give the stack of a rank that SIGSEGV ended, and what the other was waiting in."""
    launcher = sabotage(tmp_path, "import signal; time.sleep(1); signal.raise_signal(signal.SIGSEGV)")
    code, info, display = run(tmp_path / "run", launcher, make_request(MANY), fail_fast=True)
    assert 3 == code
    assert "rank 1" in info["reason"]
    assert "was killed by signal 11 (segmentation fault), in case " in info["reason"]
    culprit = find_culprit(tmp_path / "run")
    assert culprit["stack"][0].startswith("sabotage.py:")
    (waiting,) = culprit["others"]
    assert [0] == waiting["ranks"]
    assert [f"Rank 0 was in {waiting['in']}."] == display.warnings


@pytest.mark.mpi
def test_a_real_rank_that_is_stopped_is_named(tmp_path: Path) -> None:
    """Notice the hang, blame the stopped rank and not the one that waits, and print where that one is."""
    request = make_request(MANY, case_timeout_s=PATIENCE_S)
    display = Recorder(on_rank(tmp_path, 1, signal.SIGSTOP), when=2)
    code, info, _ = run(tmp_path, mpirun(), request, display)
    assert 3 == code
    assert (
        f"no progress for {PATIENCE_S:g} s: rank 1 on host {os.uname().nodename} is stopped, in case " in info["reason"]
    )
    assert_went_on(tmp_path, request, "hung")
    culprit = find_culprit(tmp_path)
    assert (1, "is stopped", []) == (culprit["rank"], culprit["state"], culprit["stack"])
    (waiting,) = culprit["others"]
    assert [0] == waiting["ranks"]
    assert "commbench/" in waiting["in"]
    assert f"rank 0 on host {os.uname().nodename}, most recent call first:" in display.lines
    assert f"Rank 0 was in {waiting['in']}." in display.warnings
    assert_ended_in_time(tmp_path, PATIENCE_S)
    assert_resumes(tmp_path, request)


@pytest.mark.mpi
@pytest.mark.parametrize("lazy", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_real_rank_that_does_not_take_part_is_named(tmp_path: Path, lazy: int) -> None:
    """Blame the rank that sleeps instead of communicating, by its idle CPU: all have entered as often."""
    launcher = sabotage(tmp_path, "time.sleep(600)", lazy)
    code, info, _ = run(tmp_path / "run", launcher, make_request(MANY, case_timeout_s=PATIENCE_S), fail_fast=True)
    assert 3 == code
    assert f"rank {lazy} on host {os.uname().nodename} is idle while the others wait for it" in info["reason"]
    assert find_culprit(tmp_path / "run")["stack"][0].startswith("sabotage.py:")


@pytest.mark.slow
@pytest.mark.mpi
def test_a_real_rank_that_holds_the_interpreter_is_named(tmp_path: Path) -> None:
    """Blame the rank that cannot even beat, and get its stack from the interpreter."""
    lock = "import ctypes; lock, twice = ctypes.create_string_buffer(64), ctypes.PyDLL(None).pthread_mutex_lock; "
    launcher = sabotage(tmp_path, f"{lock} twice(lock); twice(lock)")
    code, info, _ = run(tmp_path / "run", launcher, make_request(MANY, case_timeout_s=PATIENCE_S), fail_fast=True)
    assert 3 == code
    assert f"rank 1 on host {os.uname().nodename} has not been heard of for " in info["reason"]
    assert "although its process sleeps, in case " in info["reason"]
    assert find_culprit(tmp_path / "run")["stack"][0].startswith("sabotage.py:")


@pytest.mark.mpi
def test_ctrl_c_ends_real_ranks(tmp_path: Path) -> None:
    """Leave no rank behind, and go on the next time."""
    request = make_request(MANY)
    display = Recorder(lambda: os.kill(os.getpid(), signal.SIGINT), when=2)
    code, info, _ = run(tmp_path, mpirun(), request, display)
    assert (130, "interrupted") == (code, info["status"])
    assert_resumes(tmp_path, request)


CONDUCTOR = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_conductor as t
request = t.make_request(t.MANY, launches=1000)
def ready(): print("ready", flush=True)
t.run(Path(sys.argv[1]), t.mpirun(), request, t.Recorder(ready, when=2))
"""


@pytest.mark.mpi
def test_ranks_do_not_outlive_a_conductor_that_is_killed(tmp_path: Path, mark: str) -> None:
    """End by themselves when the conductor has no chance to end them; the run resumes in spite of its lock."""
    script = CONDUCTOR.format(tests=str(Path(__file__).parent))
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "run")], stdout=subprocess.PIPE) as conductor:
        assert conductor.stdout is not None
        assert b"ready\n" == conductor.stdout.readline()
        assert any("commbench.launch.rank" in command for command in find_marked(mark))
        conductor.kill()
    assert wait_until(lambda: not find_marked(mark))
    assert_resumes(tmp_path / "run", make_request(MANY))
