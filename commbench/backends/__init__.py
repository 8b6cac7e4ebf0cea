"""The libraries that carry messages, one module each, and how a rank opens them.

May import engine, collectives and the packages below them; must not import hooks, ddp or anything
above. The module of a backend imports MPI, torch or cupy, so they are loaded only when that backend
is opened.
"""

from __future__ import annotations

import functools
import os
import pkgutil
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from commbench.collectives.backends import find_backend
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control
from commbench.errors import InputError
from commbench.system.env import safe_path
from commbench.units import counted

#: Loading CUDA takes seconds.
_TRIAL_TIMEOUT_S = 60

WITHOUT_MPI = (
    "Backend mpi needs ranks that MPI sees: start them by mpirun, or by srun with the PMI of your"
    " MPI (--mpi=pmix or pmi2), not by torchrun; or choose --backend gloo."
)


def missing_library(backend: str) -> str | None:
    """Return a sentence on the package that ``backend`` lacks and how to install it.

    None if none is missing.
    """
    for package in find_backend(backend).packages:
        if find_spec(package.name) is None:
            return (
                f"Backend {backend} needs {package.name}, which is not installed: {package.remedy}."
            )
    return None


def connect_control(launcher: str, world_size: int, *, carries_mpi: bool = True) -> Control:
    """Connect the ranks that ``launcher`` started by a control plane: MPI's, or torch's if MPI does
    not see them.

    Raises:
        InputError: the library is missing, or it does not see the ranks that the launcher started.
    """
    _require("mpi" if carries_mpi else "gloo")
    control: Control = _load(
        "mpi_control:MpiControl" if carries_mpi else "torch_control:TorchControl"
    )()
    if control.size != world_size:
        raise InputError(
            f"{launcher} started {counted(world_size, 'rank')} but this rank's MPI sees"
            f" {control.size}: the launcher belongs to another MPI than mpi4py uses; start with the"
            " mpirun of the same MPI, or under Slurm with the --mpi= that it speaks"
            " (srun --mpi=none for Gloo only)."
        )
    return control


def open_backend(backend: str, control: Control) -> Communicator:
    """Open ``backend`` among all ranks of ``control``; collective.

    Raises:
        InputError: its library is missing, or it cannot be used under this launcher or on this
            machine.
    """
    entry = find_backend(backend)
    _require(backend)
    if entry.needs_mpi and not isinstance(control, _load("mpi_control:MpiControl")):
        raise InputError(WITHOUT_MPI)
    if entry.uses_gpu:
        count_gpus(backend)
    communicator: Communicator = _load(entry.communicator)(control)
    return communicator


def has_gpus() -> bool:
    """Return whether this machine has NVIDIA GPUs."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def count_gpus(backend: str) -> int:
    """Return the number of GPUs that a backend can use in this process: at least one.

    Raises:
        InputError: there is none, or a library is missing or cannot be loaded; see `try_device`.
    """
    _require(backend)
    entry = find_backend(backend)
    try:
        return len(_load(entry.find_gpus)(backend))
    except ImportError as error:
        package = entry.packages[-1]
        raise InputError(
            f"Backend {backend} needs {package.name}, which cannot be imported ({_cause(error)}):"
            f" {package.remedy}."
        ) from error


def _cause(error: ImportError) -> str:
    """Return one line on why an import failed; cupy prints it within a banner."""
    lines = re.split(r"original error:", str(error), flags=re.IGNORECASE)[-1].splitlines()
    return next((line.strip() for line in lines if line.strip()), type(error).__name__)


@dataclass(frozen=True, kw_only=True)
class DeviceTrial:
    """The result of trying a GPU backend on this machine."""

    gpus: int = 0
    """The number of GPUs that it can use."""
    refusal: str | None = None
    """A sentence on why it cannot use any GPU."""


@functools.cache
def try_device(backend: str) -> DeviceTrial:
    """Try a GPU backend on this machine, once.

    The trial runs in a process of its own: once started, CUDA stays in a process and does not
    survive a fork.
    """
    program = f"from commbench.backends import count_gpus; print(count_gpus({backend!r}))"
    try:
        trial = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **safe_path()},
            capture_output=True,
            text=True,
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return DeviceTrial(
            refusal=(
                f"Backend {backend} cannot be used here: CUDA has not answered for"
                f" {_TRIAL_TIMEOUT_S} seconds."
            )
        )
    if not trial.returncode:
        return DeviceTrial(gpus=int(trial.stdout.split()[-1]))
    last_line = (trial.stderr.strip().splitlines() or ["it ended without a message"])[-1]
    error_name, _, sentence = last_line.rpartition("InputError: ")
    refusal = sentence if error_name else f"Backend {backend} cannot be used here: {last_line}."
    return DeviceTrial(refusal=refusal)


def _require(backend: str) -> None:
    """Raise `InputError` if a package that ``backend`` needs is missing."""
    sentence = missing_library(backend)
    if sentence:
        raise InputError(sentence)


def _load(place: str) -> Any:
    """Import the module of a backend and return the attribute that ``module:name`` names."""
    return pkgutil.resolve_name(f"{__name__}.{place}")
