"""How often do fresh launches mislead, with one alternative or two, at one look or two? Simulated.

No rank is started.

``python benchmarks/looks.py`` plays decisions from log-normal launches: a first look after so many,
and where it decides nothing so many more. It prints, for a gain of just the margin and for none,
how many call for a change, and how many of the final intervals of the setting named fastest miss
its true speedup. The figures in docs/tuning.md are from here.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from commbench.cli.terminal import make_console
from commbench.results.trained import Speedup
from commbench.stats import MARGIN, Floats, median, student_interval
from commbench.tuner.rules import judge, level_of

#: Launches of the first look and of the second.
LOOKS = (
    (4, 0),
    (4, 2),
    (4, 4),
    (6, 0),
    (6, 2),
    (6, 6),
    (10, 0),
    (10, 3),
    (10, 10),
    (20, 0),
    (20, 20),
)
#: Standard deviation of the logarithm of a setting's step in a launch; settings share nothing but
#: the default.
SPREAD = 0.02


@dataclass(frozen=True, kw_only=True)
class Erred:
    """How often simulated decisions erred, as shares."""

    changes: float
    """That call for a change."""
    misses: float
    """Whose interval of the fastest alternative does not hold its true speedup."""
    second: float
    """That needed the second look."""


def simulate(
    gain: float, looks: tuple[int, int], alternatives: int, *, runs: int, seed: int = 5
) -> Erred:
    """Decide so often about alternatives that all gain so much.

    Args:
        gain: true speedup of each alternative, such as 1.02.
        looks: launches of the first look, and of the second; 0: there is none.
        alternatives: how many are compared with the default.
        runs: decisions.
        seed: of the launches.
    """
    first, more = looks
    generator = np.random.default_rng(seed)
    changes = misses = second = 0
    for _ in range(runs):
        default, *others = SPREAD * generator.standard_normal((1 + alternatives, first + more))
        ratios = [gain * np.exp(default - other) for other in others]
        speedups = _judged([of_setting[:first] for of_setting in ratios], 0)
        if more and _verdict(speedups) == "inconclusive":
            second += 1
            speedups = _judged(ratios, 1)
        interval = max(speedups, key=lambda speedup: speedup.ratio).interval
        changes += _verdict(speedups) == "change"
        misses += interval is None or not interval.low <= gain <= interval.high
    return Erred(changes=changes / runs, misses=misses / runs, second=second / runs)


def _judged(ratios: Sequence[Floats], look: int) -> list[Speedup]:
    """Return the speedups of all alternatives as a recommendation has them: short blocks have
    Student's interval.
    """
    level = level_of(len(ratios), look)
    return [
        Speedup(
            ratio=median(of_setting),
            launches=len(of_setting),
            interval=student_interval(of_setting, level),
        )
        for of_setting in ratios
    ]


def _verdict(speedups: Sequence[Speedup]) -> str:
    verdicts = [judge(speedup) for speedup in speedups]
    return next((verdict for verdict in ("change", "inconclusive") if verdict in verdicts), "keep")


def main() -> None:
    """Simulate and print a table."""
    parser = argparse.ArgumentParser(description="Simulate how often fresh launches mislead.")
    parser.add_argument(
        "--runs", type=int, default=4000, help="decisions for each line (default 4000)"
    )
    options = parser.parse_args()
    table = Table(
        "alternatives",
        "launches",
        "change at 2 %",
        "misses",
        "second look",
        "change at 0 %",
        "misses",
    )
    for column in table.columns:
        column.justify = "right"
    for alternatives in (1, 2):
        for looks in LOOKS:
            at_margin, equal = (
                simulate(gain, looks, alternatives, runs=options.runs) for gain in (1 + MARGIN, 1.0)
            )
            shares = (
                at_margin.changes,
                at_margin.misses,
                at_margin.second,
                equal.changes,
                equal.misses,
            )
            name = " + ".join(str(launches) for launches in looks if launches)
            table.add_row(str(alternatives), name, *(f"{100 * share:.1f} %" for share in shares))
    error = math.sqrt(0.05 * 0.95 / options.runs)
    make_console(sys.stdout).print(
        table, f"A share of 5 % is known to +-{200 * error:.1f} % (two standard errors)."
    )


if __name__ == "__main__":
    main()
