"""Which of many alike things are slower than the rest: one family of comparisons, judged over launches.

A *unit* is a host, a rank, a link or a group. It is called slow only where three things come together: it is slower
than its peers by an amount that matters, by more than its peers differ among themselves, and so steadily over launches
that chance does not explain it, also not chance that is heavy-tailed or has two modes. Values are natural logarithms of
times, so that differences are ratios.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from commbench import stats

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

#: How often a run of equals may name anything: shared out over everything that a run compares.
ALPHA = 0.01
#: A slowness that matters, as a ratio.
RELEVANT = 1.1
#: With how many peers the exact distribution of a sum of ranks is worth its time; beyond, its limit is as good.
EXACT_PEERS = 1000
#: How surely a difference said to be detectable is found, as aimed at. Simulated it is 88 to 100 %, because what is
#: slow also changes the peers' spread.
POWER = 0.98

_NORMAL = NormalDist()
# Makes the median absolute deviation of so many normal values unbiased: Croux and Rousseeuw, Time-efficient algorithms
# for two highly robust estimators of scale (1992).
_DEVIATION_FACTORS = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What is to be said of one family of units."""

    effects: Floats
    """Of each unit: how many times as long it takes as its typical peer, as a logarithm; NaN where it is unknown."""
    launches: Floats
    """The same in each launch, (launches, units)."""
    slow: Sequence[int]
    """The slow units, the worst first."""
    p_values: dict[int, float] = field(default_factory=dict)
    """Of the slow units: that a unit like its peers came out so often among the slowest."""
    detectable: float = math.inf
    """The ratio that would have been found in nine runs of ten; infinite where these launches are too few for any."""

    def interval(self, unit: int) -> stats.Interval | None:
        """The 95 % interval of a unit's ratio over launches."""
        return stats.launch_interval(np.exp(self.launches[:, unit]))


def judge(values: Floats, *, alpha: float, minority: bool = True) -> Judgement:
    """Return which units are slower than their peers.

    Args:
        values: logarithms of times, (launches, units); a unit that lacks a launch is not judged.
        alpha: how probable it may be that any of units that are all alike is called slow.
        minority: what is slow is fewer than half of the units; else up to three quarters of them.
    """
    known = np.flatnonzero(np.isfinite(values).all(axis=0))
    effects, launches = np.full(values.shape[1], np.nan), np.full(values.shape, np.nan)
    if len(known) < 3 or not len(values):  # noqa: PLR2004 - of two, neither is the odd one
        return Judgement(effects=effects, launches=launches, slow=())
    chosen = values[:, known]
    error = _error(chosen)
    peers = _peers(np.median(chosen, axis=0), error, 0.5 if minority else 0.25)
    relative = chosen - np.median(chosen[:, peers], axis=1, keepdims=True)
    medians = np.median(relative, axis=0)
    effects[known], launches[:, known] = medians, relative
    level = alpha / len(known)
    reach = _NORMAL.inv_cdf(1 - level)
    limit = max(math.log(RELEVANT), reach * max(_spread(medians[peers]), error))
    beyond = medians > limit
    steadily = beyond & (relative.min(axis=0) > limit / 2)
    p_values = _rank_sums(relative, beyond, steadily)
    slow = [unit for unit in np.flatnonzero(beyond)[np.argsort(-medians[beyond])].tolist() if p_values[unit] <= level]
    return Judgement(
        effects=effects,
        launches=launches,
        slow=[int(known[unit]) for unit in slow],
        p_values={int(known[unit]): p_values[unit] for unit in slow},
        detectable=_detectable(relative, limit, error, level),
    )


def launches_needed(peers: int, level: float) -> int:
    """In how many launches a unit must be the slowest of itself and its ``peers`` before chance is ruled out."""
    return math.ceil(math.log(level) / -math.log(peers + 1))


def _error(values: Floats) -> float:
    """The standard error of a unit's median over launches, from how launches scatter around it, all units pooled."""
    count, units = values.shape
    if count == 1:
        return 0.0
    relative = values - np.median(values, axis=1, keepdims=True)
    scatter = np.abs(relative - np.median(relative, axis=0))
    spread = 1.4826 * float(np.median(scatter[scatter > 0])) if scatter.any() else 0.0
    return spread * math.sqrt(math.pi / 2 / (count - 1) * units / (units - 1))


def _peers(medians: Floats, error: float, start: float) -> Indices:
    """The units that are typical: all that are not far above the others, found from the fast side."""
    tolerance = max(math.log(RELEVANT), 3 * error)
    centre = float(np.quantile(medians, start, method="inverted_cdf"))
    peers = np.flatnonzero(medians <= centre + tolerance)
    for _ in range(len(medians)):
        centre = float(np.median(medians[peers]))
        found = np.flatnonzero(medians <= centre + tolerance)
        if len(found) == len(peers):
            break
        peers = found
    return peers


def _spread(medians: Floats) -> float:
    """How far peers lie apart: their median absolute deviation as a standard deviation."""
    count = len(medians)
    if count < 2:  # noqa: PLR2004 - one has no spread
        return 0.0
    factor = _DEVIATION_FACTORS.get(count, count / (count - 0.8))
    return factor * 1.4826 * float(np.median(np.abs(medians - np.median(medians))))


def _rank_sums(relative: Floats, asked: NDArray[np.bool_], apart: NDArray[np.bool_]) -> dict[int, float]:
    """For each unit asked for, how probable it is that one of its peers came out as slow over launches.

    In each launch the unit gets a rank among itself and its peers, 1 the slowest. If it were one of them, each rank
    would be equally likely in each launch, whatever the distribution of times. Units that were slow in every launch are
    ``apart``: no peers, or two slow units would hide each other. Those slow in some launches stay, for where times have
    two modes it is them that show how often the slow one comes.
    """
    others = np.sort(relative[:, ~apart], axis=1)
    count, launches = others.shape[1], len(relative)
    below = sum(np.searchsorted(ordered, line, side="left") for ordered, line in zip(others, relative, strict=True))
    ranks = count + apart  # a unit among the others is one of them already
    sums = launches * ranks - below
    return {int(unit): rank_sum_p(int(sums[unit]), int(ranks[unit]), launches) for unit in np.flatnonzero(asked)}


def rank_sum_p(total: int, ranks: int, launches: int) -> float:
    """The probability that ``launches`` ranks, each equally likely 1 to ``ranks``, sum to at most ``total``.

    Exact up to `EXACT_PEERS` ranks; beyond that by the sum of continuous uniform variables, which is above it
    (Irwin and Hall, Biometrika 19, 1927).
    """
    if 2 * total >= launches * (ranks + 1):
        return 1.0
    if ranks > EXACT_PEERS:
        x = total / ranks
        terms = ((-1) ** k * math.comb(launches, k) * (x - k) ** launches for k in range(math.floor(x) + 1))
        return min(1.0, math.fsum(terms) / math.factorial(launches))
    ways = np.ones(1)
    for _ in range(launches):
        ways = np.convolve(ways, np.ones(ranks) / ranks)  # entry i: the probability of the sum i plus one a launch
    return float(ways[: max(0, total - launches + 1)].sum())


def _detectable(relative: Floats, limit: float, error: float, level: float) -> float:
    """The ratio that a unit must have to be found in nine runs of ten.

    It must pass the limit in spite of its error, and rank so high among its peers in so many launches: in all of them
    the slowest where there are few peers and launches; the more there are, the less often.
    """
    launches, units = relative.shape
    if launches < launches_needed(units - 1, level):
        return math.inf
    reach = _NORMAL.inv_cdf(POWER)
    scatter = error * math.sqrt(launches)
    lowest = (level * math.factorial(launches)) ** (1 / launches) / launches  # mean rank that suffices, as a share
    if lowest > 1 / units:
        above = _NORMAL.inv_cdf(1 - min(lowest, 0.5) / 2) + reach / 2
    else:
        above = _NORMAL.inv_cdf(1 - 0.5 / units) + 1.25 * _NORMAL.inv_cdf(POWER ** (1 / launches))
    return math.exp(max(limit + reach * error, scatter * above))
