"""What a search for the slow one comes to: who is named and by how much, out of how many, and what would be seen."""

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
    """What it does slowly, as a sentence goes on after the name, with ``{}`` for the factor."""
    measured: str
    """In what."""
    factor: float
    """How many times as long it takes as its typical peer."""
    ci: tuple[float, float] | None
    """The factor's 95 % interval over launches; None for one launch."""
    steadiness: str
    """How it showed over launches."""
    links: Sequence[tuple[str, str]] = ()
    """Of a matrix: the links that are slow with it, from and to; `ANY` stands for all."""

    @property
    def evidence(self) -> str:
        """What was measured, and how it showed."""
        return f"{self.measured}, {self.steadiness}"

    def covers(self, source: str, target: str) -> bool:
        """Whether the link between two of the matrix is slow because of this."""
        return any(a in {source, ANY} and b in {target, ANY} for a, b in self.links)

    def to_json(self) -> JsonObject:
        """The straggler as ``run.json`` holds it."""
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
    """Of the units: ``host``, ``rank``, ``link`` or ``group``."""
    count: int
    """How many units were compared with their peers; those that something coarser explains are not."""
    judgement: Judgement
    launches: int
    level: float
    """How probable a false alarm in this family may be."""
    stragglers: Sequence[Straggler] = ()
    slowest: str = ""
    """Which came out slowest and by how much, where that would matter; no more than a hint."""
    measured: str = ""
    """In what, as in `Straggler`."""

    @property
    def needed(self) -> int:
        """So many launches it takes to name the slowest of so many units."""
        return launches_needed(self.count - 1, self.level / self.count) if self.count > 1 else 0


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Of all that was measured together."""

    families: Sequence[Family] = ()
    remarks: Sequence[str] = ()
    """Warnings: one sentence for each question that the data cannot answer."""

    @property
    def stragglers(self) -> list[Straggler]:
        """All that are named, coarse before fine, each family the worst first."""
        return [straggler for family in self.families for straggler in family.stragglers]

    @property
    def comparisons(self) -> int:
        """How many units were compared with their peers."""
        return sum(family.count for family in self.families)

    def to_json(self) -> JsonObject:
        """The entries of ``run.json``; none where there was nothing to compare."""
        if not self.families and not self.remarks:
            return {}
        return {
            "suspects": [straggler.to_json() for straggler in self.stragglers],
            "suspects_comparisons": self.comparisons,
            "suspects_remarks": list(self.remarks),
        }


def joined(findings: Iterable[Findings]) -> Findings:
    """The findings of several things that were measured, in their order."""
    several = list(findings)
    return Findings(
        families=[family for one in several for family in one.families],
        remarks=list(dict.fromkeys(remark for one in several for remark in one.remarks)),
    )


@dataclass(frozen=True, kw_only=True)
class Words:
    """How to speak of one unit of a family; fields as in `Straggler`."""

    name: str
    does: str
    links: Sequence[tuple[str, str]] = ()


def make_family(
    kind: str, measured: str, values: Floats, say: Callable[[int, Judgement], Words], level: float, **options: bool
) -> Family:
    """Judge units by their values and name the slow ones, the worst first.

    Args:
        kind: of the units, as in `Straggler`.
        measured: as in `Straggler`.
        values: logarithms of times, (launches, units); a unit that lacks a launch is not judged.
        say: how to speak of a slow unit.
        level: how probable a false alarm in this family may be.
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
    known = np.nan_to_num(judgement.effects, nan=-math.inf)
    unit = int(known.argmax()) if len(known) else 0
    if not len(known) or known[unit] < math.log(RELEVANT):
        return ""
    return f"{say(unit, judgement).name}, {math.exp(known[unit]):.3g} times the typical,"


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
