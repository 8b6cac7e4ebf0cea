"""Findings of a search for stragglers: what is slow, by how much, among how many, and what would be detectable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from commbench.analysis.stragglers.judging import RELEVANT, Floats, Judgement, judge, launches_needed
from commbench.schema import JsonObject

#: Any host or rank.
ANY = "*"


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A host, rank, link or group that is slower than its peers."""

    kind: str
    """``host``, ``rank``, ``link``, ``uplink`` (all links between two parts of the hosts) or ``group``."""
    name: str
    does: str
    """What it does slowly: the sentence after the name, with ``{}`` for the factor."""
    measured: str
    """The measured cases."""
    factor: float
    """Its time over that of its typical peer."""
    ci: tuple[float, float] | None
    """The factor's 95 % interval over launches; None for one launch."""
    steadiness: str
    """In how many launches it was slow."""
    links: Sequence[tuple[str, str]] = ()
    """The slow links of a matrix that it explains, from and to; `ANY` stands for all."""

    @property
    def evidence(self) -> str:
        """The measured cases, and in how many launches it was slow."""
        return f"{self.measured}, {self.steadiness}"

    def covers(self, source: str, target: str) -> bool:
        """Return whether it explains the link between two units of the matrix."""
        return any(a in {source, ANY} and b in {target, ANY} for a, b in self.links)

    def to_json(self) -> JsonObject:
        """Return its entry in ``run.json``."""
        return {
            "kind": self.kind,
            "name": self.name,
            "factor": round(self.factor, 4),
            "ci": None if self.ci is None else [round(bound, 4) for bound in self.ci],
            "evidence": self.evidence,
        }


@dataclass(frozen=True, kw_only=True)
class Family:
    """Units that were compared with each other."""

    kind: str
    """``host``, ``rank``, ``link`` or ``group``."""
    count: int
    """Number of compared units, without those that a coarser straggler explains."""
    judgement: Judgement
    launches: int
    level: float
    """Probability of a false alarm in this family."""
    stragglers: Sequence[Straggler] = ()
    slowest: str = ""
    """The slowest unit and its factor if that is relevant; a hint, not a finding."""
    measured: str = ""
    """The measured cases, as in `Straggler`."""

    @property
    def needed(self) -> int:
        """Launches needed to name the slowest of these units."""
        return launches_needed(self.count - 1, self.level / self.count) if self.count > 1 else 0


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The result of one search."""

    families: Sequence[Family] = ()
    remarks: Sequence[str] = ()
    """Warnings: one sentence for each question that the data cannot answer."""

    @property
    def stragglers(self) -> list[Straggler]:
        """All stragglers, coarse before fine, the slowest of each family first."""
        return [straggler for family in self.families for straggler in family.stragglers]

    @property
    def comparisons(self) -> int:
        """Number of compared units."""
        return sum(family.count for family in self.families)

    def to_json(self) -> JsonObject:
        """Return the entries of ``run.json``; empty if nothing was compared."""
        if not self.families and not self.remarks:
            return {}
        return {
            "suspects": [straggler.to_json() for straggler in self.stragglers],
            "suspects_comparisons": self.comparisons,
            "suspects_remarks": list(self.remarks),
        }


def joined(findings: Iterable[Findings]) -> Findings:
    """Return the findings of several searches as one."""
    searches = list(findings)
    return Findings(
        families=[family for finding in searches for family in finding.families],
        remarks=list(dict.fromkeys(remark for finding in searches for remark in finding.remarks)),
    )


@dataclass(frozen=True, kw_only=True)
class Words:
    """Name and phrases for one unit of a family; fields as in `Straggler`."""

    name: str
    does: str
    links: Sequence[tuple[str, str]] = ()


def make_family(
    kind: str, measured: str, values: Floats, say: Callable[[int, Judgement], Words], level: float, **options: bool
) -> Family:
    """Judge units by their values and name the slow ones, the slowest first.

    Args:
        kind: of the units, as in `Straggler`.
        measured: as in `Straggler`.
        values: logarithms of times, (launches, units); a unit with a missing launch is not judged.
        say: returns name and phrases of a slow unit.
        level: probability of a false alarm in this family.
        options: of `judge`.
    """
    judgement = judge(values, alpha=level, **options)
    return Family(
        kind=kind,
        count=int(np.isfinite(judgement.effects).sum()),
        judgement=judgement,
        launches=len(values),
        level=level,
        stragglers=[_straggler(kind, measured, unit, judgement, say(unit, judgement)) for unit in judgement.slow],
        slowest=_slowest(judgement, say),
        measured=measured,
    )


def _slowest(judgement: Judgement, say: Callable[[int, Judgement], Words]) -> str:
    effects = np.nan_to_num(judgement.effects, nan=-math.inf)
    unit = int(effects.argmax()) if len(effects) else 0
    if not len(effects) or effects[unit] < math.log(RELEVANT):
        return ""
    return f"{say(unit, judgement).name}, {math.exp(effects[unit]):.3g} times the typical,"


def _straggler(kind: str, measured: str, unit: int, judgement: Judgement, words: Words) -> Straggler:
    interval = judgement.interval(unit)
    launches = judgement.launches[:, unit]
    slower = int((launches > 0).sum())
    return Straggler(
        kind=kind,
        name=words.name,
        does=words.does,
        measured=measured,
        factor=math.exp(float(judgement.effects[unit])),
        ci=(interval.low, interval.high) if interval else None,
        steadiness=f"slower than the typical {kind} in {slower} of {len(launches)} launches, "
        f"p = {judgement.p_values[unit]:.1g}",
        links=words.links,
    )
