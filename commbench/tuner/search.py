"""The search of a tuning within one launch: which settings the next round trains."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from commbench.ddp.plan.cases import TrainingCase
from commbench.tuner.screening import FIRST_ROUNDS, HALVINGS, Screening


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

    def _admitted(self, newcomers: Sequence[int]) -> Sequence[int]:
        """Return the settings, in this order, for which the time and the room suffice."""
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
