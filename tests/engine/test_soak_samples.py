"""Tests of the samples of a soak: bounded in memory, with the longest interruptions and the point
of a visit.
"""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from faking import FakeRun, fake_case

from commbench.engine.records import Record
from commbench.engine.soak import MOST_INTERRUPTIONS, MOST_KEPT, MOST_RECORDED, SoakSamples
from commbench.engine.timing.loops import MOST_STALLS, Progress, Repetitions
from commbench.stats.budgets import Budget

#: Repetitions of a chunk, and their distance and duration in nanoseconds.
CHUNK, PERIOD_NS, LASTING_NS = 1000, 20_000, 10_000


def chunk(
    begun_ns: int, *, late_rank: int | None = None, long_at: int | None = None, lasted_ns: int = 0
) -> list[Repetitions]:
    """Return a chunk of two ranks.

    The repetition ``long_at`` is longer, and ``late_rank`` starts it late.
    """
    start = begun_ns + PERIOD_NS * np.arange(CHUNK, dtype=np.int64)
    end = start + LASTING_NS
    ranks = []
    for rank in range(2):
        own_start, own_end, late = start.copy(), end.copy(), np.zeros(CHUNK, dtype=np.bool_)
        if long_at is not None:
            own_start[long_at + 1 :] += lasted_ns
            own_end[long_at:] += lasted_ns
            if rank == late_rank:
                own_start[long_at] += lasted_ns
                late[long_at] = True
        ranks.append(Repetitions(start_ns=own_start, end_ns=own_end, late=late))
    return ranks


def soaked(*chunks: list[Repetitions]) -> SoakSamples:
    """Return the samples of chunks."""
    samples = SoakSamples([0, 1], spanning=True)
    for each in chunks:
        samples.add(each)
    return samples


def test_memory_is_bounded_and_the_median_exact():
    """Keep at most a fixed number of repetitions, count all, and record quantiles of the kept
    ones.
    """
    chunks = [chunk(time.perf_counter_ns() + number * CHUNK * PERIOD_NS) for number in range(20)]
    samples = soaked(*chunks)
    assert MOST_KEPT / 2 <= samples.valid <= MOST_KEPT
    summary, point = samples.summary(1), samples.point(1, [])
    assert {MOST_RECORDED} == {
        len(summary[name]) for name in ("times_us", "rank_mean_us", "skew_us")
    }
    assert 20 * CHUNK == point.repetitions
    assert 0 == point.late
    assert 10.0 == point.median_us
    assert MOST_INTERRUPTIONS == len(point.longest)


def test_recorded_repetitions_have_the_quantiles_of_the_kept_ones():
    """Record repetitions evenly spaced by their time, in their order."""
    start = PERIOD_NS * np.arange(CHUNK, dtype=np.int64)
    lasting = np.random.default_rng(1).permutation(np.arange(CHUNK)) * 10 + 1000
    ranks = [
        Repetitions(start_ns=start, end_ns=start + lasting, late=np.zeros(CHUNK, dtype=np.bool_))
    ] * 2
    times_us = soaked(ranks).summary(1)["times_us"]
    assert (1.0, 10.99) == (min(times_us), max(times_us))
    assert pytest.approx(np.median(lasting) / 1e3, rel=0.02) == np.median(times_us)
    assert sorted(times_us) != times_us
    assert times_us == soaked(ranks).within([0, 1]).slowest_us(1)


def test_a_late_rank_shows_in_the_longest_interruption():
    """Keep a discarded repetition with every rank's arrival and the time of day."""
    now_ns, now_s = time.perf_counter_ns(), time.time()
    samples = soaked(chunk(now_ns, late_rank=1, long_at=500, lasted_ns=10**9))
    longest, *others = samples.point(1, []).longest
    assert 1 == samples.late
    assert pytest.approx(1.0, abs=1e-4) == longest.lasted_s
    assert [pytest.approx(0.0, abs=1e-4), pytest.approx(1.0, abs=1e-4)] == list(longest.arrival_s)
    assert [pytest.approx(1.0, abs=1e-4), pytest.approx(0.0, abs=1e-4)] == list(longest.rank_s)
    assert pytest.approx(now_s + 500 * PERIOD_NS / 1e9, abs=0.2) == longest.at_s
    assert max(other.lasted_s for other in others) < 0.001


def test_an_interruption_between_two_chunks_counts():
    """Measure from the last end of a chunk to the first end of the next."""
    begun_ns = time.perf_counter_ns()
    samples = soaked(chunk(begun_ns), chunk(begun_ns + CHUNK * PERIOD_NS + 10**9))
    assert pytest.approx(1.0, abs=1e-4) == samples.point(1, []).longest[0].lasted_s


class FakeSoak(FakeRun):
    """A soak on the fake backend."""

    @property
    def budget(self) -> Budget:
        """Return the budget of a launch of four visits."""
        return replace(super().budget, is_soak=True, visits=4)


def test_a_soak_fills_its_time_with_visits():
    """Make the planned visits, each with a point, keep few repetitions, and read the record
    back.
    """
    soak = FakeSoak(slice_s=0.2)
    (first,) = soak.launch([fake_case()])
    assert [MOST_RECORDED] * 4 == list(first.visit_lengths)
    assert 4 == len(first.points)
    assert all(point.repetitions > MOST_RECORDED for point in first.points)
    assert 0.1 < sum(point.lasted_s for point in first.points)
    assert list(first.points) == list(
        Record.from_json(json.loads(json.dumps(first.to_json()))).points
    )
    begun, later = soak.launches([fake_case()], 2)
    assert 4 == len(later.points)
    assert begun.warmups == later.warmups


def test_stalls_are_taken_once_and_bounded():
    """Return the stalls since the last call, at most a fixed number."""
    progress = Progress()
    for number in range(2 * MOST_STALLS):
        progress.add_stall(float(number), 1.0)
    assert MOST_STALLS == len(progress.take_stalls())
    assert [] == progress.take_stalls()


def test_stalls_of_all_ranks_are_of_a_point(stub):
    """Keep the stalls that each rank has noted during a visit."""
    stub("commbench.engine.timing.loops.Progress.take_stalls", [(7.0, 1.0)])
    (record,) = FakeSoak(slice_s=0.02).launch([fake_case()])
    for point in record.points:
        assert [(0, 7.0, 1.0), (1, 7.0, 1.0)] == [
            tuple(vars(each).values()) for each in point.stalls
        ]
