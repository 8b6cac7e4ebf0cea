"""Tests of the error rates of comparisons, through the whole engine on the fake backend with known
truth.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_info
from faking import FakeRun, Script, fake_case

from commbench.analysis.comparison import ComparisonTable, compare
from commbench.results import Run
from commbench.stats.budgets import BUDGETS

#: Launches differ by 2 %, repetitions by 2 % with a tail: what a bound MPI shows on an idle host.
QUIET = Script(launch_effect=0.02)
CASES = [
    fake_case(operation, size)
    for operation in ("all_reduce", "all_gather", "latency")
    for size in (8, 4096, 2**20)
]
PAIRS = 20


def compare_equals(pair: int, script: Script) -> ComparisonTable:
    """Measure a script twice, six repetitions a launch, with fresh seeds; compare the runs."""
    sides = []
    for seed in (2 * pair, 2 * pair + 1):
        run = FakeRun(script=replace(script, seed=seed), slice_s=1e-6)
        records = run.launches(CASES, BUDGETS["standard"].launches)
        sides.append(Run(path=Path(str(seed)), info=make_info(), records=tuple(records)))
    return compare(*sides)


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [QUIET, replace(QUIET, launch_effect=0.1), replace(QUIET, slow_launches=0.3)],
    ids=["quiet", "noisy", "two modes"],
)
def test_equal_runs_are_rarely_called_different(script: Script) -> None:
    """Call at most 5 % of the cases of 20 A/A pairs faster or slower."""
    counts = [compare_equals(pair, script).counts for pair in range(PAIRS)]
    different = sum(count["slower"] + count["faster"] for count in counts)
    assert PAIRS * len(CASES) == sum(sum(count.values()) for count in counts)
    assert different <= 0.05 * PAIRS * len(CASES)
