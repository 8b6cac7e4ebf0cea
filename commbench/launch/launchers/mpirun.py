"""Open MPI's mpirun, and Hydra's mpiexec of MPICH and Intel MPI."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.launch.launchers.base import Placement, run_by_mpi4py
from commbench.launch.launchers.hosts import is_pbs_file, read_hostfile
from commbench.system.variables import relevant_variables

#: MPICH's library, of which mpi4py is told where a person has chosen an mpiexec that mpi4py would not find.
_LIBRARY = "libmpi.so.12"
_INTEL_DOMAINS = {"core": "core", "hwthread": "1", "numa": "numa"}


@dataclass(frozen=True, kw_only=True)
class MpiexecLauncher(Placement):
    """MPICH's or Intel MPI's mpiexec."""

    mpiexec: str = "mpiexec"
    """Path of the program."""
    intel: bool = False
    """Whether it is Intel MPI's, which binds by variables."""
    chosen: bool = False
    """Whether a person has named it: the library beside it is then the one to use."""
    name: str = "mpiexec"
    forwards_signals: bool = False
    carries_mpi: bool = True

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:
        """``mpiexec -n ranks ... python -m mpi4py program``; Hydra forwards the environment by itself."""
        options = ["-f", str(self.hostfile)] if self.hostfile else []
        options += ["-ppn", str(self.ranks_per_node)] if self.ranks_per_node else []
        options += ["-iface", self.interface] if self.interface else []
        options += [] if self.binds_itself else self._binding(ranks, training=training)
        return [self.mpiexec, "-n", str(ranks), *options, *self.extra, *run_by_mpi4py(program)]

    def _binding(self, ranks: int, *, training: bool) -> list[str]:
        binding = self.binding(ranks, training=training)
        if not self.intel:
            return ["-bind-to", binding]
        if binding == "none":
            return ["-genv", "I_MPI_PIN", "off"]
        return ["-genv", "I_MPI_PIN", "on", "-genv", "I_MPI_PIN_DOMAIN", _INTEL_DOMAINS[binding]]

    def environment(self) -> dict[str, str]:
        """Beside what all launchers add, which MPI library a chosen mpiexec belongs to."""
        library = Path(self.mpiexec).parent.parent / "lib" / _LIBRARY
        ours = self.chosen and "MPI4PY_LIBMPI" not in self.environ and library.is_file()
        return super().environment() | ({"MPI4PY_LIBMPI": str(library)} if ours else {})


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
        """``mpirun -n ranks ... python -m mpi4py program``."""
        options = [*self._hosts(), *self._mapping(ranks)]
        options += [] if self.binds_itself else self._binding(ranks, training=training)
        options += self._sharing(ranks)
        if training and self.is_local and "OMPI_MCA_btl" not in self.environ:
            # Looking for a fabric would take a second of MPI_Init.
            options += ["--mca", "btl", "^ofi"]
        forwarded = [word for name in self._forwarded() for word in ("-x", name)]
        return [self.mpirun, "-n", str(ranks), *options, *forwarded, *self.extra, *run_by_mpi4py(program)]

    def _hosts(self) -> list[str]:
        nodes = self.nodes
        if self.hostfile is not None:
            if not is_pbs_file(self.hostfile, self.environ):
                return ["--hostfile", str(self.hostfile)]
            # Open MPI 5 would take a host that stands there once to have as many slots as CPUs.
            nodes = [*read_hostfile(self.hostfile, each_line_a_slot=True).items()]
        return ["--host", ",".join(f"{name}:{slots}" for name, slots in nodes)] if nodes else []

    def _mapping(self, ranks: int) -> list[str]:
        if self.ranks_per_node is None:
            return []
        crowded = ":OVERSUBSCRIBE" if ranks > self.slots() else ""
        return ["--map-by", f"ppr:{self.ranks_per_node}:node{crowded}"]

    def _binding(self, ranks: int, *, training: bool) -> list[str]:
        binding = self.binding(ranks, training=training)
        return [*(["--use-hwthread-cpus"] if binding == "hwthread" else []), "--bind-to", binding]

    def _sharing(self, ranks: int) -> list[str]:
        """Where ranks share cores, let there be more than slots, and let those that wait yield."""
        crowded = ranks > self.slots() and self.ranks_per_node is None
        yielding = ["--mca", "mpi_yield_when_idle", "1"] if self.shares_cores(ranks) else []
        return [*(["--oversubscribe"] if crowded else []), *yielding]

    def _forwarded(self) -> list[str]:
        """Names of variables to carry to other hosts."""
        ours = Placement.environment(self)
        relevant = {**relevant_variables(self.environ), **ours, "OMP_NUM_THREADS": ""}
        return sorted(name for name in relevant if not name.startswith(_NOT_FORWARDED))

    def environment(self) -> dict[str, str]:
        """Beside what all launchers add, Open MPI's permission to run as root, which is asked for twice."""
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if root else {}
        return allow | super().environment()
