"""commbench: times collectives and DDP training across ranks, sizes and launches, and says how sure it is."""

from typing import TYPE_CHECKING, Any

from commbench.analysis.comparison import compare
from commbench.collectives.cases import Case, Sweep
from commbench.ddp.plan.workload import Workload
from commbench.engine.records import Record
from commbench.results import load_run

if TYPE_CHECKING:
    from commbench.ddp.recording import record_gradients

__version__ = "0.1.0"
__all__ = ["Case", "Record", "Sweep", "Workload", "compare", "load_run", "record_gradients"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever bears that name
    """Import what needs torch once it is used."""
    if name != "record_gradients":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from commbench.ddp.recording import record_gradients

    return record_gradients
