"""Matrices of rank pairs as tables of hosts or ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text

from commbench.analysis.runs import straggler_findings
from commbench.analysis.stragglers.judging import Straggler
from commbench.analysis.stragglers.matrix import Links, numbered_hosts
from commbench.collectives.operations import OPERATIONS
from commbench.findings import Finding
from commbench.report.collectives import pairs_table
from commbench.report.columns import Cell, Table, plain_table
from commbench.results import Run
from commbench.results.pairs import Matrix
from commbench.units import counted, format_time, three_digits, time_unit

#: The most hosts or ranks in a full table; of more, only the slowest pairs are shown.
SHOWN = 10
MOST_PAIRS = 10
_MARK = "*"
#: Units of rates: in GB/s, the rates of short messages would have many zeros.
_RATE_UNITS = ((1.0, "GB/s"), (1e-3, "MB/s"), (1e-6, "kB/s"))
#: The most characters of a host name in a column heading: a table must also fit the width of a log.
WIDTH, PADDING = 100, 3


def render_matrices(run: Run) -> list[RenderableType]:
    """Return every matrix of a run as a table: hosts by hosts if there are several hosts, else
    ranks by ranks; of many the slowest pairs.
    """
    parts: list[RenderableType] = []
    is_marked = False
    for matrix in run.matrices:
        names, links = _units(matrix)
        if len(names) > SHOWN:
            parts.append(pairs_table(run, matrix, MOST_PAIRS))
        else:
            slow = [
                each for each in straggler_findings(run).stragglers if each.measured == matrix.name
            ]
            is_marked = is_marked or any(straggler.links for straggler in slow)
            parts.append(_each_with_each(matrix, names, links, slow))
        if matrix.untimed:
            numbers = {"untimed": matrix.untimed, "pairs": matrix.untimed + len(matrix.source)}
            parts.append(Text(str(Finding("pairs_untimed", numbers=numbers)), style="yellow"))
    if is_marked:
        text = f"\n{_MARK} slow because of a straggler named below"
        parts.append(Text(text, style="yellow"))
    return parts


def _units(matrix: Matrix) -> tuple[list[str], Links]:
    """Return hosts if there are several, else ranks, and the logarithm of each link's median time
    over launches.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log(np.where(matrix.is_sound, matrix.time_us, np.nan))[None, :]
    links = Links(source=matrix.source, target=matrix.target, values=values)
    hosts, place = numbered_hosts(matrix.hosts)
    if len(hosts) > 1:
        return hosts, links.gathered(place)
    return [f"rank {rank}" for rank in range(len(matrix.hosts))], links


def _scale(matrix: Matrix, links: Links) -> tuple[str, Callable[[float], str]]:
    """Return the quantity in the cells, in a unit that suits the fastest link, and the formatter of
    a time in us.
    """
    fastest_us = math.exp(np.nanmin(links.values, initial=math.inf))
    if OPERATIONS[matrix.case.operation].quantity == "time":
        scale, unit = time_unit(1e-6 * fastest_us)
        return f"time in {unit}", lambda time_us: three_digits(1e-6 * time_us / scale)
    scale, unit = rate_unit(matrix.rate_GBps(fastest_us))
    return unit, lambda time_us: f"{matrix.rate_GBps(time_us) / scale:.3g}"


def rate_unit(most_GBps: float) -> tuple[float, str]:  # noqa: N803 - a unit
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
        return _range(format_time(1e-6 * least_us), format_time(1e-6 * most_us))
    low, high = float(matrix.rate_GBps(most_us)), float(matrix.rate_GBps(least_us))
    scale, unit = rate_unit(high)
    return f"{_range(three_digits(low / scale), three_digits(high / scale))} {unit}"


def _range(low: str, high: str) -> str:
    if low == high:
        return low
    return f"{low} to {high}"


def _each_with_each(
    matrix: Matrix, names: Sequence[str], links: Links, stragglers: Sequence[Straggler]
) -> Table:
    quantity, text_of = _scale(matrix, links)
    extent = counted(len(matrix.times_us), "launch")
    if len(names) < len(matrix.hosts):
        extent = f"median pair of ranks, {extent}"
    times = np.full((len(names), len(names)), np.nan)
    times[links.source, links.target] = np.exp(links.values[0])
    headings = names
    if (len(names) + 1) * (max(map(len, names)) + PADDING) > WIDTH:
        headings = [str(number) for number in range(1, len(names) + 1)]
    lines: list[list[str | Cell]] = []
    for source, heading, times_us in zip(names, headings, times.tolist(), strict=True):
        line: list[str | Cell] = [source if source == heading else f"{heading} {source}"]
        for target, time_us in zip(names, times_us, strict=True):
            if math.isnan(time_us):
                line.append(Cell("-", tone="quiet"))
            elif any(straggler.covers(source, target) for straggler in stragglers):
                line.append(Cell(f"{text_of(time_us)}{_MARK}", tone="bad"))
            else:
                line.append(text_of(time_us))
        lines.append(line)
    title = f"{matrix.name}, matrix: {quantity} from row to column ({extent})"
    return plain_table(["", *headings], lines, title=title, words=1)
