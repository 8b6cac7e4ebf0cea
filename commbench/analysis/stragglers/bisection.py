"""Search for the smallest set of hosts that is slow only together: a collective on sets that get
smaller and smaller.

A set is slow if a collective takes `factor` times as long on it as on another measured set, at
equal busbw. From a slow
set the search goes down to a slow part: halves along the racks, halves across them, then the set
without a quarter of its units, an eighth, and each single unit (Zeller and Hildebrandt, delta
debugging, 2002). So no unit of the result can be left out. Each stage is judged by launches of its
own, at several looks. The errors of all intervals add up to at most `ERROR` over pairs, looks
(Bonferroni) and stages (the k-th has the share 6 / (pi k)^2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from commbench.analysis.stragglers.judging import Findings, Straggler
from commbench.collectives.cases import Case
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import Group, listing, rank_list
from commbench.engine.records import Record
from commbench.results.info import RunInfo
from commbench.results.pairs import hosts_of
from commbench.stats import Floats, Interval
from commbench.stats.intervals import student_t
from commbench.units import counted

#: Probability that any verdict of a search is wrong.
ERROR = 0.05
#: Launches of a stage after which it is judged.
LOOKS = (3, 4, 6, 10)
#: Fewest units of which a part can be compared with the whole.
FEWEST_UNITS = 3
PAIR = 2
#: The launch that shows the hosts of the ranks; it judges nothing.
FIRST_LAUNCH = 1

Units = frozenset[int]
"""A set of units, by number in `Bisection.names`."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What to measure next: cases in the launches from ``first`` up to, not including, ``end``."""

    stage: int
    cases: Sequence[Case]
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The slowness of a set: its time over that of another set, at equal busbw, with the
    simultaneous interval.
    """

    ratio: float
    interval: Interval
    against: Units
    launches: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a search."""

    units: Units
    """The smallest slow set; empty if there is none."""
    evidence: Evidence | None = None
    undecided: Sequence[Units] = ()
    """Smaller sets of which it is not shown whether they are slow."""
    remark: str = ""
    """Why no set is named."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """The verdicts of one look at a stage."""

    slow: Mapping[Units, Evidence]
    sound: frozenset[Units]
    launches: int
    fastest: Sequence[Units]
    """The measured sets, the fastest first."""
    is_last: bool


class Bisection:
    """One search, which continues from the records that exist.

    Args:
        case: the collective, on all ranks.
        factor: how many times another set's time counts as slow.
        hosts: host of each rank. Units of the search are hosts, or ranks if there is one host.
        racks: label of each host's rack or switch, as far as known.
        records: of the run so far.
    """

    def __init__(
        self,
        case: Case,
        factor: float,
        hosts: Sequence[str],
        racks: Mapping[str, str],
        records: Iterable[Record],
    ) -> None:
        self.case = case
        self.factor = factor
        self._racks = racks
        self._is_of_hosts = len(set(hosts)) > 1
        names = (
            list(dict.fromkeys(hosts))
            if self._is_of_hosts
            else [f"rank {rank}" for rank in range(len(hosts))]
        )
        by_rack = list(dict.fromkeys(racks.get(name, "") for name in names))
        self.names = sorted(names, key=lambda name: by_rack.index(racks.get(name, "")))
        self._ranks_of_unit = [
            tuple(rank for rank, host in enumerate(hosts) if name in {host, f"rank {rank}"})
            for name in self.names
        ]
        self._world_size = len(hosts)
        self._records = {(record.case, record.launch): record for record in records}

    # ----------------------------------------------------------------------------------- the search

    def advance(self) -> Step | Outcome:
        """Return what is to be measured next, or the outcome if nothing is."""
        current, reference, evidence = frozenset(range(len(self.names))), None, None
        undecided: list[Units] = []
        sound: set[Units] = set()
        levels, first = self._levels(current), FIRST_LAUNCH
        for stage in itertools.count(1):
            parts = self._next_parts(levels, sound | set(undecided))
            if not parts:
                return self._end(current, evidence, undecided)
            sets = list(dict.fromkeys([current, *parts, *([reference] if reference else [])]))
            look = self._look(sets, parts, stage, first)
            if not isinstance(look, Look):
                return look
            first += look.launches
            slow_parts = [part for part in parts if part in look.slow]
            if slow_parts:
                current = min(slow_parts, key=lambda part: (len(part), -look.slow[part].ratio))
                levels, undecided = self._levels(current), []
            elif current not in look.slow:
                return self._without_result(stage, look, current)
            else:
                undecided += [part for part in parts if part not in look.sound]
            evidence = look.slow[current]
            sound |= look.sound - {current}
            reference = next(
                units for units in look.fastest if units != current and units not in look.slow
            )
        raise AssertionError  # the loop has no end

    def _levels(self, units: Units) -> Iterator[list[Units]]:
        """Yield the parts to try, coarse before fine; each part has two units or more."""
        order = sorted(units)
        if len(order) > FEWEST_UNITS:
            middle = self._boundary(order)
            yield [
                frozenset(half)
                for half in (order[:middle], order[middle:], order[::2], order[1::2])
            ]
        pieces = 4
        while len(order) >= FEWEST_UNITS:
            pieces = min(pieces, len(order))
            yield [units - frozenset(piece.tolist()) for piece in np.array_split(order, pieces)]
            if pieces == len(order):
                return
            pieces *= 2

    def _boundary(self, order: Sequence[int]) -> int:
        """Return where to cut a set in two: between two racks if each side keeps two units, else in
        the middle.
        """
        cuts = [
            i for i in range(2, len(order) - 1) if self._rack(order[i - 1]) != self._rack(order[i])
        ]
        return min(
            [*cuts, *([] if cuts else [len(order) // 2])], key=lambda cut: abs(cut - len(order) / 2)
        )

    def _rack(self, unit: int) -> str:
        return self._racks.get(self.names[unit], "")

    def _next_parts(self, levels: Iterator[list[Units]], known: set[Units]) -> list[Units]:
        """Return the parts of the next level that lie in no set that was found sound.

        Empty after the last level.
        """
        for level in levels:
            parts = [
                part for part in dict.fromkeys(level) if not any(part <= other for other in known)
            ]
            if parts:
                return parts
        return []

    def _without_result(self, stage: int, look: Look, current: Units) -> Outcome:
        """Return the outcome where the set that is searched is not slow, or not shown to be."""
        if stage == 1 and current in look.sound:
            return Outcome(units=frozenset(), remark=self._none(len(look.fastest), look.launches))
        where = "all of them" if stage == 1 else self._listed(current)
        remark = (
            f"{counted(look.launches, 'launch')} cannot tell whether {where} are slow together; add"
            " launches"
        )
        return Outcome(units=frozenset(), remark=remark)

    def _end(
        self, current: Units, evidence: Evidence | None, undecided: Sequence[Units]
    ) -> Outcome:
        if evidence is None:
            remark = (
                f"a set that is slow together is searched among {FEWEST_UNITS} hosts or more, and"
                f" this run has {len(self.names)}"
            )
            return Outcome(units=frozenset(), remark=remark)
        return Outcome(units=current, evidence=evidence, undecided=undecided)

    # --------------------------------------------------------------------------------- the verdicts

    def _look(
        self, sets: Sequence[Units], parts: Sequence[Units], stage: int, first: int
    ) -> Step | Look | Outcome:
        """Return the first look that decides about all parts, the step to measure before it, or why
        there is none.
        """
        cases = [self._case_of(units) for units in sets]
        for launches in LOOKS:
            end = first + launches
            if not all(
                (case, launch) in self._records for case in cases for launch in range(first, end)
            ):
                return Step(stage=stage, cases=cases, first=first, end=end)
            for record in (
                self._records[case, launch] for case in cases for launch in range(first, end)
            ):
                if record.status != "ok":
                    remark = (
                        f"the search for a slow set ended: {record.case} is {record.status}"
                        f" ({record.reason})"
                    )
                    return Outcome(units=frozenset(), remark=remark)
            look = self._judge(sets, stage, range(first, end))
            is_decided = all(part in look.sound for part in parts) and (
                sets[0] in look.slow or sets[0] in look.sound
            )
            if any(part in look.slow for part in parts) or is_decided or look.is_last:
                return look
        raise AssertionError  # the last look decides

    def _judge(self, sets: Sequence[Units], stage: int, launches: range) -> Look:
        """Compare all pairs of sets within launches, see `simultaneous_ratios`."""
        times = np.array([self._times(units, launches) for units in sets])
        alpha = ERROR * 6 / (math.pi * stage) ** 2 / len(LOOKS)
        slow: dict[Units, Evidence] = {}
        unproven = set()
        for (subject, against), (ratio, interval) in simultaneous_ratios(times, alpha).items():
            if interval.high >= self.factor:
                unproven.add(sets[subject])
            best = slow.get(sets[subject])
            if interval.low > max(self.factor, best.interval.low if best else 0.0):
                slow[sets[subject]] = Evidence(
                    ratio=ratio, interval=interval, against=sets[against], launches=len(launches)
                )
        return Look(
            slow=slow,
            sound=frozenset(sets) - unproven,
            launches=len(launches),
            fastest=[sets[i] for i in np.argsort(np.log(times).mean(axis=1), kind="stable")],
            is_last=len(launches) == LOOKS[-1],
        )

    def _times(self, units: Units, launches: range) -> Floats:
        """Return the median time of each launch over the busbw factor of so many ranks."""
        case, factor = (
            self._case_of(units),
            OPERATIONS[self.case.operation].busbw_factor(len(self.ranks(units))),
        )
        return np.array(
            [np.median(self._records[case, launch].times_us) / factor for launch in launches]
        )

    def ranks(self, units: Units) -> Group:
        """Return the ranks of a set."""
        return tuple(sorted(rank for unit in units for rank in self._ranks_of_unit[unit]))

    def _case_of(self, units: Units) -> Case:
        ranks = self.ranks(units)
        return (
            self.case
            if len(ranks) == self._world_size
            else replace(self.case, pattern=listing(ranks))
        )

    # --------------------------------------------------------------------------------- the sentence

    @cached_property
    def findings(self) -> Findings:
        """The outcome as a finding, or as a remark."""
        outcome = self.advance()
        if isinstance(outcome, Step):
            return Findings(remarks=["the search for a set that is slow together is not finished"])
        if outcome.evidence is None:
            return Findings(remarks=[outcome.remark])
        remarks = (
            ["`commbench run matrix` measures every pair"] if len(outcome.units) == PAIR else []
        )
        if outcome.undecided:
            remarks.append(
                f"of {counted(len(outcome.undecided), 'smaller set')} it is not decided whether it"
                " is slow"
            )
        return Findings(sets=[self._straggler(outcome.units, outcome.evidence)], remarks=remarks)

    def _straggler(self, units: Units, evidence: Evidence) -> Straggler:
        is_pair = len(units) == PAIR
        does = (
            "is slow by itself: it takes {}" if is_pair else "are slow only together: they take {}"
        )
        return Straggler(
            kind="set",
            name=f"{'the pair ' if is_pair else ''}{self._listed(units)}{self._shared(units)}",
            does=f" {does} as long as {self._listed(evidence.against)} at equal busbw",
            measured=str(self.case),
            factor=evidence.ratio,
            ci=(evidence.interval.low, evidence.interval.high),
            steadiness=f"{counted(evidence.launches, 'launch')} of the search",
        )

    def _shared(self, units: Units) -> str:
        """Return the clause about the rack that all members share, or about the racks that they
        span.
        """
        racks = list(dict.fromkeys(self._rack(unit) for unit in sorted(units)))
        if not all(racks):
            return ""
        return (
            f" (all in rack {racks[0]})"
            if len(racks) == 1
            else f" (across racks {' and '.join(racks)})"
        )

    def _listed(self, units: Units) -> str:
        if self._is_of_hosts:
            return ", ".join(self.names[unit] for unit in sorted(units))
        return f"ranks {rank_list(self.ranks(units))}"

    def _none(self, sets: int, launches: int) -> str:
        kind = "hosts" if self._is_of_hosts else "ranks"
        return (
            f"no slow set: of {self.case}, {len(self.names)} {kind} together and their halves are"
            f" within {self.factor:g} times of each other ({counted(sets, 'set')},"
            f" {counted(launches, 'launch')})"
        )


def simultaneous_ratios(
    times: Floats, alpha: float
) -> dict[tuple[int, int], tuple[float, Interval]]:
    """Return the ratio of each ordered pair of sets and its interval.

    All intervals hold together at 1 - ``alpha``.

    Logarithms of times are the sum of a launch, a set and noise. Student's intervals have the
    degrees of freedom of the residuals (two-way layout, Scheffe, 1959) and are corrected for the
    number of pairs (Bonferroni). A pair whose differences scatter more than the residuals of all
    sets has its own, larger standard error.

    Args:
        times: shape (sets, launches), above 0.
        alpha: the probability that any interval misses its ratio.
    """
    logs = np.log(times)
    sets, launches = logs.shape
    residuals = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    freedom = (sets - 1) * (launches - 1)
    pooled = float((residuals**2).sum()) / freedom
    level = 1 - alpha / (sets * (sets - 1) / 2)
    ratios = {}
    for one, other in itertools.permutations(range(sets), 2):
        differences = logs[one] - logs[other]
        variance = max(2 * pooled, float(differences.var(ddof=1)))
        centre = float(differences.mean())
        reach = student_t(level, freedom) * math.sqrt(variance / launches)
        interval = Interval(
            low=math.exp(centre - reach), high=math.exp(centre + reach), level=level
        )
        ratios[one, other] = (math.exp(centre), interval)
    return ratios


def find_slow_set(records: Sequence[Record], info: RunInfo) -> Findings:
    """Return the finding of a run with ``--bisect``; nothing for another run."""
    asked = info.get("bisect")
    if not asked or not records:
        return Findings()
    case = next((record.case for record in records if record.case.pattern == "flat"), None)
    if case is None:
        return Findings()
    return bisection_of(case, records, info).findings


def bisection_of(case: Case, records: Iterable[Record], info: RunInfo) -> Bisection:
    """Return the search of a run with ``--bisect``, from its records so far."""
    asked = info["bisect"]
    hosts = hosts_of(info, info.get("world_size") or len(info.get("ranks") or ()))
    return Bisection(
        case, asked["factor"], hosts, {**_emulated_racks(info, hosts), **asked["racks"]}, records
    )


def _emulated_racks(info: RunInfo, hosts: Sequence[str]) -> dict[str, str]:
    """Return the rack of each host of an emulated cluster with several: hosts are spread over them
    in order.
    """
    emulated = (info.get("environment") or {}).get("emulated") or {}
    racks, count = emulated.get("racks", 1), emulated.get("hosts", 0)
    if racks < 2:  # noqa: PLR2004 - one rack tells nothing
        return {}
    numbers = {f"host{number}": number for number in range(count)}
    return {
        host: str(numbers[host] * racks // count)
        for host in dict.fromkeys(hosts)
        if host in numbers
    }
