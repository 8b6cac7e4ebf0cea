"""Tests of mpiexec with the real MPICH, installed by pip into a separate directory."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from builders import read_info, read_rows
from fields import fields_of
from launching import MARK, finished, succeeded, wait_until

from commbench.launch.launchers.base import Placement
from commbench.launch.launchers.choice import choose_launcher
from commbench.launch.launchers.mpirun import MpiexecLauncher

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.usefixtures("mark")]

WORDS = (
    "-m commbench run --collective all_reduce --backend mpi -n 2 --oversubscribe"
    " --sync dissemination"
)


@pytest.fixture(scope="module")
def mpiexec(tmp_path_factory):
    """Return the mpiexec of MPICH's wheel; skip if pip cannot install it."""
    pytest.importorskip("mpi4py")
    prefix = tmp_path_factory.mktemp("mpich")
    words = (
        "-m pip install --quiet --no-deps --ignore-installed --no-warn-script-location"
        f" --disable-pip-version-check --prefix {prefix} mpich"
    )
    command = [sys.executable, *words.split()]
    try:
        done = finished(*command)
    except subprocess.TimeoutExpired:
        pytest.skip("pip did not bring MPICH in 2 minutes")
    if done.returncode:
        pytest.skip(f"pip cannot bring MPICH: {(done.stderr.splitlines() or ['no reason'])[-1]}")
    return prefix / "bin" / "mpiexec"


def commbench(mpiexec: Path, out: Path, options: str) -> list[str]:
    """Return the command that measures two ranks of MPICH."""
    words = f"{WORDS} {options} --launcher {mpiexec} --out {out}"
    return [sys.executable, *words.split()]


def test_mpich_is_recognised_by_its_version_text(mpiexec):
    """Choose the Hydra launcher for the library beside it."""
    launcher = choose_launcher(str(mpiexec), Placement(environ={}))
    assert isinstance(launcher, MpiexecLauncher)
    assert not launcher.is_intel
    assert (
        str(mpiexec.parent.parent / "lib" / "libmpi.so.12")
        == launcher.environment()["MPI4PY_LIBMPI"]
    )


@pytest.mark.parametrize("binding", ["core", "none"])
def test_mpich_measures(mpiexec, tmp_path, binding):
    """Measure two ranks of MPICH; every row is ok and names the library."""
    out = tmp_path / "run"
    succeeded(*commbench(mpiexec, out, f"--sizes 8,64K --launches 1 --bind-to {binding}"))
    info = read_info(out)
    rows = read_rows(out)
    assert [("ok", "0"), ("ok", "0")] == fields_of(rows, "status", "wrong")
    assert all(row["library"].startswith("MPICH") for row in rows), rows
    assert "complete" == info["status"]
    assert "mpiexec" == info["launcher"]
    assert 2 == info["world_size"]
    pinned = fields_of(info["ranks"], "cpus")
    if binding == "core" and len(os.sched_getaffinity(0)) > 1:
        assert [1, 1] == [len(cpus) for cpus in pinned]
        assert pinned[0] != pinned[1]


def find_rank(mark: str, rank: str) -> psutil.Process | None:
    """Return the process of a rank that mpiexec started."""
    for process in psutil.process_iter():
        try:
            environ, words = process.environ(), process.cmdline()
        except psutil.Error:
            continue
        if (environ.get(MARK), environ.get("PMI_RANK")) == (
            mark,
            rank,
        ) and "commbench.launch.rank" in words:
            return process
    return None


def test_a_killed_rank_of_mpich_is_named(mpiexec, tmp_path, mark):
    """Name a killed rank, and complete the run on resume."""
    out = tmp_path / "run"
    command = commbench(mpiexec, out, "--sizes 8:256K --launches 2 --fail-fast")
    samples = out / "samples.jsonl"
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **streams) as process:
        assert wait_until(
            lambda: samples.exists() and len(samples.read_text().splitlines()) > 2, 60
        )
        victim = find_rank(mark, "1")
        victim.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert 3 == process.returncode, errors
    reason = read_info(out)["reason"]
    assert reason.startswith("rank 1 on host"), reason
    assert "signal 9" in reason
    succeeded(*command)
    assert "complete" == read_info(out)["status"]
