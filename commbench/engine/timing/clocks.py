"""Synchronised clocks of several hosts: offset, drift, and rank 0's clock on every rank.

The methods are cited at their functions: SKaMPI's bounds of an offset, and HCA3's drift as a line
over time in a binomial tree of clocks (Hunold & Carpen-Amarie, "Hierarchical Clock Synchronization
in MPI", IEEE Cluster 2018).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from commbench.engine.control import Control, gather_everywhere
from commbench.schema import Signed

Times = NDArray[np.int64]

#: ReproMPI's defaults: points of a line, and exchanges per point.
FIT_POINTS = 20
LEAST_PINGS = 10
MOST_PINGS = 100
#: Exchanges stop after one that takes at most this many times as long as the pair's fastest.
FAST_ENOUGH = 1.1
#: Between the points of the first fit: over 0.4 s, offsets with an error of 50 ns give the drift to
#: 0.1 ppm.
SPACING_S = 0.02
#: A line gets a new point at this age (MPIX_Harmonize's default) and keeps the latest points only.
MAXIMUM_AGE_S = 1.0
POINTS_KEPT = 40
#: Upper bound of drift: Linux slews a clock by 500 ppm at most (adjtimex).
MAXIMUM_DRIFT = 500e-6

#: Clocks may time operations of which their error bound is at most this share. Measured errors are
#: below a tenth of the bound (docs/measuring.md).
CLOCK_SHARE = 0.1


def is_close(error_ns: float, lasting_ns: float) -> bool:
    """Return whether an error of ``error_ns`` is small enough for operations that take
    ``lasting_ns``.
    """
    return error_ns <= CLOCK_SHARE * lasting_ns


@dataclass(frozen=True, kw_only=True)
class Offset:
    """The other clock minus this one at ``at_ns`` of this clock, with a hard bound on the error."""

    at_ns: int
    offset_ns: int
    error_ns: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """Another clock as a line over this one: other(t) = t + offset_ns + drift (t - origin_ns).

    The origin is kept because a clock in nanoseconds uses the whole mantissa of a float.
    """

    origin_ns: int = 0
    offset_ns: int = 0
    drift: float = 0.0

    def read(self, times: Times) -> Times:
        """Return the other clock's times for times of this one, in nanoseconds, any shape."""
        ahead = np.rint(self.drift * (times - self.origin_ns)).astype(np.int64)
        return np.asarray(times + self.offset_ns + ahead, dtype=np.int64)

    def invert(self) -> Line:
        """Return this clock as a line over the other."""
        origin_ns = self.origin_ns + self.offset_ns
        return Line(origin_ns=origin_ns, offset_ns=-self.offset_ns, drift=1 / (1 + self.drift) - 1)

    def compose(self, further: Line) -> Line:
        """Return a third clock over this one; ``further`` is the third over the other."""
        distance_ns = self.origin_ns + self.offset_ns - further.origin_ns
        return Line(
            origin_ns=self.origin_ns,
            offset_ns=self.offset_ns + further.offset_ns + round(further.drift * distance_ns),
            drift=self.drift + further.drift * (1 + self.drift),
        )


def bound_offset(pings: Sequence[tuple[int, int, int]]) -> Offset:
    """Return the offset of another clock from exchanges with it, by SKaMPI's bounds.

    A reply with stamp t to a request sent at s and answered at r was stamped between s and r. So
    the offset is at least t - r and at most t - s. The tightest bounds of all exchanges give the
    offset as their middle and its error bound as half the width, independently of the network.
    Drift during the exchanges moves the bounds by at most `MAXIMUM_DRIFT`.

    Args:
        pings: (s, t, r) of each exchange in nanoseconds; s and r of this clock, t of the other.
    """
    stamps = np.array(pings, dtype=np.int64)
    sent, answered, returned = stamps.T
    low, high = answered - returned, answered - sent
    tight_low, tight_high = int(low.argmax()), int(high.argmin())
    middle = (sent + returned) // 2
    span_of_bounds = abs(int(middle[tight_low] - middle[tight_high]))
    round_trip = returned - sent  # the stamp is at most half of it away from the middle
    span = span_of_bounds + int(round_trip[tight_low] + round_trip[tight_high]) / 2
    width = max(0, int(high[tight_high] - low[tight_low]))
    return Offset(
        at_ns=int(middle[tight_low] + middle[tight_high]) // 2,
        offset_ns=int(high[tight_high] + low[tight_low]) // 2,
        error_ns=(width + MAXIMUM_DRIFT * span) / 2 + 2,  # plus rounding to nanoseconds
    )


def fit_line(points: Sequence[Offset]) -> tuple[Line, float]:
    """Return the least-squares line through offsets, and a bound on its error in nanoseconds
    between first and last.

    Points are weighted by their bounds. With steady drift the line's error is itself a line over
    time. At each point it is at most the residual plus the point's own bound. Any two points bound
    it.
    """
    last = points[-1]
    at = np.array([point.at_ns - last.at_ns for point in points], dtype=np.float64)
    offset = np.array([point.offset_ns - last.offset_ns for point in points], dtype=np.float64)
    error = np.array([point.error_ns for point in points])
    drift, constant = np.polyfit(at, offset, 1, w=1 / error).tolist()
    bounds = np.abs(constant + drift * at - offset) + error
    line = Line(origin_ns=last.at_ns, offset_ns=last.offset_ns + round(constant), drift=drift)
    return line, max(_bound_at(end, at, bounds) for end in (at[0], at[-1]))


def _bound_at(when: float, at: NDArray[np.float64], bounds: NDArray[np.float64]) -> float:
    """Return the smallest bound at ``when`` on a line that is bounded at some points: by the best
    two of them.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = (when - at[:, None]) / (at - at[:, None])  # the line from each point to each
        by_two = abs(1 - shares) * bounds[:, None] + abs(shares) * bounds
    return float(np.nanmin([*bounds[at == when], *by_two.ravel()]))


class ClockFacts(TypedDict):
    """The entry ``clock`` of run.json: how well the ranks' clocks agree."""

    method: Literal["shared", "synchronised"]
    """``shared``: all ranks read one clock; ``synchronised``: offsets and drifts were measured."""
    domains: int
    """Different clocks."""
    error_us: float
    """Error bound of a rank's reading of rank 0's clock."""
    drift_ppm: Signed
    """The largest drift against rank 0's clock, in parts per million."""


class GlobalClock:
    """Rank 0's clock on every rank; in this class, the clock that all ranks share."""

    is_shared = True
    """Whether all ranks read one clock."""

    def __init__(self) -> None:
        self.line = Line()
        """Rank 0's clock over this rank's."""
        self.local_line = Line()
        """This rank's clock over rank 0's."""
        self.error_ns = 0.0
        """Error bound of every rank's reading of rank 0's clock, between the first and the last
        comparison; the same on every rank."""
        self.facts: ClockFacts = {
            "method": "shared",
            "domains": 1,
            "error_us": 0.0,
            "drift_ppm": 0.0,
        }
        """The entry of run.json."""

    def to_global(self, stamps: Times) -> Times:
        """Return rank 0's times for stamps of this rank, in nanoseconds, any shape."""
        return self.line.read(stamps)

    def to_local(self, instant_ns: int) -> int:
        """Return this rank's time for an instant of rank 0's clock."""
        line = self.local_line
        return instant_ns + line.offset_ns + round(line.drift * (instant_ns - line.origin_ns))

    def is_stale(self) -> bool:
        """Return whether the clocks should be compared again; rank 0's answer counts."""
        return False

    def refresh(self) -> None:
        """Compare the clocks again; collective."""


class SynchronisedClock(GlobalClock):
    """Rank 0's clock, computed by the ranks of other hosts from their own.

    One rank of each clock leads. The leaders form a binomial tree under rank 0: floor(log2 p)
    rounds, one more if p is no power of two, reach all p leaders, and each child compares its clock
    with its parent's. HCA3 fits the child against the parent's global clock. Fitting raw clocks and
    composing the lines gives the same result, and all rounds can measure their points in the same
    interval.

    Args:
        control: the ranks, which make and refresh the clock together.
        domains: by rank; ranks of the same domain read one clock.
        now: this rank's clock in nanoseconds, the one that timed loops read.
        spacing_s: between two points of the first fit.
    """

    is_shared = False

    def __init__(
        self,
        control: Control,
        domains: Sequence[str],
        now: Callable[[], int] = time.perf_counter_ns,
        spacing_s: float = SPACING_S,
    ) -> None:
        super().__init__()
        self._control = control
        self._now = now
        different = list(dict.fromkeys(domains))
        self._leaders = [domains.index(domain) for domain in different]
        self._own = different.index(domains[control.rank])
        self._leading = self._leaders[self._own] == control.rank
        self._points: deque[Offset] = deque(maxlen=POINTS_KEPT)
        self._fastest_ns = 1 << 62
        for point in range(FIT_POINTS):
            if point:
                time.sleep(spacing_s)
            self._compare()
        self._agree()

    def is_stale(self) -> bool:
        """See `GlobalClock.is_stale`."""
        return time.monotonic() - self._agreed > MAXIMUM_AGE_S

    def refresh(self) -> None:
        """Add a point to every line."""
        self._compare()
        self._agree()

    def _compare(self) -> None:
        """Compare every leader's clock with its parent's once, round by round."""
        if not self._leading:
            return
        distance = 1
        while distance < len(self._leaders):
            if self._own < distance:
                if self._own + distance < len(self._leaders):
                    child = self._leaders[self._own + distance]
                    while self._control.receive_int(child):
                        self._control.send_int(self._now(), child)
            elif self._own < 2 * distance:
                self._points.append(self._measure_offset(self._leaders[self._own - distance]))
            distance *= 2

    def _measure_offset(self, parent: int) -> Offset:
        """Exchange messages with the parent until one is as fast as the fastest so far."""
        control, now = self._control, self._now
        pings = []
        going_on = True
        while going_on:
            sent = now()
            control.send_int(1, parent)
            answered = control.receive_int(parent)
            returned = now()
            pings.append((sent, answered, returned))
            self._fastest_ns = min(self._fastest_ns, returned - sent)
            fast = returned - sent < FAST_ENOUGH * self._fastest_ns
            going_on = len(pings) < LEAST_PINGS or (len(pings) < MOST_PINGS and not fast)
        control.send_int(0, parent)
        return bound_offset(pings)

    def _agree(self) -> None:
        """Fit, exchange the lines and compose this rank's line to rank 0; collective."""
        self._control.barrier(patient=True)  # ranks that lead nothing yield their core meanwhile
        edge = (Line(), 0.0)
        if self._points:
            edge = fit_line(self._points)
        edges = gather_everywhere(self._control, edge)
        ways = {0: (Line(), 0.0)}
        for index in range(1, len(self._leaders)):
            line, error_ns = edges[self._leaders[index]]
            parent = index ^ (1 << (index.bit_length() - 1))  # without its highest bit
            further, further_ns = ways[parent]
            ways[index] = (line.compose(further), error_ns + further_ns)
        self.line = ways[self._own][0]
        self.local_line = self.line.invert()
        self.error_ns = max(error for _, error in ways.values())
        worst_drift = max((line.drift for line, _ in ways.values()), key=abs)
        self.facts = {
            "method": "synchronised",
            "domains": len(self._leaders),
            "error_us": round(self.error_ns / 1e3, 3),
            "drift_ppm": round(worst_drift * 1e6, 3),
        }
        self._agreed = time.monotonic()


def open_clock(control: Control, domains: Sequence[str]) -> GlobalClock:
    """Return the clock of a launch: shared if all ranks read one clock, else synchronised;
    collective.

    Args:
        control: the ranks.
        domains: by rank, the same on every rank; see `commbench.system.clock.clock_domain`.
    """
    if len(set(domains)) == 1:
        return GlobalClock()
    return SynchronisedClock(control, domains)
