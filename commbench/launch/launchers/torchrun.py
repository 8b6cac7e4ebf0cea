"""torchrun on this host, for Gloo without MPI."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from commbench.errors import InputError
from commbench.launch.launchers import hosts
from commbench.launch.launchers.base import Launcher


@dataclass(frozen=True, kw_only=True)
class TorchrunLauncher(Launcher):
    """torchrun.

    Raises:
        InputError: other hosts or a binding were requested, which torchrun does not offer.
    """

    name: str = "torchrun"
    forwards_signals: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hostfile is not None:
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

    @property
    def carries_mpi(self) -> bool:
        """Never."""
        return False

    @property
    def is_local(self) -> bool:
        """Always: a person starts torchrun on each further host."""
        return True

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:  # noqa: ARG002
        """Return ``python -m torch.distributed.run --standalone --nproc-per-node ranks program``, a
        module's name.
        """
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        if self.env:  # torchrun starts python itself unless their command line sets variables
            program = ["--no-python", *self.run_python(program)]
        return [*start, "--nproc-per-node", str(ranks), *self.extra, *program]

    def hosts(self) -> dict[str, int]:
        """Return the CPUs that this process may use on this host."""
        return hosts.find_hosts(None, {})
