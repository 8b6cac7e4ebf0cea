"""Tests of how runs of real ranks end: started by the conductor, by mpirun or by torchrun."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from builders import read_info, read_records
from fields import fields_of
from launching import (
    RANKS,
    assert_code,
    find_marked,
    finished,
    marked_environment,
    mpirun,
    wait_until,
)

from commbench.results import load_run

pytestmark = pytest.mark.mpi

STARTERS = ("conductor", "mpirun", "torchrun")
#: torchrun takes its time to end the other rank.
SLOWLY = (*STARTERS[:2], pytest.param("torchrun", marks=pytest.mark.slow))
SCRIPT = RANKS / "harmful.py"
HOST = os.uname().nodename
#: Seconds without progress that are too many.
PATIENCE_S = 3


@pytest.fixture(autouse=True)
def mark(request, monkeypatch):
    """Fail if a test leaves a process behind."""
    if "holds" not in request.node.name:  # a fork's interpreter prints no stack then
        request.getfixturevalue("forks")
    monkeypatch.setenv("CASE_TIMEOUT_S", str(PATIENCE_S))
    for name, value in mpirun().environment().items():
        monkeypatch.setenv(name, value)
    yield from marked_environment(monkeypatch)


def command(starter: str, path: Path, harm: str = "", more: str = "") -> list[str]:
    """Return the command of a run in which each rank runs ``harm`` at its third case."""
    backend = "gloo" if starter == "torchrun" else "mpi"
    words = [str(SCRIPT), starter, str(path), backend, harm, more]
    if starter == "mpirun":
        return mpirun().command(2, words)
    if starter == "torchrun":
        pytest.importorskip("torch")
        torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2"
        return [sys.executable, *torchrun.split(), *words]
    return [sys.executable, *words]


def measure(starter: str, path: Path, **options: str) -> subprocess.CompletedProcess[str]:
    """Carry out a run."""
    return finished(*command(starter, path, **options))


def state(path: Path) -> tuple[str, list[str], int]:
    """Return the status of a run, of its launches, and the number of measured cases."""
    info = read_info(path)
    measured = [record for record in load_run(path).records if record.status == "ok"]
    launches = fields_of(info.get("launches", []), "status")
    return info["status"], launches, len(measured)


def assert_resumes(starter: str, path: Path) -> None:
    """Check that the same command completes the run, also after a torn line."""
    with (path / "samples.jsonl").open("a") as samples:
        samples.write('{"case": {"backend": "mp')
    assert 0 == measure(starter, path).returncode
    assert "complete" == state(path)[0]
    assert "ok" == state(path)[1][-1]
    assert 4 == state(path)[2]


@pytest.mark.parametrize("starter", SLOWLY)
def test_stages_follow_each_other(tmp_path, starter):
    """Make a launch of each stage, the second based on the first, and state the conditions."""
    path = tmp_path / "run"
    done = measure(starter, path, more="more")
    assert_code(done, 0)
    assert ("complete", ["ok", "ok"], 6) == state(path)
    info = read_info(path)
    names = {"conductor": "mpirun", "mpirun": "openmpi", "torchrun": "torchrun"}
    assert 2 == info["world_size"]
    assert names[starter] == info["launcher"]
    assert [0, 1] == fields_of(info["ranks"], "rank")
    assert 7 == len((path / "collectives.csv").read_text().splitlines())
    assert ["first", "second"] == fields_of(info["launches"], "stage")
    assert all(0 < entry["startup_s"] <= entry["seconds"] for entry in info["launches"])
    if starter != "torchrun":
        assert "Open MPI" in info["environment"]["mpi_library"]
        assert info["mpi_init_s"] > 0
    if starter == "conductor":
        assert "" == done.stderr
    else:
        assert "complete" == path.with_suffix(".finished").read_text()


class Harm(NamedTuple):
    """What happens in the third case, and what is left of the launch."""

    code: str
    """Python that the ranks run."""
    launch: str = "failed"
    """Status of the launch."""
    rank: int = 1
    """The rank that fails."""
    state: str = ""
    """What the conductor finds out about the rank; empty: no rank fails."""
    reason: str = ""
    """Words of the reason."""
    has_stack: bool = True
    """Whether the stack of the rank is known."""
    measured: int = 2

    def run(self) -> str:
        """Return the code of all ranks."""
        if self.state:
            return f"import signal\nif me == {self.rank}: {self.code}"
        return self.code


#: Locks a mutex of C twice, holding the interpreter.
HOLD = (
    "import ctypes; lock, twice = ctypes.create_string_buffer(64),"
    " ctypes.PyDLL(None).pthread_mutex_lock; twice(lock); twice(lock)"
)
HARMS = {
    "raises": Harm("raise ValueError('boom')", state="raised ValueError: boom"),
    "killed": Harm(
        "os.kill(os.getpid(), signal.SIGKILL)", state="was killed by signal 9", has_stack=False
    ),
    "stopped": Harm(
        *("signal.raise_signal(signal.SIGSTOP)", "hung", 1, "is stopped", "for 3 s"),
        has_stack=False,
    ),
    "ctrl-c": Harm("interrupt()", "interrupted", reason="interrupted by SIGINT", measured=3),
    "twice": Harm("interrupt(); interrupt(); time.sleep(600)", "interrupted"),
}
#: Harms of which only the conductor finds out more.
FURTHER = {
    "crashes": Harm(
        "time.sleep(1); signal.raise_signal(signal.SIGSEGV)", state="was killed by signal 11"
    ),
    "idle 0": Harm("time.sleep(600)", "hung", 0, "is idle"),
    "idle 1": Harm("time.sleep(600)", "hung", 1, "is idle"),
    "holds": Harm(HOLD, "hung", 1, "has not been heard of"),
}


#: Endings and starters after which the run is resumed.
RESUMED = {("stopped", "conductor"), ("ctrl-c", "mpirun"), ("ctrl-c", "torchrun")}


def assert_diagnosed(harm: Harm, entry: dict[str, Any], stderr: str) -> None:
    """Check that the conductor names the rank, its state and place, and where the other waits, and
    that it ends in time.
    """
    failed_rank = entry["failed_rank"]
    assert harm.rank == failed_rank["rank"]
    assert HOST == failed_rank["host"]
    assert failed_rank["state"].startswith(harm.state)
    assert failed_rank["pid"] > 0
    assert harm.has_stack == any("harmful.py:" in frame for frame in failed_rank["stack"])
    for waiting in failed_rank["others"]:
        assert [1 - harm.rank] == waiting["ranks"]
        assert "commbench/" in waiting["in"]
        assert f"{waiting['in']}: rank {1 - harm.rank}." in stderr
    assert failed_rank["others"] or harm.state.startswith("raised")
    assert entry["seconds"] < entry["startup_s"] + entry["measuring_s"] + PATIENCE_S + 15


@pytest.mark.parametrize(
    ("name", "starter"),
    [
        *[(name, "mpirun") for name in HARMS if name != "raises"],
        *[(name, "conductor") for name in HARMS if name != "twice"],
        *[pytest.param(name, "torchrun", marks=pytest.mark.slow) for name in HARMS],
        ("crashes", "conductor"),
        *[
            pytest.param(name, "conductor", marks=pytest.mark.slow)
            for name in ("idle 0", "idle 1", "holds")
        ],
    ],
)
def test_what_goes_wrong_costs_its_case_only(tmp_path, starter, name):
    """Keep what was measured, enter how the launch ended, and complete it on resume."""
    path = tmp_path / "run"
    harm = {**HARMS, **FURTHER}[name]
    ended = measure(starter, path, harm=harm.run(), more="more")
    assert 0 != ended.returncode
    status = "partial" if harm.state else "interrupted"
    assert (status, [harm.launch], harm.measured) == state(path)
    info = read_info(path)
    assert harm.reason in info["reason"]
    if harm.state:
        assert harm.launch == load_run(path).records[-1].status
    if harm.state and starter == "conductor":
        assert f"rank {harm.rank} on host {HOST} {harm.state}" in info["reason"]
        assert_diagnosed(harm, info["launches"][0], ended.stderr)
    if name == "raises":
        assert f"rank 1 on host {HOST}" in ended.stderr + info["reason"]
        assert "ValueError: boom" in ended.stderr
    if name == "ctrl-c":
        assert 1 == ended.stderr.count("press Ctrl-C again to stop now.")
        assert starter != "conductor" or ended.returncode == 130
    if (name, starter) in RESUMED:
        assert_resumes(starter, path)


@pytest.mark.parametrize("starter", ["mpirun", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_a_rank_0_that_is_killed_leaves_a_partial_run(tmp_path, starter):
    """State from its start that a launch has not ended."""
    path = tmp_path / "run"
    harm = HARMS["killed"]._replace(rank=0).run()
    assert 0 != measure(starter, path, harm=harm).returncode
    assert "partial" == read_info(path)["status"]
    assert 2 == len(load_run(path).records)
    assert "has begun and not ended" in read_info(path)["reason"]
    assert_resumes(starter, path)


@pytest.mark.parametrize(
    ("starter", "number", "code", "expected"),
    [
        ("conductor", signal.SIGTERM, 143, ("interrupted", ["interrupted"], 2)),
        ("mpirun", signal.SIGTERM, None, ("partial", ["failed"], 2)),
        pytest.param(
            *("torchrun", signal.SIGTERM, None, ("partial", ["failed"], 2)),
            marks=pytest.mark.slow,
        ),
        ("conductor", signal.SIGKILL, -9, ("running", [], 2)),
    ],
)
def test_what_was_started_is_ended(
    tmp_path,
    mark,
    *,
    starter,
    number,
    code,
    expected,
):
    """Record the end although the main threads are blocked; no rank outlives a killed conductor,
    nor does its lock.
    """
    path = tmp_path / "run"
    words = command(starter, path, "open(out + '.ready', 'w').close(); time.sleep(600)")
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as started:
        assert wait_until((tmp_path / "run.ready").exists)
        assert wait_until(lambda: len(read_records(path)) == expected[2])
        started.send_signal(number)
        assert started.wait(60) in {code or started.returncode} - {0}
    assert wait_until(lambda: not find_marked(mark)), find_marked(mark)
    assert expected == state(path)
    if number == signal.SIGKILL:
        assert_resumes(starter, path)


def test_results_may_be_written_slowly(tmp_path):
    """Complete the run although the tables take longer than a case may make no progress."""
    harm = (
        "from commbench.launch import ledger\n"
        "def late(store, write=ledger.write_tables, sleep=time.sleep):\n"
        f"    sleep({PATIENCE_S + 1})\n"
        "    write(store)\n"
        "ledger.write_tables = late"
    )
    done = measure("mpirun", tmp_path / "run", harm=harm)
    assert_code(done, 0)
    assert ("complete", ["ok"], 4) == state(tmp_path / "run")


@pytest.mark.parametrize("starter", SLOWLY)
def test_results_that_cannot_be_written_hang_no_rank(tmp_path, starter):
    """End all ranks if the directory of results is replaced by a file."""
    path = tmp_path / "run"
    harm = "time.sleep(1)\nif me == 0: os.rename(out, out + '.old')"
    harm += "; open(out, 'w').write('in the way')"
    assert 0 != measure(starter, path, harm=harm).returncode
    assert "in the way" == path.read_text()
