"""Which bucket sizes are worth a thought: one for each different layout, and the list that the model likes best."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.prediction.steps import StepModel
from commbench.training.cases import TrainingCase
from commbench.training.workload import WorkloadFacts


def candidate_caps(facts: WorkloadFacts, *, most: int = 12) -> list[str]:
    """Bucket sizes as ``bucket_cap_mb`` writes them, ``default`` first, no two with the same layout."""
    raise NotImplementedError


def best_list(model: StepModel, case: TrainingCase, *, most: int = 8) -> str | None:
    """The ``bucket_cap_mb_list`` of at most ``most`` sizes with the shortest predicted step, by dynamic programming."""
    raise NotImplementedError


def unique_layouts(caps: Sequence[str], facts: WorkloadFacts) -> list[str]:
    """``caps`` without those whose buckets an earlier one makes already."""
    raise NotImplementedError
