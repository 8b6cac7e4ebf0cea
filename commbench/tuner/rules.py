"""The rules that a sweep, a tuning and a live tuning share: the share of the time for screening,
whom to confirm, when to look, and the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from commbench.results.recommendation import EFFECTS, LearningEffect, Verdict, Withheld
from commbench.results.trained import Speedup
from commbench.stats import MARGIN

#: The share of the time, of a live tuning also of the steps, for what precedes the confirmation.
SWEEP_SHARE, SEARCH_SHARE, LIVE_SHARE = 0.55, 0.5, 0.4
#: Two-sided error of the interval of one alternative at the first look. Each further look may err
#: half as often. With a true gain equal to the margin, "change" is concluded in at most 2.5 % of
#: first looks and in less than 5 % of all, however many there are.
FIRST_ERROR = 0.05
#: Rounds of new blocks after which a live tuning looks. If it ends earlier, a look at its end
#: replaces the next one.
LIVE_LOOKS = (8, 16, 32, 64, 128, 256)


def level_of(alternatives: int, look: int = 0) -> float:
    """Return the level of each alternative's interval at a look, from 0, with Bonferroni's
    correction for the number of alternatives.

    Whichever alternative is fastest, its interval then covers its speedup as often as a single
    alternative's would.
    """
    return 1 - FIRST_ERROR / 2.0**look / max(1, alternatives)


def look_of_launches(launches: int, first_look: int | None) -> int:
    """Return the number of the look after some new launches, from 0.

    Each look has at most twice as many launches as the one before.
    """
    if not first_look or launches <= first_look:
        return 0
    return math.ceil(math.log2(launches / first_look))


def look_of_rounds(rounds: Iterable[int]) -> int:
    """Return the number of the look of a live tuning, from 0.

    Args:
        rounds: of new blocks in each launch; the looks of earlier launches count.
    """
    looks = 0
    for in_launch in rounds:
        looks += 1 + sum(look < in_launch for look in LIVE_LOOKS)
    return max(0, looks - 1)


def judge(speedup: Speedup | None) -> Verdict:
    """Return the verdict on one alternative's speedup in new launches."""
    if speedup is None or speedup.interval is None:
        return "inconclusive"
    if speedup.interval.low > 1 + MARGIN:
        return "change"
    if speedup.interval.high <= 1 + MARGIN:
        return "keep"
    return "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Rated:
    """A setting by its speed and by what it does to learning."""

    ratio: float = math.nan
    """The speedup over the baseline."""
    effect: LearningEffect = "none"
    withheld: Withheld = ""
    """Why it may not be recommended, however fast it is."""


RatedT = TypeVar("RatedT", bound=Rated)


def winners(alternatives: Iterable[RatedT]) -> list[RatedT]:
    """Return the alternatives to confirm: the fastest that may be recommended, then the fastest of
    each effect on learning, the weakest effect first.

    One with a stronger effect must be faster than those with a weaker effect, and than the
    baseline. The first need not be faster than the baseline: only a comparison can show that the
    baseline is as good.
    """
    ranked = sorted(alternatives, key=attrgetter("ratio"), reverse=True)
    usable = [each for each in ranked if not each.withheld]
    chosen = (usable or ranked)[:1]
    best = 1.0
    for effect in EFFECTS:
        fastest = next((each for each in ranked if each.effect == effect), None)
        if fastest is not None and fastest.ratio > best:
            best = fastest.ratio
            if fastest is not chosen[0]:
                chosen.append(fastest)
    return chosen
