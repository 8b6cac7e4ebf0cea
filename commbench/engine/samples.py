"""Samples of one case in one launch: time stamps of all ranks, reduced on rank 0 to times, means
and skew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.collectives.patterns import Pair, rank_list
from commbench.engine.flags import raised_flags
from commbench.engine.records import GroupTimes
from commbench.engine.setup import Checked, Prepared
from commbench.engine.timing.clocks import is_close
from commbench.engine.timing.loops import Repetitions
from commbench.stats import is_bimodal, is_steady

#: Decimals of a microsecond that are kept: a tenth of a nanosecond.
DECIMALS = 4

Matrix = NDArray[Any]


class Samples:
    """Stamps of the participating ranks, arrays of shape (ranks, repetitions), in nanoseconds.

    A repetition that any rank started late is dropped and counted. Stamps are of one clock with an
    error of ``clock_error_ns``, unless they say otherwise; arrivals are compared if the error is a
    small share of the time. With ``spanning``, a repetition lasts from the first start to the last
    end over all ranks.
    """

    def __init__(
        self, participants: Sequence[int], *, spanning: bool, clock_error_ns: float = 0.0
    ) -> None:
        self._participants = list(participants)
        self._clock_error_ns = clock_error_ns
        self._spanning = spanning
        self._start: Matrix = np.zeros((len(self._participants), 0), dtype=np.int64)
        self._end: Matrix = self._start
        self._comparable = True
        self.late = 0

    def within(self, ranks: Sequence[int]) -> Samples:
        """Return the same repetitions for some of the participating ranks, e.g. one group."""
        return self._part(ranks, slice(None))

    def _part(self, ranks: Sequence[int], places: slice | list[int]) -> Samples:
        """Return the repetitions at some places for some of the participating ranks."""
        part = Samples(ranks, spanning=self._spanning, clock_error_ns=self._clock_error_ns)
        rows = [self._participants.index(rank) for rank in ranks]
        part._start, part._end = self._start[rows][:, places], self._end[rows][:, places]
        part.late = self.late
        part._comparable = self._comparable
        return part

    @property
    def valid(self) -> int:
        """Return the number of valid repetitions."""
        return int(self._start.shape[1])

    @property
    def tried(self) -> int:
        """Return the number of repetitions, late ones included."""
        return self.valid + self.late

    def add(self, ranks: Sequence[Repetitions]) -> float:
        """Add a chunk of every rank's repetitions; return the share of late repetitions in it."""
        late = np.any([repetitions.late for repetitions in ranks], axis=0)
        chosen = [ranks[rank] for rank in self._participants]
        self._start = np.hstack([self._start, np.stack([r.start_ns for r in chosen])[:, ~late]])
        self._end = np.hstack([self._end, np.stack([r.end_ns for r in chosen])[:, ~late]])
        self._comparable = self._comparable and all(r.comparable for r in chosen)
        self.late += int(late.sum())
        return float(late.mean()) if late.size else 0.0

    def slowest_us(self, per: int) -> list[float]:
        """Return each repetition's time over all ranks, in microseconds of one of ``per``
        operations.
        """
        return _us(self._slowest_ns(), per)

    def _slowest_ns(self) -> Matrix:
        if self._spanning:
            return np.asarray(self._end.max(axis=0) - self._start.min(axis=0))
        return np.asarray((self._end - self._start).max(axis=0))

    def summary(self, per: int) -> dict[str, Any]:
        """Return the fields of a `Record` that come from samples."""
        lasting = self._end - self._start
        fields: dict[str, Any] = {
            "times_us": self.slowest_us(per),
            "rank_mean_us": _us(lasting.mean(axis=0), per),
            "rank_median_us": _us(np.median(lasting, axis=1), per),
            "rank_average_us": _us(lasting.mean(axis=1), per),
            "rank_slowest": np.bincount(self._last(), minlength=len(self._participants)).tolist(),
        }
        if self._comparable and is_close(
            self._clock_error_ns, float(np.median(self._slowest_ns()))
        ):
            arrival = self._start - self._start.min(axis=0)
            fields["skew_us"] = _us(arrival.max(axis=0), 1)
            fields["rank_arrival_us"] = _us(np.median(arrival, axis=1), 1)
        return fields

    def flags(self, per: int) -> tuple[str, ...]:
        """Return the flags for the times within this launch."""
        times_us = self.slowest_us(per)
        return raised_flags({"bimodal": is_bimodal(times_us), "unsteady": not is_steady(times_us)})

    def _last(self) -> NDArray[np.intp]:
        """Return the index of each repetition's slowest rank."""
        return np.asarray((self._end if self._spanning else self._end - self._start).argmax(axis=0))


class PairSamples:
    """Times of the pairs of a turn, shape (pairs, repetitions), in nanoseconds.

    NaN if one of the two was late: it drops the repetition of this pair alone.

    ``spanning`` as in `commbench.engine.samples.Samples`.
    """

    def __init__(self, turn: Sequence[Pair], *, spanning: bool) -> None:
        self._turn = turn
        self._spanning = spanning
        self._ends = np.array(turn, dtype=np.intp).T
        self._times = np.zeros((len(turn), 0))

    @property
    def tried(self) -> int:
        """Return the number of repetitions, including late ones."""
        return int(self._times.shape[1])

    @property
    def valid(self) -> int:
        """Return the valid repetitions of the pair with the fewest."""
        return int((~np.isnan(self._times)).sum(axis=1).min())

    @property
    def late(self) -> int:
        """Return the late repetitions over all pairs."""
        return int(np.isnan(self._times).sum())

    @property
    def counted(self) -> int:
        """Return the valid repetitions over all pairs."""
        return int(self._times.size) - self.late

    def add(self, ranks: Sequence[Repetitions]) -> float:
        """Add a chunk of every rank; return the share of late repetitions in it."""
        start = np.stack([repetitions.start_ns for repetitions in ranks])[self._ends]
        end = np.stack([repetitions.end_ns for repetitions in ranks])[self._ends]
        late = np.stack([repetitions.late for repetitions in ranks])[self._ends]
        lasting = (end - start).max(axis=0)
        if self._spanning:
            lasting = end.max(axis=0) - start.min(axis=0)
        times = np.where(late.any(axis=0), np.nan, lasting)
        self._times = np.hstack([self._times, times])
        return float(np.isnan(times).mean())

    def slowest_us(self, per: int) -> list[float]:
        """Return the time of the slowest pair of each repetition, in microseconds."""
        slowest: list[float] = (np.nanmax(self._times, axis=0) / (1e3 * per)).tolist()
        return slowest

    def pairs(self, per: int, wrong: Sequence[int], *, one_way: bool) -> list[tuple[Any, ...]]:
        """Return each pair's fields of `Pairs`, with times in microseconds of one of ``per``
        operations, in both orders unless ``one_way``.

        ``wrong``: the wrong elements that each rank received in this turn.
        """
        counts = (~np.isnan(self._times)).sum(axis=1)
        places = np.flatnonzero(counts)
        if not places.size:
            return []
        percentile = np.nanpercentile if self.late else np.percentile
        quantiles = percentile(self._times[places], (50, 95), axis=1) / (1e3 * per)
        medians, highs = np.round(quantiles, DECIMALS).tolist()
        pairs = []
        for place, median, high in zip(places.tolist(), medians, highs, strict=True):
            source, target = self._turn[place]
            times = (median, high, int(counts[place]))
            pairs.append((source, target, *times, wrong[target]))
            if not one_way:
                pairs.append((target, source, *times, wrong[source]))
        return pairs


def _us(nanoseconds: NDArray[Any], per: int) -> list[float]:
    rounded: list[float] = np.round(nanoseconds / (1e3 * per), DECIMALS).tolist()
    return rounded


def join_transports(transports: Sequence[str], ranks: Sequence[int]) -> str:
    """Return the transports of some ranks, joined by ``+``, each once."""
    return "+".join(dict.fromkeys(transports[rank] for rank in ranks if transports[rank]))


def timed_groups(
    prepared: Prepared, checked: Checked, samples: Samples, transports: Sequence[str], per: int
) -> tuple[GroupTimes, ...]:
    """Return each group's times of the same valid repetitions; nothing if groups are not reported.

    Args:
        prepared: the case.
        checked: the result of its verification.
        samples: of all participating ranks.
        transports: of each rank of the launch.
        per: operations in one repetition.
    """
    timed = []
    for group, ranks in zip(groups_of(prepared, checked), prepared.active, strict=False):
        own = samples.within(ranks)
        transport = join_transports(transports, ranks)
        timed.append(replace(group, **own.summary(per), transport=transport, flags=own.flags(per)))
    return tuple(timed)


def groups_of(prepared: Prepared, checked: Checked) -> tuple[GroupTimes, ...]:
    """Return the groups of a case without times; nothing if groups are not reported."""
    if not prepared.reports_groups:
        return ()
    return tuple(
        GroupTimes(
            group=rank_list(ranks),
            group_size=len(ranks),
            message_bytes=prepared.message_bytes(len(group)),
            wrong=checked.within(group),
        )
        for group, ranks in zip(prepared.groups, prepared.active, strict=True)
    )
