"""The time of a training step for settings that were not measured, between two bounds, calibrated on measured ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from commbench.prediction.exchange import HookCost
from commbench.prediction.network import Network
from commbench.prediction.timeline import BucketPrediction
from commbench.training.cases import TrainingCase
from commbench.training.records import TrainingRecord
from commbench.training.workload import WorkloadFacts


@dataclass(frozen=True, kw_only=True)
class StepPrediction:
    """A predicted step of one setting; milliseconds."""

    case: TrainingCase
    step_ms: float
    overlapped_ms: float
    """If communication overlapped perfectly: the lower bound."""
    serial_ms: float
    """If it did not overlap at all: the upper bound."""
    exposed_comm_ms: float
    buckets: Sequence[BucketPrediction]


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """All that a step's time is predicted from."""

    facts: WorkloadFacts
    network: Network
    forward_ms: float
    """Of the step without DDP, as all ranks measured it side by side; likewise the next three."""
    backward_ms: float
    optimizer_ms: float
    other_ms: float
    """What of the step is none of these."""
    hooks: Mapping[str, HookCost]
    """By `TrainingCase.hook_name`."""
    overlap: Mapping[str, float]
    """Overlap efficiency by `TrainingCase.hook_name`: 1 at the lower bound, 0 at the upper."""

    @classmethod
    def calibrate(cls, facts: WorkloadFacts, network: Network, records: Iterable[TrainingRecord]) -> StepModel:
        """Fit to measured settings: the step without DDP, the baseline, and one or more of each hook.

        Raises:
            InputError: the step without DDP or the baseline is not among ``records``.
        """
        raise NotImplementedError

    def predict(self, case: TrainingCase) -> StepPrediction:
        """Predict a setting.

        Raises:
            InputError: its hook has not been calibrated, or it is of another workload, batch or precision.
        """
        raise NotImplementedError
