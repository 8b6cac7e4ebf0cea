"""The rules that a sweep, a tuning and a live tuning share: the schedule, whom to confirm, and the
verdict.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from commbench.ddp.plan.cases import TrainingCase
from commbench.results.recommendation import EFFECTS, Verdict, effect_of
from commbench.results.trained import Speedup
from commbench.stats import MARGIN

#: Two-sided error of the interval of one alternative at the first look. Each further look may err
#: half as often. With a true gain equal to the margin, "change" is concluded in at most 2.5 % of
#: first looks and in less than 5 % of all, however many there are.
FIRST_ERROR = 0.05
#: Settings that are confirmed, as a rule at most: the baseline, the fastest without compression and
#: the fastest of all.
USUALLY_CONFIRMED = 3


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When an experiment confirms its best settings, and when it looks at them."""

    share: float
    """The share of the time, of a live tuning also of the steps, for what precedes the
    confirmation."""
    looks: tuple[int, ...]
    """The new launches at each look, in multiples of the budget's; of a live tuning, rounds of
    new blocks. A look at the end replaces the next one."""
    searches: bool = True
    """Whether slow settings are dropped; else each is measured in every launch."""


TRAIN = Schedule(share=0.55, looks=(1,), searches=False)
TUNE = Schedule(share=0.5, looks=(1, 2))
LIVE = Schedule(share=0.4, looks=(8, 16, 32, 64, 128, 256))


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
        looks += 1 + sum(look < in_launch for look in LIVE.looks)
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


def winners(
    ratios: Mapping[TrainingCase, float],
    baseline: TrainingCase,
    withheld: Collection[TrainingCase],
) -> list[TrainingCase]:
    """Return the alternatives to confirm: the fastest that may be recommended, then the fastest of
    each effect on learning, the weakest effect first.

    One with a stronger effect must be faster than those with a weaker effect, and than the
    baseline. The first need not be faster than the baseline: only a comparison can show that the
    baseline is as good.

    Args:
        ratios: the speedup of each alternative over the baseline.
        baseline: what they are compared with.
        withheld: those that may not be recommended, however fast they are.
    """
    ranked = sorted(ratios, key=ratios.__getitem__, reverse=True)
    usable = [case for case in ranked if case not in withheld]
    chosen = (usable or ranked)[:1]
    best = 1.0
    for effect in EFFECTS:
        for case in ranked:
            if effect_of(case, baseline) == effect and ratios[case] > best:
                best = ratios[case]
                chosen.append(case)
    return list(dict.fromkeys(chosen))
