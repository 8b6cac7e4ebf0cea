"""Tests of how all ranks' stamps become times, means and skew."""

import math
from typing import Any

import numpy as np
import pytest

from commbench.engine.samples import Samples
from commbench.engine.timing.loops import Repetitions


def stamps(start_ns: list[int], end_ns: list[int], late: list[bool] | None = None) -> Repetitions:
    """Return one rank's stamps."""
    marks = late or [False] * len(start_ns)
    return Repetitions(
        start_ns=np.array(start_ns, dtype=np.int64),
        end_ns=np.array(end_ns, dtype=np.int64),
        late=np.array(marks, dtype=np.bool_),
    )


#: Two ranks, three repetitions: rank 1 arrives later by 100, 200 and 300 ns.
TWO = [
    stamps([0, 10_000, 20_000], [1000, 12_000, 24_000]),
    stamps([100, 10_200, 20_300], [2000, 11_000, 23_000]),
]


def collected(ranks: list[Repetitions], **changes: Any) -> Samples:
    """Return the samples of all ranks."""
    samples = Samples(range(len(ranks)), **{"spanning": True, **changes})
    samples.add(ranks)
    return samples


def test_a_repetition_lasts_as_long_as_its_slowest_rank():
    """Span all ranks if they share a clock and an agreed start, else use the longest of their own
    times; divide by the operations per repetition, and append chunk after chunk.
    """
    samples = collected(TWO)
    assert [2.0, 2.0, 4.0] == samples.slowest_us(1)
    assert [0.5, 0.5, 1.0] == samples.slowest_us(4)
    assert [1.9, 2.0, 4.0] == collected(TWO, spanning=False).slowest_us(1)
    samples.add(TWO)
    assert [2.0, 2.0, 4.0] * 2 == samples.slowest_us(1)


def test_the_summary_has_means_medians_arrivals_and_the_slowest():
    """Fill a record's fields in microseconds; arrivals are never divided."""
    summary = collected(TWO).summary(2)
    assert [0.725, 0.7, 1.675] == pytest.approx(summary["rank_mean_us"])
    assert [1.0, 0.95] == pytest.approx(summary["rank_median_us"])
    assert [0.1, 0.2, 0.3] == pytest.approx(summary["skew_us"])
    assert [0.0, 0.2] == pytest.approx(summary["rank_arrival_us"])
    assert [2, 1] == summary["rank_slowest"]


def test_clocks_that_cannot_be_compared_give_no_skew():
    """Omit arrivals if clocks agree too poorly, or if each rank has its own."""
    rough = collected(TWO, clock_error_ns=1000.0)
    own = collected(TWO, clock_error_ns=math.inf, spanning=False)
    for part in (rough, own, own.within([0, 1])):
        assert set() == {"skew_us", "rank_arrival_us"} & part.summary(1).keys()
    assert [1.9, 2.0, 4.0] == own.within([0, 1]).slowest_us(1)


def test_a_repetition_that_any_rank_started_late_is_dropped():
    """Drop a repetition late on any rank, count it, and return the chunk's share."""
    samples = Samples([0, 1], spanning=True)
    share = samples.add(
        [TWO[0], stamps([100, 10_200, 20_300], [2000, 11_000, 23_000], [False, True, False])]
    )
    assert pytest.approx(1 / 3) == share
    assert 1 == samples.late
    assert 2 == samples.valid
    assert [2.0, 4.0] == samples.slowest_us(1)


def test_only_participants_count():
    """Use only the two ends of a pair, but drop repetitions late on any rank."""
    idle = stamps([0] * 3, [10**9] * 3, [True, False, False])
    samples = Samples([0, 2], spanning=True)
    samples.add([TWO[0], idle, TWO[1]])
    assert [2.0, 4.0] == samples.slowest_us(1)
    assert 2 == len(samples.summary(1)["rank_median_us"])
