"""Tests of how runs of real ranks end: started by the conductor, by mpirun or by torchrun."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import RANKS, marked_environment, mpirun, wait_until

from commbench.results import load_run

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("forks")]

STARTERS = ("conductor", "mpirun", "torchrun")
#: torchrun takes its time to end the other rank.
SLOWLY = (*STARTERS[:2], pytest.param("torchrun", marks=pytest.mark.slow))
SCRIPT = RANKS / "harmful.py"
#: Harm to one rank.
ON_RANK_1 = "import signal\nif me == 1: "


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Fail if a test leaves a process behind."""
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
    environment = {**os.environ, **mpirun().environment(), "CASE_TIMEOUT_S": "3"}
    return subprocess.run(
        command(starter, path, **options),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def info_of(path: Path) -> dict[str, Any]:
    """Return the entries of run.json."""
    info: dict[str, Any] = json.loads((path / "run.json").read_text())
    return info


def state(path: Path) -> tuple[str, list[str], int]:
    """Return the status of a run, of its launches, and the number of measured cases."""
    info = info_of(path)
    measured = [record for record in load_run(path).records if record.status == "ok"]
    return info["status"], [entry["status"] for entry in info["launches"]], len(measured)


def assert_resumes(starter: str, path: Path) -> None:
    """Check that the same command completes the run, also after a torn line."""
    with (path / "samples.jsonl").open("a") as samples:
        samples.write('{"case": {"backend": "mp')
    assert 0 == measure(starter, path).returncode
    assert ("complete", "ok", 4) == (state(path)[0], state(path)[1][-1], state(path)[2])


@pytest.mark.parametrize("starter", STARTERS)
def test_stages_follow_each_other(tmp_path: Path, starter: str) -> None:
    """Make a launch of each stage, the second based on the first."""
    path = tmp_path / "run"
    done = measure(starter, path, more="more")
    assert 0 == done.returncode, done.stderr
    assert ("complete", ["ok", "ok"], 6) == state(path)
    info = info_of(path)
    names = {"conductor": "mpirun", "mpirun": "openmpi", "torchrun": "torchrun"}
    assert (2, names[starter]) == (info["world_size"], info["launcher"])
    assert 7 == len((path / "collectives.csv").read_text().splitlines())
    assert ["first", "second"] == [entry["stage"] for entry in info["launches"]]
    assert all(0 < entry["startup_s"] <= entry["seconds"] for entry in info["launches"])
    if starter != "conductor":
        assert "complete" == path.with_suffix(".finished").read_text()


#: Each harm, and how it leaves run, launch and measured cases, with words of the reason.
HARMS = {
    "raises": (f"{ON_RANK_1}raise ValueError('boom')", "partial", "failed", 2, "ValueError: boom"),
    "killed": (f"{ON_RANK_1}os.kill(os.getpid(), signal.SIGKILL)", "partial", "failed", 2, ""),
    "stopped": (f"{ON_RANK_1}signal.raise_signal(signal.SIGSTOP)", "partial", "hung", 2, "for 3 s"),
    "ctrl-c": ("interrupt()", "interrupted", "interrupted", 3, "interrupted by SIGINT"),
    "twice": ("interrupt(); interrupt(); time.sleep(600)", "interrupted", "interrupted", 2, ""),
}


@pytest.mark.parametrize("starter", SLOWLY)
@pytest.mark.parametrize("name", HARMS)
def test_what_goes_wrong_costs_its_case_only(tmp_path: Path, starter: str, name: str) -> None:
    """Keep what was measured, enter how the launch ended, and complete it on resume."""
    path = tmp_path / "run"
    harm, status, launch, measured, reason = HARMS[name]
    ended = measure(starter, path, harm=harm, more="more")
    assert 0 != ended.returncode
    assert (status, [launch], measured) == state(path)
    info = info_of(path)
    if (starter, name) == ("conductor", "ctrl-c"):
        assert 130 == ended.returncode
    if name == "ctrl-c":
        assert 1 == ended.stderr.count("press Ctrl-C again to stop now.")
    if status == "partial":
        assert launch == load_run(path).records[-1].status
    if name == "raises":
        told = info["reason"] if starter == "conductor" else ended.stderr
        assert f"rank 1 on host {os.uname().nodename}" in told
        assert reason in told
    else:
        assert reason in info["reason"]
    assert_resumes(starter, path)


@pytest.mark.parametrize("starter", ["mpirun", "torchrun"])
def test_a_rank_0_that_is_killed_leaves_a_partial_run(tmp_path: Path, starter: str) -> None:
    """State from its start that a launch has not ended."""
    path = tmp_path / "run"
    harm = "import signal\nif me == 0: os.kill(os.getpid(), signal.SIGKILL)"
    assert 0 != measure(starter, path, harm=harm).returncode
    assert ("partial", 2) == (info_of(path)["status"], len(load_run(path).records))
    assert "has begun and not ended" in info_of(path)["reason"]
    assert_resumes(starter, path)


@pytest.mark.parametrize("starter", SLOWLY)
def test_sigterm_to_what_was_started_keeps_what_was_measured(tmp_path: Path, starter: str) -> None:
    """Record the end although the main threads are blocked."""
    path = tmp_path / "run"
    words = command(starter, path, "open(out + '.ready', 'w').close(); time.sleep(600)")
    environment = {**os.environ, **mpirun().environment()}
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as started:
        assert wait_until((tmp_path / "run.ready").exists)
        started.send_signal(signal.SIGTERM)
        assert 0 != started.wait(60)
        assert starter != "conductor" or started.returncode == 143
    status, launches, measured = state(path)
    expected = ("interrupted", "interrupted") if starter == "conductor" else ("partial", "failed")
    assert (*expected, 2) == (status, *launches, measured)
    assert_resumes(starter, path)


@pytest.mark.parametrize("starter", SLOWLY)
def test_results_that_cannot_be_written_hang_no_rank(tmp_path: Path, starter: str) -> None:
    """End all ranks if the directory of results is replaced by a file."""
    path = tmp_path / "run"
    harm = "time.sleep(1)\nif me == 0: os.rename(out, out + '.old'); open(out, 'w').write('in the way')"
    assert 0 != measure(starter, path, harm=harm).returncode
    assert "in the way" == path.read_text()
