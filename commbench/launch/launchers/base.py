"""What every launcher offers, and what a person may ask of it: hosts, ranks per node, binding, network interface."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from commbench.errors import InputError
from commbench.launch.launchers import hosts
from commbench.launch.launchers.hosts import interface_variables
from commbench.system.topology import numa_folders

#: What a rank can be bound to.
BINDINGS = ("core", "hwthread", "numa", "none")


class Launcher(Protocol):
    """Something that starts ranks: how it is called, what it needs in its environment, how many it has room for."""

    @property
    def name(self) -> str:
        """How the launcher is called in messages and in run.json."""

    @property
    def hostfile(self) -> Path | None:
        """The hosts it was told to use; None for this one, or those of a scheduler."""

    @property
    def oversubscribe(self) -> bool:
        """Whether more ranks than slots were asked for on purpose."""

    @property
    def forwards_signals(self) -> bool:
        """Whether a signal such as SIGUSR1 sent to the launcher reaches every rank, on other hosts too."""

    @property
    def carries_mpi(self) -> bool:
        """Whether MPI sees the ranks that it starts; Gloo does without."""

    @property
    def is_local(self) -> bool:
        """Whether all ranks run on this host, as nobody has named or allocated others."""

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:
        """The command that starts ``ranks`` times python with the arguments ``program``.

        ``training``: ranks compute with several threads, and MPI carries nothing that is measured.
        """

    def environment(self) -> dict[str, str]:
        """Variables to add to the launcher's own environment."""

    def slots(self) -> int:
        """How many ranks there is room for without sharing cores."""

    def limit(self) -> int | None:
        """How many ranks the number of ranks per node allows at most; None where none was asked for."""

    def ranks_per_host(self, ranks: int) -> int:
        """How many of so many ranks one machine gets at most."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where ranks go and what they use: the part that all launchers share, each in its own words.

    Raises:
        InputError: ranks per node below 1, or a binding that does not exist.
    """

    hostfile: Path | None = None
    oversubscribe: bool = False
    extra: Sequence[str] = ()
    """Options to hand to the launcher as they are; with its own word for binding among them, that is left to them."""
    ranks_per_node: int | None = None
    """None: as many as a host has slots."""
    bind_to: str | None = None
    """One of `BINDINGS`; None: the launcher's own choice, see docs/launching.md."""
    interface: str | None = None
    """Name of the network interface for MPI over TCP, Gloo and NCCL; None: each library's own choice."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def __post_init__(self) -> None:
        if self.ranks_per_node is not None and self.ranks_per_node < 1:
            raise InputError(f"--ranks-per-node {self.ranks_per_node} was asked for; give at least 1.")
        if self.bind_to is not None and self.bind_to not in BINDINGS:
            raise InputError(f"--bind-to {self.bind_to} is not known; choose from {', '.join(BINDINGS)}.")

    @property
    def is_local(self) -> bool:
        """Whether all ranks run on this host, as nobody has named or allocated others."""
        return self.hostfile is None and "SLURM_JOB_ID" not in self.environ

    def slots(self) -> int:
        """Those of all hosts, but on none more than the ranks per node that were asked for."""
        most = self.ranks_per_node
        return sum(slots if most is None else min(slots, most) for slots in self.node_slots())

    def node_slots(self) -> list[int]:
        """Slots of each host: of the hostfile, else of Slurm's allocation, else the CPUs this process may use."""
        return hosts.node_slots(self.hostfile, self.environ)

    def limit(self) -> int | None:
        """Ranks per node on every host."""
        return None if self.ranks_per_node is None else self.ranks_per_node * len(self.node_slots())

    def ranks_per_host(self, ranks: int) -> int:
        """As many as the largest host has slots, and more where ranks are more than slots; emulated hosts are one."""
        if self.environ.get(hosts.EMULATED):
            return ranks
        slots = self.node_slots()
        return min(ranks, self.ranks_per_node or max(*slots, -(-ranks // len(slots))))

    def environment(self) -> dict[str, str]:
        """One thread a rank and the network interface."""
        return self._one_thread() | interface_variables(self.interface)

    def binding(self, ranks: int, *, training: bool) -> str:
        """What each of ``ranks`` ranks is bound to: what was asked for, else one core where that is possible.

        Ranks that share cores float, so that the scheduler can move them apart; a rank that trains may use its whole
        NUMA node.
        """
        if self.bind_to is not None:
            return self.bind_to
        if self.shares_cores(ranks):
            return "none"
        if training:
            return "numa" if len(numa_folders()) > 1 else "none"
        # Room for all only with two ranks on the threads of one core?
        return "hwthread" if self.is_local and ranks > hosts.local_cores() else "core"

    def shares_cores(self, ranks: int) -> bool:
        """Whether ranks share cores: more than slots, or on emulated hosts, which all have the same cores."""
        return ranks > self.slots() or bool(self.environ.get(hosts.EMULATED))

    @property
    def binds_itself(self) -> bool:
        """Whether the options to hand on say already what to bind to."""
        return any(word.lstrip("-").startswith(("bind-to", "cpu-bind")) for word in self.extra)

    def _one_thread(self) -> dict[str, str]:
        """Torchrun sets one thread, mpirun and srun do not: without this the same case differs between launchers."""
        return {} if "OMP_NUM_THREADS" in self.environ else {"OMP_NUM_THREADS": "1"}


def run_by_mpi4py(program: Sequence[str]) -> list[str]:
    """``python -m mpi4py program``: mpi4py's runner makes one raising rank end the others."""
    return [sys.executable, "-m", "mpi4py", *program]
