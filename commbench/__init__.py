"""commbench: times collectives and DDP training across ranks, sizes and launches, and says how sure it is."""

from commbench.cases import Case, Sweep
from commbench.records import Record
from commbench.report.comparison import compare
from commbench.store import load_run
from commbench.training.workload import Workload

__version__ = "0.1.0"
__all__ = ["Case", "Record", "Sweep", "Workload", "compare", "load_run"]
