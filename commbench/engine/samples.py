"""Samples of one case in one launch: time stamps of all ranks, reduced on rank 0 to times, means
and skew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.collectives.patterns import Pair, rank_list
from commbench.engine.flags import raised_flags
from commbench.engine.records import GroupTimes, Pairs
from commbench.engine.setup import Prepared
from commbench.engine.timing.clocks import is_close
from commbench.engine.timing.loops import Repetitions
from commbench.stats import is_bimodal, is_steady

#: Decimals of a microsecond that are kept: a tenth of a nanosecond.
DECIMALS = 4

Matrix = NDArray[Any]


@dataclass
class Samples:
    """Stamps of the participating ranks.

    A repetition that any rank started late is dropped and counted.
    """

    participants: Sequence[int]
    spanning: bool = field(kw_only=True)
    """Whether a repetition lasts from the first start to the last end over all ranks."""
    clock_error_ns: float = field(default=0.0, kw_only=True)
    """Error of the ranks' common clock, infinite if each has its own; arrivals are compared if it
    is a small share of the time."""

    def __post_init__(self) -> None:
        self._stamps: Matrix = np.zeros((2, len(self.participants), 0), dtype=np.int64)
        """The starts and the ends by rank and repetition, in nanoseconds."""
        self.late = 0

    def within(self, ranks: Sequence[int]) -> Samples:
        """Return the same repetitions for some of the participating ranks, e.g. one group."""
        return self._part(ranks, slice(None))

    def _part(self, ranks: Sequence[int], places: slice | list[int]) -> Samples:
        """Return the repetitions at some places for some of the participating ranks."""
        part = Samples(ranks, spanning=self.spanning, clock_error_ns=self.clock_error_ns)
        rows = [self.participants.index(rank) for rank in ranks]
        part._stamps = self._stamps[:, rows][..., places]
        part.late = self.late
        return part

    @property
    def valid(self) -> int:
        """Return the number of valid repetitions."""
        return int(self._stamps.shape[2])

    @property
    def tried(self) -> int:
        """Return the number of repetitions, late ones included."""
        return self.valid + self.late

    def add(self, ranks: Sequence[Repetitions]) -> float:
        """Add a chunk of every rank's repetitions; return the share of late repetitions in it."""
        late = np.any([repetitions.late for repetitions in ranks], axis=0)
        chosen = [ranks[rank] for rank in self.participants]
        stamps = stamps_of(chosen)[..., ~late]
        self._stamps = np.concatenate([self._stamps, stamps], axis=2)
        self.late += int(late.sum())
        return float(late.mean())

    def slowest_us(self, per: int) -> list[float]:
        """Return each repetition's time over all ranks, in microseconds of one of ``per``
        operations.
        """
        return _us(self._slowest_ns(), per)

    def _slowest_ns(self) -> Matrix:
        start, end = self._stamps
        if self.spanning:
            return np.asarray(end.max(axis=0) - start.min(axis=0))
        return np.asarray((end - start).max(axis=0))

    def summary(self, per: int) -> dict[str, Any]:
        """Return the fields of a `Record` that come from samples."""
        start, end = self._stamps
        lasting = end - start
        fields = {
            "times_us": self.slowest_us(per),
            "rank_mean_us": _us(lasting.mean(axis=0), per),
            "rank_median_us": _us(np.median(lasting, axis=1), per),
            "rank_average_us": _us(lasting.mean(axis=1), per),
            "rank_slowest": self._slowest_counts().tolist(),
        }
        slowest_ns = float(np.median(self._slowest_ns()))
        if is_close(self.clock_error_ns, slowest_ns):
            arrival = start - start.min(axis=0)
            fields["skew_us"] = _us(arrival.max(axis=0), 1)
            fields["rank_arrival_us"] = _us(np.median(arrival, axis=1), 1)
        return fields

    def flags(self, per: int) -> tuple[str, ...]:
        """Return the flags for the times within this launch."""
        times_us = self.slowest_us(per)
        return raised_flags({"bimodal": is_bimodal(times_us), "unsteady": not is_steady(times_us)})

    def _slowest_counts(self) -> NDArray[np.intp]:
        """Return in how many repetitions each rank was the slowest."""
        start, end = self._stamps
        lasting = end - start
        if self.spanning:
            lasting = end
        return np.bincount(lasting.argmax(axis=0), minlength=len(self.participants))


class PairSamples:
    """Times of the pairs of a matrix, turn by turn, in nanoseconds.

    If one of the two ranks was late, it drops the repetition of this pair alone.

    Args:
        spanning: as of `Samples`.
        one_way: whether a pair stands for one direction only.
        per: operations in one repetition.
    """

    def __init__(self, *, spanning: bool, one_way: bool, per: int) -> None:
        self._spanning = spanning
        self._one_way = one_way
        self._per = per
        self._rows: list[tuple[Any, ...]] = []
        self.wrong = 0
        """Wrong elements over all pairs."""
        self.late = 0
        """Late repetitions; one that two directions share counts once."""
        self.counted = 0
        """Valid repetitions."""

    def begin(self, turn: Sequence[Pair]) -> None:
        """Begin a turn of pairs that communicate at the same time."""
        self._turn = turn
        self._ends = np.array(turn, dtype=np.intp).T
        self._times = np.zeros((len(turn), 0))  # NaN if late

    @property
    def tried(self) -> int:
        """Return the number of repetitions of this turn, including late ones."""
        return int(self._times.shape[1])

    @property
    def valid(self) -> int:
        """Return the valid repetitions of the pair of this turn with the fewest."""
        return int((~np.isnan(self._times)).sum(axis=1).min())

    def add(self, ranks: Sequence[Repetitions]) -> float:
        """Add a chunk of every rank; return the share of late repetitions in it."""
        start, end = stamps_of(ranks)[:, self._ends]
        late = np.stack([repetitions.late for repetitions in ranks])[self._ends]
        lasting = (end - start).max(axis=0)
        if self._spanning:
            lasting = end.max(axis=0) - start.min(axis=0)
        times = np.where(late.any(axis=0), np.nan, lasting)
        self._times = np.hstack([self._times, times])
        return float(np.isnan(times).mean())

    def end(self, wrong: Sequence[int]) -> None:
        """End the turn; ``wrong``: the wrong elements that each rank received in it."""
        counts = (~np.isnan(self._times)).sum(axis=1)
        late = self._times.size - int(counts.sum())
        self.wrong += sum(wrong)
        self.late += late
        self.counted += int(counts.sum())
        places = np.flatnonzero(counts)
        if not places.size:
            return
        percentile = np.nanpercentile if late else np.percentile
        quantiles = percentile(self._times[places], (50, 95), axis=1) / (1e3 * self._per)
        medians, highs = np.round(quantiles, DECIMALS).tolist()
        for place, median, high in zip(places.tolist(), medians, highs, strict=True):
            source, target = self._turn[place]
            times = (median, high, int(counts[place]))
            self._rows.append((source, target, *times, wrong[target]))
            if not self._one_way:
                self._rows.append((target, source, *times, wrong[source]))

    def pairs(self) -> Pairs:
        """Return all pairs, sorted by source and target."""
        columns = zip(*sorted(self._rows), strict=True)
        return Pairs(**dict(zip(vars(Pairs()), columns, strict=False)))


def stamps_of(ranks: Sequence[Repetitions]) -> Matrix:
    """Return the starts and the ends of repetitions by rank, shape (2, ranks, repetitions)."""
    return np.stack([[each.start_ns, each.end_ns] for each in ranks], axis=1)


def _us(nanoseconds: NDArray[Any], per: int) -> list[float]:
    rounded: list[float] = np.round(nanoseconds / (1e3 * per), DECIMALS).tolist()
    return rounded


def join_transports(transports: Sequence[str], ranks: Sequence[int]) -> str:
    """Return the transports of some ranks, joined by ``+``, each once."""
    return "+".join(dict.fromkeys(transports[rank] for rank in ranks if transports[rank]))


def timed_groups(
    prepared: Prepared,
    wrong: Sequence[int] | None,
    samples: Samples,
    transports: Sequence[str],
    per: int,
) -> tuple[GroupTimes, ...]:
    """Return each group's times of the same valid repetitions; nothing if groups are not reported.

    Args:
        prepared: the case.
        wrong: as of `groups_of`.
        samples: of all participating ranks.
        transports: of each rank of the launch.
        per: operations in one repetition.
    """
    timed = []
    for group, ranks in zip(groups_of(prepared, wrong), prepared.active, strict=False):
        own = samples.within(ranks)
        transport = join_transports(transports, ranks)
        timed.append(replace(group, **own.summary(per), transport=transport, flags=own.flags(per)))
    return tuple(timed)


def groups_of(prepared: Prepared, wrong: Sequence[int] | None) -> tuple[GroupTimes, ...]:
    """Return the groups of a case without times; nothing if groups are not reported.

    ``wrong``: the wrong elements on each rank of the launch; None if nothing could be verified.
    """
    groups = []
    if not prepared.reports_groups:
        return ()
    for group, ranks in zip(prepared.groups, prepared.active, strict=True):
        wrong_here = None
        if wrong is not None:
            wrong_here = sum(wrong[rank] for rank in group)
        groups.append(
            GroupTimes(
                group=rank_list(ranks),
                group_size=len(ranks),
                message_bytes=prepared.message_bytes(len(group)),
                wrong=wrong_here,
            )
        )
    return tuple(groups)
