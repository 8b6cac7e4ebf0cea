"""Judges units by their times: which are slower than their peers, by how much, and what would be
detectable.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from commbench import stats
from commbench.findings import Finding
from commbench.results.tables import rows_by
from commbench.schema import JsonObject
from commbench.stats import Floats
from commbench.stats.intervals import NORMAL
from commbench.words import Estimate

Indices = NDArray[np.intp]

#: Probability that a run without stragglers names any; divided over all comparisons of a run.
ALPHA = 0.01
#: The fewest units among which an outlier can be identified: of two, neither is the odd one.
FEWEST = 3
#: The smallest relevant ratio.
RELEVANT = 1.1
#: Counting takes long for more, such as the groups of steps of a long watched training.
EXACT_LAUNCHES = 200
#: Intended power at the detectable difference. Simulations give 88 to 100 %, because stragglers
#: also change the peers' spread.
POWER = 0.98

# Correction factors that make the median absolute deviation of 2 to 9 normal values unbiased: Croux
# and Rousseeuw, Time-efficient algorithms for two highly robust estimators of scale (1992).
_DEVIATION_FACTORS = {
    2: 1.196,
    3: 1.495,
    4: 1.363,
    5: 1.206,
    6: 1.200,
    7: 1.140,
    8: 1.129,
    9: 1.107,
}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The result for one family of units."""

    effects: Floats
    """Logarithm of each unit's time divided by its typical peer's time; NaN if unknown."""
    launches: Floats
    """The effects in each launch, (launches, units)."""
    p_values: Mapping[int, float] = field(default_factory=dict)
    """By slow unit, the slowest first: the probability that a typical unit ranks among the
    slowest as often."""
    detectable: float = math.inf
    """The ratio that would be detected in nine runs of ten; infinite with too few launches."""

    @property
    def slow(self) -> list[int]:
        """The slow units, the slowest first."""
        return list(self.p_values)


def judge(values: Floats, *, alpha: float, is_minority: bool = True) -> Judgement:
    """Return which units are slower than their peers.

    Args:
        values: logarithms of times, (launches, units); a unit with a missing launch is not judged.
        alpha: probability of any false alarm among these units.
        is_minority: whether fewer than half of the units may be slow; else up to three quarters.
    """
    complete = np.flatnonzero(np.isfinite(values).all(axis=0))
    effects, launches = np.full(values.shape[1], np.nan), np.full(values.shape, np.nan)
    if len(complete) < FEWEST or not len(values):
        return Judgement(effects=effects, launches=launches)
    complete_values = values[:, complete]
    error = _error(complete_values)
    peers = _peers(np.median(complete_values, axis=0), error, 0.5 if is_minority else 0.25)
    relative = complete_values - np.median(complete_values[:, peers], axis=1, keepdims=True)
    medians = np.median(relative, axis=0)
    effects[complete], launches[:, complete] = medians, relative
    level = alpha / len(complete)
    reach = NORMAL.inv_cdf(1 - level)
    limit = max(math.log(RELEVANT), reach * max(_spread(medians[peers]), error))
    is_beyond = medians > limit
    sums, ranks = _rank_sums(relative, is_beyond & (relative.min(axis=0) > limit / 2))
    p_values = {}
    for unit in np.argsort(-medians)[: int(is_beyond.sum())].tolist():
        p_value = rank_sum_p(int(sums[unit]), int(ranks[unit]), len(values))
        if p_value <= level:
            p_values[int(complete[unit])] = p_value
    return Judgement(
        effects=effects,
        launches=launches,
        p_values=p_values,
        detectable=_detectable(relative, limit, error, level),
    )


def launches_needed(peers: int, level: float) -> int:
    """Return the launches in which a unit must be the slowest among ``peers`` others to exclude
    chance.
    """
    return math.ceil(math.log(level) / -math.log(peers + 1))


def _error(values: Floats) -> float:
    """Return the standard error of a unit's median over launches, with the spread of launches
    pooled over units.
    """
    count, units = values.shape
    if count == 1:
        return 0.0
    relative = values - np.median(values, axis=1, keepdims=True)
    scatter = np.abs(relative - np.median(relative, axis=0))
    if not scatter.any():
        return 0.0
    spread = 1.4826 * float(np.median(scatter[scatter > 0]))
    return spread * math.sqrt(math.pi / 2 / (count - 1) * units / (units - 1))


def _peers(medians: Floats, error: float, start: float) -> Indices:
    """Return the typical units: all that are not far above the median, selected from the fast
    side.
    """
    tolerance = max(math.log(RELEVANT), 3 * error)
    centre = float(np.quantile(medians, start, method="inverted_cdf"))
    peers = np.flatnonzero(medians <= centre + tolerance)
    for _ in range(len(medians)):
        centre = float(np.median(medians[peers]))
        typical = np.flatnonzero(medians <= centre + tolerance)
        if len(typical) == len(peers):
            break
        peers = typical
    return peers


def _spread(medians: Floats) -> float:
    """Return the spread of peers: their median absolute deviation, scaled to a standard
    deviation.
    """
    count = len(medians)
    if count < 2:  # one has no spread
        return 0.0
    factor = _DEVIATION_FACTORS.get(count, count / (count - 0.8))
    return factor * 1.4826 * float(np.median(np.abs(medians - np.median(medians))))


def _rank_sums(relative: Floats, excluded: NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Return for each unit the sum of its ranks over launches, and the number of ranks.

    In each launch the unit gets a rank among itself and its peers, 1 the slowest. A typical unit
    gets each rank with equal probability, for any distribution of times. Units that are slow in
    every launch (``excluded``) are no peers, or two slow units would hide each other. Units that
    are slow in some launches stay peers: with bimodal times they show how often a slow time occurs
    by chance.
    """
    below = np.zeros(relative.shape[1], dtype=np.intp)
    for in_launch in relative:
        below += np.searchsorted(np.sort(in_launch[~excluded]), in_launch, side="left")
    # a unit that is itself a peer is counted already
    ranks = int((~excluded).sum()) + excluded.astype(np.intp)
    return len(relative) * ranks - below, ranks


def rank_sum_p(total: int, ranks: int, launches: int) -> float:
    """Return the probability that ``launches`` ranks, each uniform on 1 to ``ranks``, sum to at
    most ``total``.

    It counts the ways to throw ``launches`` dice with so many sides, by inclusion and exclusion;
    beyond `EXACT_LAUNCHES` it is the normal approximation, corrected for continuity.
    """
    if 2 * total >= launches * (ranks + 1):
        return 1.0
    if launches > EXACT_LAUNCHES:
        spread = math.sqrt(launches * (ranks**2 - 1) / 12)
        return NORMAL.cdf((total + 0.5 - launches * (ranks + 1) / 2) / spread)
    ways = 0
    for beyond in range((total - launches) // ranks + 1):  # so many ranks are above the largest
        most = total - ranks * beyond
        sign = (-1) ** beyond
        ways += sign * math.comb(launches, beyond) * math.comb(most, launches)
    return float(ways / ranks**launches)


def _detectable(relative: Floats, limit: float, error: float, level: float) -> float:
    """Return the ratio that a unit needs to be detected in nine runs of ten.

    It must exceed the limit despite its error, and rank high enough among its peers over launches.
    With few peers and launches it must be the slowest in all of them, with more less often.
    """
    launches, units = relative.shape
    if launches < launches_needed(units - 1, level):
        return math.inf
    reach = NORMAL.inv_cdf(POWER)
    scatter = error * math.sqrt(launches)
    # The mean rank that suffices, as a share of the ranks.
    ways = level * math.factorial(launches)
    lowest = ways ** (1 / launches) / launches
    if lowest > 1 / units:
        above = NORMAL.inv_cdf(1 - min(lowest, 0.5) / 2) + reach / 2
    else:
        above = NORMAL.inv_cdf(1 - 0.5 / units) + 1.25 * NORMAL.inv_cdf(POWER ** (1 / launches))
    return math.exp(max(limit + reach * error, scatter * above))


#: The most stragglers that are named in words.
MOST_NAMED = 5

Links = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Links by the ranks at their ends, from and to."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A host, rank, link or group that is slower than its peers."""

    kind: str
    """``host``, ``rank``, ``link``, ``uplink`` (all links between two parts of the hosts) or
    ``group``."""
    name: str
    code: str
    """What is slow, as a code of `commbench.words`."""
    measured: str
    """The measured cases."""
    factor: Estimate
    """Its time divided by its typical peer's time, with the 95 % interval over launches."""
    evidence: Finding
    """In how many launches it was slow, or how many of its links are."""
    links: Links = ()
    """The slow links of a matrix that it explains."""

    def to_json(self) -> JsonObject:
        """Return its entry in ``run.json``."""
        return {
            "kind": self.kind,
            "name": self.name,
            "factor": round(self.factor.value, 4),
            "ci": None if self.factor.low is None else [round(n, 4) for n in self.factor.bounds],
            "evidence": str(self.evidence),
        }


@dataclass(frozen=True, kw_only=True)
class Family:
    """Units that were compared with each other."""

    kind: str
    """``host``, ``rank``, ``link`` or ``group``."""
    measured: str
    """The measured cases."""
    names: Sequence[str]
    """Of the units."""
    judgement: Judgement
    count: int
    """Number of compared units, without those that a coarser straggler explains."""
    needed: int
    """Launches needed to name the slowest of these units; 0 for a single one."""
    stragglers: Sequence[Straggler] = ()

    @property
    def launches(self) -> int:
        """Number of launches."""
        return len(self.judgement.launches)

    def with_slow(self, codes: Sequence[str], links: Sequence[Links] = ()) -> Family:
        """Return the family with its stragglers, the slowest first.

        Args:
            codes: of each slow unit.
            links: of each slow unit; empty: none.
        """
        judgement, stragglers = self.judgement, []
        for unit, code, own_links in itertools.zip_longest(judgement.slow, codes, links):
            in_launches = judgement.launches[:, unit]
            evidence = Finding(
                "slow_evidence",
                numbers={
                    "measured": self.measured,
                    "kind": self.kind,
                    "slower": int((in_launches > 0).sum()),
                    "launches": len(in_launches),
                    "p_value": judgement.p_values[unit],
                },
            )
            straggler = Straggler(
                kind=self.kind,
                name=self.names[unit],
                code=code,
                measured=self.measured,
                factor=factor_of(in_launches),
                evidence=evidence,
                links=own_links or (),
            )
            stragglers.append(straggler)
        return replace(self, stragglers=stragglers)


def judged_family(
    kind: str,
    names: Sequence[str],
    values: Floats,
    measured: str,
    level: float,
    *,
    is_minority: bool = True,
) -> Family:
    """Return units with their judgement, without stragglers.

    ``level`` is the probability of a false alarm; ``is_minority``: as of `judge`.
    """
    judgement = judge(values, alpha=level, is_minority=is_minority)
    count = int(np.isfinite(judgement.effects).sum())
    needed = 0
    if count > 1:
        needed = launches_needed(count - 1, level / count)
    return Family(
        kind=kind, measured=measured, names=names, judgement=judgement, count=count, needed=needed
    )


def rank_names(hosts: Sequence[str]) -> list[str]:
    """Return the names of ranks, with their hosts if they are on several."""
    if len(set(hosts)) > 1:
        return [f"rank {rank} on {host}" for rank, host in enumerate(hosts)]
    return [f"rank {rank}" for rank in range(len(hosts))]


def factor_of(in_launches: Floats) -> Estimate:
    """Return a ratio with its 95 % interval, from its logarithm in each launch."""
    factor = math.exp(stats.median(in_launches))
    low, high = stats.bounds_of(stats.launch_interval(np.exp(in_launches))) or (None, None)
    return Estimate(factor, low, high)


@dataclass(frozen=True, kw_only=True)
class Search:
    """The result of one search."""

    families: Sequence[Family] = ()
    remarks: Sequence[Finding] = ()
    """Questions that the data cannot answer."""

    @property
    def stragglers(self) -> list[Straggler]:
        """All stragglers, coarse before fine, the slowest of each family first."""
        return [straggler for family in self.families for straggler in family.stragglers]

    @property
    def comparisons(self) -> int:
        """Number of compared units."""
        return sum(family.count for family in self.families)

    def findings(self) -> list[Finding]:
        """Return each straggler once; without any, the ratio that each kind of unit would have
        shown; what is not judged, and why.

        Empty if nothing could be compared.
        """
        judged = [family for family in self.families if family.launches >= family.needed > 0]
        unjudged = [family for family in self.families if family.launches < family.needed]
        findings = _name(self.stragglers)
        if judged and not findings:
            clauses = tuple(_by_kind("slow_detectable", judged))
            findings.append(Finding("slow_none", numbers={"detectable": clauses}))
        return [*findings, *_by_kind("slow_unjudged", unjudged), *_hint(unjudged), *self.remarks]

    def to_json(self) -> JsonObject:
        """Return the entries of ``run.json``; empty if nothing was compared."""
        if not (self.families or self.remarks):
            return {}
        return {
            "stragglers": [straggler.to_json() for straggler in self.stragglers],
            "straggler_comparisons": self.comparisons,
            "straggler_remarks": [str(remark) for remark in self.remarks],
        }


def _name(stragglers: Iterable[Straggler]) -> list[Finding]:
    """Return one finding for each straggler, also if several quantities show it."""
    findings = []
    for (code, name), observed in rows_by(stragglers, attrgetter("code", "name")).items():
        observed.sort(key=attrgetter("factor.value"), reverse=True)
        seen = []
        for straggler in observed:
            observation = Finding(
                "slow_observation",
                numbers={"factor": straggler.factor, "measured": straggler.measured},
            )
            seen.append(observation)
        evidence = tuple(straggler.evidence for straggler in observed)
        findings.append(Finding(code, name, {"seen": tuple(seen)}, details=evidence))
    more = len(findings) - MOST_NAMED
    if more > 0:
        findings[MOST_NAMED:] = [Finding("slow_more", numbers={"more": more})]
    return findings


def _by_kind(code: str, families: Iterable[Family]) -> list[Finding]:
    """Return for each kind of unit the slowdown that would have been detected in any family, and
    the launches that name one.
    """
    findings = []
    for kind, of_kind in rows_by(families, attrgetter("kind")).items():
        finding = Finding(
            code,
            numbers={
                "kind": kind,
                "count": max(family.count for family in of_kind),
                "launches": max(family.launches for family in of_kind),
                "needed": max(family.needed for family in of_kind),
                "slowdown": max(family.judgement.detectable for family in of_kind) - 1,
            },
        )
        findings.append(finding)
    return findings


def _hint(families: Sequence[Family]) -> list[Finding]:
    """Return the slowest unit of families with too few launches."""
    largest = [float(np.nanmax(each.judgement.effects, initial=0.0)) for each in families]
    for family, effect in zip(families, largest, strict=True):
        if effect >= 0.8 * max(largest):  # of near-equals the coarsest: a slow host slows each link
            if effect < math.log(RELEVANT):
                return []
            name = family.names[int(np.nanargmax(family.judgement.effects))]
            factor = math.exp(effect)
            return [Finding("slow_hint", name, {"kind": family.kind, "factor": factor})]
    return []
