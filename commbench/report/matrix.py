"""Matrices of rank pairs as cells, and their slowest pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text

from commbench.analysis.stragglers import straggler_findings
from commbench.analysis.stragglers.judging import Links, Straggler
from commbench.collectives.operations import OPERATIONS
from commbench.findings import Finding
from commbench.report.collectives import pairs_table
from commbench.results import Run
from commbench.results.pairs import Matrix
from commbench.stats import Floats
from commbench.units import format_time, three_digits

#: The most pairs that a terminal shows.
MOST_PAIRS = 10
#: Units of rates: in GB/s, the rates of short messages would have many zeros.
_RATE_UNITS = ((1.0, "GB/s"), (1e-3, "MB/s"), (1e-6, "kB/s"))


def render_matrices(run: Run) -> Iterator[RenderableType]:
    """Yield the slowest pairs of each matrix of a run."""
    for matrix in run.matrices:
        yield pairs_table(run, matrix, MOST_PAIRS)
        if matrix.untimed:
            numbers = {"untimed": matrix.untimed, "pairs": matrix.untimed + len(matrix.source)}
            yield Text(str(Finding("pairs_untimed", numbers=numbers)), style="yellow")


@dataclass(frozen=True, kw_only=True)
class Heat:
    """A matrix as cells."""

    cells: Floats
    """Values from row to column in ``unit``, (ranks, ranks); NaN for untimed pairs."""
    unit: str
    """``us``, or GB/s, MB/s or kB/s, as suits the fastest pair."""
    hosts: Sequence[str]
    """The host of each rank."""
    stragglers: Sequence[Straggler]
    """The stragglers in this matrix."""

    @property
    def is_time(self) -> bool:
        """Whether a low value is good."""
        return self.unit == "us"

    @property
    def slow(self) -> Links:
        """The slow links by the ranks at their ends."""
        return [link for straggler in self.stragglers for link in straggler.links]


def heat_of(matrix: Matrix, run: Run) -> Heat:
    """Return a matrix as cells."""
    ranks = len(matrix.hosts)
    cells = np.full((ranks, ranks), np.nan)
    cells[matrix.source, matrix.target] = np.where(matrix.is_sound, matrix.time_us, np.nan)
    unit = "us"
    if OPERATIONS[matrix.case.operation].quantity != "time":
        cells = np.asarray(matrix.rate_GBps(cells))
        scale, unit = rate_unit(float(np.nanmax(cells, initial=0.0)))
        cells = cells / scale
    stragglers: list[Straggler] = []
    for family in straggler_findings(run).families:
        if family.measured == matrix.name:
            stragglers += family.stragglers
    return Heat(cells=cells, unit=unit, hosts=matrix.hosts, stragglers=stragglers)


def rate_unit(most_GBps: float) -> tuple[float, str]:
    """Return the unit for rates up to this one, in GB/s and by name."""
    for scale, unit in _RATE_UNITS:
        if most_GBps >= scale:
            return scale, unit
    return _RATE_UNITS[-1]


def name_range(matrix: Matrix, mask: NDArray[np.bool_]) -> str:
    """Return the range over pairs: ``5.86 to 21.9 MB/s``, or one value if both ends agree.

    Empty without valid pairs.

    Args:
        matrix: the measured matrix.
        mask: a mask of the pairs, (pairs,).
    """
    times_us = matrix.time_us[mask & matrix.is_sound]
    if not len(times_us):
        return ""
    least_us, most_us = float(np.min(times_us)), float(np.max(times_us))
    if OPERATIONS[matrix.case.operation].quantity == "time":
        ends = [format_time(1e-6 * least_us), format_time(1e-6 * most_us)]
        return " to ".join(dict.fromkeys(ends))
    rates = [float(matrix.rate_GBps(time_us)) for time_us in (most_us, least_us)]
    scale, unit = rate_unit(rates[1])
    ends = [three_digits(rate / scale) for rate in rates]
    return f"{' to '.join(dict.fromkeys(ends))} {unit}"
