"""Tests of the length of warm-up and repetition: rank 0 decides for all ranks."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from faking import make_session
from threads import ThreadControl, run_threads

from commbench.engine.records import FixedSettings
from commbench.engine.samples import Samples
from commbench.engine.sampling import (
    FEWEST_OF_INTERVAL,
    MAXIMUM_BATCH,
    MOST_REPETITIONS,
    MOST_TOGETHER,
    PILOT_S,
    WARMUP_CAP,
    Sampler,
)
from commbench.engine.timing.loops import Call, Repetitions
from commbench.engine.timing.sync import Synchroniser
from commbench.stats.components import FEWEST_REPETITIONS, FEWEST_VISITS

ENDLESS_S = 60.0

#: A value, or a function of the rank and the number of the repetition that returns one.
Script = float | Callable[[int, int], float]


def value_of(script: Script, rank: int, number: int) -> float:
    """Return the value for a repetition of a rank."""
    return script(rank, number) if callable(script) else script


@dataclass
class ScriptedTimer:
    """A timed loop whose operations take ``time_ns``."""

    control: ThreadControl
    time_ns: Script
    late: Script = False
    apart_ns: int = 10**9
    """From one start to the next."""
    cost_ns: float = 0.0
    """Of reading the clock."""
    name: str = "python"
    asked: list[tuple[int, int]] = field(default_factory=list)
    """(repetitions, batch) of every chunk."""

    def __post_init__(self) -> None:
        self.sync = Synchroniser(self.control, "round-time", slack_ns=1000, least_ns=1000)
        self._done = 0

    def prepare(self) -> None:
        """Do nothing."""

    def reading_ns(self) -> float:
        """Return the scripted cost."""
        return self.cost_ns

    def run(self, calls: Sequence[Call], repetitions: int, batch: int) -> Repetitions:
        """Return the next times of the script."""
        self.asked.append((repetitions, batch))
        which = range(self._done, self._done + repetitions)
        self._done += repetitions
        start = np.arange(repetitions, dtype=np.int64) * self.apart_ns
        rank = self.control.rank
        lasting = [round(batch * value_of(self.time_ns, rank, number)) for number in which]
        late = [value_of(self.late, rank, number) for number in which]
        return Repetitions(
            start_ns=start,
            end_ns=start + np.array(lasting, dtype=np.int64),
            late=np.array(late, dtype=np.bool_),
        )


def sample(
    time_ns: Script,
    *,
    ranks: int = 1,
    fixed: FixedSettings | None = None,
    late: Script = False,
    apart_ns: int = 10**9,
    cost_ns: float = 0.0,
    longest_s: float = math.inf,
    slice_s: float = ENDLESS_S,
    visits: int = 1,
) -> tuple[FixedSettings, Samples, list[list[tuple[int, int]]], int]:
    """Return the settings, rank 0's samples, all ranks' chunks and the last slack."""

    def work(
        control: ThreadControl,
    ) -> tuple[FixedSettings, Samples | None, list[tuple[int, int]], int]:
        timer = ScriptedTimer(
            control,
            time_ns=time_ns,
            late=late,
            apart_ns=apart_ns,
            cost_ns=cost_ns,
        )
        session = make_session(control, slice_s=slice_s, visits=visits)
        sampler = Sampler(session=session, timer=timer, calls=[], longest_s=longest_s)
        settled = sampler.warm_up(fixed)
        samples = sampler.collect(Samples(range(ranks), spanning=True))
        return settled, samples, timer.asked, timer.sync.slack_ns

    results = run_threads(ranks, work)
    assert 1 == len({str(settled) for settled, *_ in results})
    assert 1 == sum(samples is not None for _, samples, *_ in results)
    samples = results[0][1]
    assert samples is not None
    return results[0][0], samples, [chunks for _, _, chunks, _ in results], results[0][3]


def test_all_ranks_do_the_same():
    """Request the same chunks on every rank although their times differ."""

    def time_ns(rank: int, number: int) -> int:
        return 10_000 * (rank + 1) + 3000 * (number * (rank + 2) % 7)

    _, samples, chunks, _ = sample(time_ns, ranks=3)
    assert chunks[0] == chunks[1] == chunks[2]
    assert samples.valid >= 30


def test_steady_times_need_two_windows_and_one_visit_fills_its_time():
    """Discard the first, the guess and two windows, then repeat until time or the maximum."""
    settled, samples, _, _ = sample(10_000)
    assert 1 + 3 + 40 == settled.warmups
    assert 1 == settled.batch
    assert MOST_REPETITIONS == samples.valid
    _, samples, _, _ = sample(10_000, slice_s=0.0)
    assert FEWEST_OF_INTERVAL == samples.valid


@pytest.mark.parametrize("decay", [20, 50])
def test_a_slow_beginning_is_discarded(decay):
    """Warm up until times are within 10 % of their final level."""
    settled, samples, _, _ = sample(lambda _r, i: 10_000 * (1 + 4 * math.exp(-i / decay)))
    assert settled.warmups > 2 * decay
    assert max(samples.slowest_us(1)) < 11


def test_warm_up_ends_where_times_never_settle():
    """Stop warming up at the maximum."""

    def time_ns(_rank: int, number: int) -> float:
        if number >= 400:
            return 10_000
        return 10_000 * 1.05**number

    settled, *_ = sample(time_ns)
    assert WARMUP_CAP <= settled.warmups <= WARMUP_CAP + 41


@pytest.mark.parametrize(
    ("operation_s", "repetitions"), [(2.0, FEWEST_REPETITIONS), (0.035, 5), (0.001, 8)]
)
def test_the_first_visits_of_a_long_operation_have_few_repetitions(operation_s, repetitions):
    """Repeat in a visit of the first launch as often as its share of the time slice allows, within
    bounds.
    """
    settled, samples, *_ = sample(1e9 * operation_s, slice_s=0.2 * FEWEST_VISITS, visits=4)
    assert (FEWEST_VISITS, repetitions) == (settled.visits, samples.valid)


def test_what_is_frozen_is_obeyed():
    """Reuse warm-ups and batch of launch 1, whatever the times."""
    fixed = FixedSettings(warmups=7, batch=8)
    settled, _, chunks, _ = sample(lambda _r, i: 10_000 * (1 + i), fixed=fixed)
    assert replace(fixed, visits=1) == settled
    assert 7 == sum(repetitions for repetitions, batch in chunks[0] if batch == 1)
    assert {1, 8} == {batch for _, batch in chunks[0]}


@pytest.mark.parametrize(
    ("time_ns", "batch"),
    [(1000.0, 1), (999.0, 2), (500.0, 2), (100.0, 16), (1.0, 1024), (0.0, MAXIMUM_BATCH)],
)
def test_a_batch_lasts_twenty_readings(time_ns, batch):
    """Batch by the least power of two that lasts 20 readings of 50 ns, up to the limit."""
    settled, *_ = sample(time_ns, cost_ns=50.0)
    assert batch == settled.batch


def test_repetitions_within_a_moment_are_not_enough():
    """Continue until the repetitions of a visit span 2 ms."""
    _, samples, *_ = sample(
        10_000,
        apart_ns=100_000,
        fixed=FixedSettings(warmups=1, batch=1, visits=4),
        visits=4,
    )
    assert PILOT_S * 1e9 / 100_000 <= samples.valid <= MOST_REPETITIONS / 4


@pytest.mark.parametrize(("share", "widened"), [(3, True), (20, False)])
def test_slack_widens_where_too_many_are_late(share, widened):
    """Widen the slack above a tenth of late starts, on all ranks."""
    _, samples, _, slack_ns = sample(
        lambda _r, i: 10_000 * (1 + i % 2),
        ranks=2,
        late=lambda rank, i: rank == 1 and i % share == 0,
        fixed=FixedSettings(warmups=1, batch=1),
    )
    assert samples.late > 0
    assert MOST_REPETITIONS == samples.tried
    assert widened == (slack_ns > 1000)


def test_endless_lateness_ends():
    """Stop after four times the minimum repetitions without a valid one once time is up."""
    _, samples, *_ = sample(10_000, late=True, slice_s=0.0)
    assert (0, 24) == (samples.valid, samples.late)


def test_going_on_lasts_as_long_as_asked_with_the_same_chunks_on_every_rank():
    """Continue by rank 0's clock, in chunks that fit the loop."""

    def work(control: ThreadControl) -> tuple[float, list[tuple[int, int]]]:
        timer = ScriptedTimer(control, time_ns=1.0)
        sampler = Sampler(session=make_session(control), timer=timer, calls=[], batch=4)
        begun = time.perf_counter()
        sampler.repeat_for(0.1)
        return time.perf_counter() - begun, timer.asked

    (lasted_s, chunks), (_, others) = run_threads(2, work)
    assert lasted_s >= 0.1
    assert chunks == others
    assert [(1, 4), (2, 4), (4, 4)] == chunks[:3]
    assert MOST_TOGETHER == max(repetitions for repetitions, _ in chunks)


@pytest.mark.parametrize(
    ("operation_s", "warmups", "repetitions"), [(0.3, 2, 9), (0.9, 2, 3), (2.0, 1, 1), (9.0, 1, 1)]
)
def test_a_long_operation_is_measured_in_one_brief_visit(operation_s, warmups, repetitions):
    """Make the repetitions that fit into the time left for the case, at least one."""
    settled, samples, chunks, slack_ns = sample(
        1e9 * operation_s, ranks=2, slice_s=0.2, longest_s=3.0, visits=24
    )
    assert 1 == settled.visits
    assert settled.is_brief is True
    assert repetitions == samples.valid
    assert [warmups, repetitions] == [settled.warmups, settled.repetitions]
    assert warmups + repetitions == sum(count for count, _ in chunks[0])
    assert 0.05e9 * operation_s == pytest.approx(slack_ns)


def test_later_launches_are_as_brief():
    """Repeat as often as the first launch, and no more for late starts."""
    fixed = FixedSettings(warmups=1, batch=1, visits=1, repetitions=2, is_brief=True)
    _, samples, chunks, _ = sample(
        2e9, late=lambda _r, i: i == 1, fixed=fixed, slice_s=0.0, longest_s=3.0
    )
    assert 1 == samples.valid
    assert 1 == samples.late
    assert 3 == sum(count for count, _ in chunks[0])
