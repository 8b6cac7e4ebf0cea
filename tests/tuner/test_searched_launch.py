"""Tests of a launch that searches, without ranks: which records it keeps when it is cut."""

import itertools
import types
from collections import defaultdict

import pytest
from fields import fields_of
from test_search import BLOCK_STEPS, make_cases, true_ms

from commbench.ddp.plan.cases import TrainingCase
from commbench.tuner.screening import FIRST_ROUNDS, Search

pytest.importorskip("torch")

from commbench.ddp.session import TrainingLaunch

HOOKS = ("none", "fp16")
CASES = make_cases(HOOKS)
#: Blocks of a round that compares the hooks: each hook, and the step without DDP.
BLOCKS = len(HOOKS) + 1


class OneRank(TrainingLaunch):
    """A launch of one rank whose blocks take no time; it keeps cases in place of records."""

    def __post_init__(self) -> None:
        """Begin without records."""
        self._rounds = defaultdict(list)
        self.kept = []

    def prepare_search(self) -> int:
        """Have room for all cases."""
        return len(self.cases)

    def block(self, _: TrainingCase, *, last: bool) -> bool:
        """Train without a failure."""
        return True

    def median_ms(self, case: TrainingCase) -> float:
        """Return the true time."""
        return true_ms(case)

    def finish(self, case: TrainingCase, *, is_kept: bool = True) -> None:
        """Keep the case."""
        if is_kept:
            self.kept.append(case)


def train(blocks: int | None) -> tuple[bool, list[TrainingCase]]:
    """Search until time is out after ``blocks`` blocks, or to the end.

    Return whether it came to the end, and the cases with a record.
    """
    numbers = itertools.count()
    unused = dict.fromkeys(("terms", "launch", "device", "progress", "on_record", "on_refusal"))
    launch = OneRank(
        **unused,
        cases=CASES,
        control=types.SimpleNamespace(broadcast=lambda value: value),
        on_begin=lambda _: None,
        is_out_of_time=lambda: next(numbers) == blocks,
        search=Search(CASES, seconds=100.0 * BLOCK_STEPS, seed="1"),
    )
    return launch.train_search(), launch.kept


def test_a_search_keeps_a_record_of_each_case_that_it_has_trained():
    """Hand over each case once, the default last of all or with the last round."""
    is_complete, records = train(None)
    assert is_complete
    assert len(records) == len(set(records))
    assert set(CASES) == set(records)


@pytest.mark.parametrize("rounds", [1, FIRST_ROUNDS])
def test_a_search_that_is_cut_early_is_repeated(rounds):
    """Keep what was measured; without the default's record if hooks were not compared."""
    is_complete, records = train(rounds * BLOCKS)
    assert not is_complete
    assert (rounds == FIRST_ROUNDS) == (CASES[0] in records)
    assert {"fp16", "local"} <= set(fields_of(records, "hook_name"))
