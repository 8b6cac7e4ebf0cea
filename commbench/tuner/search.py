"""The search of a tuning within one launch: which settings the next round trains."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from commbench.ddp.plan.cases import TrainingCase
from commbench.tuner.screening import FIRST_ROUNDS, HALVINGS, Screening


class Search:
    """Plans the rounds of a launch from the times of the rounds before.

    Args:
        cases: the default first; steps without DDP are measured in the first rounds, for
            comparison.
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
        self._cases = cases
        self._numbers = [cases.index(case) for case in settings]
        self._local = [index for index, case in enumerate(cases) if not case.uses_ddp]
        unusable = [n for n, case in enumerate(settings) if case.hook_name in withheld]
        self._screening = Screening(settings, unusable)
        self._random = random.Random(seed)
        self._left_s = seconds
        self._is_over = False
        self._block_s: dict[str, float] = {}
        """Of the latest block of each hook."""

    @property
    def round(self) -> int:
        """The number of the round under way, from 0."""
        return self._screening.number

    @property
    def has_compared(self) -> bool:
        """Whether the hooks have been compared."""
        return self._screening.rounds >= FIRST_ROUNDS

    def next_round(self, room: int) -> list[int]:
        """Return the indices of the cases in the next round, in their order; none at the end.

        Args:
            room: the most cases that a round may have, unless the hooks alone are more.
        """
        screening = self._screening
        screening.end_round()
        newcomers = screening.newcomers()
        if newcomers:
            screening.admit(self._affordable(newcomers, room))
        if self._left_s <= 0 and self.has_compared:
            self._is_over = True
        if self._is_over:
            return []
        members = [self._numbers[setting] for setting in screening.begin_round()]
        if members and screening.number < FIRST_ROUNDS:
            members += self._local
        self._random.shuffle(members)
        return members

    def add(self, index: int, median_ms: float, seconds: float) -> None:
        """Enter a block: its median step and the time that it took."""
        self._left_s -= seconds
        case = self._cases[index]
        self._block_s[case.hook_name] = seconds
        if case.uses_ddp:
            self._screening.add(self._numbers.index(index), median_ms)

    def leave_out(self, index: int) -> None:
        """Do without a case that cannot be trained; without the default the search is over."""
        if index == self._numbers[0]:
            self._is_over = True
        elif index in self._local:
            self._local.remove(index)
        else:
            self._screening.leave_out(self._numbers.index(index))

    def _affordable(self, newcomers: Sequence[int], room: int) -> list[int]:
        """Return the settings, in this order, for which the time and the room suffice."""
        settings = [self._cases[self._numbers[n]] for n in (0, *self._screening.candidates)]
        left_s = self._left_s
        for case in settings:
            left_s -= HALVINGS[0] * self._block_s.get(case.hook_name, 0.0)
        chosen: list[int] = []
        for setting in newcomers:
            hook = self._cases[self._numbers[setting]].hook_name
            # A first block is about twice as long, because DDP is made and its buckets are rebuilt.
            seconds = (HALVINGS[0] + 1) * self._block_s.get(hook, 0.0)
            if seconds <= left_s and len(settings) + len(chosen) < room:
                chosen.append(setting)
                left_s -= seconds
        return chosen
