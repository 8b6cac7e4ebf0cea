"""The screening of settings: rounds of short blocks that drop the slow ones.

Each round has a block of the baseline and of every setting that is left. A speedup is the ratio of
two block medians of one round, because the machine changes less within a round than between rounds.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from commbench.ddp.plan.cases import CONFIRM, SWEEP, TrainingCase
from commbench.results.recommendation import EFFECTS, effect_of
from commbench.stats import MARGIN, hodges_lehmann
from commbench.tuner.rules import winners

#: Rounds that compare hooks before other bucket sizes follow.
FIRST_ROUNDS = 2
#: Rounds after which the slower half is dropped; the last of them ends the screening.
HALVINGS = (4, 8, 16)
#: An alternative is dropped if the logarithm of its speedup is below the best by the first of these
#: numbers, or by the second times the standard error if that is less.
BEHIND, BEHIND_ERRORS = 0.2, 2.5

Ending = Literal["decided", "undecided", "steps", "time", "disturbed", "nothing"]


class Rounds:
    """The block medians of a series of rounds.

    Args:
        candidates: numbers of the alternatives that the next round holds; the baseline is 0.
    """

    phase: str = CONFIRM

    def __init__(self, candidates: Sequence[int]) -> None:
        self.candidates = list(candidates)
        self.number = -1
        """Of the round under way, from 0."""
        self._medians_ms: dict[int, dict[int, float]] = {}

    def next_round(self) -> list[int]:
        """Judge the round that is over and begin the next one.

        Return its settings, the baseline first; none at the end.
        """
        self._judge()
        if self._is_over() or not self.candidates:
            return []
        self.number += 1
        return [0, *self.candidates]

    def _judge(self) -> None:
        """Drop candidates by the rounds so far."""

    def _is_over(self) -> bool:
        """Return whether further rounds of the candidates would be of no use."""
        return False

    @property
    def ending(self) -> Ending:
        """Why there is no next round."""
        return "nothing"

    def look(self) -> None:
        """Judge the candidates by their intervals."""

    def finalists(self) -> list[int]:
        """Return the numbers of the candidates to confirm; none after that."""
        return []

    def add(self, setting: int, median_ms: float) -> None:
        """Enter the median step of a setting's block in the round under way."""
        self._medians_ms.setdefault(setting, {})[self.number] = median_ms

    def leave_out(self, setting: int) -> None:
        """Do without a setting that cannot be trained."""
        if setting in self.candidates:
            self.candidates.remove(setting)

    @property
    def rounds(self) -> int:
        """Blocks of the baseline."""
        return len(self._medians_ms.get(0, ()))

    def speedups(self, setting: int) -> list[float]:
        """Return the speedup over the baseline in each round that has both."""
        base_ms, own_ms = self._medians_ms.get(0, {}), self._medians_ms.get(setting, {})
        return [base_ms[number] / own_ms[number] for number in own_ms if number in base_ms]

    def speedup(self, setting: int) -> float:
        """Return the speedup over all rounds, see `hodges_lehmann`; 0 without a round.

        After few rounds it is nearer to the true one than their median.
        """
        speedups = self.speedups(setting)
        if not speedups:
            return 0.0
        return math.exp(hodges_lehmann(np.log(speedups)))


class Screening(Rounds):
    """Successive halving, apart for the alternatives of each effect on learning.

    Of several hooks each is tried with the baseline's bucket size first. The other sizes follow for
    the hooks that are left, which saves most blocks where one hook is much faster than others.

    Args:
        settings: the baseline first.
        withheld: numbers of those that may not be recommended, however fast they are.
    """

    phase = SWEEP

    def __init__(self, settings: Sequence[TrainingCase], withheld: Collection[int] = ()) -> None:
        self._settings = settings
        self._withheld = withheld
        self._effects = [effect_of(case, settings[0]) for case in settings]
        cap = settings[0].bucket_cap_mb
        hooks = {case.hook_name for case in settings if case.bucket_cap_mb == cap}
        first = []
        self._waiting: list[int] = []
        """Alternatives that follow when hooks have been compared."""
        strengths = list(map(EFFECTS.index, self._effects))
        for number in sorted(range(1, len(settings)), key=strengths.__getitem__):
            case = settings[number]
            if len(hooks) > 1 and case.bucket_cap_mb != cap and case.hook_name in hooks:
                self._waiting.append(number)
            else:
                first.append(number)
        super().__init__(first)
        self._compared_from = 0
        """The round from which the present alternatives are compared."""

    @property
    def _compared(self) -> int:
        """Rounds in which the present alternatives were compared."""
        return self.rounds - self._compared_from

    def _judge(self) -> None:
        """Drop the alternatives that are clearly behind and, after some rounds, the slower half;
        add the other bucket sizes of the hooks that are left.
        """
        if self._compared:
            factor, best = math.exp(self._behind()), 0.0
            ranked = sorted(self.candidates, key=self.speedup, reverse=True)
            self.candidates = []
            for effect in EFFECTS:  # a stronger effect on learning must pay
                members = [n for n in ranked if self._effects[n] == effect]
                best = max([best, *map(self.speedup, members[:1])])
                near = [n for n in members if self.speedup(n) * factor >= best]
                if self._compared in HALVINGS:
                    near = near[: math.ceil(len(members) / 2)]
                self.candidates += near
        if self._waiting and (self._compared >= FIRST_ROUNDS or not self.candidates):
            self.candidates += self._newcomers()
            self._waiting = []
            self._compared_from = self.rounds

    def _newcomers(self) -> list[int]:
        """Return the other bucket sizes of the hooks that are left.

        The first size of each hook comes first, the fastest hook's before others, then the second
        size of each. Sizes are spread, so that the first few lie far apart. What may not be
        recommended comes last.
        """
        speedup_of_hook = {self._settings[0].hook_name: 1.0}
        for setting in self.candidates:
            hook = self._settings[setting].hook_name
            speedup = max(self.speedup(setting), speedup_of_hook.get(hook, 0.0))
            speedup_of_hook[hook] = speedup
        joining = []
        for hook, speedup in speedup_of_hook.items():
            sizes = [n for n in self._waiting if self._settings[n].hook_name == hook]
            for place, number in enumerate(_spread(len(sizes))):
                setting = sizes[number]
                joining.append((setting in self._withheld, place, -speedup, setting))
        return [setting for *_, setting in sorted(joining)]

    def _behind(self) -> float:
        """Return how far below the best the logarithm of a speedup may lie."""
        changes = []
        for speedups in map(self.speedups, self.candidates):
            for earlier, later in itertools.pairwise(speedups):
                changes.append(math.log(later / earlier))
        if not changes:
            return BEHIND
        variance = sum(change**2 for change in changes) / len(changes) / 2
        return min(BEHIND, BEHIND_ERRORS * math.sqrt(variance / self._compared))

    def _is_over(self) -> bool:
        if not self._compared or self._waiting:
            return False
        effects = {self._effects[setting] for setting in self.candidates}
        has_chosen = len(effects) == len(self.candidates)
        is_last = self._compared >= HALVINGS[-1]
        return has_chosen or is_last or self._behind() < math.log1p(MARGIN)

    def finalists(self) -> list[int]:
        """Return the numbers of the `winners`, the best first."""
        ratios = {}
        for number in self.candidates:
            if self.speedups(number):
                ratios[self._settings[number]] = self.speedup(number)
        withheld = [self._settings[number] for number in self._withheld]
        chosen = winners(ratios, self._settings[0], withheld)
        return [self._settings.index(case) for case in chosen]


class Search(Screening):
    """Plans the rounds of a launch from the times of the rounds before.

    Args:
        cases: the default first; steps without DDP come last and are measured in the first rounds,
            for comparison.
        seconds: of all blocks together. The hooks are compared however long that takes.
        withheld: hooks that may not be recommended.
        seed: of the order within rounds.
    """

    def __init__(
        self,
        cases: Sequence[TrainingCase],
        *,
        seconds: float,
        seed: str,
        withheld: Collection[str] = (),
    ) -> None:
        settings = [case for case in cases if case.uses_ddp]
        unusable = [n for n, case in enumerate(settings) if case.hook_name in withheld]
        super().__init__(settings, unusable)
        self._local = list(range(len(settings), len(cases)))
        self._random = random.Random(seed)
        self._left_s = seconds
        self._room = len(cases)
        self._block_s: dict[str, float] = {}
        """Of the latest block of each hook."""

    @property
    def has_compared(self) -> bool:
        """Whether the hooks have been compared."""
        return self.rounds >= FIRST_ROUNDS

    def plan_round(self, room: int) -> list[int]:
        """Return the indices of the cases in the next round, in their order; none at the end.

        Args:
            room: the most cases that a round may have, unless the hooks alone are more.
        """
        self._room = room
        members = self.next_round()
        if members and self.number < FIRST_ROUNDS:
            members += self._local
        self._random.shuffle(members)
        return members

    def _is_over(self) -> bool:
        is_late = self._left_s <= 0 and self.has_compared
        return is_late or super()._is_over()

    def add_block(self, index: int, median_ms: float, seconds: float) -> None:
        """Enter a block: its median step and the time that it took."""
        self._left_s -= seconds
        if index not in self._local:
            self._block_s[self._settings[index].hook_name] = seconds
            self.add(index, median_ms)

    def leave_out(self, setting: int) -> None:
        """Do without a case that cannot be trained; without the default the search is over."""
        super().leave_out(setting)
        if setting in self._local:
            self._local.remove(setting)
        if setting == 0:
            self.candidates, self._waiting = [], []

    def _newcomers(self) -> list[int]:
        """Return the other bucket sizes, in this order, for which the time and the room suffice."""
        newcomers = super()._newcomers()
        chosen = [0, *self.candidates]
        left_s, fewest = self._left_s, len(chosen)
        for setting in (*chosen, *newcomers):
            # A first block is about twice as long, because DDP is made and its buckets are rebuilt.
            blocks = HALVINGS[0] + int(setting in newcomers)
            seconds = blocks * self._block_s.get(self._settings[setting].hook_name, 0.0)
            if setting not in newcomers:
                left_s -= seconds
            elif seconds <= left_s and len(chosen) < self._room:
                chosen.append(setting)
                left_s -= seconds
        return chosen[fewest:]


def _spread(count: int) -> list[int]:
    """Return the numbers below ``count``: the middle one, then those of the halves, and so on."""
    order = []
    parts = [(0, count)]
    for low, high in parts:
        if low < high:
            middle = (low + high) // 2
            order.append(middle)
            parts += [(low, middle), (middle + 1, high)]
    return order
