"""The experiment of a live tuning: which setting trains the next block of steps, and when enough is known.

It screens all settings in rounds of short blocks, the baseline in each, and halves them. The best are confirmed in
fresh rounds; the decision rests on these alone. A speedup is the ratio of two block medians of one round, because the
machine changes less within a round than between rounds. The order within a round is drawn anew each time. Between equal
settings the ratio is therefore as often above 1 as below, whatever disturbs the machine, and the interval of its median
holds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from commbench.ddp.plan.cases import CONFIRM, SWEEP, TrainingCase
from commbench.hooks.registry import find_hook
from commbench.results.trained import Speedup
from commbench.stats import fewest_launches, launch_interval, median
from commbench.tuner.decision import LIVE_LOOKS, judge, live_level_of

#: Steps after a switch that are not timed: the first uses the initial buckets, the second allocates the rebuilt ones.
UNTIMED = 2
#: Timed steps of a block.
FEWEST_STEPS, MOST_STEPS = 3, 60
#: Timed steps of the baseline's first block, before the time of a step is known.
FIRST_STEPS = 8
#: What a block end costs, in ms, and the share of a block that it may cost.
BLOCK_END_MS, BLOCK_END_SHARE = 3.0, 0.015
#: The share of the steps or of the time that screening may take.
SCREENING_SHARE = 0.4
#: Rounds of the screening after which the better half stays; it ends with the last of them.
HALVINGS = (2, 4, 8)
#: How far a setting may be behind the best after one round; half as far after two, and so on.
BEHIND = 0.2
#: Tries of a block before its setting is left out.
MOST_TRIES = 5
#: The experiment's own limit: so many steps, or as many as fit into so many seconds if these are more.
OWN_STEPS, OWN_SECONDS = 2000, 60.0

Ending = Literal["decided", "steps", "time", "rounds", "nothing"]


@dataclass(frozen=True)
class Block:
    """Consecutive steps of one setting."""

    setting: int
    """Its number among the settings; 0 is the baseline."""
    phase: str
    """``sweep`` or ``confirm``."""
    steps: int
    """Timed steps; `UNTIMED` steps precede them."""

    def is_measured_by(self, steps_ms: Sequence[float]) -> bool:
        """Return whether enough timed steps were undisturbed: at least half of them."""
        return len(steps_ms) > 0 and 2 * len(steps_ms) >= self.steps


class _Rounds:
    """The block medians of each setting in one phase; number i of each setting belongs to round i."""

    def __init__(self) -> None:
        self.medians_ms: dict[int, list[float]] = {}

    def add(self, setting: int, median_ms: float) -> None:
        self.medians_ms.setdefault(setting, []).append(median_ms)

    def speedups(self, setting: int) -> list[float]:
        """Return the speedup over the baseline in each round that has both."""
        pairs = zip(self.medians_ms.get(0, ()), self.medians_ms.get(setting, ()), strict=False)
        return [base_ms / own_ms for base_ms, own_ms in pairs]

    def speedup(self, setting: int) -> float:
        """Return the median speedup, 0 without a round."""
        speedups = self.speedups(setting)
        return median(speedups) if speedups else 0.0


class _Screening:
    """Successive halving of the alternatives, of those that leave learning as it is and of the others.

    Args:
        alternatives: numbers of the settings beside the baseline.
        safe: those that leave learning as it is.
    """

    phase = SWEEP

    def __init__(self, alternatives: Sequence[int], safe: Collection[int]) -> None:
        self.rounds = _Rounds()
        self.alternatives = list(alternatives)
        self._safe = safe

    def end_round(self) -> None:
        """Drop the alternatives that are clearly behind and, after some rounds, the slower half."""
        count = len(self.rounds.medians_ms.get(0, ()))
        if count:
            safe = [one for one in self.alternatives if one in self._safe]
            others = [one for one in self.alternatives if one not in self._safe]
            kept = self._best_of(safe, count, 0.0)
            leader = max(map(self.rounds.speedup, kept), default=0.0)
            self.alternatives = [*kept, *self._best_of(others, count, leader)]

    def _best_of(self, alternatives: Sequence[int], count: int, leader: float) -> list[int]:
        ranked = sorted(alternatives, key=self.rounds.speedup, reverse=True)
        best = max([leader, *map(self.rounds.speedup, ranked[:1])])
        near = [one for one in ranked if self.rounds.speedup(one) * (1 + BEHIND / count) >= best]
        return near[: math.ceil(len(ranked) / 2)] if count in HALVINGS else near

    def next_round(self) -> list[int]:
        """Return the settings of the next round; none when the finalists are known."""
        count = len(self.rounds.medians_ms.get(0, ()))
        safe = sum(one in self._safe for one in self.alternatives)
        if count >= HALVINGS[-1] or (count and max(safe, len(self.alternatives) - safe) <= 1):
            return []
        return [0, *self.alternatives]

    def finalists(self) -> list[int]:
        """Return the best of all and, if that is another and gains anything, the best that leaves learning as it is."""
        measured = [one for one in self.alternatives if self.rounds.speedups(one)]
        ranked = sorted(measured, key=self.rounds.speedup, reverse=True)
        safe = [one for one in ranked if one in self._safe and self.rounds.speedup(one) > 1]
        return list(dict.fromkeys([*ranked[:1], *safe[:1]]))


class _Confirmation:
    """Fresh rounds of the baseline and the finalists, with looks at a few fixed numbers of rounds."""

    phase = CONFIRM

    def __init__(self, finalists: Sequence[int]) -> None:
        self.rounds = _Rounds()
        self.finalists = list(finalists)
        self.undecided = list(finalists)
        self.level = live_level_of(len(finalists))
        self._looks = [max(look, fewest_launches(self.level)) for look in LIVE_LOOKS]
        self._last_look = self._looks[-1]

    def end_round(self) -> None:
        """Look whether finalists are decided, if it is time for a look."""
        count = len(self.rounds.medians_ms.get(0, ()))
        if count in self._looks:
            self.look()

    def look(self) -> None:
        """Settle every finalist whose interval lies on one side of the margin."""
        count = len(self.rounds.medians_ms.get(0, ()))
        verdicts = {one: judge(self.speedup(one)) for one in self.undecided}
        self.undecided = [one for one in self.undecided if verdicts[one] == "inconclusive"]
        best = self.finalists[0]
        if verdicts.get(best) == "change":
            # The best of all can be used: the other one is of interest, but only until the next look.
            self._last_look = min((look for look in self._looks if look > count), default=count)

    def speedup(self, setting: int) -> Speedup | None:
        """Return the speedup with its interval; None without a round."""
        ratios = self.rounds.speedups(setting)
        if not ratios:
            return None
        return Speedup(ratio=median(ratios), launches=len(ratios), interval=launch_interval(ratios, self.level))

    def next_round(self) -> list[int]:
        """Return the settings of the next round; none when all is decided or every look is made."""
        count = len(self.rounds.medians_ms.get(0, ()))
        return [0, *self.undecided] if self.undecided and count < self._last_look else []


class _Limits:
    """How much of the steps and of the time is left."""

    def __init__(self, max_steps: int | None) -> None:
        self.max_steps = max_steps
        self.made_steps = 0
        self.remaining_s: float | None = None
        self._total_s: float | None = None

    def update(self, made_steps: int, remaining_s: float | None) -> None:
        self.made_steps, self.remaining_s = made_steps, remaining_s
        if self._total_s is None:
            self._total_s = remaining_s

    def set_own(self, step_ms: float) -> None:
        """Limit the steps if nobody else does."""
        if self.max_steps is None and self.remaining_s is None:
            self.max_steps = max(OWN_STEPS, round(OWN_SECONDS * 1e3 / step_ms))

    def left_steps(self, step_ms: float) -> int | None:
        """Return how many steps of that time are left; None: no limit."""
        by_time = None if self.remaining_s is None else int(1e3 * self.remaining_s / step_ms)
        by_steps = None if self.max_steps is None else self.max_steps - self.made_steps
        limits = [steps for steps in (by_time, by_steps) if steps is not None]
        return min(limits) if limits else None

    def reached(self, steps: int, step_ms: float | None) -> Ending | None:
        """Return which limit so many steps would exceed; None: none."""
        if self.max_steps is not None and self.made_steps + steps > self.max_steps:
            return "steps"
        if self.remaining_s is not None and steps * (step_ms or 0.0) / 1e3 > max(self.remaining_s, 0.0):
            return "time"
        return "time" if self.remaining_s is not None and self.remaining_s <= 0 else None

    def share_after(self, steps: int, step_ms: float) -> float:
        """Return the share of the steps or of the time that is used after so many more steps."""
        shares = [0.0]
        if self.max_steps:
            shares.append((self.made_steps + steps) / self.max_steps)
        if self.remaining_s is not None and self._total_s:
            shares.append(1 - (self.remaining_s - steps * step_ms / 1e3) / self._total_s)
        return max(shares)


class Experiment:
    """Chooses the setting of each block; a pure function of the seed and of the times it is given.

    Args:
        settings: the baseline first, which is the script's own setting.
        seed: of the order of blocks.
        max_steps: optimiser steps of the training after which the experiment is over; None: `OWN_STEPS` or
            `OWN_SECONDS`, unless the time is limited.
    """

    def __init__(self, settings: Sequence[TrainingCase], *, seed: int, max_steps: int | None) -> None:
        safe = [number for number, case in enumerate(settings) if _is_safe(case, settings[0])]
        self._stage: _Screening | _Confirmation = _Screening(range(1, len(settings)), safe)
        self._random = random.Random(seed)
        self._limits = _Limits(max_steps)
        self._step_ms: dict[int, float] = {}
        self._queue: list[int] = []
        self._steps = FIRST_STEPS
        self._tries = 0
        self._ending: Ending | None = None if len(settings) > 1 else "nothing"

    @property
    def ending(self) -> str:
        """Why the experiment is over; empty while it is not.

        ``decided``; ``steps`` or ``time``: that limit is reached; ``rounds``: every look is made; ``nothing``: nothing
        is left to compare.
        """
        return self._ending or ""

    @property
    def level(self) -> float:
        """The level of the intervals, all looks and alternatives considered."""
        return live_level_of(len(self.finalists))

    @property
    def finalists(self) -> Sequence[int]:
        """Numbers of the settings that are confirmed; empty during the screening."""
        return self._stage.finalists if isinstance(self._stage, _Confirmation) else ()

    @property
    def speedups(self) -> Mapping[int, Speedup | None]:
        """The speedup of each finalist in the fresh rounds so far."""
        stage = self._stage
        return {one: stage.speedup(one) for one in stage.finalists} if isinstance(stage, _Confirmation) else {}

    def next_block(self, made_steps: int, remaining_s: float | None) -> Block | None:
        """Return what to train next; None when the experiment is over.

        Args:
            made_steps: optimiser steps of the training so far.
            remaining_s: seconds until the time limit; None: there is none.
        """
        self._limits.update(made_steps, remaining_s)
        while self._ending is None:
            if not self._queue:
                self._begin_round()
                continue
            block = Block(self._queue[0], self._stage.phase, self._steps)
            reached = self._limits.reached(UNTIMED + block.steps, self._expected_ms(block.setting))
            if reached is not None:
                self._end(reached)
            elif self._is_screened_enough(block):
                self._confirm()
            else:
                return block
        return None

    def add(self, block: Block, steps_ms: Sequence[float]) -> None:
        """Enter a block: the slowest rank's time of each undisturbed step, in ms.

        A block that `Block.is_measured_by` refuses comes again; a setting with `MOST_TRIES` of them is left out.
        """
        if self._queue[:1] != [block.setting] or block.phase != self._stage.phase:
            return  # left out meanwhile
        if not block.is_measured_by(steps_ms):
            self._tries += 1
            if self._tries >= MOST_TRIES and block.setting:
                self.leave_out(block.setting)
            return
        self._tries = 0
        self._queue.pop(0)
        self._step_ms[block.setting] = median(steps_ms)
        self._stage.rounds.add(block.setting, median(steps_ms))
        if block.steps == FIRST_STEPS and len(self._step_ms) == 1:
            self._limits.set_own(self._step_ms[0])
            self._steps = self._block_steps()

    def leave_out(self, setting: int) -> None:
        """Leave out a setting that cannot be trained; without the baseline the experiment is over."""
        self._tries = 0
        self._queue = [one for one in self._queue if one != setting]
        stage = self._stage
        names = stage.undecided if isinstance(stage, _Confirmation) else stage.alternatives
        if setting in names:
            names.remove(setting)
        if setting == 0:
            self._end("nothing")

    # Rounds

    def _begin_round(self) -> None:
        """Evaluate the round that is over and begin the next one, of the next stage if this one is over."""
        self._stage.end_round()
        self._queue = self._stage.next_round()
        if not self._queue:
            if isinstance(self._stage, _Screening):
                self._confirm()
            else:
                self._end("rounds" if self._stage.undecided else "decided")
        elif self._step_ms:
            self._random.shuffle(self._queue)
        else:  # the baseline first, for its time
            others = self._queue[1:]
            self._random.shuffle(others)
            self._queue = [0, *others]

    def _confirm(self) -> None:
        finalists = self._stage.finalists() if isinstance(self._stage, _Screening) else []
        if not finalists:
            self._end("nothing")
            return
        self._stage, self._queue = _Confirmation(finalists), []

    def _end(self, ending: Ending) -> None:
        if isinstance(self._stage, _Confirmation) and ending in {"steps", "time"}:
            self._stage.look()
            ending = ending if self._stage.undecided else "decided"
        self._ending, self._queue = ending, []

    # Steps

    def _expected_ms(self, setting: int) -> float | None:
        return self._step_ms.get(setting, self._step_ms.get(0))

    def _is_screened_enough(self, block: Block) -> bool:
        """Return whether the rest of the steps or of the time belongs to the confirmation."""
        expected_ms = self._expected_ms(block.setting)
        if not isinstance(self._stage, _Screening) or expected_ms is None or not self._stage.finalists():
            return False
        return self._limits.share_after(UNTIMED + block.steps, expected_ms) > SCREENING_SHARE

    def _block_steps(self) -> int:
        """Return the timed steps of a block: enough to make its end cheap, few enough to fit into the limits."""
        step_ms = self._step_ms[0]
        wanted = math.ceil(BLOCK_END_MS / (BLOCK_END_SHARE * step_ms)) - UNTIMED
        left = self._limits.left_steps(step_ms)
        if left is not None:
            settings = 1 + len(self._stage.alternatives) if isinstance(self._stage, _Screening) else 3
            of_screening = SCREENING_SHARE * left / (HALVINGS[0] * settings)
            of_confirmation = (1 - SCREENING_SHARE) * left / (3 * LIVE_LOOKS[0])
            wanted = min(wanted, int(min(of_screening, of_confirmation)) - UNTIMED)
        return max(FEWEST_STEPS, min(MOST_STEPS, wanted))


def _is_safe(case: TrainingCase, baseline: TrainingCase) -> bool:
    """Return whether a setting leaves learning as it is with the baseline."""
    return case.hook_name == baseline.hook_name or find_hook(case.hook).is_lossless
