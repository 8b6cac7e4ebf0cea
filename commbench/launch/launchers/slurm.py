"""Slurm: srun as the launcher inside an allocation, and the hosts for an mpirun without Slurm
support.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.errors import InputError
from commbench.launch.identity import output_of
from commbench.launch.launchers.base import Launcher, Placement
from commbench.launch.launchers.hosts import find_hosts

_CPU_BIND = {"core": "cores", "hwthread": "threads", "numa": "ldoms", "none": "none"}


@dataclass(frozen=True, kw_only=True)
class SrunLauncher(Launcher):
    """srun: every launch is a step of the allocation that this process runs in.

    It needs Slurm 20.11 or newer.
    """

    mpi_type: str = "none"
    """The plugin by which Slurm tells MPI its ranks, see `mpi_type`."""
    name: str = "srun"
    path: str = "srun"

    @property
    def carries_mpi(self) -> bool:
        """Whether Slurm tells MPI its ranks: through PMI or PMIx, or Intel's own client of Slurm's
        library.
        """
        return self.mpi_type != "none" or "I_MPI_PMI_LIBRARY" in self.environ

    def options(self, ranks: int, binding: str) -> list[str]:
        """Return the options.

        ``--overlap``: a person's own interactive step would leave nothing for ours.
        """
        options = ["--overlap", "--kill-on-bad-exit=1", "--input=0", "--export=ALL"]
        most = self.ranks_per_node
        if most is not None:
            options += [f"--nodes={-(-ranks // most)}", f"--ntasks-per-node={most}"]
        cpus = self.environ.get("SLURM_CPUS_PER_TASK")  # since Slurm 22.05 srun does not read it
        if cpus:
            options.append(f"--cpus-per-task={cpus}")
        if binding:
            options.append(f"--cpu-bind={_CPU_BIND[binding]}")
        if ranks > self.slots():
            options.append("--overcommit")
        return options

    def environment(self) -> dict[str, str]:
        """Add a port for the rendezvous of ranks that MPI does not see."""
        variables = super().environment()
        if not self.carries_mpi and "MASTER_PORT" not in self.environ:
            with socket.socket() as listener:
                # free here: a batch script runs on the first node, where rank 0 listens
                listener.bind(("", 0))
                variables["MASTER_PORT"] = str(listener.getsockname()[1])
        return variables


def open_srun(placement: Placement) -> Launcher:
    """Return srun, inside an allocation only: outside, each launch would queue.

    Raises:
        InputError: there is no srun or no allocation, or a hostfile was given, which srun does not
            read.
    """
    program = shutil.which("srun")
    environ = placement.environ
    if program is None or "SLURM_JOB_ID" not in environ:
        there = "is there but this is no Slurm allocation"
        if program is None:
            there = "is not on the PATH"
        raise InputError(
            f"--launcher srun was asked for and srun {there}; call commbench within sbatch or"
            " salloc."
        )
    if placement.hostfile is not None:
        raise InputError(
            "A hostfile was given but srun takes its hosts from Slurm; leave it out, or use mpirun."
        )
    plugin = "none"
    if importlib.util.find_spec("mpi4py") is not None:
        plugin = mpi_type(placement.extra, environ)
    return SrunLauncher(path=program, mpi_type=plugin, **vars(placement))


def mpi_type(extra: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the plugin by which srun tells MPI its ranks, e.g.

    ``none`` or ``pmix``: the requested or the site's.
    """
    requested = re.search(r"--mpi[= ](\S+)", " ".join(extra))
    if requested:
        return requested[1]
    if environ.get("SLURM_MPI_TYPE"):
        return environ["SLURM_MPI_TYPE"]
    default = re.search(r"MpiDefault\s*=\s*(\S+)", output_of(["scontrol", "show", "config"]))
    if default:
        return default[1]
    return "none"


def nodes_to_name(mpirun: str, environ: Mapping[str, str]) -> Mapping[str, int]:
    """Return the slots by host of a Slurm job of several nodes for an Open MPI built without
    Slurm, else nothing.
    """
    if "SLURM_JOB_ID" not in environ:
        return {}
    nodes = find_hosts(None, environ)
    if len(nodes) == 1:
        return {}
    report = ""
    for name in ("prte_info", "ompi_info"):
        report += output_of([str(Path(mpirun).with_name(name))])
    if "MCA plm: " not in report or "MCA plm: slurm" in report:  # assumed if it does not tell
        return {}
    return nodes
