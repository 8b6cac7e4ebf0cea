"""What a search for the slow one comes to: who is named and by how much, out of how many, and what would be seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commbench.suspects.judging import Floats, Judgement, judge, launches_needed


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A host, rank, link or group that is slower than its peers."""

    kind: str
    """``host``, ``rank``, ``link``, ``uplink`` (all links between two parts of the hosts) or ``group``."""
    name: str
    does: str
    """What it does slowly, as a sentence goes on: ``its links take``."""
    factor: float
    """How many times as long it takes as its typical peer."""
    ci: tuple[float, float] | None
    """The factor's 95 % interval over launches; None for one launch."""
    evidence: str
    """What was measured, and how steadily it showed."""

    def to_json(self) -> dict[str, Any]:
        """The suspect as ``run.json`` holds it."""
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

    noun: str
    """Of one unit: ``host``, ``link``, ..."""
    count: int
    """How many units were compared with their peers; those that something coarser explains are not."""
    judgement: Judgement
    launches: int
    level: float
    """How probable a false alarm in this family may be."""
    suspects: Sequence[Suspect] = ()

    @property
    def needed(self) -> int:
        """So many launches it takes to name the slowest of so many units."""
        return launches_needed(self.count - 1, self.level / self.count) if self.count > 1 else 0


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Of all that was measured together."""

    families: Sequence[Family] = ()
    remarks: Sequence[str] = ()
    """Sentences about what could not be told, and doubts."""

    @property
    def suspects(self) -> list[Suspect]:
        """All that are named, coarse before fine, each family the worst first."""
        return [suspect for family in self.families for suspect in family.suspects]

    @property
    def comparisons(self) -> int:
        """How many units were compared with their peers."""
        return sum(family.count for family in self.families)

    def to_json(self) -> dict[str, Any]:
        """The entries of ``run.json``; none where there was nothing to compare."""
        if not self.families and not self.remarks:
            return {}
        return {
            "suspects": [suspect.to_json() for suspect in self.suspects],
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
    """How a family speaks of its units."""

    kind: str
    does: str | Callable[[int, Judgement], str]
    """What a slow unit does, as in `Suspect`."""
    measured: str
    """What was measured."""


def make_family(values: Floats, name: Callable[[int], str], words: Words, level: float, **options: bool) -> Family:
    """Judge units by their values, (launches, units), and name the slow ones, the worst first.

    Args:
        values: logarithms of times; a unit that lacks a launch is not judged.
        name: of a unit.
        words: how to speak of them.
        level: how probable a false alarm in this family may be.
        options: of `judge`.
    """
    judgement = judge(values, alpha=level, **options)
    return Family(
        noun=words.kind,
        count=int(np.isfinite(judgement.effects).sum()),
        judgement=judgement,
        launches=len(values),
        level=level,
        suspects=[_suspect(name(unit), unit, judgement, words) for unit in judgement.slow],
    )


def _suspect(name: str, unit: int, judgement: Judgement, words: Words) -> Suspect:
    interval = judgement.interval(unit)
    in_launches = judgement.launches[:, unit]
    steadily = f"slower than the typical in {int((in_launches > 0).sum())} of {len(in_launches)} launches"
    return Suspect(
        kind=words.kind,
        name=name,
        does=words.does(unit, judgement) if callable(words.does) else words.does,
        factor=math.exp(float(judgement.effects[unit])),
        ci=(interval.low, interval.high) if interval else None,
        evidence=f"{words.measured}, {steadily}, p = {judgement.p_values[unit]:.2g}",
    )
