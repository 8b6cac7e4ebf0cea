"""Shared by all tests: scripts on real ranks, and skips for what this machine lacks."""

import gc
import importlib
import importlib.util
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

import effort
import pytest
import slurm
from commands import BENCHMARKS, Command, Outcome, clear_of_launchers
from hypothesis import HealthCheck, settings
from launching import NO_OFI, RANKS, marked_environment, serve_forks, succeeded
from launching import mpirun as open_mpirun

from commbench.system import process

# Thousands of tests are objects that stay: looking through them for garbage as often as usual takes
# a sixth of the collection.
gc.set_threshold(100_000, 50, 50)
#: Test processes and the hundreds that they start share compiled modules, also if writing these is
#: turned off.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

#: A busy machine may take its time over random examples.
PATIENT = settings(
    settings.get_profile("default"), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("searching", PATIENT)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for all simulations and new random examples."""
    parser.addoption(
        "--thorough", action="store_true", help="do all simulations, and draw new random examples"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same examples in every run, and new ones with ``--thorough``."""
    is_thorough = effort.configure(config)
    few = settings(PATIENT, derandomize=True, max_examples=effort.repetitions(PATIENT.max_examples))
    settings.register_profile("steady", few)
    settings.load_profile("searching" if is_thorough else "steady")


def _has_namespaces() -> bool:
    """Return whether this process may create a network namespace."""
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False
    return (
        subprocess.run(
            ["unshare", "--net", "true"], capture_output=True, timeout=20, check=False
        ).returncode
        == 0
    )


#: What a marker asks for: whether it is there, and the reason for skipping where it is not.
NEEDS = {
    "mpi": (lambda: importlib.util.find_spec("mpi4py") is not None, "needs mpi4py"),
    "gpu": (lambda: shutil.which("nvidia-smi") is not None, "needs an NVIDIA GPU"),
    "slurm": (slurm.is_possible, "needs root and Slurm's controller, daemon and commands"),
    "lab": (_has_namespaces, "needs root and network namespaces"),
}


def pytest_collection_finish() -> None:
    """Exclude imported and collected objects from garbage collections, which would each take half a
    second.
    """
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Function]) -> None:
    """Mark tests that start ranks as forks.

    Skip marked tests that this machine cannot run, with the reason.
    """
    for item in items:
        if "forked_python" in item.fixturenames:
            item.add_marker("programs")
    for marker, (is_there, reason) in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not is_there():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Return an empty directory, below which the files of the system are read."""
    monkeypatch.setattr("commbench.system.files.ROOT", tmp_path)
    return tmp_path


@pytest.fixture(scope="session", autouse=True)
def _hears_signals():
    """Restore signals that background jobs and nohup ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _is_undisturbed():
    """Report no disturbance to ranks in the test process: they share its CPUs, and would repeat
    visits.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "waiting_s", lambda: (0.0, 0.0))
        yield


@pytest.fixture
def stub(monkeypatch):
    """Return ``stub(path, value)``: the function of that path returns the value."""

    def replace(path: str, value: object) -> None:
        monkeypatch.setattr(path, lambda *_, **__: value)

    return replace


@pytest.fixture
def without_nccl_variables():
    """Remove NCCL's variables, also those that a test sets."""
    with mock.patch.dict(os.environ):
        for name in list(os.environ):
            if name.startswith("NCCL_"):
                del os.environ[name]
        yield


@pytest.fixture(autouse=True)
def _restores_signal_handlers():
    """Restore the signal handlers that a rank or conductor in the test process changed."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def load_benchmark(monkeypatch):
    """Import a program of benchmarks/evidence by name, as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def run_benchmark(monkeypatch, capsys):
    """Run a program of benchmarks/evidence within this process."""

    def run(name: str, *arguments: str) -> Outcome:
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        try:
            runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
        except SystemExit as ended:
            code = ended.code
        else:
            code = None
        captured = capsys.readouterr()
        return Outcome(int(code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def forked_python(tmp_path_factory):
    """Return the path of a program that stands for ``python`` and runs programs as forks.

    See ``forks/server.py``.
    """
    own = tmp_path_factory.getbasetemp()
    with serve_forks(
        (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "forks" / "bin"
    ) as path:
        yield path


@pytest.fixture
def forks(forked_python, monkeypatch):
    """Start this test's commands and ranks as forks, without Open MPI's ofi component."""
    monkeypatch.setattr(sys, "executable", forked_python)
    for name, value in NO_OFI.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def mark(monkeypatch):
    """Mark all processes started; fail if one of them remains."""
    yield from marked_environment(monkeypatch)


@pytest.fixture(scope="session")
def mpirun():
    """Return the mpirun that commbench chooses; skip without one."""
    return open_mpirun()


@pytest.fixture(scope="session")
def mpi_environment(mpirun):
    """Return the environment of ranks on this host, which can import what tests share."""
    path = os.pathsep.join(sys.path)
    return {**os.environ, **NO_OFI, **mpirun.environment(), "PYTHONPATH": path}


@pytest.fixture(scope="session")
def run_ranks(mpirun, mpi_environment, forked_python):
    """Return ``run_ranks(n, script, *arguments)``: the JSON that rank 0 of ``ranks/script`` printed
    last. Ranks are forks, which need not import torch, unless another ``python`` is given.
    """

    def run(
        ranks: int,
        script: str,
        *arguments: str,
        timeout: float = 120,
        python: str = forked_python,
    ) -> Any:
        command = [
            *(mpirun.path, "-n", str(ranks), "--oversubscribe", "--bind-to", "none"),
            *("--mca", "mpi_yield_when_idle", "1"),
            *(python, "-m", "mpi4py", str(RANKS / script), *arguments),
        ]
        try:
            printed = succeeded(*command, env=mpi_environment, seconds=timeout)
        except subprocess.TimeoutExpired as error:
            pytest.fail(
                f"{script} on {ranks} ranks did not end in {timeout} s: {error.stdout!r}"
                f" {error.stderr!r}"
            )
        return json.loads(printed.strip().splitlines()[-1])

    return run


@pytest.fixture
def commbench(tmp_path, monkeypatch, capsys, stub):
    """Return the command as a conductor on a machine with two slots."""
    monkeypatch.chdir(tmp_path)
    clear_of_launchers(monkeypatch)
    stub("commbench.launch.launchers.hosts.local_cpus", 2)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("not ours")
    (tmp_path / "bad.py").write_text("SUITE = 1 / 0")
    return Command(tmp_path, monkeypatch, capsys)
