"""Matrices of rank pairs as tables of hosts or ranks, and the sentence about stragglers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from commbench.analysis.stragglers.judging import Family, Findings, Straggler
from commbench.analysis.stragglers.matrix import Links, numbered_hosts
from commbench.collectives.operations import OPERATIONS
from commbench.report.columns import Cell, plain_table, printed
from commbench.report.formats import listed, percent
from commbench.results.pairs import Matrix
from commbench.results.tables import rows_by
from commbench.units import counted, format_time, three_digits, time_unit

#: The most hosts or ranks in a full table; of more, only the slowest are shown.
SHOWN = 10
WORST = 5
_MARK = "*"
#: Units of rates: in GB/s, the rates of short messages would have many zeros.
_RATE_UNITS = ((1.0, "GB/s"), (1e-3, "MB/s"), (1e-6, "kB/s"))
#: The most characters of a host name in a column heading: a table must also fit the width of a log.
WIDTH, PADDING = 100, 3


def render_matrices(matrices: Sequence[Matrix], findings: Findings) -> list[RenderableType]:
    """Return every matrix as a table: hosts by hosts if there are several hosts, else ranks by
    ranks.
    """
    parts = [part for matrix in matrices for part in _render(matrix, findings.stragglers)]
    if not any(straggler.links for straggler in findings.stragglers):
        return parts
    return [*parts, Text(f"\n{_MARK} slow because of a straggler named below", style="yellow")]


def _render(matrix: Matrix, stragglers: Iterable[Straggler]) -> list[RenderableType]:
    """Return the title and the table of one matrix."""
    names, links = _units(matrix)
    matrix_stragglers = [straggler for straggler in stragglers if straggler.measured == matrix.name]
    quantity, text_of = _scale(matrix, links)
    table = (_each_with_each if len(names) <= SHOWN else _worst)(
        text_of, names, links, matrix_stragglers
    )
    per = "median pair of ranks, " if len(names) < len(matrix.hosts) else ""
    launches = counted(len(matrix.times_us), "launch")
    title = Text(
        f"\n{matrix.name}, matrix: {quantity} from row to column ({per}{launches})", style="bold"
    )
    return [title, table, *_untimed(matrix)]


def _untimed(matrix: Matrix) -> list[RenderableType]:
    """Return a sentence with the number of untimed pairs, if there are any."""
    if not matrix.untimed:
        return []
    pairs = matrix.untimed + len(matrix.source)
    why = "none of their repetitions started on time; use --sync dissemination"
    return [
        Text(
            f"{matrix.untimed} of {pairs} pairs of ranks could not be timed: {why}", style="yellow"
        )
    ]


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
    return next(
        (scale, unit)
        for scale, unit in _RATE_UNITS
        if most_GBps >= scale or unit == _RATE_UNITS[-1][1]
    )


def name_range(
    matrix: Matrix,
    mask: NDArray[np.bool_],
    shares: tuple[float, float] = (0.0, 1.0),
    unit: str = "",
) -> str:
    """Return the range over pairs: ``5.86 to 21.9 MB/s``, or one value if both ends agree.

    Empty without valid pairs.

    Args:
        matrix: the measured matrix.
        mask: a mask of the pairs, (pairs,).
        shares: quantiles of the ends; each end is the time of an actual pair.
        unit: the unit of rates; default: one that suits the fastest pair.
    """
    times_us = matrix.time_us[mask & matrix.is_sound]
    if not len(times_us):
        return ""
    least_us = float(np.quantile(times_us, shares[0], method="lower"))
    most_us = float(np.quantile(times_us, shares[1], method="higher"))
    if OPERATIONS[matrix.case.operation].quantity == "time":
        return " to ".join(
            dict.fromkeys(format_time(1e-6 * time_us) for time_us in (least_us, most_us))
        )
    low, high = (float(matrix.rate_GBps(time_us)) for time_us in (most_us, least_us))
    scale, unit = next((scaled for scaled in _RATE_UNITS if scaled[1] == unit), None) or rate_unit(
        high
    )
    return (
        f"{' to '.join(dict.fromkeys(three_digits(rate / scale) for rate in (low, high)))} {unit}"
    )


def _each_with_each(
    text_of: Callable[[float], str],
    names: Sequence[str],
    links: Links,
    stragglers: Sequence[Straggler],
) -> Table:
    times = np.full((len(names), len(names)), np.nan)
    times[links.source, links.target] = np.exp(links.values[0])
    headings = _headings(names)
    lines: list[list[str | Cell]] = [
        [
            source if source == heading else f"{heading} {source}",
            *(
                _cell(
                    text_of,
                    time,
                    slow=any(straggler.covers(source, target) for straggler in stragglers),
                )
                for target, time in zip(names, line, strict=True)
            ),
        ]
        for source, heading, line in zip(names, headings, times.tolist(), strict=True)
    ]
    table = printed(plain_table(["", *headings], lines, words=1))
    table.columns[0].overflow, table.columns[0].no_wrap = "fold", False
    return table


def _headings(names: Sequence[str]) -> list[str]:
    """Return the column headings: names, or numbers if the names do not fit."""
    if (len(names) + 1) * (max(map(len, names)) + PADDING) <= WIDTH:
        return list(names)
    return [str(number) for number in range(1, len(names) + 1)]


def _worst(
    text_of: Callable[[float], str],
    names: Sequence[str],
    links: Links,
    stragglers: Sequence[Straggler],
) -> Table:
    """Return the hosts or ranks that are slowest relative to the other links of their partners."""
    between = links[links.source != links.target]
    sends, receives = (scores[0] for scores in between.scores(len(names)))
    score = np.fmax(sends, receives)
    typical = float(np.nanmedian(score))
    order = np.argsort(-np.nan_to_num(score, nan=-math.inf), kind="stable")
    lines: list[list[str | Cell]] = []
    for unit in order[:WORST].tolist():
        ends = ((names[unit], ""), ("", names[unit]))
        cells = [
            _cell(
                text_of,
                math.exp(way[unit]),
                slow=any(straggler.covers(*end) for straggler in stragglers),
            )
            for way, end in zip((sends, receives), ends, strict=True)
        ]
        lines.append([names[unit], *cells, f"{math.exp(score[unit] - typical):.2f}"])
    headings = (f"worst {WORST} of {len(names)}", "sends", "receives", "times the typical")
    return printed(plain_table(headings, lines, words=1))


def _cell(text_of: Callable[[float], str], time_us: float, *, slow: bool) -> Cell:
    if math.isnan(time_us):
        return Cell("-", tone="quiet")
    return Cell(f"{text_of(time_us)}{_MARK if slow else ''}", tone="bad" if slow else "")


# ------------------------------------------------------------------------------------- the sentence


def conclude(findings: Findings) -> str:
    """Return the stragglers in one paragraph; empty if nothing could be compared."""
    parts = [*_names(findings.stragglers)]
    judged_families = [
        family for family in findings.families if family.launches >= family.needed > 0
    ]
    unjudged = [family for family in findings.families if family.launches < family.needed]
    if judged_families and not parts:
        parts.append(_none(judged_families))
    if unjudged:
        parts.append(_unjudged(unjudged))
    return f"Slow: {'; '.join([*parts, *findings.remarks])}." if parts or findings.remarks else ""


def _names(stragglers: Iterable[Straggler]) -> list[str]:
    """Return one clause for each straggler, also if several quantities show it."""
    clauses = []
    for (name, does), observations in rows_by(
        stragglers, lambda straggler: (straggler.name, straggler.does)
    ).items():
        first, *others = sorted(observations, key=lambda straggler: -straggler.factor)
        also = "".join(f", {_times(other)} in {other.measured}" for other in others)
        clauses.append(f"{name}{does.format(_times(first))} in {first.measured}{also}")
    return clauses[:WORST] + (
        [f"and {len(clauses) - WORST} more in run.json"] if len(clauses) > WORST else []
    )


def _times(straggler: Straggler) -> str:
    interval = f" [{straggler.ci[0]:.3g}, {straggler.ci[1]:.3g}]" if straggler.ci else ""
    return f"{straggler.factor:.3g} times{interval}"


def _none(families: Sequence[Family]) -> str:
    counts, detectable = _by_kind(families)
    units = listed([counted(count, kind) for kind, count in counts.items()])
    least = listed([f"a {kind} {percent(ratio - 1)} slower" for kind, ratio in detectable.items()])
    return (
        f"none of {units} differs from its peers by more than noise ({least} would have been seen)"
    )


def _unjudged(families: Sequence[Family]) -> str:
    counts, _ = _by_kind(families)
    units = listed([counted(count, kind) for kind, count in counts.items()])
    largest_effects = [
        float(np.nanmax(family.judgement.effects, initial=0.0)) for family in families
    ]
    # prefer the coarsest of near-equals: every link of a slow host is slow
    worst = next(
        family
        for family, effect in zip(families, largest_effects, strict=True)
        if effect >= 0.8 * max(largest_effects)
    )
    slowest = f" ({worst.slowest} came out slowest)" if worst.slowest else ""
    return f"not judged: {units}, because {why_unjudged(families)}{slowest}"


def why_unjudged(families: Sequence[Family]) -> str:
    """Return the reason: the number of launches, and the number that would suffice."""
    launches, needed_launches = (
        max(family.launches for family in families),
        max(family.needed for family in families),
    )
    return (
        f"{counted(launches, 'launch')} cannot distinguish slowness from chance and"
        f" {needed_launches} would"
    )


def _by_kind(families: Sequence[Family]) -> tuple[dict[str, int], dict[str, float]]:
    """Return the number of units of each kind, and the ratio that would have been detected in any
    family.
    """
    counts: dict[str, int] = {}
    detectable: dict[str, float] = {}
    for family in families:
        counts[family.kind] = max(counts.get(family.kind, 0), family.count)
        detectable[family.kind] = max(detectable.get(family.kind, 1.0), family.judgement.detectable)
    return counts, detectable
