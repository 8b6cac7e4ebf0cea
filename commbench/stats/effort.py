"""How many more launches would show on which side of the margin a ratio lies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from commbench.stats.intervals import NORMAL

#: How much wider a median's interval is than a mean's (normal launches), and how probable a decision shall be.
_MEDIAN, POWER = math.sqrt(math.pi / 2), 0.8
#: Twice as many as the largest budget makes: who needs more needs a quieter machine.
MOST_LAUNCHES = 40
#: A ratio that is nearer to the margin than this share is on neither side of it for any practical number of launches.
_TOO_NEAR = 0.004

Outlook = Literal["settles", "near", "noisy"]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What it takes until an interval leaves the margin with a probability of 80 %, if the ratio is what it seems."""

    outlook: Outlook
    """``settles``: so many launches would; ``near``: the ratio lies so near the margin that hardly any number would;
    ``noisy``: launches, or runs, differ by too much for `MOST_LAUNCHES`."""
    low: int = 0
    """Further launches of each run; the spread is known from few only, so that there is a range."""
    high: int | None = 0
    """None where the range ends beyond `MOST_LAUNCHES`."""


def further_launches(
    spread: float,
    launches: int,
    distance: float,
    *,
    freedom: int,
    margin: float,
    level: float = 0.95,
    reach: float | None = None,
    sides: float = 1,
    fewest: int = 2,
    fixed: float = 0.0,
) -> Effort:
    """Return how many launches beyond those that there are would decide.

    The interval of the median must leave the margin with a probability of 80 %: n = sides ((z_level + z_80)
    sqrt(pi / 2) spread / distance)^2 for normal logarithms, the usual size of a sample. The quartiles of what the
    spread may be (chi-square by Wilson and Hilferty, PNAS 17, 1931) give a range.

    Args:
        spread: standard deviation of the logarithms of launches.
        launches: of each run so far.
        distance: from the margin, of the logarithm of the ratio.
        freedom: degrees of freedom with which the spread is known.
        margin: a relative difference up to this is none.
        level: of the interval that shall decide.
        reach: how many standard errors of the ratio the distance must be; None: z_level + z_80.
        sides: the ratio's variance in that of a run: 1 for the ratios of pairs, 2 for the ratio of two runs.
        fewest: launches that such an interval takes at all.
        fixed: what no launches reduce, as a standard deviation of the ratio's logarithm: how runs differ.
    """
    reach = reach or NORMAL.inv_cdf((1 + level) / 2) + NORMAL.inv_cdf(POWER)
    per_launch = reach * _MEDIAN * math.sqrt(sides)
    if distance < _TOO_NEAR and spread * per_launch < margin * math.sqrt(launches):
        return Effort(outlook="near")
    left = max(distance, _TOO_NEAR) ** 2 - (reach * fixed) ** 2
    if left <= 0:
        return Effort(outlook="noisy")
    needs = [math.ceil((per_launch * end) ** 2 / left) for end in _spread_ends(spread, freedom)]
    low, high = (max(fewest, launches + 1, need) - launches for need in needs)
    if low + launches > MOST_LAUNCHES:
        return Effort(outlook="noisy")
    return Effort(outlook="settles", low=low, high=None if high + launches > MOST_LAUNCHES else high)


def _spread_ends(spread: float, freedom: int) -> tuple[float, float]:
    """The quartiles of what a standard deviation may be that is known with so many degrees of freedom."""
    share = 2 / (9 * freedom)
    least, most = ((1 - share + sign * NORMAL.inv_cdf(0.75) * math.sqrt(share)) ** 3 for sign in (-1, 1))
    return spread / math.sqrt(most), spread / math.sqrt(max(least, 1e-3))
