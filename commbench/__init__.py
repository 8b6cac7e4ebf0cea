"""commbench: times collectives and DDP training across ranks, sizes and launches, and says how sure
it is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commbench.analysis.comparison import compare
    from commbench.collectives.cases import Case, Sweep
    from commbench.ddp.plan.workload import Workload
    from commbench.engine.records import Record
    from commbench.live.adopt import autotune
    from commbench.results import load_run

__version__ = "0.2.0"
__all__ = [
    "Case",
    "Record",
    "Sweep",
    "Workload",
    "autotune",
    "compare",
    "load_run",
]

#: The module of each name; loaded on first use, so that every import of a part of commbench stays
#: light.
_MODULES = {
    "Case": "collectives.cases",
    "Record": "engine.records",
    "Sweep": "collectives.cases",
    "Workload": "ddp.plan.workload",
    "autotune": "live.adopt",
    "compare": "analysis.comparison",
    "load_run": "results",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"commbench.{_MODULES[name]}"), name)
