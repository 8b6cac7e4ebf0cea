"""The part that all launchers share: hosts, ranks per node, binding, interface."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from commbench.errors import InputError, check_choice
from commbench.launch.launchers import hosts
from commbench.launch.launchers.hosts import interface_variables
from commbench.system.env import safe_path, variables_of
from commbench.system.topology import numa_folders

if TYPE_CHECKING:
    from typing_extensions import Self

#: Targets of binding.
BINDINGS = ("core", "hwthread", "numa", "none")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Placement of ranks and their resources: the options that all launchers share.

    Raises:
        InputError: ranks per node below 1, or an unknown binding.
    """

    hostfile: Path | None = None
    """Hosts and slots in the launcher's own form; None for this host, or the hosts of a
    scheduler."""
    oversubscribe: bool = False
    """Whether more ranks than slots are allowed."""
    extra: Sequence[str] = ()
    """Options to hand to the launcher unchanged; if they include the launcher's own option for
    binding, we add none."""
    ranks_per_node: int | None = None
    """None: the number of slots of a host."""
    bind_to: str | None = None
    """One of `BINDINGS`; None: the launcher's own choice, see docs/launching.md."""
    interface: str | None = None
    """Name of the network interface for MPI over TCP, Gloo and NCCL; None: each library's own
    choice."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    env: str = ""
    """Variables of the ranks alone, see `commbench.system.env`."""

    def __post_init__(self) -> None:
        if self.ranks_per_node is not None and self.ranks_per_node < 1:
            raise InputError(
                f"--ranks-per-node {self.ranks_per_node} was asked for; give at least 1."
            )
        if self.bind_to is not None:
            check_choice("binding", self.bind_to, BINDINGS)


@dataclass(frozen=True, kw_only=True)
class Launcher(Placement):
    """A program that starts ranks: its command, its environment, and the number of ranks that it
    has room for.
    """

    name: str
    """The launcher's name in messages and in run.json."""
    path: str
    """Its program."""
    forwards_signals: bool = True
    """Whether a signal such as SIGUSR1 sent to the launcher reaches every rank, on other hosts
    too."""

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:
        """Return the command that starts ``ranks`` times python with the arguments ``program``.

        ``training``: ranks compute with several threads, and nothing that is measured travels over
        MPI.
        """
        options = self.options(ranks, self.binding(ranks, training=training))
        return [*self.start(ranks), *options, *self.extra, *self.run_python(program)]

    def start(self, ranks: int) -> list[str]:
        """Return the program with the number of ranks."""
        return [self.path, "-n", str(ranks)]

    def options(self, ranks: int, binding: str) -> list[str]:
        """Return the options that place and bind ranks; none without such options.

        ``binding``: see `binding`.
        """
        return []

    @property
    def carries_mpi(self) -> bool:
        """Whether MPI sees the ranks that it starts; Gloo does not need that."""
        return True

    @property
    def is_local(self) -> bool:
        """Whether all ranks run on this host, as no other host is named or allocated."""
        return self.hostfile is None and "SLURM_JOB_ID" not in self.environ

    def slots(self) -> int:
        """Return the slots of all hosts, on each at most the requested ranks per node."""
        total = 0
        for slots in self.hosts().values():
            total += min(slots, self.ranks_per_node or slots)
        return total

    def hosts(self) -> dict[str, int]:
        """Return the slots by host of the hostfile, else of Slurm's job, else of this host."""
        return hosts.find_hosts(self.hostfile, self.environ)

    def name_hosts(self, file_option: str, hosts_option: str) -> list[str]:
        """Return the options that name the hosts of the hostfile: each host with its slots, or the
        file itself if a command line cannot state all that it has.

        Raises:
            InputError: the file is not understood.
        """
        if self.hostfile is None:
            return []
        content = hosts.read_hostfile(self.hostfile, self.environ)
        if content.is_plain:
            return [hosts_option, hosts.name_slots(content.slots)]
        return [file_option, str(self.hostfile)]

    def limit(self) -> int | None:
        """Return the largest number of ranks that the number of ranks per node allows.

        None if none was requested.
        """
        if self.ranks_per_node is None:
            return None
        return self.ranks_per_node * len(self.hosts())

    def ranks_per_host(self, ranks: int) -> int:
        """Return the largest number of ``ranks`` that one machine gets: the slots of the largest
        host, and more if ranks exceed slots.

        Emulated hosts are one machine.
        """
        if self.environ.get(hosts.EMULATED):
            return ranks
        slots = self.hosts().values()
        return min(ranks, self.ranks_per_node or max(*slots, -(-ranks // len(slots))))

    def environment(self) -> dict[str, str]:
        """Return the variables for one thread per rank, the network interface and imports.

        torchrun sets one thread per rank; mpirun and srun do not. Without this, launchers would
        differ.
        """
        variables = {**interface_variables(self.interface), **safe_path()}
        if "OMP_NUM_THREADS" not in self.environ:
            variables["OMP_NUM_THREADS"] = "1"
        return variables

    def with_env(self, env: str) -> Self:
        """Return the launcher whose ranks have the variables of ``env``, whatever this process has
        of the same names.

        The ranks' own command line sets them, so that they reach ranks on other hosts through any
        launcher.
        """
        environ = dict(self.environ)
        for name in variables_of(env):
            environ.pop(name, None)
        return replace(self, environ=environ, env=env)

    def run_python(self, program: Sequence[str]) -> list[str]:
        """Return the command of a rank: python with the arguments ``program`` and the variables of
        ``env``; if MPI sees it, with mpi4py's runner: a rank that raises ends the other ranks.
        """
        words = []
        for name, value in variables_of(self.env).items():
            if value is not None:
                words.append(f"{name}={value}")
        if words:
            words.insert(0, "/usr/bin/env")
        words.append(sys.executable)
        if self.carries_mpi:
            words += ["-m", "mpi4py"]
        return [*words, *program]

    def binding(self, ranks: int, *, training: bool) -> str:
        """Return the binding of each of ``ranks`` ranks: as requested, else one core if possible;
        empty if the extra options state one.

        Ranks that share cores are not bound, so that the scheduler can move them apart. A rank that
        trains may use its whole NUMA node.
        """
        if any(word.lstrip("-").startswith(("bind-to", "cpu-bind")) for word in self.extra):
            return ""
        if self.bind_to is not None:
            return self.bind_to
        if self.shares_cores(ranks) or (training and len(numa_folders()) <= 1):
            return "none"
        if training:
            return "numa"
        if self.is_local and ranks > hosts.local_cores():
            return "hwthread"  # there is room only with two ranks on the threads of one core
        return "core"

    def shares_cores(self, ranks: int) -> bool:
        """Return whether ranks share cores: more ranks than slots, or emulated hosts, which all
        have the same cores.
        """
        return ranks > self.slots() or bool(self.environ.get(hosts.EMULATED))
