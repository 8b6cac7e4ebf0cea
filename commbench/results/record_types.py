"""The two kinds of what is measured, collectives and training: one type for both, and the one place that reads each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from commbench.collectives.backends import NCCL_BACKENDS
from commbench.collectives.cases import Case
from commbench.engine.records import Record, Status
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord, is_training

AnyCase = Case | TrainingCase
AnyRecord = Record | TrainingRecord


def read_case(data: Mapping[str, Any]) -> AnyCase:
    """Rebuild a case of either kind; it comes from this very version of commbench, so anything amiss is a bug."""
    return TrainingCase(**data) if is_training({"case": data}) else Case(**data)


def read_record(data: Any) -> AnyRecord:  # noqa: ANN401 - whatever a line holds
    """Rebuild a record of either kind; fields that this version does not know are ignored.

    Raises:
        InputError: it is no record of either.
    """
    training = isinstance(data, Mapping) and is_training(data)
    return TrainingRecord.from_json(data) if training else Record.from_json(data)


def blank_record(case: AnyCase, *, launch: int, status: Status, reason: str) -> AnyRecord:
    """The record of a case that has not been measured, because of ``reason``."""
    if isinstance(case, TrainingCase):
        device = "" if case.backend in NCCL_BACKENDS else "cpu"
        return TrainingRecord(case=case, launch=launch, device=device, status=status, reason=reason)
    return Record(case=case, launch=launch, status=status, reason=reason)


def collective_records(records: Iterable[AnyRecord]) -> tuple[Record, ...]:
    """The records of collectives among all, in their order."""
    return tuple(record for record in records if isinstance(record, Record))


def training_records(records: Iterable[AnyRecord]) -> tuple[TrainingRecord, ...]:
    """The records of training among all, in their order."""
    return tuple(record for record in records if isinstance(record, TrainingRecord))
