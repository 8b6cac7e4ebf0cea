"""Samples of one visit of a soak: some repetitions, the longest interruptions, and its point of the
time line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from commbench.engine.records import Interruption, Point, Stall
from commbench.engine.samples import Samples, stamps_of
from commbench.engine.timing.loops import Repetitions

#: Repetitions of a visit that rank 0 keeps in memory, and those that the record keeps.
MOST_KEPT, MOST_RECORDED = 4096, 50
#: Interruptions of a visit that the record keeps.
MOST_INTERRUPTIONS = 3
_DECIMALS = 6


class SoakSamples(Samples):
    """Samples whose memory is bounded however long the visit is; arguments as of `Samples`.

    If more than `MOST_KEPT` repetitions remain, every second one is dropped. The longest
    interruptions are kept of all repetitions, late ones included: a rank that was stopped before it
    started is late.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._begun_s = time.time()
        self._ends_ns: int | None = None
        """When the last repetition so far had ended on all ranks."""
        self._total = 0
        self._stride = 1
        self._longest: list[Interruption] = []

    def add(self, ranks: Sequence[Repetitions]) -> float:
        """See `Samples.add`."""
        self._note_interruptions([ranks[rank] for rank in self.participants])
        before = self.valid
        share = super().add(ranks)
        self._total += self.valid - before
        kept, added = self._stamps[..., :before], self._stamps[..., before :: self._stride]
        self._stamps = np.concatenate([kept, added], axis=2)
        while self.valid > MOST_KEPT:
            self._stamps = self._stamps[..., ::2]
            self._stride *= 2
        return share

    def _note_interruptions(self, ranks: Sequence[Repetitions]) -> None:
        """Keep the longest interruptions: from one repetition's last end to the next one's."""
        start, end = stamps_of(ranks)
        is_comparable = self.clock_error_ns < math.inf
        firsts, lasts, now_s = start[0], end[0], None
        if is_comparable:
            firsts, lasts, now_s = start.min(axis=0), end.max(axis=0), time.perf_counter()
        before_ns = self._ends_ns
        if before_ns is None:
            before_ns = int(firsts[0])
        befores = np.concatenate([[before_ns], lasts[:-1]])
        self._ends_ns = int(lasts[-1])
        spans = lasts - befores
        if now_s is None:
            now_s = self._ends_ns / 1e9
        offset_s = time.time() - now_s
        for place in np.argsort(spans)[-MOST_INTERRUPTIONS:]:
            arrival_s: Sequence[float] = ()
            if is_comparable:
                arrival_s = _seconds(start[:, place] - befores[place])
            self._longest.append(
                Interruption(
                    at_s=round(offset_s + int(befores[place]) / 1e9, _DECIMALS),
                    lasted_s=_seconds(spans[place]),
                    rank_s=_seconds(end[:, place] - start[:, place]),
                    arrival_s=arrival_s,
                )
            )
        self._longest.sort(key=lambda each: each.lasted_s, reverse=True)
        del self._longest[MOST_INTERRUPTIONS:]

    def _recorded(self) -> list[int]:
        """Return the places of the repetitions to record: evenly spaced by time, so that quantiles
        remain.
        """
        order = np.argsort(self._slowest_ns(), kind="stable")
        places = np.linspace(0, len(order) - 1, min(MOST_RECORDED, len(order)))
        return sorted(int(order[place]) for place in np.rint(places).astype(int))

    def summary(self, per: int) -> dict[str, Any]:
        """Return the fields of a `Record`, with times of at most `MOST_RECORDED` repetitions."""
        fields, recorded = super().summary(per), self._recorded()
        for name in ("times_us", "rank_mean_us", "skew_us"):
            if name in fields:
                fields[name] = [fields[name][place] for place in recorded]
        return fields

    def within(self, ranks: Sequence[int]) -> Samples:
        """Return the recorded repetitions for some of the participating ranks."""
        return self._part(ranks, self._recorded())

    def point(self, per: int, stalls: Sequence[Stall]) -> Point:
        """Return the point of this visit, which has valid repetitions."""
        counts = self._slowest_counts()
        return Point(
            at_s=round(self._begun_s, _DECIMALS),
            lasted_s=round(time.time() - self._begun_s, _DECIMALS),
            repetitions=self._total,
            late=self.late,
            median_us=float(np.median(self.slowest_us(per))),
            slowest=self.participants[int(counts.argmax())],
            slowest_share=round(float(counts.max() / counts.sum()), 4),
            longest=self._longest,
            stalls=stalls,
        )


def _seconds(nanoseconds: Any) -> Any:
    return np.round(np.asarray(nanoseconds) / 1e9, 9).tolist()
