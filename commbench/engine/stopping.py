"""Warm-up and repetition of one case in one launch: rank 0 decides from the samples, for all
ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commbench.engine.control import Control, gather_everywhere
from commbench.engine.records import FixedSettings
from commbench.engine.samples import Samples
from commbench.engine.timing.loops import Call, Repetitions, Timer
from commbench.engine.timing.sync import TOLERATED_LATE
from commbench.engine.visits import (
    MOST_WARMUPS,
    PILOT_S,
    USUAL_OPERATIONS,
    WARMUP_S,
    pilot_visits,
    soak_rule,
    visit_rule,
)
from commbench.stats import StoppingRule, warmup_count

WARMUP_WINDOW = 20
WARMUP_CAP = 300
#: Share of a case's time slice that warm-up may take with one visit a launch, and before the first
#: of several: the median over visits depends little on the first.
WARMUP_SHARE, FIRST_WARMUP_SHARE = 0.3, 0.1
#: Shortest total time of the repetitions, in seconds. Consecutive repetitions are correlated: 30
#: within 0.3 ms may agree to 5 % while the launch is half as fast a millisecond later.
SPAN_S = 0.005
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


@dataclass(frozen=True, kw_only=True)
class Step:
    """Rank 0's decision for all ranks."""

    repetitions: int
    widen: bool = False
    """Whether to widen the slack first."""
    refresh: bool = False
    """Whether to compare the hosts' clocks again first."""


@dataclass(kw_only=True)
class Sampler:
    """Samples one case: first operation, warm-up, batch size, then chunks until the rule is
    satisfied or time is up.
    """

    control: Control
    timer: Timer
    calls: Sequence[Call]
    rule: StoppingRule
    """For a launch that measures the case in one visit."""
    slice_s: float
    reading_ns: float
    """Cost of one reading of the clock in this timer's loop."""
    most_visits: int = 1
    """The budget's most visits of a case in a launch."""
    is_soak: bool = False
    """Whether each visit fills its share of the time slice."""
    longest_s: float = math.inf
    """Time left for the case in this launch: where that is short, there is one brief visit."""
    watched: Sequence[int] = (0,)
    """Ranks whose slowest decides on warm-up and batch; rank 0 alone if all ranks do the same
    together."""
    repeating_s: float = field(default=0.0, init=False)
    """Time of all timed repetitions and their synchronisation."""
    _begun: float = field(default=0.0, init=False)
    _ends: float = field(default=0.0, init=False)
    """When the repetitions of this visit have had their time."""
    _share_s: float = field(default=0.0, init=False)
    _operation_s: float = field(default=0.0, init=False)
    """Typical time of an operation at the end of the warm-up."""
    _pace_s: float = field(default=math.inf, init=False)
    """Time of one repetition and its synchronisation, from the last chunk."""
    _chunk_begun: float = field(default=0.0, init=False)
    _spanned_ns: int = field(default=0, init=False)
    _least_span_s: float = field(default=SPAN_S, init=False)
    _rule: StoppingRule = field(init=False)
    """For this visit."""

    def warm_up(self, fixed: FixedSettings | None) -> FixedSettings:
        """Warm up as often as ``fixed`` states, or until times are steady (None).

        Begin the first visit.

        Returns the settings of the launch.
        """
        self._begun = time.perf_counter()
        self.timer.sync.plan.reset()
        first = self._run(1, 1)
        if fixed:
            self._note_operation(self._run(fixed.warmups - 1, 1) or first)
            settings = fixed if fixed.visits else replace(fixed, visits=self._pilot_visits())
            self.begin_visit(settings, is_first=True)
            return settings
        times = self._run(self._guesses(_typical_ns(first)), 1)
        window = self._window(_typical_ns(times or first))
        while True:
            steady = window == 0 or warmup_count(times, window) is not None
            step = self._agree(
                Step(repetitions=0 if steady or self._is_warm_up_over(times) else 2 * window)
            )
            if not step.repetitions:
                break
            times += self._run(step.repetitions, 1)
        self._note_operation(times or first)
        batch = batch_of(1e9 * self._operation_s, self.reading_ns)
        visits = self._pilot_visits()
        settings = FixedSettings(warmups=1 + len(times), batch=batch, visits=visits)
        settings = self.control.broadcast(self._shortened(settings))
        self.begin_visit(settings, is_first=True)
        return settings

    def _shortened(self, settings: FixedSettings) -> FixedSettings:
        """Return the settings, of one brief visit if there is no time for the usual ones."""
        operations = (self.longest_s - self._elapsed()) / max(self._operation_s, 1e-9)
        if self.is_soak or operations >= USUAL_OPERATIONS - 1:
            return settings
        return replace(settings, visits=1, repetitions=max(1, int(operations)), is_brief=True)

    def _note_operation(self, times: Sequence[int]) -> None:
        self._operation_s = _typical_ns(times[-WARMUP_WINDOW:]) / 1e9

    def _pilot_visits(self) -> int:
        """Return the visits of a case whose components of variance are unknown, the same on all
        ranks.
        """
        if self.is_soak:
            return self.most_visits
        left_s = self.slice_s - self._elapsed()
        visits = pilot_visits(self.most_visits, left_s=left_s, operation_s=self._operation_s)
        return self.control.broadcast_int(visits)

    def begin_visit(self, settings: FixedSettings, *, is_first: bool) -> None:
        """Prepare for the repetitions of a visit, which has its share of the time slice.

        A later one is warmed up.
        """
        self._rule = soak_rule(self.rule) if self.is_soak else visit_rule(self.rule, settings)
        self._spanned_ns = 0
        self._least_span_s = (
            0.0
            if settings.repetitions or self.is_soak
            else SPAN_S
            if settings.visits == 1
            else PILOT_S
        )
        if settings.is_brief:  # a late start of a long operation costs much and says little
            plan = self.timer.sync.plan
            plan.slack_ns = max(plan.slack_ns, int(BRIEF_SLACK * 1e9 * self._operation_s))
        if is_first:
            self._share_s = (self.slice_s - self._elapsed()) / settings.visits
        if settings.visits > 1 and not settings.repetitions and not self.is_soak:
            affordable = int(self._share_s / max(self._operation_s, 1e-9))
            self._rule = replace(
                self._rule, minimum=max(self._rule.floor, min(self._rule.minimum, affordable))
            )
        if not is_first:
            self.timer.sync.plan.reset()  # a wide slack tolerates late starts
            self._run(self._visit_warmups(settings), 1)
        self._ends = time.perf_counter() + self._share_s

    def _visit_warmups(self, settings: FixedSettings) -> int:
        """Return the discarded repetitions before a later visit, the same on all ranks."""
        once_s = _typical_ns(self._run(1, 1)) / 1e9
        affordable = int(WARMUP_S / max(once_s, 1e-9))
        return self.control.broadcast_int(
            max(0, min(MOST_WARMUPS, settings.warmups, affordable) - 1)
        )

    def collect(self, samples: Samples, batch: int) -> Samples | None:
        """Repeat until the rule is satisfied or time is up.

        Return the samples on rank 0, None elsewhere.
        """
        begun = time.perf_counter()
        step = self._agree(Step(repetitions=self._first_chunk(batch)))
        while step.repetitions:
            if step.widen:
                self.timer.sync.handle_late_starts()
            elif step.refresh:
                self.timer.sync.plan.clock.refresh()
            gathered = self.control.gather(self.timer.run(self.calls, step.repetitions, batch))
            step = self._agree(self._next_step(samples, gathered, step, batch))
        self.repeating_s += time.perf_counter() - begun
        return samples if self.control.rank == 0 else None

    def repeat_for(self, seconds: float, batch: int) -> None:
        """Repeat for ``seconds`` more without keeping times."""
        repetitions, ends = 1, time.perf_counter() + seconds
        while repetitions := self.control.broadcast_int(
            repetitions if time.perf_counter() < ends else 0
        ):
            begun = time.perf_counter()
            self.timer.run(self.calls, repetitions, batch)
            if time.perf_counter() - begun < CHUNK_S and repetitions < MOST_TOGETHER:
                repetitions *= 2

    def _next_step(
        self, samples: Samples, gathered: list[Repetitions] | None, last: Step, batch: int
    ) -> Step | None:
        """Return rank 0's decision after a chunk; None on the other ranks."""
        if gathered is None:
            return None
        late = samples.add(gathered)
        self._spanned_ns += int(gathered[0].end_ns[-1] - gathered[0].start_ns[0])
        tried = samples.valid + samples.late
        left_s = self._ends - time.perf_counter()
        enough = samples.valid >= self._rule.floor or tried >= 4 * self._rule.floor
        missing_s = self._least_span_s - self._spanned_ns / 1e9
        sure = (
            not self.is_soak
            and missing_s <= 0
            and self._rule.satisfied([t / 1e6 for t in samples.slowest_us(batch)])
        )
        if sure or tried >= self._rule.maximum or (left_s <= 0 and enough):
            return Step(repetitions=0)
        self._pace_s = max(self._chunk_s / last.repetitions, 1e-9)
        repetitions = self._rule.next_checkpoint(tried) - tried
        if self.is_soak:
            repetitions = MOST_TOGETHER
        elif self._rule.relative_half_width is None:
            repetitions = max(
                self._rule.minimum - samples.valid, math.ceil(missing_s / self._pace_s)
            )
        missing = max(0, self._rule.floor - samples.valid)
        return Step(
            repetitions=max(1, missing, min(repetitions, math.ceil(left_s / self._pace_s))),
            widen=late > TOLERATED_LATE,
            refresh=self.timer.sync.plan.clock.is_stale(),
        )

    def _agree(self, step: Step | None) -> Step:
        """Return rank 0's step on every rank.

        The time until the next agreement is that of one chunk.
        """
        agreed = self.control.broadcast(step)
        self._chunk_begun = time.perf_counter()
        assert agreed is not None  # noqa: S101 - rank 0 always has a view
        return agreed

    @property
    def _chunk_s(self) -> float:
        return time.perf_counter() - self._chunk_begun

    def _elapsed(self) -> float:
        return time.perf_counter() - self._begun

    def _run(self, repetitions: int, batch: int) -> list[int]:
        """Return the times of discarded repetitions, in nanoseconds: of the watched ranks, else of
        this one.
        """
        if repetitions <= 0:
            return []
        repeated = self.timer.run(self.calls, repetitions, batch)
        lasting = repeated.end_ns - repeated.start_ns
        if tuple(self.watched) != (0,):
            gathered = gather_everywhere(self.control, lasting)
            lasting = np.max([gathered[rank] for rank in self.watched], axis=0)
        times: list[int] = lasting.tolist()
        return times

    def _guesses(self, first_ns: float) -> int:
        """Return the operations for the first estimate, the same on all ranks: one if the first was
        long, none if there is hardly time for another.
        """
        guesses = 1
        if GUESS_OPERATIONS * first_ns < self._warm_up_s * 1e9:
            guesses = GUESS_OPERATIONS
        elif GUESS_OPERATIONS * first_ns > self.longest_s * 1e9:
            guesses = 0
        return self.control.broadcast(guesses)

    def _window(self, typical_ns: float) -> int:
        """Return the window of warm-up detection, the same on all ranks: 20, or fewer for long
        operations.
        """
        affordable = int(self._warm_up_s * 1e9 / (2 * max(typical_ns, 1.0)))
        return self.control.broadcast(max(0, min(WARMUP_WINDOW, affordable)))

    @property
    def _warm_up_s(self) -> float:
        """The longest time of the warm-up before the first visit."""
        return self.slice_s * (FIRST_WARMUP_SHARE if self.most_visits > 1 else WARMUP_SHARE)

    def _is_warm_up_over(self, times: Sequence[int]) -> bool:
        """Return whether warm-up has used its share of repetitions or of time."""
        return len(times) >= WARMUP_CAP or self._elapsed() > self._warm_up_s

    def _first_chunk(self, batch: int) -> int:
        """Return the repetitions of the first chunk: the rule's minimum, fewer of a single visit if
        time is short.
        """
        if self._rule.relative_half_width is None:
            return max(
                self._rule.minimum,
                min(self._rule.maximum, math.ceil(self._least_span_s / self._pace_s)),
            )
        times = self._run(1, batch)
        affordable = int((self._ends - time.perf_counter()) * 1e9 / max(_typical_ns(times), 1.0))
        return max(self._rule.floor, min(self._rule.minimum, affordable))


def batch_of(typical_ns: float, reading_ns: float) -> int:
    """Return the smallest power of two of operations that lasts at least 20 readings of the
    clock.
    """
    doublings = math.ceil(math.log2(max(1.0, BATCH_READINGS * reading_ns / max(typical_ns, 1.0))))
    return min(MAXIMUM_BATCH, 1 << doublings)


def _typical_ns(times: Sequence[int]) -> float:
    return float(np.median(times)) if times else 0.0
