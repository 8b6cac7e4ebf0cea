"""The choice of a launcher: the requested one, else the first that this machine can use, MPI
first.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from commbench.errors import InputError, unknown_choice
from commbench.launch.launchers.base import Launcher, Placement
from commbench.launch.launchers.hosts import check_interface, named_hostfile
from commbench.launch.launchers.mpirun import (
    find_mpirun,
    has_mpi4py,
    no_launcher,
    open_mpi,
)
from commbench.launch.launchers.slurm import open_srun
from commbench.launch.launchers.torchrun import open_torchrun
from commbench.units import counted

#: The launchers by the names that a person can request; a path works as well.
LAUNCHERS: Mapping[str, Callable[[Placement], Launcher]] = {
    "mpirun": open_mpi,
    "mpiexec": partial(open_mpi, names=("mpiexec", "mpirun")),
    "srun": open_srun,
    "torchrun": open_torchrun,
}


def choose_launcher(requested: str | None = None, placement: Placement | None = None) -> Launcher:
    """Choose an MPI launcher if one can be used, else srun in a Slurm job, else torchrun.

    Args:
        requested: one of `LAUNCHERS` or the path of an mpirun or mpiexec.
        placement: where ranks go; without a hostfile in it, the file that COMMBENCH_HOSTFILE names
            applies, else the file of a PBS, LSF or Grid Engine job.

    Raises:
        InputError: there is no usable launcher, it is no program, or it cannot do what was
            requested.
    """
    placement = placement or Placement()
    hostfile = placement.hostfile or named_hostfile(placement.environ)
    placement = dataclasses.replace(placement, hostfile=hostfile)
    if requested is None:
        requested = _find_usable(placement)
    if "/" in requested:
        if not os.access(requested, os.X_OK):
            raise InputError(
                f"The launcher {requested} is not a program; give the path of an mpirun or mpiexec."
            )
        launcher = open_mpi(placement, path=str(Path(requested).absolute()))
    elif requested in LAUNCHERS:
        launcher = LAUNCHERS[requested](placement)
    else:
        raise unknown_choice("launcher", requested, LAUNCHERS, ", or give a path")
    # elsewhere interfaces may have other names
    if placement.interface is not None and launcher.is_local:
        check_interface(placement.interface)
    return launcher


def _find_usable(placement: Placement) -> str:
    """Return the launcher for this machine.

    Raises:
        InputError: there is none.
    """
    if find_mpirun() is not None and has_mpi4py():
        return "mpirun"
    if "SLURM_JOB_ID" in placement.environ and shutil.which("srun") is not None:
        return "srun"
    if importlib.util.find_spec("torch") is not None:
        return "torchrun"
    raise InputError(no_launcher(find_mpirun()))


def check_slots(ranks: int, launcher: Launcher) -> None:
    """Refuse more ranks than slots, which measures how ranks share a core, unless it was requested.

    Raises:
        InputError: too many ranks for the slots or for the number of ranks per node; the sentence
            says what to add.
    """
    slots, limit = launcher.slots(), launcher.limit()
    if limit is not None and ranks > limit:
        raise InputError(
            f"{ranks} ranks were asked for but --ranks-per-node leaves room for {limit}; raise it,"
            f" name more hosts, or use -n {limit}."
        )
    if ranks > slots and not launcher.oversubscribe:
        remedy = "name more hosts"
        if launcher.hostfile is None and not launcher.is_local:
            remedy = "ask Slurm for more tasks (--ntasks), each of which is a slot"
        raise InputError(
            f"{ranks} ranks were asked for and there is room for {counted(slots, 'rank')}; add"
            f" --oversubscribe to let ranks share cores, {remedy}, or use -n {slots}."
        )
