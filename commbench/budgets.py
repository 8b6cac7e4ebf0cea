"""How long to measure: the three budgets, from a quick look to a claim worth publishing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How many launches, how narrow an interval, and how long a case may take in one launch."""

    name: str
    launches: int
    """Six is the fewest that give an exact 95 % interval of the median over launches."""
    relative_half_width: float
    """Repetitions stop when the interval's half-width is this share of the median."""
    slice_s: float
    """Longest time for one case in one launch: warm-up, timed repetitions and their synchronisation, in seconds."""


BUDGETS = {
    budget.name: budget
    for budget in (
        Budget(name="quick", launches=6, relative_half_width=0.05, slice_s=0.2),
        Budget(name="standard", launches=10, relative_half_width=0.02, slice_s=0.5),
        Budget(name="rigorous", launches=20, relative_half_width=0.01, slice_s=1.0),
    )
}
