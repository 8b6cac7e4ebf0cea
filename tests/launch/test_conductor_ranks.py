"""Tests of the conductor with real ranks by mpirun: the diagnosis of failed ranks, and remaining
processes.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conducting import measured, run
from launching import Recorder, find_marked, make_request, marked_environment, mpirun, wait_until

from commbench.collectives.cases import Sweep
from commbench.launch.launchers import Launcher, MpirunLauncher
from commbench.results.plan import RunRequest

OPERATIONS = ["all_reduce", "broadcast", "all_gather"]
#: Without agreed instants, which ranks on a busy machine may all miss.
MANY = Sweep(
    backends=["mpi"], sizes=[8, 1024, 65536], operations=OPERATIONS, sync="dissemination"
).cases(2)

#: On a busy machine the first case of a launch may take seconds to load or compile the native loop,
#: without progress.
PATIENCE_S = 6.0

#: Runs a rank in which a case goes wrong, by default the third after every start.
SABOTAGE = """
import os, sys, time
from commbench.launch import rank
visit = rank.CaseRun.visit
seen = 0
def sabotaged(measurement):
    global seen
    seen += 1
    case, session = measurement.case, measurement.session
    if {when} and session.control.rank == {rank}:
        {harm}
    return visit(measurement)
rank.CaseRun.visit = sabotaged
rank.main()
"""


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Fail if a test leaves a process behind."""
    yield from marked_environment(monkeypatch)


class SabotagedMpirun(MpirunLauncher):
    """Mpirun that starts the script ``name`` instead of the ranks' program."""

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:  # noqa: ARG002
        """Return mpirun's command for the script."""
        return super().command(ranks, [self.name], training=training)


def sabotage(tmp_path: Path, harm: str, rank: int = 1, when: str = "seen == 3") -> Launcher:
    """Return a launcher whose rank ``rank`` runs the code ``harm`` if ``when`` holds."""
    script = tmp_path / "sabotage.py"
    script.write_text(SABOTAGE.format(harm=harm, rank=rank, when=when))
    return SabotagedMpirun(mpirun=mpirun().mpirun, oversubscribe=True, name=str(script))


CASES_BY_KEY = {case.key: case for case in MANY}


def failed_key(path: Path) -> str:
    """Return the key of the first case whose status is not ok."""
    return next(key for key, _, status in measured(path) if status != "ok")


def on_rank(path: Path, rank: int, number: signal.Signals) -> Callable[[], None]:
    """Return a function that sends a signal to a rank of the current launch."""

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
    """Check that one case ended as ``status`` in the first launch and that both launches measured
    all others.
    """
    entries = measured(path)
    ((bad, launch, _),) = [entry for entry in entries if entry[2] != "ok"]
    assert (0, status) == (launch, next(entry[2] for entry in entries if entry[0] == bad))
    expected = sorted(
        (case.key, launch, "ok") for case in request.cases for launch in range(2) if case.key != bad
    )
    assert expected == sorted(entry for entry in entries if entry[2] == "ok")
    ends = [
        (entry["launch"], entry["status"])
        for entry in json.loads((path / "run.json").read_text())["launches"]
    ]
    assert [(0, status), (0, "ok"), (1, "ok")] == ends


def find_failed_rank(path: Path) -> dict[str, Any]:
    """Return the failed rank of the first failed launch in run.json."""
    entries = json.loads((path / "run.json").read_text())["launches"]
    failed_rank: dict[str, Any] = next(entry["culprit"] for entry in entries if "culprit" in entry)
    assert os.uname().nodename == failed_rank["host"]
    assert failed_rank["pid"] > 0
    return failed_rank


def assert_ended_in_time(path: Path, timeout_s: float) -> None:
    """Check that the failed launch ended within its measuring time, the deadline and 15 s."""
    entries = json.loads((path / "run.json").read_text())["launches"]
    failed = next(entry for entry in entries if entry["status"] != "ok")
    assert failed["seconds"] < failed["startup_s"] + failed["measuring_s"] + timeout_s + 15


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
def test_real_ranks_measure(tmp_path: Path) -> None:
    """Measure both launches by mpirun, and record the host's conditions."""
    code, info, display = run(tmp_path, mpirun(), make_request(MANY))
    assert (0, "complete", [], []) == (code, info["status"], display.warnings, display.lines)
    assert 2 * len(MANY) == len(measured(tmp_path))
    assert [0, 1] == [rank["rank"] for rank in info["ranks"]]
    assert "Open MPI" in info["environment"]["mpi_library"]
    assert info["mpi_init_s"] > 0
    launch = info["launches"][1]
    assert 0 < launch["startup_s"] < launch["seconds"]


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
def test_an_mpi_that_does_not_start_gives_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Print the error of MPI_Init."""
    monkeypatch.setenv("OMPI_MCA_pml", "nosuch")
    code, _, display = run(tmp_path, mpirun(), make_request(MANY[:1], ranks=1, launches=1))
    assert 3 == code
    assert "An error occurred in MPI_Init_thread" in "\n".join(display.lines)


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
def test_a_real_rank_that_raises_is_named(tmp_path: Path) -> None:
    """End all ranks, quote the error and print the traceback."""
    request = make_request(MANY)
    code, info, display = run(
        tmp_path / "run", sabotage(tmp_path, "raise ValueError('boom')"), request, fail_fast=True
    )
    assert 3 == code
    assert (
        f"rank 1 on host {os.uname().nodename} raised ValueError: boom, in case " in info["reason"]
    )
    assert ["ok", "ok", "failed"] == [status for _, _, status in measured(tmp_path / "run")]
    assert "ValueError: boom" in [line.strip() for line in display.lines]
    failed_rank = find_failed_rank(tmp_path / "run")
    assert (1, "raised ValueError: boom") == (failed_rank["rank"], failed_rank["state"])
    assert failed_rank["stack"][0].startswith("sabotage.py:")
    assert_ended_in_time(tmp_path / "run", 0.0)


@pytest.mark.mpi
def test_a_real_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    """Name the rank killed by SIGKILL, and measure all other cases with new ranks."""
    request = make_request(MANY)
    display = Recorder(on_rank(tmp_path, 1, signal.SIGKILL), when=2)
    code, info, _ = run(tmp_path, mpirun(), request, display)
    assert (3, "partial") == (code, info["status"])
    assert info["reason"].startswith(
        f"1 case failed: rank 1 on host {os.uname().nodename} was killed by signal 9"
    )
    assert_went_on(tmp_path, request, "failed")
    failed_rank = find_failed_rank(tmp_path)
    assert (1, str(CASES_BY_KEY[failed_key(tmp_path)])) == (
        failed_rank["rank"],
        failed_rank["case"],
    )
    assert failed_rank["state"].startswith("was killed by signal 9")
    assert_ended_in_time(tmp_path, 0.0)
    assert_resumes(tmp_path, request)


@pytest.mark.mpi
def test_a_real_rank_that_crashes_shows_where(tmp_path: Path) -> None:
    """Print the stack of a rank that crashed by SIGSEGV, and where the other waited."""
    launcher = sabotage(
        tmp_path, "import signal; time.sleep(1); signal.raise_signal(signal.SIGSEGV)"
    )
    code, info, display = run(tmp_path / "run", launcher, make_request(MANY), fail_fast=True)
    assert 3 == code
    assert "rank 1" in info["reason"]
    assert "was killed by signal 11 (segmentation fault), in case " in info["reason"]
    failed_rank = find_failed_rank(tmp_path / "run")
    assert failed_rank["stack"][0].startswith("sabotage.py:")
    (waiting,) = failed_rank["others"]
    assert [0] == waiting["ranks"]
    assert [f"Rank 0 was in {waiting['in']}."] == display.warnings


@pytest.mark.mpi
def test_a_real_rank_that_is_stopped_is_named(tmp_path: Path) -> None:
    """Detect the hang, name the stopped rank, and print where the other waits."""
    request = make_request(MANY, case_timeout_s=PATIENCE_S)
    display = Recorder(on_rank(tmp_path, 1, signal.SIGSTOP), when=2)
    code, info, _ = run(tmp_path, mpirun(), request, display, fail_fast=True)
    assert 3 == code
    assert (
        f"no progress for {PATIENCE_S:g} s: rank 1 on host {os.uname().nodename} is stopped, in"
        " case " in info["reason"]
    )
    *finished, last = [status for _, _, status in measured(tmp_path)]
    assert ("hung", {"ok"}) == (last, set(finished))
    assert (
        len(finished) < len(MANY) - 1
    )  # beside a busy core some cases end before the signal arrives
    failed_rank = find_failed_rank(tmp_path)
    assert (1, "is stopped", []) == (
        failed_rank["rank"],
        failed_rank["state"],
        failed_rank["stack"],
    )
    (waiting,) = failed_rank["others"]
    assert [0] == waiting["ranks"]
    assert "commbench/" in waiting["in"]
    assert f"rank 0 on host {os.uname().nodename}, most recent call first:" in display.lines
    assert f"Rank 0 was in {waiting['in']}." in display.warnings
    assert_ended_in_time(tmp_path, PATIENCE_S)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("lazy", [0, 1])
def test_a_real_rank_that_does_not_take_part_is_named(tmp_path: Path, lazy: int) -> None:
    """Name the sleeping rank by its idle CPU."""
    launcher = sabotage(tmp_path, "time.sleep(600)", lazy)
    code, info, _ = run(
        tmp_path / "run", launcher, make_request(MANY, case_timeout_s=PATIENCE_S), fail_fast=True
    )
    assert 3 == code
    assert (
        f"rank {lazy} on host {os.uname().nodename} is idle while the others wait for it"
        in info["reason"]
    )
    assert find_failed_rank(tmp_path / "run")["stack"][0].startswith("sabotage.py:")


@pytest.mark.slow
@pytest.mark.mpi
def test_a_real_rank_that_holds_the_interpreter_is_named(tmp_path: Path) -> None:
    """Name a rank without heartbeats, and print its interpreter's stack."""
    lock = (
        "import ctypes; lock, twice = ctypes.create_string_buffer(64),"
        " ctypes.PyDLL(None).pthread_mutex_lock; "
    )
    launcher = sabotage(tmp_path, f"{lock} twice(lock); twice(lock)")
    code, info, _ = run(
        tmp_path / "run", launcher, make_request(MANY, case_timeout_s=PATIENCE_S), fail_fast=True
    )
    assert 3 == code
    assert f"rank 1 on host {os.uname().nodename} has not been heard of for " in info["reason"]
    assert "although its process sleeps, in case " in info["reason"]
    assert find_failed_rank(tmp_path / "run")["stack"][0].startswith("sabotage.py:")


@pytest.mark.mpi
@pytest.mark.usefixtures("forks")
def test_ctrl_c_ends_real_ranks(tmp_path: Path) -> None:
    """End all ranks on Ctrl-C."""
    request = make_request(MANY)
    display = Recorder(lambda: os.kill(os.getpid(), signal.SIGINT), when=2)
    code, info, _ = run(tmp_path, mpirun(), request, display)
    assert (130, "interrupted") == (code, info["status"])


CONDUCTOR = """
import sys
from pathlib import Path
sys.path[:0] = {folders!r}
import test_conductor_ranks as t
request = t.make_request(t.MANY, launches=1000)
def ready(): print("ready", flush=True)
t.run(Path(sys.argv[1]), t.mpirun(), request, t.Recorder(ready, when=2))
"""


@pytest.mark.mpi
def test_ranks_do_not_outlive_a_conductor_that_is_killed(
    tmp_path: Path, mark: str, request: pytest.FixtureRequest
) -> None:
    """Ranks exit after their conductor was killed; the run resumes despite its lock."""
    script = CONDUCTOR.format(folders=[str(folder) for folder in Path(__file__).parents[:2]])
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run")], stdout=subprocess.PIPE
    ) as conductor:
        assert conductor.stdout is not None
        assert b"ready\n" == conductor.stdout.readline()
        assert any("commbench.launch.rank" in command for command in find_marked(mark))
        conductor.kill()
    assert wait_until(lambda: not find_marked(mark))
    request.getfixturevalue("forks")
    assert_resumes(tmp_path / "run", make_request(MANY))
