"""What is compared: every row of a run with its launch medians, and several runs as one side."""

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
#: What a launch's time is where commbench measured.
OWN_TIME = "median over repetitions of the slowest rank"
#: What a row of ``ddp.csv`` says of its case.
_ASKED = [f.name for f in dataclasses.fields(TrainingCase) if f.name != "phase"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One row of a run."""

    case: AnyCase
    group: str = ""
    """Where the case's pattern makes groups."""
    row: Row | TrainingRow
    medians_us: Sequence[float]
    """Of each launch that went well."""
    time_means: str = OWN_TIME
    """What these times are; other tools mean other things."""

    @property
    def is_timed(self) -> bool:
        """Whether there is something to compare."""
        return self.row.status == "ok" and bool(self.medians_us)

    def condition(self, name: str) -> str:
        """What it states of a condition of single cases; empty where it does not."""
        return self.time_means if name == "time" else str(getattr(self.row, name, None) or "")


Rows = Mapping[RowKey, Measured]


def measured(run: Run) -> dict[RowKey, Measured]:
    """The rows of ``collectives.csv``, then those of ``ddp.csv`` that were measured themselves, in their order."""
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
    by_setting = {dataclasses.replace(one.case, phase=""): one for one in swept(run.training_records).values()}
    found = {}
    for row in run.training_rows:
        case = TrainingCase(**{name: getattr(row, name) for name in _ASKED}, phase="")
        one = by_setting.get(case)  # none where another with the same buckets was measured for it
        if one is not None:
            medians = [1e3 * step_ms for step_ms in one.steps_ms.values()]
            found[one.case.key, ""] = Measured(case=one.case, row=row, medians_us=medians)
    return found


def in_like_groups(sides: Sequence[Rows]) -> list[dict[RowKey, Measured]]:
    """The same, but a case of which a run knows no group, because it failed, stands for each group others know."""
    groups: dict[str, list[RowKey]] = {}
    for side in sides:
        for key in side:
            if key[1] and key not in groups.setdefault(key[0], []):
                groups[key[0]].append(key)
    return [
        {asked: one for key, one in side.items() for asked in ([key] if key[1] else groups.get(key[0], [key]))}
        for side in sides
    ]


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """One row of several runs."""

    members: Sequence[Measured]

    @property
    def timed(self) -> Sequence[Measured]:
        """The runs that it can be compared with."""
        return [one for one in self.members if one.is_timed]

    @property
    def launches_us(self) -> list[float]:
        """The launch medians of these, run after run."""
        return [time for one in self.timed for time in one.medians_us]

    @property
    def time_us(self) -> float:
        """The median of the runs' medians."""
        return float(median([median(one.medians_us) for one in self.timed]))

    @property
    def status(self) -> str:
        """``ok`` where one run could measure it, else as the last one ended."""
        return "ok" if self.timed else self.members[-1].row.status


def pooled(sides: Sequence[Rows]) -> dict[RowKey, Pooled]:
    """Each row that any of the runs has."""
    keys = dict.fromkeys(key for side in sides for key in side)
    return {key: Pooled(members=[side[key] for side in sides if key in side]) for key in keys}
