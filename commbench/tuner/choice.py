"""Which settings to measure: collectives to time, predicted and measured speedups, and their posterior."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from commbench.analysis.prediction.bucketing import best_list
from commbench.analysis.prediction.messages import messages_of
from commbench.analysis.prediction.network import LEAST_SIZES, NetworkModel
from commbench.analysis.prediction.steps import NotTrainedError, StepModel, StepPrediction
from commbench.collectives.cases import Case, Sweep
from commbench.collectives.datatypes import find_dtype
from commbench.ddp.plan.cases import CALIBRATE, DEFAULT_CAP, SWEEP, TrainingCase, baseline_of
from commbench.ddp.plan.layout import MIB
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.engine.records import Record
from commbench.errors import InputError
from commbench.hooks.registry import NONE, parse_hook
from commbench.results.info import RunInfo
from commbench.results.summary import latest
from commbench.tuner.decision import comparable
from commbench.tuner.rounds import Standing, network_spread

#: Bytes of gradients in the buckets whose messages are timed: from the model's size, at most the larger limit, down to
#: the smaller one, by the factor.
SMALLEST_BUCKET, LARGEST_BUCKET, FACTOR = 4096, 64 * MIB, 4


def network_cases(hooks: Sequence[str], facts: WorkloadFacts, ranks: int, backend: str) -> list[Case]:
    """Return the collectives that hooks issue for buckets of all sizes, including those without a hook.

    A bucket is modelled as one square matrix; the messages of hooks that depend on tensor shapes lie near these sizes.
    For a model too small for a curve, larger buckets are added. ``backend`` is that of training.

    Raises:
        InputError: a parameter's data type cannot be timed.
    """
    wanted: dict[tuple[str, str], set[int]] = {}
    plain = TrainingCase(workload="", world_size=ranks, batch_per_rank=1, backend=backend)
    for hook in dict.fromkeys([NONE, *hooks]):
        case = replace(plain, **parse_hook(hook))
        for dtype, elements in _buckets(facts):
            side = max(1, math.isqrt(elements))
            for message in messages_of(case, elements, ranks, shapes=[(side, elements // side)], dtype=dtype):
                share = find_dtype(message.dtype).itemsize * ranks
                size = share * math.ceil(message.message_bytes / share)
                wanted.setdefault((message.operation, message.dtype), set()).add(size)
    for sizes in wanted.values():
        while len(sizes) < LEAST_SIZES:
            sizes.add(FACTOR * max(sizes))
    sweeps = [
        Sweep(operations=(operation,), sizes=sorted(sizes), backends=(plain.carrier,), dtypes=(dtype,))
        for (operation, dtype), sizes in wanted.items()
    ]
    return [case for sweep in sweeps for case in sweep.cases(ranks)]


def _buckets(facts: WorkloadFacts) -> Iterator[tuple[str, int]]:
    """Yield the data type and the elements of buckets; each holds one data type, the largest first."""
    for dtype in dict.fromkeys(p.dtype for p in facts.parameters):
        itemsize = find_dtype(dtype).itemsize
        largest = min(sum(itemsize * p.numel for p in facts.parameters if p.dtype == dtype), LARGEST_BUCKET)
        powers = range(1 + max(0, math.ceil(math.log(largest / SMALLEST_BUCKET, FACTOR))))
        yield from ((dtype, max(1, largest // FACTOR**power // itemsize)) for power in powers)


def fit_steps(
    facts: WorkloadFacts, baseline: TrainingCase, collectives: Iterable[Record], trainings: Iterable[TrainingRecord]
) -> StepModel | None:
    """Return the model of a step from all measurements of network and training; None if the default was not trained.

    Raises:
        InputError: the network lacks a collective.
    """
    network = NetworkModel.fit(collectives).at(baseline.carrier, baseline.world_size)
    try:
        return StepModel.calibrate(facts, network, latest(trainings).values())
    except NotTrainedError:  # the record of the default, or of the step without DDP, says why
        return None


def predict_all(model: StepModel, cases: Iterable[TrainingCase]) -> dict[TrainingCase, StepPrediction]:
    """Predict the cases whose hook is in the model."""
    return {case: model.predict(case) for case in cases if case.hook_name in model.hooks}


@dataclass(frozen=True, kw_only=True)
class Chooser:
    """Predicts the candidates and ranks them."""

    facts: WorkloadFacts
    candidates: Sequence[TrainingCase]
    """Every setting that may be recommended, and the default."""
    info: RunInfo
    """Entries of run.json that `comparable` needs."""
    allows_lists: bool = False
    """Whether lists of bucket sizes may be recommended."""

    @property
    def baseline(self) -> TrainingCase:
        """The default."""
        return baseline_of(self.candidates)

    def predict(
        self, collectives: Iterable[Record], trainings: Sequence[TrainingRecord]
    ) -> dict[TrainingCase, StepPrediction]:
        """Predict the step of every calibrated candidate, of all measured settings, and of lists of bucket sizes.

        Empty if the default was not trained or the network lacks a collective; the recommendation says so.
        """
        try:
            model = fit_steps(self.facts, self.baseline, collectives, trainings)
        except InputError:
            model = None
        if model is None:
            return {}
        calibrated_hooks = self._fit_hooks(trainings)
        measured = [r.case for r in trainings if r.case.phase == SWEEP and r.case.uses_ddp]
        predictable = [
            case for case in dict.fromkeys([*self.candidates, *measured]) if case.hook_name in calibrated_hooks
        ]
        predicted = predict_all(model, predictable)
        return predicted | predict_all(model, self._lists(model, predicted))

    def standing(
        self,
        predicted: Mapping[TrainingCase, StepPrediction],
        collectives: Iterable[Record],
        trainings: Sequence[TrainingRecord],
    ) -> Standing:
        """Return the estimates of all settings that may be recommended, from predictions and the sweep."""
        if self.baseline not in predicted:
            return Standing(estimates=(), model_error=0.0, launch_spread=0.0)
        allowed = {member.case for member in comparable(trainings, self.info)[1]}
        unfit = {record.case for record in trainings if record.case.phase == SWEEP} - allowed
        network = network_spread(collectives)
        return Standing.of(predicted, trainings, self.baseline, network=network).without(unfit)

    def _fit_hooks(self, trainings: Sequence[TrainingRecord]) -> set[str]:
        """Return the hooks whose calibrated setting may be recommended."""
        baseline, others = comparable(trainings, self.info, CALIBRATE)
        return {member.case.hook_name for member in [*([baseline] if baseline else []), *others]}

    def _lists(self, model: StepModel, predicted: Mapping[TrainingCase, StepPrediction]) -> list[TrainingCase]:
        """Return the bucket lists with the shortest predicted step: without compression, and of the fastest hook."""
        if not self.allows_lists or not predicted:
            return []
        fastest = min(predicted, key=lambda case: predicted[case].step_ms)
        cases = dict.fromkeys([self.baseline, dataclasses.replace(fastest, bucket_cap_mb=DEFAULT_CAP)])
        lists = [(case, best_list(model, case)) for case in cases]
        return [dataclasses.replace(case, bucket_cap_mb=caps) for case, caps in lists if caps]
