"""An emulated cluster on one Linux machine: hosts are network namespaces whose links have a shaped
rate.

May import launch.launchers for the names of variables; must not import the conductor or ranks.
``agent`` runs as a script without site packages, so it imports the standard library only.
"""

from commbench.launch.lab.labs import (
    DEFAULT_NAME,
    NOT_EMULATED,
    Lab,
    check_machine,
    find_all,
    run_in_lab,
    start_lab,
)
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
