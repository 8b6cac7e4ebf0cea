"""Cases, records and runs built by hand, for tests of everything that reads results."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commbench.collectives.cases import Case
from commbench.engine.records import SCHEMA, GroupTimes, Record, Row
from commbench.results.info import RunInfo
from commbench.results.reading import read_samples
from commbench.results.record_types import collective_records
from commbench.results.states import SLOW
from commbench.results.summary import keyed_rows

KIB = 1024
MIB = 1024 * KIB


def make_case(operation: str = "all_reduce", **changes: Any) -> Case:
    """Return an in-place float32 sum over MPI of 1 KiB, but for what is given."""
    fields = {
        "backend": "mpi",
        "message_bytes": KIB,
        "dtype": "float32",
        "redop": "sum",
        "in_place": True,
    }
    if operation != "all_reduce":
        fields |= {"redop": None, "in_place": None}
    if operation == "barrier":
        fields |= {"message_bytes": 0, "dtype": None}
    return Case(operation=operation, **{**fields, **changes})


def make_record(
    case: Case | None = None, *, launch: int = 0, time_us: float = 10.0, **changes: Any
) -> Record:
    """Return a record of 40 repetitions within 1 % of ``time_us`` on 2 ranks.

    Without times unless ok or wrong.
    """
    status = changes.get("status", "ok")
    timed = {
        "times_us": [time_us * (1 + 0.01 * (step - 19.5) / 19.5) for step in range(40)],
        "rank_mean_us": [0.9 * time_us] * 40,
        "rank_average_us": [0.8 * time_us, time_us],
        "skew_us": [0.1 * time_us] * 40,
        "wrong": 0,
    }
    fields = {
        "group": "0-1",
        "group_size": 2,
        "warmups": 3,
        "sync": "round-time",
        "loop": "native",
        "device": "cpu",
        "library": "Open MPI 5.0.8",
        "transport": "sm",
    }
    if status in {"ok", "wrong"}:
        fields |= timed
    return Record(case=case or make_case(), launch=launch, **{**fields, **changes})


def make_launches(times_us: list[float], case: Case | None = None, **changes: Any) -> list[Record]:
    """Return one record a launch, whose medians are ``times_us``."""
    return [
        make_record(case, launch=launch, time_us=time, **changes)
        for launch, time in enumerate(times_us)
    ]


def make_grouped(
    case: Case, times_us: Mapping[str, Sequence[float]], repetitions: int = 40
) -> list[Record]:
    """Return one record a launch of groups that ran at the same time, whose medians are
    ``times_us``, by group.
    """
    launches = [
        dict(zip(times_us, times, strict=True)) for times in zip(*times_us.values(), strict=True)
    ]
    return [
        make_record(
            case,
            launch=number,
            time_us=max(launch.values()),
            groups=[
                GroupTimes(
                    group=group,
                    group_size=int(group[-1]) - int(group[0]) + 1 if "-" in group else 2,
                    message_bytes=case.message_bytes,
                    times_us=[time] * repetitions,
                    rank_mean_us=[time] * repetitions,
                    wrong=0,
                    transport="tcp",
                )
                for group, time in launch.items()
            ],
        )
        for number, launch in enumerate(launches)
    ]


def make_info(**changes: Any) -> dict[str, Any]:
    """Return what ``run.json`` of a quick run on 2 ranks of one host holds."""
    info = {
        "schema": SCHEMA,
        "run_id": "mine",
        "suite": "collectives",
        "argv": ["commbench", "run"],
        "seed": 7,
        "plan": {"cases": "a1b2", "world_size": 2, "budget": "quick"},
        "budget": "quick",
        "relative_half_width": 0.05,
        "world_size": 2,
        "nodes": 1,
        "ranks_per_node": 2,
    }
    return {**info, **changes}


#: Six launches 1 % apart at most.
STEADY = [9.95, 9.97, 9.99, 10.01, 10.03, 10.05]


def summarise_run(records: Iterable[Record], info: RunInfo) -> list[Row]:
    """Return the rows of ``collectives.csv``."""
    return list(keyed_rows(records, info).values())


#: Columns that tell cases apart.
CASE_COLUMNS = (
    "backend operation pattern group world_size dtype redop root in_place message_bytes cadence"
    " algorithm_requested buffers sync loop env"
)


def read_info(out: Path) -> Any:
    """Return the entries of ``run.json``."""
    return json.loads((out / "run.json").read_text())


def read_recommendation(out: Path) -> Any:
    """Return the content of ``recommendation.json``."""
    return json.loads((out / "recommendation.json").read_text())


def read_rows(out: Path) -> list[dict[str, str]]:
    """Return the rows of a run's ``collectives.csv``, one a case: of the better state that it was
    measured in.
    """
    with (out / "collectives.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    slow_last = sorted(rows, key=lambda row: row["state"] == SLOW)
    first = {
        tuple(row[name] for name in CASE_COLUMNS.split()): id(row) for row in reversed(slow_last)
    }
    return [row for row in rows if id(row) in first.values()]


def read_records(out: Path) -> tuple[Record, ...]:
    """Return the records of a run as the ranks sent them, not divided by the state of the
    machine.
    """
    return collective_records(read_samples(out)[0])


def read_launches(out: Path) -> list[int]:
    """Return the launches of a run that have a measured record."""
    return sorted({record.launch for record in read_records(out) if record.status == "ok"})
