"""Components of variance of a case's time, by level (repetitions, visits, launches), and
the number of visits that follows from them.

The model is that of Kalibera and Jones, Rigorous benchmarking in reasonable time (ISMM 2013), on
logarithms: log time = centre + launch + visit + repetition, three independent terms with mean 0. As
times are skewed, a visit stands for its median.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commbench.stats.budgets import Budget
from commbench.stats.intervals import NORMAL, Values, median, quantiles

#: Variance of a median over that of a mean of the same normal values.
MEDIAN_FACTOR = math.pi / 2
#: The interquartile range of a normal distribution, in standard deviations.
_QUARTILES = 2 * NORMAL.inv_cdf(0.75)
#: Fewest visits and fewest repetitions of each that a plan asks for.
FEWEST_VISITS, FEWEST_REPETITIONS = 4, 3
#: Share of a case's time slice that planned visits may take.
VISITING_SHARE = 0.7
_NORMAL_975 = NORMAL.inv_cdf(0.975)


@dataclass(frozen=True, kw_only=True)
class Components:
    """Standard deviations of the logarithm of a time."""

    repetition: float
    """Of single repetitions within a visit, from the quartiles."""
    visit: float | None
    """Between visits within a launch, beyond what their repetitions explain; None with one visit
    per launch."""
    launch: float | None
    """Between launches, beyond what their visits explain; None with one launch."""


def components_of(launches: Sequence[Sequence[Values]]) -> Components:
    """Return the components of the times above 0 of each visit of each launch."""
    variances, of_medians, medians = [], [], []
    for launch in launches:
        logs = [np.log(np.asarray(visit, dtype=float)).tolist() for visit in launch if len(visit)]
        for visit in logs:
            lower, upper = quantiles(visit, (0.25, 0.75))
            variances.append(((upper - lower) / _QUARTILES) ** 2)
            of_medians.append(MEDIAN_FACTOR * variances[-1] / len(visit))
        medians.append(np.array(list(map(median, logs))))
    within = of_median = float(np.mean(of_medians))
    between_visits = between_launches = None
    several = [values.var(ddof=1) for values in medians if len(values) > 1]
    if several:
        within = float(np.mean(several))
        between_visits = math.sqrt(max(0.0, within - of_median))
    if len(medians) > 1:
        explained = float(np.mean([within / len(values) for values in medians]))
        variance = float(np.var([values.mean() for values in medians], ddof=1))
        between_launches = math.sqrt(max(0.0, variance - explained))
    return Components(
        repetition=math.sqrt(float(np.mean(variances))),
        visit=between_visits,
        launch=between_launches,
    )


def plan_visits(
    components: Components,
    budget: Budget,
    *,
    visit_s: float,
    repetition_s: float,
    most_repetitions: int,
) -> tuple[int, int]:
    """Return the visits that make a launch's time as precise as asked, in as little time as
    possible, and the repetitions of each.

    Repetitions follow from costs and components: the square root of (visit cost / repetition cost)
    times (variance of a repetition / variance between visits); Kalibera and Jones, section 6.
    Visits follow from the budget's half-width, within `VISITING_SHARE` of its time slice.

    Args:
        components: of the first launch.
        budget: its half-width is the target of a launch's time, at 95 %.
        visit_s: cost of a visit without its repetitions: preparation, warm-up and agreement of the
            ranks.
        repetition_s: cost of a repetition, synchronisation included.
        most_repetitions: of a visit.
    """
    slice_s = VISITING_SHARE * budget.slice_s
    between, within = (components.visit or 0.0) ** 2, MEDIAN_FACTOR * components.repetition**2
    advised = affordable = math.inf
    if repetition_s:
        affordable = (slice_s / FEWEST_VISITS - visit_s) / repetition_s
        if between:
            advised = math.sqrt(visit_s / repetition_s * within / between)
    repetitions = int(max(FEWEST_REPETITIONS, min(advised, affordable, most_repetitions)))
    variance = MEDIAN_FACTOR * (between + within / repetitions)
    visits = min(
        math.ceil(variance * (_NORMAL_975 / budget.relative_half_width) ** 2), budget.visits
    )
    if repetition_s:
        visits = min(visits, int(slice_s / (visit_s + repetitions * repetition_s)))
    visits = max(visits, min(FEWEST_VISITS, budget.visits))
    return visits, repetitions
