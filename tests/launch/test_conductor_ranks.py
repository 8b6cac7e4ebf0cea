"""Tests of the conductor with real ranks by mpirun: what it finds out about a failed rank."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from conducting import measured, run
from launching import find_marked, make_request, marked_environment, mpirun, wait_until

from commbench.collectives.cases import Sweep
from commbench.launch.launchers import Launcher, MpirunLauncher

OPERATIONS = ["all_reduce", "broadcast", "all_gather"]
#: Without agreed instants, which ranks on a busy machine may all miss.
MANY = Sweep(
    backends=["mpi"], sizes=[8, 1024, 65536], operations=OPERATIONS, sync="dissemination"
).cases(2)
#: On a busy machine the first case of a launch may take seconds to load or compile the native loop,
#: without progress.
PATIENCE_S = 6.0

#: Runs a rank in which the third case after every start goes wrong.
SABOTAGE = """
import os, signal, sys, time
from commbench.launch import rank
visit = rank.CaseRun.visit
seen = 0
def sabotaged(measurement):
    global seen
    seen += 1
    if seen == 3 and measurement.session.control.rank == {rank}:
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


def sabotage(tmp_path: Path, harm: str, rank: int = 1) -> Launcher:
    """Return a launcher whose rank ``rank`` runs the code ``harm`` in its third case."""
    script = tmp_path / "sabotage.py"
    script.write_text(SABOTAGE.format(harm=harm, rank=rank))
    return SabotagedMpirun(mpirun=mpirun().mpirun, oversubscribe=True, name=str(script))


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


#: Locks a mutex of C twice, holding the interpreter.
HOLD = (
    "import ctypes; lock, twice = ctypes.create_string_buffer(64),"
    " ctypes.PyDLL(None).pthread_mutex_lock; twice(lock); twice(lock)"
)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("rank", "harm", "state", "reports"),
    [
        (1, "raise ValueError('boom')", "raised ValueError: boom", (True, None)),
        (1, "os.kill(os.getpid(), signal.SIGKILL)", "was killed by signal 9", (False, True)),
        (
            1,
            "time.sleep(1); signal.raise_signal(signal.SIGSEGV)",
            "was killed by signal 11",
            (True, True),
        ),
        (1, "signal.raise_signal(signal.SIGSTOP)", "is stopped", (False, True)),
        pytest.param(0, "time.sleep(600)", "is idle", (True, True), marks=pytest.mark.slow),
        pytest.param(1, "time.sleep(600)", "is idle", (True, True), marks=pytest.mark.slow),
        pytest.param(1, HOLD, "has not been heard of", (True, True), marks=pytest.mark.slow),
    ],
    ids=["raises", "killed", "crashes", "stopped", "idle 0", "idle 1", "holds the interpreter"],
)
def test_the_rank_that_fails_is_named(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    *,
    rank: int,
    harm: str,
    state: str,
    reports: tuple[bool, bool | None],
) -> None:
    """Name the rank, its state and place, and where the other waits; end in time.

    ``reports``: whether the rank's stack is known, and whether that of the other rank is, None if
    either way.
    """
    if harm != HOLD:  # a fork's interpreter prints no stack then
        request.getfixturevalue("forks")
    path, host = tmp_path / "run", os.uname().nodename
    asked = make_request(MANY, case_timeout_s=PATIENCE_S)
    code, info, display = run(path, sabotage(tmp_path, harm, rank), asked, fail_fast=True)
    assert 3 == code
    assert f"rank {rank} on host {host} {state}" in info["reason"]
    (launch,) = info["launches"]
    failed_rank = launch["culprit"]
    assert (rank, host) == (failed_rank["rank"], failed_rank["host"])
    assert failed_rank["state"].startswith(state)
    assert failed_rank["pid"] > 0
    has_stack, has_others = reports
    assert has_stack == (failed_rank["stack"][:1] != [])
    if has_stack:
        assert failed_rank["stack"][0].startswith("sabotage.py:")
    if has_others:
        (waiting,) = failed_rank["others"]
        assert [1 - rank] == waiting["ranks"]
        assert "commbench/" in waiting["in"]
        (warning,) = display.warnings
        assert f"rank {1 - rank} was in {waiting['in']}" in warning
    if harm.startswith("raise"):
        assert "ValueError: boom" in [line.strip() for line in display.lines]
    assert ["ok", "ok"] == [status for _, _, status in measured(path)][:2]
    assert launch["seconds"] < launch["startup_s"] + launch["measuring_s"] + PATIENCE_S + 15


CONDUCTOR = """
import sys
from pathlib import Path
sys.path[:0] = {folders!r}
import test_conductor_ranks as t
request = t.make_request(t.MANY, launches=1000)
def ready(): print("ready", flush=True)
from launching import Recorder
t.run(Path(sys.argv[1]), t.mpirun(), request, Recorder(ready, when=2))
"""


@pytest.mark.mpi
def test_ranks_do_not_outlive_a_conductor_that_is_killed(
    tmp_path: Path, mark: str, request: pytest.FixtureRequest
) -> None:
    """Ranks exit after their conductor was killed; the run resumes despite its lock."""
    path = tmp_path / "run"
    script = CONDUCTOR.format(folders=[str(folder) for folder in Path(__file__).parents[:2]])
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE
    ) as conductor:
        assert conductor.stdout is not None
        assert b"ready\n" == conductor.stdout.readline()
        assert any("commbench.launch.rank" in command for command in find_marked(mark))
        conductor.kill()
    assert wait_until(lambda: not find_marked(mark))
    request.getfixturevalue("forks")
    code, info, _ = run(path, mpirun(), make_request(MANY))
    assert (0, "complete") == (code, info["status"])
    assert 2 * len(MANY) == len({entry[:2] for entry in measured(path)})
