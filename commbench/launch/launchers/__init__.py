"""The launchers that start ranks for us, one adapter a file behind one interface, and the choice among them."""

from commbench.launch.launchers.base import Launcher, Placement
from commbench.launch.launchers.choice import LAUNCHERS, check_slots, choose_launcher, find_mpirun
from commbench.launch.launchers.hosts import EMULATED, HOSTFILE, check_interface, interface_variables, read_hostfile
from commbench.launch.launchers.mpirun import MpiexecLauncher, MpirunLauncher
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
    "read_hostfile",
]
