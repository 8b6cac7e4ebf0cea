"""A run's directory: created or resumed under a lock, appended to case by case, summarised and read
back.

It may import `ddp.plan`, `engine.records`, `collectives`, `system`, `stats` and below; it must not
import analysis, tuner, launch or report. pandas is loaded when a table is made.
"""

from commbench.results.files import DDP, MODEL, PAIRS, SUMMARY
from commbench.results.reading import Run, load_run, once_per_run, runs_in
from commbench.results.writing import Store, check_out

__all__ = [
    "DDP",
    "MODEL",
    "PAIRS",
    "SUMMARY",
    "Run",
    "Store",
    "check_out",
    "load_run",
    "once_per_run",
    "runs_in",
]
