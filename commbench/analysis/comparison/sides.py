"""The two sides of a comparison: rows with their launch medians, and several runs pooled as one
side.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from commbench.ddp.plan.records import TrainingRow
from commbench.engine.records import Record, Row
from commbench.results import Run
from commbench.results.record_types import AnyCase
from commbench.results.states import FAST, SLOW, level_us, probed_name
from commbench.results.summary import KeyedRows, RowKey, keyed_records, launch_values
from commbench.results.trained import trained

#: The definition of a launch's time in commbench.
OWN_TIME = "median over repetitions of the slowest rank"
#: States of two runs are the same if the probe's times differ by at most this share.
NEAR_STATES = 0.15


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One row of a run with its launch medians."""

    case: AnyCase
    row: Row | TrainingRow
    medians_us: Sequence[float]
    """Of each valid launch."""
    time_means: str = OWN_TIME
    """Definition of these times; other tools use other definitions."""

    def condition(self, name: str) -> str:
        """Return the value of a condition of single cases; empty if not stated."""
        return self.time_means if name == "time" else str(getattr(self.row, name, None) or "")


Rows = dict[RowKey, Measured]


def measured(run: Run, slow: Collection[str] = ()) -> Rows:
    """Return the rows of ``collectives.csv``, then the rows of ``ddp.csv`` with own measurements,
    in their order.

    Args:
        run: the run.
        slow: backends of which cases that met both states of the machine are compared in the slow
            one.
    """
    slow_rows = {key: row for key, row in run.slow_rows.items() if probed_name(row) in slow}
    return (
        _collectives(run.records, run.keyed_rows)
        | _collectives(run.divided.others, slow_rows)
        | _configurations(run)
    )


def _collectives(records: Sequence[Record], rows: KeyedRows) -> Rows:
    by_key, cases = keyed_records(records), {record.case.key: record.case for record in records}
    measured_rows = {}
    for key, row in rows.items():
        means = [record.stated.time for record in by_key[key] if record.stated]
        measured_rows[key] = Measured(
            case=cases[key[0]],
            row=row,
            medians_us=list(launch_values(by_key[key]).values()),
            time_means=means[0] if means else OWN_TIME,
        )
    return measured_rows


def like_states(runs: Sequence[Run]) -> tuple[list[set[str]], dict[str, str]]:
    """Match the states of the machine of several runs by the probe's times, the last run's fast
    state first.

    Return the backends of each run to compare in the slow state; and the probe's times of the
    better states, by backend without a state that all runs met.
    """
    slow: list[set[str]] = [set() for _ in runs]
    unlike = {}
    for backend in dict.fromkeys(backend for run in runs for backend in run.divided.states):
        levels = [_levels(run, backend) for run in runs]
        if not all(levels):
            continue  # an older run without a probe
        for probe_us in levels[-1].values():
            states = [_nearest(of_run, probe_us) for of_run in levels]
            if None not in states:
                for backends, state in zip(slow, states, strict=True):
                    if state == SLOW:
                        backends.add(backend)
                break
        else:
            unlike[backend] = " vs ".join(f"{min(of_run.values()):.2g} us" for of_run in levels)
    return slow, unlike


def _levels(run: Run, backend: str) -> dict[str, float]:
    """Return the probe's time in each state, the fast one first.

    One without a name where there is one state.
    """
    if states := run.divided.states.get(backend):
        return {FAST: states["fast_us"], SLOW: states["slow_us"]}
    level = level_us(run.records, backend)
    return {"": level} if level else {}


def _nearest(levels: Mapping[str, float], level_us: float) -> str | None:
    """Return the state whose probe is nearest to a time, None if none is near."""
    state = min(levels, key=lambda name: abs(math.log(levels[name] / level_us)))
    return state if abs(math.log(levels[state] / level_us)) <= math.log1p(NEAR_STATES) else None


def _configurations(run: Run) -> Rows:
    settings = trained(run.training_records)
    rows = {}
    for case, row in run.keyed_training_rows.items():
        setting = settings.get(case.key)
        if setting is not None:  # None where another with the same buckets was measured for it
            medians_us = [1e3 * step_ms for step_ms in setting.steps_ms.values()]
            rows[case.key, ""] = Measured(case=case, row=row, medians_us=medians_us)
    return rows


def in_like_groups(sides: Sequence[Rows]) -> list[Rows]:
    """Return the sides with the same groups: a failed case without groups stands for each group of
    the others.
    """
    groups: dict[str, list[RowKey]] = {}
    for side in sides:
        for key in side:
            if key[1] and key not in groups.setdefault(key[0], []):
                groups[key[0]].append(key)
    grouped = []
    for side in sides:
        rows: Rows = {}
        for key, row in side.items():
            keys = [key] if key[1] else groups.get(key[0], [key])
            rows |= dict.fromkeys(keys, row)
        grouped.append(rows)
    return grouped


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """One row of one run or several."""

    members: Sequence[Measured]

    @property
    def case(self) -> AnyCase:
        """The case, as the first run states it."""
        return self.members[0].case

    @property
    def timed(self) -> Sequence[Measured]:
        """The runs with times."""
        return [each for each in self.members if each.row.status == "ok" and each.medians_us]

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


Side = dict[RowKey, Pooled]
"""The rows of one run or several."""


def pooled(sides: Sequence[Rows]) -> Side:
    """Return each row that any of the runs has."""
    keys = dict.fromkeys(key for side in sides for key in side)
    return {key: Pooled(members=[side[key] for side in sides if key in side]) for key in keys}
