"""Tests of a launch that searches, without ranks: which records it keeps when it is cut."""

import itertools
from collections import defaultdict
from typing import Any

import pytest
from test_search import BLOCK_STEPS, make_cases, true_ms

from commbench.ddp.plan.cases import TrainingCase
from commbench.tuner.screening import FIRST_ROUNDS
from commbench.tuner.search import Search

pytest.importorskip("torch")

HOOKS = ("none", "fp16")
#: Blocks of a round that compares the hooks: each hook, and the step without DDP.
BLOCKS = len(HOOKS) + 1


class OneRank:
    """A session of one rank whose blocks take no time; its records are the cases."""

    def __init__(self) -> None:
        self.control = self
        self.rounds: defaultdict[str, list[int]] = defaultdict(list)
        self.records: list[TrainingCase] = []

    def broadcast(self, value: Any) -> Any:
        """Return the value."""
        return value

    def prepare_search(self, cases: list[TrainingCase]) -> int:
        """Have room for all cases."""
        return len(cases)

    def block(self, _: TrainingCase, *, last: bool) -> bool:  # noqa: ARG002 - as in the product
        """Train without a failure."""
        return True

    def median_ms(self, case: TrainingCase) -> float:
        """Return the true time."""
        return true_ms(case)

    def finish(self, case: TrainingCase, *, is_kept: bool = True) -> None:
        """Keep the case in place of its record."""
        if is_kept:
            self.records.append(case)


def train(blocks: int | None) -> tuple[bool, list[TrainingCase]]:
    """Search until time is out after ``blocks`` blocks, or to the end.

    Return whether it came to the end, and the cases with a record.
    """
    from commbench.ddp.session import Duty, train_search

    cases = make_cases(HOOKS)
    seconds = 100.0 * BLOCK_STEPS
    numbers = itertools.count()
    duty = Duty(
        begin=lambda _: None,
        finish=lambda _: None,
        is_out_of_time=lambda: next(numbers) == blocks,
        search=Search(cases, seconds=seconds, seed="1"),
    )
    session = OneRank()
    is_complete = train_search(cases, session, duty)  # type: ignore[arg-type]
    return is_complete, session.records


def test_a_search_keeps_a_record_of_each_case_that_it_has_trained() -> None:
    """Hand over each case once, the default last of all or with the last round."""
    is_complete, records = train(None)
    assert is_complete
    assert len(records) == len(set(records))
    assert set(make_cases(HOOKS)) == set(records)


@pytest.mark.parametrize("rounds", [1, FIRST_ROUNDS])
def test_a_search_that_is_cut_early_is_repeated(rounds: int) -> None:
    """Keep what was measured; without the default's record if hooks were not compared."""
    is_complete, records = train(rounds * BLOCKS)
    default = make_cases(HOOKS)[0]
    assert not is_complete
    assert (rounds == FIRST_ROUNDS) == (default in records)
    assert {"fp16", "local"} <= {case.hook_name for case in records}
