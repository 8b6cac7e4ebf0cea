"""Matrices of rank pairs as cells, and as tables."""

from __future__ import annotations

import itertools
import math
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
from commbench.report.columns import Cell, Table, plain_table
from commbench.results import Run
from commbench.results.pairs import Matrix
from commbench.stats import Floats
from commbench.units import counted, format_time, three_digits

#: The most ranks in a full table; of more, only the slowest pairs are shown.
SHOWN = 10
MOST_PAIRS = 10
_MARK = "*"
#: Units of rates: in GB/s, the rates of short messages would have many zeros.
_RATE_UNITS = ((1.0, "GB/s"), (1e-3, "MB/s"), (1e-6, "kB/s"))
#: The most characters of a host name in a column heading: a table must also fit the width of a log.
WIDTH, PADDING = 100, 3


def render_matrices(run: Run) -> Iterator[RenderableType]:
    """Yield every matrix of a run as a table of ranks, which are hosts where each host has one;
    of many ranks the slowest pairs.
    """
    is_marked = False
    for matrix in run.matrices:
        if len(matrix.hosts) > SHOWN:
            yield pairs_table(run, matrix, MOST_PAIRS)
        else:
            heat = heat_of(matrix, run)
            is_marked = is_marked or bool(heat.slow)
            yield _each_with_each(matrix, heat)
        if matrix.untimed:
            numbers = {"untimed": matrix.untimed, "pairs": matrix.untimed + len(matrix.source)}
            yield Text(str(Finding("pairs_untimed", numbers=numbers)), style="yellow")
    if is_marked:
        yield Text(f"\n{_MARK} slow because of a straggler named below", style="yellow")


def _each_with_each(matrix: Matrix, heat: Heat) -> Table:
    names = list(heat.hosts)
    headings = names
    if len(set(names)) < len(names):
        headings = [f"rank {rank}" for rank in range(len(names))]
        names = headings
        if len(set(heat.hosts)) > 1:
            names = [f"on {host}" for host in heat.hosts]
    elif (len(names) + 1) * (max(map(len, names)) + PADDING) > WIDTH:
        headings = [str(number) for number in range(1, len(names) + 1)]
    slow: set[tuple[int, int]] = set()
    for sources, targets in heat.slow:
        slow.update(itertools.product(sources, targets))
    lines: list[list[str | Cell]] = []
    for source, heading in enumerate(headings):
        name = names[source]
        line: list[str | Cell] = [name if name == heading else f"{heading} {name}"]
        for target, value in enumerate(heat.cells[source].tolist()):
            if math.isnan(value):
                line.append(Cell("-", tone="quiet"))
            elif (source, target) in slow:
                line.append(Cell(f"{three_digits(value)}{_MARK}", tone="bad"))
            else:
                line.append(three_digits(value))
        lines.append(line)
    quantity = "time in us" if heat.is_time else heat.unit
    extent = counted(len(matrix.times_us), "launch")
    title = f"{matrix.name}, matrix: {quantity} from row to column ({extent})"
    return plain_table(["", *headings], lines, title=title, words=1)


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
