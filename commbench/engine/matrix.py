"""The matrix of pairs: every ordered pair of ranks is timed, in rounds of disjoint pairs that run
at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.collectives.cases import Case, shuffled
from commbench.collectives.composed import MATRIX, operation_in_pattern
from commbench.collectives.datatypes import DTYPES, KnownData
from commbench.collectives.layouts import Shape, Span
from commbench.collectives.operations import Operation, check_ranks, window_of
from commbench.collectives.patterns import Pair, rounds_of
from commbench.collectives.primitives import Buffers, Request
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control
from commbench.engine.records import FixedSettings, PairTimes
from commbench.engine.samples import DECIMALS
from commbench.engine.setup import check_count
from commbench.engine.stopping import Step, batch_of
from commbench.engine.timing.clocks import GlobalClock
from commbench.engine.timing.loops import Call, Timer
from commbench.engine.timing.sync import TOLERATED_LATE
from commbench.findings import UnsupportedError

#: Repetitions of a pair in a launch: the fewest for a median, and the most.
FEWEST, MOST = 6, 100
#: Discarded repetitions of each pair after the verified one.
WARMUPS = 2
#: Time slices of a case for all turns together, and the smallest and largest share of a slice for
#: one turn.
SLICES, LEAST_SHARE, MOST_SHARE = 10, 0.1, 0.5

Turn = Sequence[Pair]
"""Disjoint pairs that communicate at the same time, each (source, target)."""


class _PairView:
    """A backend restricted to the two ranks of a pair, numbered 0 and 1, for point-to-point
    operations.
    """

    def __init__(self, communicator: Communicator, pair: Pair) -> None:
        self._communicator = communicator
        self._pair = pair

    def call(self, request: Request) -> Call:
        return self._communicator.call(request.among(self._pair))

    def empty(self) -> Any:  # noqa: ANN401 - a backend's own buffer type
        return self._communicator.empty()


@dataclass(frozen=True, kw_only=True)
class PreparedMatrix:
    """A case of the pattern ``matrix`` on this rank, with one pair of buffers for all partners."""

    case: Case
    operation: Operation
    """The operation of one pair."""
    communicator: Communicator
    data: KnownData
    elements: int
    window: int
    buffers: Buffers

    @property
    def participants(self) -> tuple[int, ...]:
        """Return all ranks."""
        return tuple(range(self.communicator.size))

    def turns(self, launch: int) -> list[Turn]:
        """Return the turns of a launch in its own order.

        Both directions of a round follow each other.
        """
        rounds: list[Turn] = list(shuffled(rounds_of(self.communicator.size), 0, launch))
        if not self.operation.is_one_way:
            return rounds
        return [
            turn
            for pairs in rounds
            for turn in (pairs, [(target, source) for source, target in pairs])
        ]

    def calls(self, turn: Turn) -> list[Call]:
        """Return this rank's calls in a turn; none if it is idle."""
        pair = self._pair(turn)
        if not pair:
            return []
        shape, view = self._shape(pair), _PairView(self.communicator, pair)
        calls: list[Call] = list(self.operation.call(view, self.buffers, shape, ""))  # type: ignore[arg-type] # a part
        return calls

    def verify(self, turn: Turn, calls: Sequence[Call], timer: Timer) -> int:
        """Run the calls once in the timed loop.

        Return the wrong elements that this rank received.
        """
        self.communicator.poison(self.buffers.receive)
        timer.run(calls, 1, 1)
        self.communicator.complete()
        pair = self._pair(turn)
        spans = self.operation.answer(self._shape(pair)) if pair else []
        if not pair or not spans:
            return 0
        sent = [replace(span, source=pair[span.source or 0]) for span in spans]
        return self.communicator.count_wrong(self.buffers.receive, self.data.answer(sent))

    def _pair(self, turn: Turn) -> Pair | None:
        """Return the pair of this rank in a turn; None if it is idle."""
        return next((pair for pair in turn if self.communicator.rank in pair), None)

    def _shape(self, pair: Pair) -> Shape:
        return Shape(
            rank=pair.index(self.communicator.rank),
            size=2,
            elements=self.elements,
            window=self.window,
        )


def turn_share(turns: int) -> float:
    """Return the time for one of ``turns`` turns, as a share of a case's time slice."""
    return min(MOST_SHARE, max(LEAST_SHARE, SLICES / turns))


def time_slices(case: Case, ranks: int) -> float:
    """Return the duration of a case on ``ranks`` ranks in time slices: 1, or more for a matrix."""
    if case.pattern != MATRIX:
        return 1.0
    try:
        operation = operation_in_pattern(case.operation, case.pattern, ranks)
    except UnsupportedError:
        return 1.0
    turns = (ranks - 1 + ranks % 2) * (1 + operation.is_one_way)
    return max(1.0, turns * turn_share(turns)) if turns else 1.0


def prepare_matrix(case: Case, communicator: Communicator) -> PreparedMatrix:
    """Allocate the buffers of a case and fill the send buffer with data that differ between ranks.

    Raises:
        UnsupportedError: there are no pairs, or the operation or the backend cannot do pairs; the
            same on every rank.
    """
    operation = operation_in_pattern(case.operation, case.pattern, communicator.size)
    check_ranks(operation, communicator.size)
    if case.world_size is not None:
        raise UnsupportedError("matrix_of_all_ranks")
    if case.graph or case.persistent or case.buffers != "hot":
        raise UnsupportedError("matrix_of_plain_calls")
    dtype = DTYPES[case.dtype or "int8"]
    elements = case.message_bytes // dtype.itemsize
    check_count(elements, communicator)
    data = KnownData(dtype=dtype, size=communicator.size, redop=None)
    buffers = Buffers(
        send=communicator.allocate(dtype, elements), receive=communicator.allocate(dtype, elements)
    )
    communicator.write(
        buffers.send, data.inputs([Span(offset=0, count=elements, source=communicator.rank)])
    )
    return PreparedMatrix(
        case=case,
        operation=operation,
        communicator=communicator,
        data=data,
        elements=elements,
        window=window_of(operation, case.message_bytes),
        buffers=buffers,
    )


@dataclass(frozen=True, kw_only=True)
class _Share:
    """One rank's result of a turn: stamps, arrays of shape (repetitions,), and the wrong elements
    it received.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    late: NDArray[np.bool_]
    wrong: int


class _TurnTimes:
    """Times of the pairs of a turn, shape (pairs, repetitions), in nanoseconds.

    NaN if one of the two was late.

    ``spanning`` as in `commbench.engine.samples.Samples`.
    """

    def __init__(self, turn: Turn, *, spanning: bool) -> None:
        self._turn = turn
        self._spanning = spanning
        self._ends = np.array(turn, dtype=np.intp).T
        self._times = np.zeros((len(turn), 0))
        self._wrong: Sequence[int] = ()

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

    @property
    def wrong(self) -> int:
        """Return the wrong elements over all ranks."""
        return sum(self._wrong)

    def add(self, ranks: Sequence[_Share]) -> float:
        """Add a chunk of every rank; return the share of late repetitions in it."""
        start, end, late = (
            np.stack([getattr(share, name) for share in ranks])[self._ends]
            for name in ("start_ns", "end_ns", "late")
        )
        lasting = (
            end.max(axis=0) - start.min(axis=0) if self._spanning else (end - start).max(axis=0)
        )
        times = np.where(late.any(axis=0), np.nan, lasting)
        self._times = np.hstack([self._times, times])
        self._wrong = [share.wrong for share in ranks]
        return float(np.isnan(times).mean())

    def pairs(self, per: int, *, one_way: bool) -> list[PairTimes]:
        """Return each pair's times in microseconds of one of ``per`` operations, in both orders
        unless ``one_way``.
        """
        counts = (~np.isnan(self._times)).sum(axis=1)
        places = np.flatnonzero(counts)
        if not places.size:
            return []
        percentile = np.nanpercentile if self.late else np.percentile
        medians, highs = np.round(
            percentile(self._times[places], (50, 95), axis=1) / (1e3 * per), DECIMALS
        ).tolist()
        return [
            PairTimes(
                source=source,
                target=target,
                time_us=median,
                time_us_p95=high,
                repetitions=int(counts[index]),
                wrong=self._wrong[target],
            )
            for index, median, high in zip(places.tolist(), medians, highs, strict=True)
            for source, target in self._orders(index, one_way=one_way)
        ]

    def _orders(self, index: int, *, one_way: bool) -> list[Pair]:
        source, target = self._turn[index]
        return [(source, target)] if one_way else [(source, target), (target, source)]


@dataclass(kw_only=True)
class MatrixSampler:
    """Samples all pairs turn by turn, each for its share of the time.

    Rank 0 decides for all ranks.
    """

    control: Control
    timer: Timer
    matrix: PreparedMatrix
    slice_s: float
    """Time slice of a case, in seconds; a matrix takes several, see `SLICES`."""
    reading_ns: float
    """Cost of one reading of the clock in this timer's loop."""
    late: int = field(default=0, init=False)
    """Late repetitions, on rank 0; one that two directions share counts once."""
    counted: int = field(default=0, init=False)
    """Valid repetitions, on rank 0."""
    wrong: int = field(default=0, init=False)
    """Wrong elements over all pairs, on rank 0."""

    def collect(
        self, launch: int, fixed: FixedSettings | None
    ) -> tuple[FixedSettings, list[PairTimes]]:
        """Measure every pair.

        Return the settings, and on rank 0 the pairs sorted by source and target.
        """
        turns = self.matrix.turns(launch)
        self.timer.sync.plan.reset()
        settled = fixed or self._choose_settings(turns[0])
        per = settled.batch * self.matrix.window * self.matrix.operation.operations_per_call
        pairs: list[PairTimes] = []
        for turn in turns:
            times = self._measure(turn, settled, self.slice_s * turn_share(len(turns)))
            if self.control.rank == 0:
                pairs += times.pairs(per, one_way=self.matrix.operation.is_one_way)
                self.late += times.late
                self.counted += times.counted
                self.wrong += times.wrong
        return settled, sorted(pairs, key=lambda pair: (pair.source, pair.target))

    def _choose_settings(self, turn: Turn) -> FixedSettings:
        """Agree on the number of operations to time together, from the fastest pair of a turn."""
        calls = self.matrix.calls(turn)
        self.timer.run(calls, 1, 1)
        timed = self.timer.run(calls, 1 + WARMUPS, 1)
        typical = self.control.gather(
            float(np.median(timed.end_ns - timed.start_ns)) if calls else np.inf
        )
        batch = batch_of(min(typical), self.reading_ns) if typical else 1
        return self.control.broadcast(FixedSettings(warmups=WARMUPS, batch=batch))

    def _measure(self, turn: Turn, settled: FixedSettings, turn_s: float) -> _TurnTimes:
        """Measure one turn: verify, warm up, repeat; rank 0 gets the times."""
        calls = self.matrix.calls(turn)
        wrong = self.matrix.verify(turn, calls, self.timer)
        self.timer.run(calls, settled.warmups, settled.batch)
        times = _TurnTimes(turn, spanning=self.timer.sync.plan.spans_ranks)
        clock = self.timer.sync.plan.clock
        begun = time.perf_counter()
        step = Step(repetitions=FEWEST)
        while step.repetitions:
            timed = self.timer.run(calls, step.repetitions, settled.batch)
            share = _Share(
                start_ns=timed.start_ns, end_ns=timed.end_ns, late=timed.late, wrong=wrong
            )
            agreed = self.control.broadcast(
                _next_step(times, self.control.gather(share), begun, turn_s, clock)
            )
            assert agreed is not None  # noqa: S101 - rank 0 always has a view
            step = agreed
            if step.widen:
                self.timer.sync.handle_late_starts()
            elif step.refresh:
                clock.refresh()  # also after the last chunk: the next turn may be a single one
        return times


def _next_step(
    times: _TurnTimes,
    gathered: Sequence[_Share] | None,
    begun: float,
    turn_s: float,
    clock: GlobalClock,
) -> Step | None:
    """Return rank 0's decision after a chunk; None on the other ranks."""
    if gathered is None:
        return None
    late = times.add(gathered)
    elapsed = time.perf_counter() - begun
    affordable = int((turn_s - elapsed) * times.tried / elapsed)
    missing = FEWEST - times.valid if times.tried < 4 * FEWEST else 0
    probes = max(0, missing, min(MOST - times.tried, affordable))
    return Step(
        repetitions=probes, widen=probes > 0 and late > TOLERATED_LATE, refresh=clock.is_stale()
    )
