"""The states of the machine: records divided by what the probe showed before and after each visit.

Where the probes of a run are of two modes, each visit was met by the fast or the slow state, and
times of both are kept apart. No visit is dropped. The times of a case never decide which state its
visits belong to.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from commbench import stats
from commbench.collectives.cases import Case
from commbench.engine.records import Record, Row, Times
from commbench.results.info import MachineStates
from commbench.results.summary import latest, records_by_case

TimesT = TypeVar("TimesT", bound=Times)
FAST, SLOW = "fast", "slow"
#: The least ratio of the probe's times in two states.
APART = 1.25
#: Visits below which states are not told apart.
FEWEST_VISITS = 20


@dataclass(frozen=True, kw_only=True)
class Divided:
    """The records of a run, divided by the state of the machine."""

    records: Sequence[Record]
    """Of each case in its better state: the fast one if any visit met it.

    Cases without states are unchanged.
    """
    others: Sequence[Record] = ()
    """Of each case that met both states, in the slow one."""
    states: Mapping[str, MachineStates] = field(default_factory=dict)
    """By backend, or by `probed_name`; none for a backend with one state."""
    met: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """By case key, the state of ``records`` and the share of the case's visits in it."""


def divide(records: Sequence[Record]) -> Divided:
    """Divide the latest records of a run by state; a run with one state is returned as it is."""
    states = find_states(records)
    if not states:
        return Divided(records=records)
    met = {}
    for key, of_case in records_by_case(records).items():
        slow = [is_slow for record in of_case for is_slow in _slow_visits(record, states)]
        if slow:
            met[key] = (FAST, slow.count(False) / len(slow))
            if all(slow):
                met[key] = (SLOW, 1.0)
    better = []
    others: list[Record] = []
    for record in records:
        slow = _slow_visits(record, states)
        if not slow:
            better.append(record)
            continue
        state, _ = met.get(record.case.key, (FAST, 1.0))
        if state == SLOW:
            better += _within(record, slow)
        else:
            better += _within(record, [not each for each in slow])
            others += _within(record, slow)
    return Divided(records=tuple(better), others=tuple(others), states=states, met=met)


def probed_name(case: Case | Row) -> str:
    """Return what the probe of a case measures: the backend, under the environment of the launch if
    it has one.
    """
    return f"{case.backend} {case.env}".rstrip()


def find_states(records: Iterable[Record]) -> dict[str, MachineStates]:
    """Return the states of the machine by `probed_name`, where the probes of all visits are of two
    modes.
    """
    states = {}
    for backend, probes_us in _probes(records).items():
        if len(probes_us) < FEWEST_VISITS:
            continue
        modes = stats.modes_of(probes_us, apart=APART)
        if modes:
            boundary_us = math.sqrt(modes[0] * modes[1])
            fast = [probe_us for probe_us in probes_us if probe_us <= boundary_us]
            slow = [probe_us for probe_us in probes_us if probe_us > boundary_us]
            states[backend] = MachineStates(
                fast_us=round(stats.median(fast), 4),
                slow_us=round(stats.median(slow), 4),
                boundary_us=round(boundary_us, 4),
                fast_share=round(len(fast) / len(probes_us), 4),
                visits=len(probes_us),
            )
    return states


def level_us(records: Iterable[Record], name: str) -> float | None:
    """Return the median probe of all visits of cases with this `probed_name`.

    None without probes.
    """
    probes_us = _probes(records).get(name)
    if not probes_us:
        return None
    return stats.median(probes_us)


def _probes(records: Iterable[Record]) -> dict[str, list[float]]:
    """Return the probes of all visits by `probed_name`."""
    probes: dict[str, list[float]] = {}
    for record in latest(records).values():
        probes.setdefault(probed_name(record.case), []).extend(_visit_probes(record))
    return probes


def _visit_probes(record: Record) -> list[float]:
    """Return the geometric mean of the two probes of each visit; empty without a probe."""
    before_us, after_us = record.probes_us[::2], record.probes_us[1::2]
    if record.status != "ok" or len(record.probes_us) != 2 * len(record.visit_lengths):
        return []
    return [math.sqrt(before * after) for before, after in zip(before_us, after_us, strict=True)]


def _slow_visits(record: Record, states: Mapping[str, MachineStates]) -> list[bool]:
    """Return whether each visit met the slow state; empty where states are unknown."""
    of_backend = states.get(probed_name(record.case))
    if of_backend is None:
        return []
    return [probe_us > of_backend["boundary_us"] for probe_us in _visit_probes(record)]


def _within(record: Record, visits: Sequence[bool]) -> Iterator[Record]:
    """Yield the record of some of its visits; nothing without repetitions in them."""
    lengths = list(itertools.compress(record.visit_lengths, visits))
    if not sum(lengths):
        return
    repetitions = np.repeat(visits, record.visit_lengths).tolist()
    part = _times_within(record, repetitions)
    yield dataclasses.replace(
        part,
        visit_lengths=lengths,
        probes_us=list(itertools.compress(record.probes_us, np.repeat(visits, 2))),
        groups=tuple(_times_within(group, repetitions) for group in record.groups),
    )


def _times_within(times: TimesT, repetitions: Sequence[bool]) -> TimesT:
    """Return the times of some repetitions; an empty list stays empty.

    Means by rank are of all repetitions only.
    """
    columns: dict[str, Any] = {}
    for name in ("times_us", "rank_mean_us", "skew_us"):
        columns[name] = list(itertools.compress(getattr(times, name), repetitions))
    if not all(repetitions):
        columns["rank_average_us"] = ()
    return dataclasses.replace(times, **columns)
