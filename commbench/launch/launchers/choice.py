"""The choice of a launcher: the requested one, else the first that this machine can use, MPI
first.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from collections.abc import Callable, Mapping

from commbench.errors import InputError, unknown_choice
from commbench.launch.launchers.base import Launcher, Placement
from commbench.launch.launchers.hosts import check_interface, named_hostfile
from commbench.launch.launchers.mpirun import (
    find_mpirun,
    has_mpi4py,
    no_launcher,
    open_mpi,
    open_program,
)
from commbench.launch.launchers.slurm import in_allocation, open_srun
from commbench.launch.launchers.torchrun import TorchrunLauncher
from commbench.units import counted


def _open_mpirun(placement: Placement) -> Launcher:
    return open_mpi(find_mpirun(), placement)


def _open_mpiexec(placement: Placement) -> Launcher:
    return open_mpi(find_mpirun(("mpiexec", "mpirun")), placement)


def _open_torchrun(placement: Placement) -> Launcher:
    return TorchrunLauncher(**vars(placement))


#: The launchers that a person can request by name; a path works as well.
LAUNCHERS: Mapping[str, Callable[[Placement], Launcher]] = {
    "mpirun": _open_mpirun,
    "mpiexec": _open_mpiexec,
    "srun": open_srun,
    "torchrun": _open_torchrun,
}


def choose_launcher(requested: str | None = None, placement: Placement | None = None) -> Launcher:
    """Choose an MPI launcher if one can be used, else srun in a Slurm job, else torchrun.

    Args:
        requested: one of `LAUNCHERS` or the path of an mpirun or mpiexec.
        placement: where ranks go; without a hostfile in it, the file that COMMBENCH_HOSTFILE names
            applies, else the node file of a PBS job.

    Raises:
        InputError: there is no usable launcher, or it cannot do what was requested.
    """
    placement = placement or Placement()
    hostfile = placement.hostfile or named_hostfile(placement.environ)
    placement = dataclasses.replace(placement, hostfile=hostfile)
    if requested is None:
        requested = _find_usable(placement)
    launcher = _open(requested, placement)
    # elsewhere interfaces may have other names
    if placement.interface is not None and launcher.is_local:
        check_interface(placement.interface)
    return launcher


def _open(name: str, placement: Placement) -> Launcher:
    if "/" in name:
        return open_program(name, placement)
    if name not in LAUNCHERS:
        raise unknown_choice("launcher", name, LAUNCHERS, ", or give a path")
    return LAUNCHERS[name](placement)


def _find_usable(placement: Placement) -> str:
    """Return the launcher for this machine.

    Raises:
        InputError: there is none.
    """
    if find_mpirun() is not None and has_mpi4py():
        return "mpirun"
    if in_allocation(placement.environ) and shutil.which("srun") is not None:
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
