"""Slurm: srun as the starter of ranks inside an allocation, and what an mpirun without Slurm support has to be told."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.launch.identity import tasks_per_node
from commbench.launch.launchers.base import Placement, run_by_mpi4py

_CPU_BIND = {"core": "cores", "hwthread": "threads", "numa": "ldoms", "none": "none"}
_QUERY_S = 20


@dataclass(frozen=True, kw_only=True)
class SrunLauncher(Placement):
    """srun: every launch is a step of the allocation that this process is in. It needs Slurm 20.11 or newer."""

    srun: str = "srun"
    """Path of the program."""
    mpi_type: str = "none"
    """How Slurm tells MPI of its ranks, see `mpi_type`."""
    name: str = "srun"
    forwards_signals: bool = True

    @property
    def carries_mpi(self) -> bool:
        """Whether Slurm tells MPI of its ranks: through PMI or PMIx, or Intel's own client of Slurm's library."""
        return self.mpi_type != "none" or "I_MPI_PMI_LIBRARY" in self.environ

    def command(self, ranks: int, program: Sequence[str], *, training: bool = False) -> list[str]:
        """``srun -n ranks ... python program``, through mpi4py's runner where MPI sees the ranks.

        ``--overlap``: in an interactive step of the person's own nothing would be left for ours.
        """
        options = ["--overlap", "--kill-on-bad-exit=1", "--input=0", "--export=ALL", *self._nodes(ranks)]
        cpus = self.environ.get("SLURM_CPUS_PER_TASK")  # from Slurm 22.05 on srun does not take it over by itself
        options += [f"--cpus-per-task={cpus}"] if cpus else []
        options += [] if self.binds_itself else [f"--cpu-bind={_CPU_BIND[self.binding(ranks, training=training)]}"]
        options += ["--overcommit"] if ranks > self.slots() else []
        run = run_by_mpi4py(program) if self.carries_mpi else [sys.executable, *program]
        return [self.srun, "-n", str(ranks), *options, *self.extra, *run]

    def _nodes(self, ranks: int) -> list[str]:
        most = self.ranks_per_node
        return [] if most is None else [f"--nodes={-(-ranks // most)}", f"--ntasks-per-node={most}"]

    def environment(self) -> dict[str, str]:
        """Beside what all launchers add, a port where the ranks meet that do so without MPI."""
        meeting = {} if self.carries_mpi or "MASTER_PORT" in self.environ else {"MASTER_PORT": str(_free_port())}
        return super().environment() | meeting


def _free_port() -> int:
    """A port that nobody uses here: in a batch script this is the first node, where rank 0 listens."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def in_allocation(environ: Mapping[str, str]) -> bool:
    """Whether this process may start steps of a Slurm job."""
    return "SLURM_JOB_ID" in environ


def mpi_type(extra: Sequence[str], environ: Mapping[str, str]) -> str:
    """How srun will tell MPI of its ranks: ``none``, ``pmi2``, ``pmix``...: as asked for, else the site's default."""
    words = list(extra)
    for index, word in enumerate(words):
        if word.startswith("--mpi="):
            return word.partition("=")[2]
        if word == "--mpi" and index + 1 < len(words):
            return words[index + 1]
    default = re.search(r"MpiDefault\s*=\s*(\S+)", _ask(["scontrol", "show", "config"]))
    return environ.get("SLURM_MPI_TYPE") or (default[1] if default else "none")


def nodes_to_name(mpirun: str, environ: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Hosts and slots of a Slurm job of several nodes for an Open MPI built without Slurm; others ask themselves."""
    slots = tasks_per_node(environ.get("SLURM_TASKS_PER_NODE", ""))
    if not in_allocation(environ) or len(slots) < 2 or _knows_slurm(mpirun):  # noqa: PLR2004 - several
        return ()
    names = _ask(["scontrol", "show", "hostnames", environ.get("SLURM_JOB_NODELIST", "")]).split()
    return tuple(zip(names, slots, strict=False))


def _knows_slurm(mpirun: str) -> bool:
    """Whether an Open MPI can start its daemons by Slurm; taken for granted where it does not tell."""
    told = "".join(_ask([str(Path(mpirun).with_name(name))]) for name in ("prte_info", "ompi_info"))
    return not re.search(r"MCA plm: ", told) or bool(re.search(r"MCA plm: slurm", told))


def _ask(command: Sequence[str]) -> str:
    """What a program answers; empty where it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
