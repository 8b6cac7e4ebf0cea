"""torchrun on this host, for Gloo without MPI."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.errors import InputError
from commbench.launch.launchers import hosts
from commbench.launch.launchers.base import Launcher, Placement


@dataclass(frozen=True, kw_only=True)
class TorchrunLauncher(Launcher):
    """torchrun.

    Raises:
        InputError: other hosts or a binding were requested, which torchrun does not offer.
    """

    name: str = "torchrun"
    path: str = "torchrun"
    forwards_signals: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hostfile is not None and not self._is_of_this_host(self.hostfile):
            raise InputError(
                "A hostfile was given but torchrun, the only launcher found or the one asked for,"
                " starts ranks on this host only; use an MPI, or start torchrun on every host"
                " yourself: see benchmarks/launch/torchrun.sh."
            )
        if self.bind_to not in {None, "none"}:
            raise InputError(
                f"--bind-to {self.bind_to} was asked for but torchrun binds no rank; use an MPI or"
                " srun, or leave it out."
            )

    def _is_of_this_host(self, hostfile: Path) -> bool:
        """Return whether a hostfile, such as that of a PBS job of one node, names only this host.

        Raises:
            InputError: the file is not understood.
        """
        names = hosts.read_hostfile(hostfile, self.environ).slots
        here = {"localhost", socket.gethostname().partition(".")[0]}
        return here.issuperset(name.partition(".")[0] for name in names)

    @property
    def carries_mpi(self) -> bool:
        """Never."""
        return False

    @property
    def is_local(self) -> bool:
        """Always: a person starts torchrun on each further host."""
        return True

    def start(self, ranks: int) -> list[str]:
        """Return ``python -m torch.distributed.run --standalone --nproc-per-node ranks``."""
        module = ["-m", "torch.distributed.run", "--standalone"]
        return [sys.executable, *module, "--nproc-per-node", str(ranks)]

    def run_python(self, program: Sequence[str]) -> list[str]:
        """Return ``program``, a module's name: torchrun starts python itself unless the ranks'
        command line sets variables.
        """
        if self.env:
            return ["--no-python", *super().run_python(program)]
        return [*program]

    def hosts(self) -> dict[str, int]:
        """Return the CPUs that this process may use on this host."""
        return hosts.find_hosts(None, {})


def open_torchrun(placement: Placement) -> Launcher:
    """Return torchrun.

    Raises:
        InputError: other hosts or a binding were requested.
    """
    return TorchrunLauncher(**vars(placement))
