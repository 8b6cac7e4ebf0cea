"""The launchers that start ranks for the conductor, one module each behind one interface, and the
choice among them.

May import launch.identity and the packages below launch; must not import the conductor, ranks or
the lab.
"""

from commbench.launch.launchers.base import Launcher, Placement
from commbench.launch.launchers.choice import LAUNCHERS, check_slots, choose_launcher
from commbench.launch.launchers.hosts import (
    EMULATED,
    HOSTFILE,
    check_interface,
    interface_variables,
)
from commbench.launch.launchers.mpirun import MpiexecLauncher, MpirunLauncher, find_mpirun
from commbench.launch.launchers.slurm import SrunLauncher
from commbench.launch.launchers.torchrun import TorchrunLauncher

__all__ = [
    "EMULATED",
    "HOSTFILE",
    "LAUNCHERS",
    "Launcher",
    "MpiexecLauncher",
    "MpirunLauncher",
    "Placement",
    "SrunLauncher",
    "TorchrunLauncher",
    "check_interface",
    "check_slots",
    "choose_launcher",
    "find_mpirun",
    "interface_variables",
]
