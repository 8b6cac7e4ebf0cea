"""An emulated cluster on one Linux machine: hosts are network namespaces whose links have a shaped rate."""

from commbench.lab.cluster import NOT_EMULATED, run_in_lab
from commbench.lab.plan import MAX_HOSTS, RATE_HINT

__all__ = ["MAX_HOSTS", "NOT_EMULATED", "RATE_HINT", "run_in_lab"]
