"""Analyses of a run, each computed once per run."""

from __future__ import annotations

from commbench.analysis import scaling
from commbench.analysis.soak import Soak, soak_of
from commbench.analysis.stragglers import find_stragglers
from commbench.analysis.stragglers.judging import Search
from commbench.engine.records import Row
from commbench.results import Run, once_per_run


@once_per_run
def straggler_findings(run: Run) -> Search:
    """Return the hosts, ranks and links that are slower than their peers."""
    return find_stragglers(run.matrices, run.records, run.info)


@once_per_run
def soak_results(run: Run) -> Soak | None:
    """Return the time line, events and drift of a soak; None for another run."""
    return soak_of(run.records, run.info)


@once_per_run
def all_rank_rows(run: Run) -> list[Row]:
    """Return the rows of ``collectives.csv`` for cases in which all ranks take part."""
    return scaling.all_rank_rows(run.records, run.keyed_rows)


@once_per_run
def growths(run: Run) -> list[scaling.Growth]:
    """Return the growth of time with the number of ranks; empty if the run is no scaling study."""
    return scaling.growths(run.records, run.keyed_rows, run.info)
