"""The two record types, of collectives and of training, and the reading of either from a line of
samples.jsonl.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from commbench.collectives.cases import Case
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record, Status, without_result
from commbench.engine.visits import extended
from commbench.errors import InputError
from commbench.findings import Finding, UnsupportedError

AnyCase = Case | TrainingCase
AnyRecord = Record | TrainingRecord


#: The class of each ``kind`` of a line.
_RECORD_CLASSES: Mapping[str, type[AnyRecord]] = {
    Record.kind: Record,
    TrainingRecord.kind: TrainingRecord,
}


def read_record(data: Any) -> AnyRecord:
    """Return the record that a line of ``samples.jsonl`` holds.

    Fields unknown to this version are ignored.

    Raises:
        InputError: the line holds no record, or one of an unknown kind.
    """
    kind = data.get("kind") if isinstance(data, Mapping) else None
    try:
        if not isinstance(kind, str) or kind not in _RECORD_CLASSES:
            kinds = " or ".join(_RECORD_CLASSES)
            raise InputError(f"kind must be {kinds}, and is {kind!r:.40}")  # noqa: TRY301
        return _RECORD_CLASSES[kind].from_json(data)
    except (InputError, UnsupportedError) as error:
        raise InputError(
            f"A line of samples.jsonl is not a record of commbench ({error})."
        ) from error


class Records(list[AnyRecord]):
    """The records of a run in the order of writing.

    A further visit or block of a case extends its record of the launch.
    """

    def __init__(self, records: Iterable[AnyRecord] = ()) -> None:
        super().__init__()
        self._places: dict[tuple[str, int], int] = {}
        for record in records:
            self.add(record)

    def add(self, record: AnyRecord) -> None:
        """Add a line of ``samples.jsonl``."""
        key = (record.case.key, record.launch)
        place = self._places.get(key)
        if place is not None:
            joined = _joined(self[place], record)
            if joined is not None:
                self[place] = joined
                return
        self._places[key] = len(self)
        self.append(record)


def _joined(before: AnyRecord, record: AnyRecord) -> AnyRecord | None:
    """Return a record with a further visit or block of its case; None: it is measured again."""
    if isinstance(before, Record) and isinstance(record, Record):
        has_failed_later = before.status == "ok" and record.status in {"failed", "hung"}
        if record.visit > 1 or has_failed_later:
            return extended(before, record)  # a failed case is measured again on resume, all visits
    if (
        isinstance(before, TrainingRecord)
        and isinstance(record, TrainingRecord)
        and record.block > 1
    ):
        return before.extended(record)
    return None


def blank_record(case: AnyCase, *, launch: int, status: Status, reason: Finding) -> AnyRecord:
    """Return the record of a case that was not measured, because of ``reason``."""
    if isinstance(case, TrainingCase):
        device = "" if case.trains_on_gpu else "cpu"
        return without_result(
            TrainingRecord(case=case, launch=launch, device=device), status, reason
        )
    return without_result(Record(case=case, launch=launch), status, reason)


def collective_records(records: Iterable[AnyRecord]) -> tuple[Record, ...]:
    """Return the records of collectives, in their order."""
    return tuple(record for record in records if isinstance(record, Record))


def training_records(records: Iterable[AnyRecord]) -> tuple[TrainingRecord, ...]:
    """Return the records of training, in their order."""
    return tuple(record for record in records if isinstance(record, TrainingRecord))
