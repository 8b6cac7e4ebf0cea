"""Tests that a comparison with several baselines finds a step change planted in a history of
runs.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from builders import make_case, make_launches
from pages import make_run

from commbench.analysis.comparison import compare
from commbench.analysis.comparison.verdicts import ENOUGH_BASELINES
from commbench.results import Run
from commbench.stats import Verdict

#: A history has a run a night; from one on a case takes longer.
RUNS, CHANGED_RUN, FACTOR = 30, 20, 1.1
SIZES = (8, 1024, 65536, 1048576)
CHANGED = SIZES[1]
#: Standard deviations between the runs of a case, and between the launches of a run.
BETWEEN_RUNS, BETWEEN_LAUNCHES = 0.01, 0.005


def make_history(seed: int, changed: int = 0) -> list[Run]:
    """Return a run for each of 30 nights; messages of one size take 10 % longer from run 20 on."""
    generator = np.random.default_rng(seed)
    runs = []
    for night in range(RUNS):
        records = []
        for size in SIZES:
            factor = FACTOR if size == changed and night >= CHANGED_RUN else 1.0
            level_us = 10.0 * factor * np.exp(BETWEEN_RUNS * generator.standard_normal())
            launches_us = level_us * np.exp(BETWEEN_LAUNCHES * generator.standard_normal(6))
            records += make_launches(launches_us.tolist(), make_case(message_bytes=size))
        runs.append(make_run(records, path=f"night{night:02}"))
    return runs


def slower_runs(history: Sequence[Run]) -> dict[int, set[int | None]]:
    """Return the runs in which a case is slower than in all runs before, with the sizes of these
    cases.
    """
    sizes_by_run = {}
    for number in range(ENOUGH_BASELINES, len(history)):
        cases = compare(history[:number], history[number]).cases
        slower = {
            case.case.message_bytes for case in cases if case.comparison.verdict is Verdict.SLOWER
        }
        sizes_by_run |= {number: slower} if slower else {}
    return sizes_by_run


def changed_until(seed: int) -> Sequence[Run]:
    """Return a history with a step change of one case, until one run after the change."""
    return make_history(seed, CHANGED)[: CHANGED_RUN + 2]


def test_a_history_without_a_change_shows_none() -> None:
    """Call no run of thirty equal runs slower than the runs before it."""
    assert {} == slower_runs(make_history(0))


def test_a_planted_step_is_found_at_its_run() -> None:
    """Call the case that takes 10 % longer slower from its run on, and no other case and no earlier
    run.
    """
    found = slower_runs(changed_until(0))
    assert CHANGED_RUN == min(found)
    assert {CHANGED} == set().union(*found.values())


@pytest.mark.slow
def test_most_histories_are_judged_as_they_are() -> None:
    """Find the step of at least 19 of 20 histories within one run, and a step in at most 1 of 20
    without one.
    """
    first_runs = [min(slower_runs(changed_until(seed)), default=-1) for seed in range(20)]
    false_alarms = [seed for seed in range(20) if slower_runs(make_history(seed))]
    assert 19 <= sum(abs(first - CHANGED_RUN) <= 1 for first in first_runs), first_runs
    assert 1 >= len(false_alarms), false_alarms
