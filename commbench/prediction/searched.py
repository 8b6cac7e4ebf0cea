"""Says how a tuning came to its choice: how many settings it measured, how many it only predicted, and how well."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commbench.errors import InputError
from commbench.prediction.accuracy import PredictionRow, held_out_accuracy, prediction_rows
from commbench.prediction.choosing import fit_steps
from commbench.records import Record
from commbench.stats import MARGIN
from commbench.training.cases import CONFIRM, SWEEP, TrainingCase
from commbench.training.conclusion import Choice, Recommendation, Search, setting_of
from commbench.training.records import TrainingRecord
from commbench.training.trained import trained
from commbench.training.workload import WorkloadFacts


def with_search(
    found: Recommendation, collectives: Iterable[Record], trainings: Sequence[TrainingRecord], info: Mapping[str, Any]
) -> Recommendation:
    """The recommendation with how it was searched for, and a doubt where predictions may have missed a faster setting.

    That is where the best of the settings that were only predicted, were its prediction off by the median error of
    speedups at held-out settings, would beat the choice by more than the margin of 2 %: but never by more than what
    perfect overlap would bring.

    Args:
        found: from the run's fresh launches.
        collectives: of the run.
        trainings: of the run, all stages.
        info: as ``run.json`` holds it, see `prediction_rows`.

    Returns:
        The same where the run is no tuning; with a doubt that says why where it could not predict anything.
    """
    collectives = list(collectives)
    rows = prediction_rows(collectives, trainings, info)
    if not rows and (doubt := _unpredicted(collectives, trainings, info)):
        return dataclasses.replace(found, doubts=(*found.doubts, doubt))
    afresh, rounds = (_measured(trainings, phase) for phase in (CONFIRM, SWEEP))
    baseline = setting_of(found.baseline)
    others = [row for row in rows if setting_of(_choice(row)) != baseline]
    if not others:
        return found
    unmeasured = [row for row in others if setting_of(_choice(row)) not in [*afresh, *rounds]]
    accuracy = held_out_accuracy(rows)
    search = Search(
        settings=len(others),
        afresh=sum(setting_of(_choice(row)) in afresh for row in others),
        in_rounds=sum(setting_of(_choice(row)) in rounds and setting_of(_choice(row)) not in afresh for row in others),
        predicted=len(unmeasured),
        speedup_error=accuracy.speedup_error if accuracy else None,
        held_out=accuracy.settings if accuracy else 0,
    )
    doubt = _doubt(found, rows, unmeasured, search.speedup_error)
    return dataclasses.replace(found, search=search, doubts=(*found.doubts, *([doubt] if doubt else [])))


def _unpredicted(collectives: Iterable[Record], trainings: Iterable[TrainingRecord], info: Mapping[str, Any]) -> str:
    """What of the network is not known, so that a tuning could not predict anything; empty if that is not so."""
    keys, facts = info.get("candidates"), info.get("facts")
    try:
        if keys and facts:
            fit_steps(WorkloadFacts.from_json(facts), TrainingCase.from_key(keys[0]), collectives, trainings)
    except InputError as error:
        return f"no setting could be predicted: {str(error).rstrip('.')}"
    return ""


def _measured(trainings: Iterable[TrainingRecord], phase: str) -> list[dict[str, Any]]:
    """The settings that were measured in a phase."""
    return [setting_of(one.case) for one in trained(trainings, phase).values() if one.case.uses_ddp and one.is_ok]


def _choice(row: PredictionRow) -> Choice:
    """The setting of a row."""
    known = {f.name for f in dataclasses.fields(TrainingCase)} & {f.name for f in dataclasses.fields(Choice)}
    return Choice(**{name: getattr(row, name) for name in known})


def _doubt(
    found: Recommendation, rows: Iterable[PredictionRow], unmeasured: Sequence[PredictionRow], error: float | None
) -> str:
    """Whether a setting that was only predicted may be faster than the choice; empty if not."""
    choice = found.baseline if found.verdict == "keep" else found.best
    own_ms = next((row.predicted_step_ms for row in rows if setting_of(_choice(row)) == setting_of(choice)), None)
    rival = min(unmeasured, key=lambda row: row.predicted_step_ms or 0.0, default=None)
    if not own_ms or rival is None or not rival.predicted_step_ms or not rival.predicted_overlapped_ms:
        return ""
    name, most = _choice(rival).name, own_ms / rival.predicted_overlapped_ms
    if most <= 1 + MARGIN:
        return ""
    if error is None:
        return f"{name} was only predicted, and nothing shows how far predictions err here"
    ratio = own_ms / rival.predicted_step_ms
    if min(most, ratio * (1 + error)) <= 1 + MARGIN:
        return ""
    return (
        f"{name} was only predicted, at {ratio:.3f} times the speed of the choice, and the error of predicted speedups "
        f"is {100 * error:.1f} %"
    )
