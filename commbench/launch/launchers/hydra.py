"""Hydra, the mpiexec of MPICH and of Intel MPI: they name hosts alike and bind differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.launch.launchers.base import Placement, run_by_mpi4py

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
