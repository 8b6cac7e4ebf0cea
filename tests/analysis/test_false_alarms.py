"""Tests of the error rates of comparisons, through the whole engine on the fake backend with known
truth.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_info
from faking import FakeRun, Script, fake_case

from commbench.analysis.comparison import ComparisonTable, compare
from commbench.collectives.cases import Case
from commbench.engine.records import Record
from commbench.results import Run
from commbench.stats.budgets import BUDGETS

STANDARD = BUDGETS["standard"]
#: Launches differ by 2 %, repetitions by 2 % with a tail: what a bound MPI shows on an idle host.
QUIET = Script(launch_effect=0.02)
CASES = [
    fake_case(operation, size)
    for operation in ("all_reduce", "all_gather", "latency")
    for size in (8, 4096, 2**20)
]
PAIRS = 20


def make_side(script: Script, name: str, launches: int, cases: Sequence[Case] = CASES) -> Run:
    """Return a run with six repetitions of a case in each launch."""
    run = FakeRun(script=script, slice_s=1e-6)
    records: list[Record] = run.launches(cases, launches)
    return Run(path=Path(name), info=make_info(), records=tuple(records))


def compare_scripts(
    pair: int, a: Script, b: Script, launches: int = STANDARD.launches
) -> ComparisonTable:
    """Measure both scripts with fresh seeds and compare the runs."""
    sides = [
        make_side(replace(script, seed=2 * pair + side), name, launches)
        for side, (script, name) in enumerate(((a, "a"), (b, "b")))
    ]
    return compare(*sides)


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [QUIET, replace(QUIET, launch_effect=0.1), replace(QUIET, slow_launches=0.3)],
    ids=["quiet", "noisy", "two modes"],
)
def test_equal_runs_are_rarely_called_different(script: Script) -> None:
    """Call at most 5 % of the cases of 20 A/A pairs faster or slower."""
    counts = [compare_scripts(pair, script, script).counts for pair in range(PAIRS)]
    different = sum(count["slower"] + count["faster"] for count in counts)
    assert PAIRS * len(CASES) == sum(sum(count.values()) for count in counts)
    assert different <= 0.05 * PAIRS * len(CASES)
