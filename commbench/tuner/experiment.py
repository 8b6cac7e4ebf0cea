"""The experiment of a live tuning: which setting trains the next block of steps, and when the
comparison is decided.

All settings are screened (`commbench.tuner.screening`). The best are confirmed in new rounds; the
decision rests on these alone. The order within a round is drawn again each time. Between equal
settings the ratio is therefore as often above 1 as below it, whatever disturbs the machine, and the
interval of its median holds.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from commbench.ddp.plan.cases import TrainingCase
from commbench.results.recommendation import Verdict
from commbench.results.trained import speedup_of_rounds
from commbench.stats import median
from commbench.tuner.rules import LIVE, USUALLY_CONFIRMED, judge, level_of, look_of_rounds
from commbench.tuner.screening import HALVINGS, Ending, Rounds, Screening

#: Steps after a switch that are not timed: the first uses the initial buckets, the second allocates
#: the rebuilt ones.
UNTIMED = 2
#: Timed steps of a block.
FEWEST_STEPS, MOST_STEPS = 3, 60
#: Timed steps of the baseline's first block: the time of a step is still unknown.
FIRST_STEPS = 8
#: The time of a block end in ms, and the largest share of a block that it should take.
BLOCK_END_MS, BLOCK_END_SHARE = 3.0, 0.015
#: Tries of a block before its setting is left out.
MOST_TRIES = 5
#: Default limits: the larger of this number of steps and the steps that fit into these seconds.
OWN_STEPS, OWN_SECONDS = 2000, 60.0
#: In place of a time or a limit of 0.
SMALLEST = 1e-9


@dataclass(frozen=True)
class Block:
    """Consecutive steps of one setting."""

    setting: int
    """Its number among the settings; 0 is the baseline."""
    phase: str
    """``sweep`` or ``confirm``."""
    steps: int
    """Timed steps; `UNTIMED` steps precede them."""
    round: int = 0
    """The round of the phase."""

    def is_measured_by(self, steps_ms: Sequence[float]) -> bool:
        """Return whether at least half of the timed steps were undisturbed."""
        return len(steps_ms) > 0 and 2 * len(steps_ms) >= self.steps


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The confirmations of earlier launches, which count among looks and alternatives."""

    rounds: Sequence[int] = ()
    """New rounds of each launch."""
    compared: Collection[int] = ()
    """Numbers of the settings in them."""


class _Confirmation(Rounds):
    """New rounds of the baseline and the finalists, with looks at a few fixed numbers of rounds.

    Args:
        finalists: numbers of the alternatives, the best first.
        earlier: see `Experiment`.
    """

    def __init__(self, finalists: Sequence[int], earlier: Earlier) -> None:
        super().__init__(finalists)
        self._earlier = earlier
        self._alternatives = len({*finalists, *earlier.compared})
        self._best = finalists[0]
        self._verdicts: dict[int, Verdict] = {}
        self._last_look = LIVE.looks[-1]

    @property
    def level(self) -> float:
        """The level of the intervals at the present look or, between looks, at the next one."""
        look = look_of_rounds([*self._earlier.rounds, self.rounds])
        return level_of(self._alternatives, look)

    def _judge(self) -> None:
        if self.rounds in LIVE.looks:
            self.look()

    def _is_over(self) -> bool:
        return self.rounds >= self._last_look

    def look(self) -> None:
        """Drop each finalist whose interval lies on one side of the margin."""
        looked_at = self.candidates
        self.candidates = []
        for setting in looked_at:
            speedups = self.speedups(setting)
            speedup = None
            if speedups:
                speedup = speedup_of_rounds(speedups, self.level)
            self._verdicts[setting] = judge(speedup)
            if self._verdicts[setting] == "inconclusive":
                self.candidates.append(setting)
        if self._is_best_faster and self._best in looked_at:
            # The best of all can be used. The other finalists get one more look.
            later = [look for look in LIVE.looks if look > self.rounds]
            self._last_look = min(later, default=self.rounds)

    @property
    def ending(self) -> Ending:
        """Why there is no next round."""
        if self._is_best_faster:
            return "decided"
        if self.candidates:
            return "undecided"
        if set(self._verdicts.values()) - {"inconclusive"}:
            return "decided"
        return "nothing"

    @property
    def _is_best_faster(self) -> bool:
        return self._verdicts.get(self._best) == "change"


class Experiment:
    """Chooses the setting of each block.

    A pure function of the seed and of the times that it is given.

    Args:
        settings: the baseline first, which is the script's own setting.
        seed: of the order of blocks.
        max_steps: optimiser steps of the training after which the experiment is over; None: no
            limit.
        time_limit_s: seconds after which it is over; None: no limit. Without either limit it has
            `OWN_STEPS` or `OWN_SECONDS`.
        withheld: numbers of the settings that may not be recommended, however fast they are.
        earlier: what launches before this one confirmed.
    """

    def __init__(
        self,
        settings: Sequence[TrainingCase],
        *,
        seed: int,
        max_steps: int | None = None,
        time_limit_s: float | None = None,
        withheld: Collection[int] = (),
        earlier: Earlier = Earlier(),
    ) -> None:
        self._earlier = earlier
        self._stage: Rounds = Screening(settings, withheld)
        self._settings = len(settings)
        self._random = random.Random(seed)
        self._max_steps, self._limit_s = math.inf, math.inf
        self._of_steps: Ending = "steps"
        """The ending at the limit of steps."""
        if max_steps is not None:
            self._max_steps = max(max_steps, SMALLEST)
        if time_limit_s is not None:
            self._limit_s = max(time_limit_s, SMALLEST)
        elif max_steps is None:
            self._of_steps = "undecided"
        self._begun_at: int | None = None
        """The steps made before the experiment."""
        self._queue: list[int] = []
        """Settings without a block in the current round."""
        self._ahead: int | None = None
        """The setting of the block that began before the times of the one before were known."""
        self._step_ms: dict[int, float] = {}
        """Median of the latest block of each setting."""
        self._steps = FIRST_STEPS
        """Timed steps of a block."""
        self._base_ms = math.inf
        """Of the baseline's fastest block."""
        self._tries: Counter[int] = Counter()
        """Blocks in a row that were too short, of each setting."""
        self.ending: Ending | Literal[""] = ""
        """Why the experiment is over; empty while it runs.

        ``decided``; ``steps`` or ``time``: the given limit is reached; ``undecided``: the
        experiment's own limit of steps or of looks is reached; ``disturbed``: the baseline's blocks
        were too short; ``nothing``: there is nothing to compare.
        """
        if len(settings) == 1:
            self.ending = "nothing"

    def next_block(
        self, made_steps: int, passed_s: float, *, is_ahead: bool = False
    ) -> Block | None:
        """Return what to train next; None when the experiment is over.

        Args:
            made_steps: optimiser steps of the training so far.
            passed_s: seconds since the experiment began.
            is_ahead: return what follows the block under way, before its times are known; None if
                it depends on these times: at the end of a round, and near a limit.
        """
        if self._begun_at is None:
            self._begun_at = made_steps
        ahead = int(is_ahead)
        if is_ahead and (len(self._queue) <= ahead or not self._step_ms):
            return None
        while not self.ending:
            if not self._queue:
                self._begin_round()
                continue
            setting = self._queue[ahead]
            expected_ms = self._step_ms.get(setting, self._step_ms.get(0, 0.0))
            steps = (1 + ahead) * (UNTIMED + self._steps)
            passed_then_s = passed_s + steps * max(expected_ms, SMALLEST) / 1e3
            used = {
                self._of_steps: (made_steps + steps) / self._max_steps,
                "time": passed_then_s / self._limit_s,
            }
            exceeded = [ending for ending, share in used.items() if share > 1]
            is_screened = max(used.values()) > LIVE.share and bool(self._stage.finalists())
            if not exceeded and not is_screened:
                if is_ahead:
                    self._ahead = setting
                return Block(setting, self._stage.phase, self._steps, self._stage.number)
            if is_ahead:
                return None
            if exceeded:
                self._end(exceeded[0])
            else:
                self._end_stage()
        return None

    def add(self, block: Block, steps_ms: Sequence[float]) -> None:
        """Enter the times of a block.

        A block that is too short by `Block.is_measured_by` is repeated, at the end of the round if
        the next one is under way. After `MOST_TRIES` such blocks in a row the setting is left out;
        if it is the baseline, the experiment is over.

        Args:
            block: as `next_block` returned it.
            steps_ms: the slowest rank's time of each undisturbed timed step.
        """
        if block.setting not in self._queue:
            return  # left out in the meantime
        if self._ahead == block.setting:
            self._ahead = None
        if not block.is_measured_by(steps_ms):
            self._tries[block.setting] += 1
            is_too_often = self._tries[block.setting] >= MOST_TRIES
            if is_too_often and block.setting == 0:
                self._end("disturbed")
            elif is_too_often:
                self.leave_out(block.setting)
            elif self._ahead is not None:
                self._queue.remove(block.setting)
                self._queue.append(block.setting)
            return
        del self._tries[block.setting]
        self._queue.remove(block.setting)
        median_ms = median(steps_ms)
        self._stage.add(block.setting, median_ms)
        is_first = not self._step_ms
        self._step_ms[block.setting] = median_ms
        if block.setting == 0:
            self._base_ms = min(self._base_ms, median_ms)
        if is_first:
            self._fit_blocks()

    def leave_out(self, setting: int) -> None:
        """Leave out a setting that cannot be trained.

        Without the baseline the experiment is over.
        """
        if self._ahead == setting:
            self._ahead = None
        self._queue = [number for number in self._queue if number != setting]
        self._stage.leave_out(setting)
        if setting == 0:
            self._end("nothing")
        elif not self._stage.candidates:
            self._queue = []

    def _begin_round(self) -> None:
        """Begin the next round, or the next stage."""
        self._queue = self._stage.next_round()
        if not self._queue:
            self._end_stage()
            return
        self._random.shuffle(self._queue)
        if not self._step_ms:  # the baseline first, for its time
            self._queue.sort(key=bool)
        else:
            self._fit_blocks()

    def _fit_blocks(self) -> None:
        """Fit the length of blocks to the baseline's fastest block: enough steps to make the end of
        a block cheap, few enough for the limits.
        """
        step_ms = self._base_ms
        if self._of_steps == "undecided":
            self._max_steps = max(OWN_STEPS, round(OWN_SECONDS * 1e3 / step_ms))
        steps = min(1e3 * self._limit_s / step_ms, self._max_steps - (self._begun_at or 0))
        cheap = math.ceil(BLOCK_END_MS / (BLOCK_END_SHARE * step_ms))
        of_screening = LIVE.share * steps / (HALVINGS[0] * self._settings)
        of_confirmation = (1 - LIVE.share) * steps / (USUALLY_CONFIRMED * LIVE.looks[1])
        fitting = math.floor(min(cheap, of_screening, of_confirmation)) - UNTIMED
        self._steps = max(FEWEST_STEPS, min(MOST_STEPS, fitting))

    def _end_stage(self) -> None:
        """Confirm the finalists of the screening; end behind the confirmation."""
        finalists = self._stage.finalists()
        self._queue = []
        if finalists:
            self._stage = _Confirmation(finalists, self._earlier)
        else:
            self._end(self._stage.ending)

    def _end(self, ending: Ending) -> None:
        self._stage.look()
        if self._stage.ending == "decided":
            ending = "decided"
        self.ending, self._queue = ending, []
