"""The two sides of a comparison: rows with their launch medians, and several runs pooled as one side."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from commbench.collectives.cases import Case
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRow
from commbench.engine.records import Row
from commbench.results import Run
from commbench.results.summary import RowKey, keyed_records, keyed_rows, launch_medians
from commbench.results.training_summary import swept

AnyCase = Case | TrainingCase
#: The definition of a launch's time in commbench.
OWN_TIME = "median over repetitions of the slowest rank"
#: Columns of ``ddp.csv`` that identify its case.
_ASKED = [f.name for f in dataclasses.fields(TrainingCase) if f.name != "phase"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One row of a run with its launch medians."""

    case: AnyCase
    group: str = ""
    """The group, if the case's pattern makes groups."""
    row: Row | TrainingRow
    medians_us: Sequence[float]
    """Of each valid launch."""
    time_means: str = OWN_TIME
    """Definition of these times; other tools use other definitions."""

    @property
    def is_timed(self) -> bool:
        """Whether there are times to compare."""
        return self.row.status == "ok" and bool(self.medians_us)

    def condition(self, name: str) -> str:
        """Return the value of a condition of single cases; empty if not stated."""
        return self.time_means if name == "time" else str(getattr(self.row, name, None) or "")


Rows = Mapping[RowKey, Measured]


def measured(run: Run) -> dict[RowKey, Measured]:
    """Return the rows of ``collectives.csv``, then the rows of ``ddp.csv`` with own measurements, in their order."""
    return _collectives(run) | _configurations(run)


def _collectives(run: Run) -> dict[RowKey, Measured]:
    records, cases = keyed_records(run.records), {record.case.key: record.case for record in run.records}
    return {
        key: Measured(
            case=cases[key[0]],
            group=key[1],
            row=row,
            medians_us=launch_medians(records[key]),
            time_means=next((record.stated.time for record in records[key] if record.stated), OWN_TIME),
        )
        for key, row in keyed_rows(run.records, run.info).items()
    }


def _configurations(run: Run) -> dict[RowKey, Measured]:
    by_setting = {dataclasses.replace(record.case, phase=""): record for record in swept(run.training_records).values()}
    rows = {}
    for row in run.training_rows:
        case = TrainingCase(**{name: getattr(row, name) for name in _ASKED}, phase="")
        record = by_setting.get(case)  # none where another with the same buckets was measured for it
        if record is not None:
            medians = [1e3 * step_ms for step_ms in record.steps_ms.values()]
            rows[record.case.key, ""] = Measured(case=record.case, row=row, medians_us=medians)
    return rows


def in_like_groups(sides: Sequence[Rows]) -> list[dict[RowKey, Measured]]:
    """Return the sides with the same groups: a failed case without groups stands for each group of the others."""
    groups: dict[str, list[RowKey]] = {}
    for side in sides:
        for key in side:
            if key[1] and key not in groups.setdefault(key[0], []):
                groups[key[0]].append(key)
    return [
        {row_key: row for key, row in side.items() for row_key in ([key] if key[1] else groups.get(key[0], [key]))}
        for side in sides
    ]


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """One row of several runs."""

    members: Sequence[Measured]

    @property
    def case(self) -> AnyCase:
        """The case, as the first run states it."""
        return self.members[0].case

    @property
    def timed(self) -> Sequence[Measured]:
        """The runs with times."""
        return [member for member in self.members if member.is_timed]

    @property
    def launches_us(self) -> list[float]:
        """The launch medians of these runs, run after run."""
        return [time for member in self.timed for time in member.medians_us]

    @property
    def time_us(self) -> float:
        """The median of the runs' medians."""
        return float(median([median(member.medians_us) for member in self.timed]))

    @property
    def status(self) -> str:
        """``ok`` if any run measured it, else the status in the last run."""
        return "ok" if self.timed else self.members[-1].row.status


def pooled(sides: Sequence[Rows]) -> dict[RowKey, Pooled]:
    """Return each row that any of the runs has."""
    keys = dict.fromkeys(key for side in sides for key in side)
    return {key: Pooled(members=[side[key] for side in sides if key in side]) for key in keys}
