"""Tests of scaling studies: which rows belong together, the law of growth, the printed table."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import KIB, make_case, make_info, make_record
from hypothesis import given
from hypothesis import strategies as st

from commbench.analysis.scaling import all_rank_rows, growths, law_of
from commbench.collectives.patterns import rank_list
from commbench.engine.records import GroupTimes, Record
from commbench.results import Run
from commbench.results.info import RunInfo
from commbench.stats import Interval

RANKS = (2, 4, 8, 16)
N = np.array(RANKS)
LINEAR = {2: 20.0, 4: 40.0, 8: 80.0, 16: 160.0}
INFO = make_info(world_size=16)


def study(
    times_us: Mapping[int, float],
    *,
    launches: int = 6,
    noise: float = 0.01,
) -> list[Record]:
    """Return the records of an all-gather on some of 16 ranks with a time for each number of
    ranks.
    """
    random, records = np.random.default_rng(3), []
    for number, time_us in times_us.items():
        whole = number == max(RANKS)
        case = make_case(
            "all_gather",
            message_bytes=KIB + (number == 4) * 8,
            world_size=None if whole else number,
        )
        for launch in range(launches):
            factor = np.exp(random.normal(0, noise))
            record = make_record(case, launch=launch, time_us=time_us * factor)
            part = GroupTimes(
                group=rank_list(range(number)),
                group_size=number,
                message_bytes=case.message_bytes,
                times_us=record.times_us,
            )
            records.append(replace(record, group_size=number, groups=() if whole else (part,)))
    return records


def as_run(records: list[Record], info: RunInfo = INFO) -> Run:
    """Return a run held in memory."""
    return Run(path=Path("study"), info=info, records=tuple(records))


def test_ratio_is_over_launches():
    """Return the ratio of times on the most and the fewest ranks, with an interval over
    launches.
    """
    (growth,) = growths(as_run(study(LINEAR)))
    assert growth.interval.low < growth.ratio < growth.interval.high
    assert pytest.approx(8.0, rel=0.05) == growth.ratio
    (alone,) = growths(as_run(study(LINEAR, launches=1, noise=0)))
    assert (pytest.approx(8.0), None) == (alone.ratio, alone.interval)
    assert not alone.law


def test_launches_below_the_resolution_have_no_ratio():
    """Leave out a launch that took no time on the fewest ranks."""
    records = study(LINEAR)
    first = records[0]
    zeros = [0.0] * len(first.times_us)
    records[0] = replace(first, times_us=zeros, groups=(replace(first.groups[0], times_us=zeros),))
    (growth,) = growths(as_run(records))
    assert growth.interval.low < growth.ratio < growth.interval.high < 10


def test_ratio_is_that_of_the_rows():
    """Take the median over visits of a launch, as rows do: one long visit does not outweigh two."""
    records = []
    for record in study(LINEAR, noise=0):
        times_us = [*record.times_us[:1] * 2, *[900.0] * 3]
        records.append(replace(record, times_us=times_us, visit_lengths=(1, 1, 3), groups=[]))
    (growth,) = growths(as_run(records))
    assert pytest.approx(8.0) == growth.ratio


@pytest.mark.parametrize(
    ("times_us", "changes", "expected"),
    [
        (5.0 + 10.0 * N, {}, "n"),
        (5.0 + 10.0 * np.log2(N), {}, "log2 n"),
        ([20.0] * 4, {}, "constant"),
        (0.1 * N**3, {}, "neither"),
        (100.0 / N, {}, "neither"),
        (5.0 + 10.0 * N[1:], {"noise": 0.4}, "log2 n or n"),
        ([20.0] * 4, {"noise": 0.5}, "undecided"),
        # the 95 % intervals have no common time, those that cover together have
        ([20.0, 20.0, 28.0, 20.0], {"noise": 0.1, "launches": 4}, "undecided"),
        ([80.0, 160.0], {}, ""),
    ],
)
def test_law_is_found(times_us, changes, expected):
    """Distinguish linear, logarithmic, constant and other growth; name several if the noise allows
    them, and none for two numbers of ranks.
    """
    by_ranks = dict(zip(RANKS[-len(times_us) :], times_us, strict=True))
    (growth,) = growths(as_run(study(by_ranks, **changes)))
    assert expected == growth.law


def intervals_of(*bounds: tuple[float, float]) -> dict[int, Interval]:
    """Return the intervals on 2, 4, 8, ... ranks from (low, high) in microseconds."""
    return {
        2**place: Interval(low=low, high=high, level=0.95)
        for place, (low, high) in enumerate(bounds, 1)
    }


@given(
    slope=st.floats(0.1, 100),
    ends=st.lists(st.tuples(st.floats(0.8, 1), st.floats(1, 1.5)), min_size=3, max_size=6),
)
def test_true_law_is_never_denied(slope, ends):
    """Accept the true law wherever the medians lie in their intervals."""
    bounds = []
    for place, (low, high) in enumerate(ends, 1):
        time_us = 1 + slope * 2**place
        bounds.append((time_us * low, time_us * high))
    assert law_of(intervals_of(*bounds)) in {"constant", "n", "log2 n or n"}


def test_times_without_intervals_make_no_law():
    """Name no law without intervals."""
    assert "" == law_of(dict.fromkeys(RANKS))


def test_ordinary_runs_are_no_study():
    """Return no growth for a run in which all ranks always took part."""
    run = as_run([make_record(), make_record(launch=1)], make_info())
    assert [] == growths(run)
    assert 1 == len(all_rank_rows(run))
