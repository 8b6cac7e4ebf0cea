"""Open MPI's mpirun: on this host, on those of a hostfile, or inside a Slurm or PBS job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from commbench.environment import relevant_variables
from commbench.launch.launchers.base import Placement, run_by_mpi4py
from commbench.launch.launchers.hosts import is_pbs_file, read_hostfile

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
