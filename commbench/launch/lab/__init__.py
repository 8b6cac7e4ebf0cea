"""An emulated cluster on one Linux machine: hosts are network namespaces whose links have a shaped rate."""

from commbench.launch.lab.cluster import NOT_EMULATED, check_machine, run_in_lab, start_lab
from commbench.launch.lab.plan import MAX_HOSTS, RATE_HINT, LabPlan, format_rate
from commbench.launch.lab.registry import DEFAULT_NAME
from commbench.launch.lab.standing import Lab, find_all

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
