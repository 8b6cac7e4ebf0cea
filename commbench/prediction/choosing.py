"""Predicting every setting that may be chosen, and how they stand once some of them have been measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.errors import InputError
from commbench.prediction.bucketing import best_list
from commbench.prediction.network import NetworkModel
from commbench.prediction.rounds import Standing
from commbench.prediction.steps import NotTrainedError, StepModel, StepPrediction
from commbench.prediction.weighing import network_spread
from commbench.records import Record
from commbench.summary import latest
from commbench.training.cases import CALIBRATE, DEFAULT_CAP, SWEEP, TrainingCase, baseline_of
from commbench.training.recommendation import comparable
from commbench.training.records import TrainingRecord
from commbench.training.workload import WorkloadFacts


def fit_steps(
    facts: WorkloadFacts, baseline: TrainingCase, collectives: Iterable[Record], trainings: Iterable[TrainingRecord]
) -> StepModel | None:
    """The model of a step from all that is given of the network and of training; None where the default did not train.

    Raises:
        InputError: too little of the network is known.
    """
    network = NetworkModel.fit(collectives).at(baseline.carrier, baseline.world_size)
    try:
        return StepModel.calibrate(facts, network, latest(trainings).values())
    except NotTrainedError:  # the record of the default, or of the step without DDP, says why
        return None


def predict_all(model: StepModel, cases: Iterable[TrainingCase]) -> dict[TrainingCase, StepPrediction]:
    """Predict the cases whose hook the model knows."""
    return {case: model.predict(case) for case in cases if case.hook_name in model.hooks}


@dataclass(frozen=True, kw_only=True)
class Chooser:
    """What there is to choose from."""

    facts: WorkloadFacts
    candidates: Sequence[TrainingCase]
    """Every setting that may be recommended, and the default."""
    info: Mapping[str, Any]
    """What run.json states, as far as `comparable` reads it."""
    lists: bool = False
    """Whether lists of bucket sizes may be recommended, too."""

    @property
    def baseline(self) -> TrainingCase:
        """The default."""
        return baseline_of(self.candidates)

    def predict(
        self, collectives: Iterable[Record], trainings: Sequence[TrainingRecord]
    ) -> dict[TrainingCase, StepPrediction]:
        """The step of every setting whose hook calibrated well, of all that were measured, and of lists of sizes.

        Empty where the default did not train or too little of the network is known: the conclusion says so.
        """
        try:
            model = fit_steps(self.facts, self.baseline, collectives, trainings)
        except InputError:
            model = None
        if model is None:
            return {}
        fit = self._fit_hooks(trainings)
        measured = [r.case for r in trainings if r.case.phase == SWEEP and r.case.uses_ddp]
        known = [case for case in dict.fromkeys([*self.candidates, *measured]) if case.hook_name in fit]
        predicted = predict_all(model, known)
        return predicted | predict_all(model, self._lists(model, predicted))

    def standing(
        self,
        predicted: Mapping[TrainingCase, StepPrediction],
        collectives: Iterable[Record],
        trainings: Sequence[TrainingRecord],
    ) -> Standing:
        """How the settings that may be recommended stand, by prediction and by what was measured of the sweep."""
        if self.baseline not in predicted:
            return Standing(estimates=(), model_error=0.0, launch_spread=0.0)
        fit = {one.case for one in comparable(trainings, self.info)[1]}
        unfit = {record.case for record in trainings if record.case.phase == SWEEP} - fit
        network = network_spread(collectives)
        return Standing.of(predicted, trainings, self.baseline, network=network).without(unfit)

    def _fit_hooks(self, trainings: Sequence[TrainingRecord]) -> set[str]:
        """Hooks whose setting with default buckets may be recommended for all that the calibration shows."""
        baseline, others = comparable(trainings, self.info, CALIBRATE)
        return {one.case.hook_name for one in [*([baseline] if baseline else []), *others]}

    def _lists(self, model: StepModel, predicted: Mapping[TrainingCase, StepPrediction]) -> list[TrainingCase]:
        """The list of bucket sizes that the model likes best: without compression, and with the fastest hook."""
        if not self.lists or not predicted:
            return []
        fastest = min(predicted, key=lambda case: predicted[case].step_ms)
        cases = dict.fromkeys([self.baseline, dataclasses.replace(fastest, bucket_cap_mb=DEFAULT_CAP)])
        found = [(case, best_list(model, case)) for case in cases]
        return [dataclasses.replace(case, bucket_cap_mb=caps) for case, caps in found if caps]
