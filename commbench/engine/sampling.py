"""The visits of a case in a launch: how many, how long, in which rounds, and the warm-up and
repetition of each, where rank 0 decides from the samples for all ranks.

A launch measures a case in several short visits, spread over the launch in shuffled rounds.
Consecutive repetitions share a state of the machine, so that one long stretch says less about a
launch than several short ones.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from commbench.engine.control import gather_everywhere
from commbench.engine.records import FixedSettings, Record
from commbench.engine.samples import PairSamples, Samples
from commbench.engine.session import Session
from commbench.engine.timing.loops import Call, Repetitions, Timer
from commbench.engine.timing.sync import TOLERATED_LATE
from commbench.engine.visits import visit_times
from commbench.stats import warmup_count
from commbench.stats.budgets import Budget
from commbench.stats.components import FEWEST_REPETITIONS, FEWEST_VISITS, components_of, plan_visits

#: The most visits while components of variance are unknown.
PILOT_VISITS = 8
#: Duration of the repetitions of such a visit, and the repetitions of all of them.
PILOT_S, PILOT_REPETITIONS = 0.002, 30
#: Repetitions of a single visit without which there is no 95 % interval, and the most of a launch.
FEWEST_OF_INTERVAL, MOST_REPETITIONS = 6, 5000
#: Discarded repetitions before a later visit: at least one, at most this number, at most for this
#: time in seconds.
MOST_WARMUPS, WARMUP_S = 20, 0.001
#: Operations that a launch makes of a case at least where there is time: of each visit a warm-up
#: and the fewest repetitions.
USUAL_OPERATIONS = FEWEST_VISITS * (1 + FEWEST_REPETITIONS)
WARMUP_WINDOW = 20
WARMUP_CAP = 300
#: Share of a case's time slice that warm-up may take with one visit a launch, and before the first
#: of several: the median over visits depends little on the first.
WARMUP_SHARE, FIRST_WARMUP_SHARE = 0.3, 0.1
#: Duration of the repetitions between two checks if no times are kept, and their largest number:
#: loops allocate all times beforehand.
CHUNK_S, MOST_TOGETHER = 0.05, 1024
#: Operations behind the first estimate of an operation's time.
GUESS_OPERATIONS = 3
#: How late ranks may start in a brief visit, as a share of an operation.
BRIEF_SLACK = 0.05
#: A timed interval lasts at least this many readings of the clock; shorter operations are timed
#: together.
BATCH_READINGS = 20
MAXIMUM_BATCH = 1024


# ---------------------------------------------------------------------------------- plan of visits


def rounds_of_launch(settings: Sequence[FixedSettings | None], budget: Budget) -> int:
    """Return the rounds of a launch: the most visits of any case."""
    rounds = 1
    for fixed in settings:
        if fixed and fixed.visits:
            rounds = max(rounds, fixed.visits)
        elif budget.is_soak:
            rounds = max(rounds, budget.visits)
        else:
            rounds = max(rounds, min(PILOT_VISITS, budget.visits))
    return rounds


def is_due(visit: int, visits: int, number: int, rounds: int) -> bool:
    """Return whether the next visit of a case, counted from 0, belongs to round ``number`` of
    ``rounds``.

    The visits are spread evenly over the rounds; the first is in the first round.
    """
    return visit < visits and visit * rounds // visits <= number


def repeatable(visits: int) -> int:
    """Return how many of the visits of a launch are made again if they were disturbed."""
    return visits // 4


def pilot_visits(most: int, *, left_s: float, operation_s: float) -> int:
    """Return the visits of a launch that determines the components of variance, 1 to ``most``.

    Args:
        most: the budget's.
        left_s: time left for the case in this launch.
        operation_s: typical time of one repetition.
    """
    least_s = max(PILOT_S, (1 + FEWEST_REPETITIONS) * operation_s)
    affordable = int(left_s / least_s)
    return max(min(FEWEST_VISITS, most), min(PILOT_VISITS, most, affordable))


def settings_after(record: Record, budget: Budget) -> FixedSettings | None:
    """Return the settings that later launches keep from a launch.

    None if the case was not measured.
    """
    if not record.times_us:
        return None
    settings = FixedSettings(warmups=record.warmups, batch=record.batch, sync=record.sync)
    if "small_window" in record.flags:
        settings = replace(settings, window=record.window)
    repetitions = sum(record.visit_lengths) + record.late_discarded
    if "brief" in record.flags:
        return replace(settings, visits=1, repetitions=repetitions, is_brief=True)
    visits = visit_times(record)
    if record.pairs or not visits or budget.is_soak:
        return settings
    if len(visits) == 1:
        return replace(settings, visits=1)
    planned, repetitions = plan_visits(
        components_of([visits]),
        budget,
        visit_s=record.revisiting_s / (len(visits) - 1),
        repetition_s=record.repeating_s / max(1, repetitions),
        most_repetitions=2 * max(record.visit_lengths),
    )
    return replace(settings, visits=planned, repetitions=repetitions)


@dataclass(frozen=True, kw_only=True)
class VisitPlan:
    """How often a visit repeats: until it has enough, or its share of the time is over."""

    share_s: float
    """Time for the repetitions, in seconds."""
    minimum: int
    """Repetitions that are enough."""
    floor: int
    """Repetitions below which it never stops, even out of time."""
    maximum: int
    """Repetitions beyond which it never goes on."""
    span_s: float = 0.0
    """Shortest total time of the repetitions, in seconds."""
    fills_share: bool = False
    """Whether only time and the maximum end it."""


def plan_visit(
    settings: FixedSettings, *, share_s: float, operation_s: float, is_soak: bool = False
) -> VisitPlan:
    """Return the plan of each visit of a launch.

    A single visit of no fixed length fills its time.

    Args:
        settings: of the launch.
        share_s: time of a visit, in seconds.
        operation_s: typical time of one repetition.
        is_soak: whether each visit fills its time, however many repetitions that takes.
    """
    if is_soak:
        return VisitPlan(share_s=share_s, minimum=1, floor=1, maximum=sys.maxsize, fills_share=True)
    if settings.visits == 1 and not settings.repetitions:
        floor = FEWEST_OF_INTERVAL
        return VisitPlan(
            share_s=share_s, minimum=floor, floor=floor, maximum=MOST_REPETITIONS, fills_share=True
        )
    floor = FEWEST_REPETITIONS
    if settings.is_brief:
        floor = 1
    span_s, repetitions = 0.0, settings.repetitions
    if not repetitions:
        span_s = PILOT_S
        affordable = int(share_s / max(operation_s, 1e-9))
        repetitions = min(affordable, math.ceil(PILOT_REPETITIONS / settings.visits))
    repetitions = max(floor, repetitions)
    return VisitPlan(
        share_s=share_s,
        minimum=repetitions,
        floor=floor,
        maximum=max(repetitions, MOST_REPETITIONS // settings.visits),
        span_s=span_s,
    )


# ------------------------------------------------------------------------- warm-up and repetitions


CollectedT = TypeVar("CollectedT", Samples, PairSamples)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Rank 0's decision for all ranks."""

    repetitions: int
    widen: bool = False
    """Whether to widen the slack first."""


@dataclass(kw_only=True)
class Sampler:
    """Samples one case: first operation, warm-up, batch size, then chunks until the plan of the
    visit is fulfilled.
    """

    session: Session
    timer: Timer
    calls: Sequence[Call]
    longest_s: float = math.inf
    """Time left for the case in this launch: where that is short, there is one brief visit."""
    watched: Sequence[int] = (0,)
    """Ranks whose slowest decides on warm-up and batch; rank 0 alone if all ranks do the same
    together."""
    batch: int = 1
    """How often a timed repetition makes the calls; the warm-up determines it."""

    def __post_init__(self) -> None:
        self._pace_s = math.inf
        """Time of one repetition and its synchronisation, from the last chunk."""

    def warm_up(self, fixed: FixedSettings | None) -> FixedSettings:
        """Warm up as often as ``fixed`` states, or until times are steady (None).

        Begin the first visit.

        Returns the settings of the launch.
        """
        session, budget, sync = self.session, self.session.budget, self.timer.sync
        self._begun = time.perf_counter()
        sync.reset()
        first = self._run(1)
        if fixed:
            settings = fixed
            times = self._run(fixed.warmups - 1)
        else:
            times = self._warm_up_until_steady(first[0])
            settings = FixedSettings(warmups=1 + len(times), batch=1)
        operation_s = float(np.median((times or first)[-WARMUP_WINDOW:])) / 1e9
        if not settings.visits:
            visits = budget.visits
            if not budget.is_soak:
                left_s = session.budget.slice_s - self._elapsed()
                visits = pilot_visits(visits, left_s=left_s, operation_s=operation_s)
            settings = replace(settings, visits=visits)
        if not fixed:
            batch = batch_of(1e9 * operation_s, self.timer.reading_ns())
            settings = replace(settings, batch=batch)
            operations = (self.longest_s - self._elapsed()) / max(operation_s, 1e-9)
            if operations < USUAL_OPERATIONS - 1 and not budget.is_soak:
                repetitions = max(1, int(operations))
                settings = replace(settings, visits=1, repetitions=repetitions, is_brief=True)
        settings = session.control.broadcast(settings)
        if settings.is_brief:  # a late start of a long operation costs much and says little
            sync.slack_ns = max(sync.slack_ns, int(BRIEF_SLACK * 1e9 * operation_s))
        self.batch = settings.batch
        share_s = (session.budget.slice_s - self._elapsed()) / settings.visits
        self.begin(
            plan_visit(settings, share_s=share_s, operation_s=operation_s, is_soak=budget.is_soak)
        )
        return settings

    def _warm_up_until_steady(self, first_ns: int) -> list[int]:
        """Return the times of the discarded repetitions after the first, in nanoseconds."""
        times: list[int] = []
        while True:
            more = self.session.control.broadcast_int(self._more_warmups(first_ns, times))
            if not more:
                return times
            times += self._run(more)

    def _more_warmups(self, first_ns: int, times: Sequence[int]) -> int:
        """Return how many repetitions to discard next: first a few as a guess of their time, one
        if the first was long, none if there is hardly time for another; then twice the window of
        warm-up detection, until times are steady. The window has 20 repetitions, fewer of long
        operations.
        """
        session = self.session
        share = WARMUP_SHARE
        if session.budget.visits > 1:
            share = FIRST_WARMUP_SHARE
        warm_up_s = session.budget.slice_s * share
        if not times:
            guess_s = GUESS_OPERATIONS * first_ns / 1e9
            if guess_s < warm_up_s:
                return GUESS_OPERATIONS
            return int(guess_s <= self.longest_s)
        guessed_ns = float(np.median(times[:GUESS_OPERATIONS]))
        affordable = int(warm_up_s * 1e9 / (2 * max(guessed_ns, 1.0)))
        window = min(WARMUP_WINDOW, affordable)
        is_over = len(times) >= WARMUP_CAP or self._elapsed() > warm_up_s
        if is_over or not window or warmup_count(times, window) is not None:
            return 0
        return 2 * window

    def begin_again(self, warmups: int) -> None:
        """Begin a later visit like the first, after at most ``warmups`` discarded repetitions, the
        same number on all ranks.
        """
        self.timer.sync.reset()  # a wide slack tolerates late starts
        once_s = float(np.median(self._run(1))) / 1e9
        affordable = int(WARMUP_S / max(once_s, 1e-9))
        more = max(0, min(MOST_WARMUPS, warmups, affordable) - 1)
        self._run(self.session.control.broadcast_int(more))
        self.begin(self._plan)

    def begin(self, plan: VisitPlan) -> None:
        """Begin the repetitions of a visit."""
        self._plan = plan
        self._spanned_ns = 0
        self._ends = time.perf_counter() + plan.share_s
        """When the repetitions have had their time."""

    def collect(self, samples: CollectedT) -> CollectedT | None:
        """Repeat until the plan of the visit is fulfilled.

        Return the samples on rank 0, None elsewhere.
        """
        begun = time.perf_counter()
        control, sync = self.session.control, self.timer.sync
        spanning = math.ceil(self._plan.span_s / self._pace_s)
        first = max(self._plan.minimum, min(self._plan.maximum, spanning))
        step = control.broadcast(Step(repetitions=first))
        while step.repetitions:
            chunk_begun = time.perf_counter()
            if step.widen:
                sync.handle_late_starts()
            self.session.refresh_clock()
            gathered = control.gather(self.timer.run(self.calls, step.repetitions, self.batch))
            if gathered is not None:
                step = self._next_step(samples, gathered, chunk_begun)
            step = control.broadcast(step)
        self.repeating_s = time.perf_counter() - begun
        """Time of the timed repetitions of the last visit and their synchronisation."""
        if control.rank:
            return None
        return samples

    def repeat_for(self, seconds: float) -> None:
        """Repeat for ``seconds`` more without keeping times."""
        repetitions, ends = 1, time.perf_counter() + seconds
        while repetitions:
            begun = time.perf_counter()
            self.timer.run(self.calls, repetitions, self.batch)
            if time.perf_counter() >= ends:
                repetitions = 0
            elif time.perf_counter() - begun < CHUNK_S and repetitions < MOST_TOGETHER:
                repetitions *= 2
            repetitions = self.session.control.broadcast_int(repetitions)

    def _next_step(
        self, samples: Samples | PairSamples, ranks: Sequence[Repetitions], chunk_begun: float
    ) -> Step:
        """Return rank 0's decision after a chunk of every rank's repetitions."""
        plan = self._plan
        late = samples.add(ranks)
        valid, tried = samples.valid, samples.tried
        start_ns, end_ns = ranks[0].start_ns, ranks[0].end_ns
        self._spanned_ns += int(end_ns[-1] - start_ns[0])
        missing_s = plan.span_s - self._spanned_ns / 1e9
        left_s = self._ends - time.perf_counter()
        is_enough = valid >= plan.floor or tried >= 4 * plan.floor
        is_over = tried >= plan.maximum or (left_s <= 0 and is_enough)
        is_fulfilled = not plan.fills_share and valid >= plan.minimum and missing_s <= 0
        if is_over or is_fulfilled:
            return Step(repetitions=0)
        self._pace_s = max((time.perf_counter() - chunk_begun) / len(start_ns), 1e-9)
        repetitions = max(plan.minimum - valid, math.ceil(missing_s / self._pace_s))
        if plan.fills_share:
            repetitions = min(MOST_TOGETHER, plan.maximum - tried)
        affordable = math.ceil(left_s / self._pace_s)
        return Step(
            repetitions=max(1, plan.floor - valid, min(repetitions, affordable)),
            widen=late > TOLERATED_LATE,
        )

    def _elapsed(self) -> float:
        return time.perf_counter() - self._begun

    def _run(self, repetitions: int) -> list[int]:
        """Return the times of discarded repetitions, in nanoseconds: of the watched ranks, else of
        this one.
        """
        if repetitions <= 0:
            return []
        repeated = self.timer.run(self.calls, repetitions, 1)
        lasting = repeated.end_ns - repeated.start_ns
        if tuple(self.watched) != (0,):
            gathered = gather_everywhere(self.session.control, lasting)
            lasting = np.max([gathered[rank] for rank in self.watched], axis=0)
        times: list[int] = lasting.tolist()
        return times


def batch_of(typical_ns: float, reading_ns: float) -> int:
    """Return the smallest power of two of operations that lasts at least 20 readings of the
    clock.
    """
    operations = BATCH_READINGS * reading_ns / max(typical_ns, 1.0)
    doublings = math.ceil(math.log2(max(1.0, operations)))
    return min(MAXIMUM_BATCH, 1 << doublings)
