"""An emulated cluster on one Linux machine: hosts are network namespaces whose links have a shaped
rate.

May import launch.launchers for the names of variables; must not import the conductor or ranks.
``agent`` and ``visitor`` run as scripts without site packages, so they import the standard library
only.
"""

from commbench.launch.lab.cluster import NOT_EMULATED, check_machine, run_in_lab, start_lab
from commbench.launch.lab.labs import DEFAULT_NAME, Lab, find_all
from commbench.launch.lab.plan import MAX_HOSTS, RATE_HINT, LabPlan, format_rate

__all__ = [
    "DEFAULT_NAME",
    "MAX_HOSTS",
    "NOT_EMULATED",
    "RATE_HINT",
    "Lab",
    "LabPlan",
    "check_machine",
    "find_all",
    "format_rate",
    "run_in_lab",
    "start_lab",
]
