"""Budgets of measuring time: quick, standard and rigorous."""

from __future__ import annotations

import math
from dataclasses import dataclass

from commbench.schema import Unlimited


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Number of launches, target width of intervals, and time of a case per launch."""

    name: str
    launches: int
    """Six is the fewest that give an exact 95 % interval of the median over launches."""
    relative_half_width: float
    """Target: half-width of the interval over launches as a share of the time."""
    slice_s: float
    """Longest time for one case in one launch: warm-up, timed repetitions and their
    synchronisation, in seconds."""
    longest_s: Unlimited = math.inf
    """Longest time of a case in one launch all the same, in seconds, unless one repetition is
    longer: in its place messages in flight, visits and repetitions become fewer."""
    visits: int = 1
    """The most visits of a case in a launch, spread over the launch; 1: one that fills its
    time."""
    energy_s: float = 0.0
    """Additional seconds of repetitions for the energy alone; 0: the timed repetitions have to
    suffice."""
    is_soak: bool = False
    """Whether repetitions fill the whole time slice, and each visit is a point of a time line."""


BUDGETS = {
    budget.name: budget
    for budget in (
        Budget(
            name="quick",
            launches=6,
            relative_half_width=0.05,
            slice_s=0.2,
            longest_s=3.0,
            visits=24,
        ),
        Budget(
            name="standard",
            launches=10,
            relative_half_width=0.02,
            slice_s=0.5,
            longest_s=7.5,
            visits=24,
        ),
        Budget(
            name="rigorous",
            launches=20,
            relative_half_width=0.01,
            slice_s=1.0,
            longest_s=15.0,
            visits=24,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class TrainingBudget:
    """Number of launches of a training sweep, and training time per configuration and launch."""

    name: str
    launches: int
    """Launches of the sweep; every one trains every configuration."""
    confirm_launches: int
    """Confirmation launches of the baseline and the winners alone, on which the recommendation
    rests."""
    block_s: float
    """Duration of a block's timed steps on the baseline; no configuration makes fewer steps than
    the baseline."""
    confirm_blocks: int
    """Blocks of each configuration in a confirmation launch, taken in turns."""
    relative_half_width: float
    """Target half-width of the interval of a step."""
    search_s: float
    """Time of the blocks with which a tuning searches for the settings to confirm; comparing the
    hooks may take longer."""
    aim_s: float | None = None
    """Target time of the whole sweep: launches beyond it are left out, but never below two."""


TRAINING_BUDGETS = {
    budget.name: budget
    for budget in (
        TrainingBudget(
            name="quick",
            launches=3,
            confirm_launches=6,
            block_s=0.35,
            confirm_blocks=3,
            search_s=30.0,
            relative_half_width=0.05,
            aim_s=70.0,
        ),
        TrainingBudget(
            name="standard",
            launches=6,
            confirm_launches=10,
            block_s=2.0,
            confirm_blocks=3,
            search_s=60.0,
            relative_half_width=0.02,
        ),
        TrainingBudget(
            name="rigorous",
            launches=10,
            confirm_launches=20,
            block_s=5.0,
            confirm_blocks=4,
            search_s=200.0,
            relative_half_width=0.01,
        ),
    )
}
