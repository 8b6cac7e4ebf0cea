"""The states of the machine: records divided by what the probe showed before and after each visit.

Where the probes of a run are of two modes, each visit was met by the fast or the slow state, and
times of both are kept apart. No visit is dropped. The times of a case never decide which state its
visits belong to.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from commbench import stats
from commbench.collectives.cases import Case
from commbench.engine.records import Record, Row, Times
from commbench.results.info import MachineStates
from commbench.results.summary import latest

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
    slow_visits = {id(record): _slow_visits(record, states) for record in records}
    met: dict[str, tuple[str, float]] = {}
    counts: dict[str, Counter[bool]] = {}
    for record in latest(records).values():
        if slow_visits[id(record)]:
            counts.setdefault(record.case.key, Counter()).update(slow_visits[id(record)])
    for key, count in counts.items():
        is_slow = not count[False]
        met[key] = (SLOW if is_slow else FAST, count[is_slow] / count.total())
    better, others = [], []
    for record in records:
        slow = slow_visits[id(record)]
        if not slow:
            better.append(record)
            continue
        is_slow = met[record.case.key][0] == SLOW if record.case.key in met else False
        better += _within(record, [each == is_slow for each in slow])
        if not is_slow:
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
    probes: dict[str, list[float]] = {}
    for record in latest(records).values():
        probes.setdefault(probed_name(record.case), []).extend(_visit_probes(record))
    states = {}
    for backend, probes_us in probes.items():
        modes = stats.modes_of(probes_us, apart=APART) if len(probes_us) >= FEWEST_VISITS else None
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
    probes_us = [
        p for r in latest(records).values() if probed_name(r.case) == name for p in _visit_probes(r)
    ]
    return stats.median(probes_us) if probes_us else None


def _visit_probes(record: Record) -> list[float]:
    """Return the geometric mean of the two probes of each visit; empty without a probe."""
    if (
        record.status != "ok"
        or not record.probes_us
        or len(record.probes_us) != 2 * len(record.visit_lengths)
    ):
        return []
    pairs = zip(record.probes_us[::2], record.probes_us[1::2], strict=True)
    return [math.sqrt(before_us * after_us) for before_us, after_us in pairs]


def _slow_visits(record: Record, states: Mapping[str, MachineStates]) -> list[bool]:
    """Return whether each visit met the slow state; empty where states are unknown."""
    of_backend = states.get(probed_name(record.case))
    return (
        [probe_us > of_backend["boundary_us"] for probe_us in _visit_probes(record)]
        if of_backend
        else []
    )


def _within(record: Record, visits: Sequence[bool]) -> list[Record]:
    """Return the record of some of its visits; empty without repetitions in them."""
    lengths = [
        length for length, is_kept in zip(record.visit_lengths, visits, strict=True) if is_kept
    ]
    if not sum(lengths):
        return []
    repetitions = np.repeat(visits, record.visit_lengths).tolist()
    part = _times_within(record, repetitions)
    flags = [flag for flag in record.flags if flag != "bimodal" or stats.is_bimodal(part.times_us)]
    probes_us = itertools.chain.from_iterable(
        record.probes_us[2 * number : 2 * number + 2]
        for number, is_kept in enumerate(visits)
        if is_kept
    )
    return [
        dataclasses.replace(
            part,
            visit_lengths=lengths,
            probes_us=[*probes_us],
            flags=tuple(flags),
            groups=tuple(_times_within(group, repetitions) for group in record.groups),
        )
    ]


def _times_within(times: TimesT, repetitions: Sequence[bool]) -> TimesT:
    """Return the times of some repetitions; an empty list stays empty.

    Means by rank are of all repetitions only.
    """
    return dataclasses.replace(
        times,
        times_us=[*itertools.compress(times.times_us, repetitions)],
        rank_mean_us=[*itertools.compress(times.rank_mean_us, repetitions)],
        skew_us=[*itertools.compress(times.skew_us, repetitions)],
        rank_average_us=times.rank_average_us if all(repetitions) else (),
    )
