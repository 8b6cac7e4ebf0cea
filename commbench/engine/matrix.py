"""The matrix of pairs: every ordered pair of ranks is timed, in turns of disjoint pairs that run
at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commbench.collectives.cases import Case, shuffled
from commbench.collectives.composed import MATRIX, operation_in_pattern
from commbench.collectives.datatypes import DTYPES, KnownData
from commbench.collectives.layouts import Shape, Span
from commbench.collectives.operations import Operation, check_ranks, window_of
from commbench.collectives.patterns import Pair, rounds_of
from commbench.collectives.primitives import Buffers, Request
from commbench.engine.communicator import Communicator
from commbench.engine.records import FixedSettings, PairTimes
from commbench.engine.samples import DECIMALS
from commbench.engine.sampling import Sampler, VisitPlan, batch_of
from commbench.engine.session import Session
from commbench.engine.setup import check_count
from commbench.engine.timing.loops import Call, Repetitions, median_us
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

    def verify(self, turn: Turn, sampler: Sampler) -> int:
        """Run the calls of a turn once in the timed loop.

        Return the wrong elements that this rank received.
        """
        self.communicator.poison(self.buffers.receive)
        sampler.timer.run(sampler.calls, 1, 1)
        self.communicator.complete()
        pair = self._pair(turn)
        if not pair:
            return 0
        spans = self.operation.answer(self._shape(pair))
        if not spans:
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


class PairSamples:
    """Times of the pairs of a turn, shape (pairs, repetitions), in nanoseconds.

    NaN if one of the two was late: it drops the repetition of this pair alone.

    ``spanning`` as in `commbench.engine.samples.Samples`.
    """

    def __init__(self, turn: Turn, *, spanning: bool) -> None:
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

    def pairs(self, per: int, wrong: Sequence[int], *, one_way: bool) -> list[PairTimes]:
        """Return each pair's times in microseconds of one of ``per`` operations, in both orders
        unless ``one_way``.

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
            orders = [(source, target), (target, source)]
            if one_way:
                orders = [(source, target)]
            for sender, receiver in orders:
                pairs.append(
                    PairTimes(
                        source=sender,
                        target=receiver,
                        time_us=median,
                        time_us_p95=high,
                        repetitions=int(counts[place]),
                        wrong=wrong[receiver],
                    )
                )
        return pairs


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The samples of a matrix."""

    settings: FixedSettings
    pairs: Sequence[PairTimes] = ()
    """On rank 0, sorted by source and target."""
    wrong: int = 0
    """Wrong elements over all pairs, on rank 0."""
    late: int = 0
    """Late repetitions, on rank 0; one that two directions share counts once."""
    counted: int = 0
    """Valid repetitions, on rank 0."""


def sample_matrix(
    matrix: PreparedMatrix,
    sampler: Sampler,
    session: Session,
    *,
    launch: int,
    fixed: FixedSettings | None,
) -> Sampled:
    """Measure every pair, turn by turn, each in its share of the time slice; collective.

    Args:
        matrix: the case.
        sampler: of its loop.
        session: of the launch.
        launch: its number.
        fixed: settings of the first launch; None in the first launch.
    """
    control, timer, operation = session.control, sampler.timer, matrix.operation
    turns = matrix.turns(launch)
    sampler.calls = matrix.calls(turns[0])
    settings = fixed or _choose_settings(sampler)
    rule = replace(
        sampler.rule, relative_half_width=None, minimum=FEWEST, floor=FEWEST, maximum=MOST
    )
    share_s = session.slice_s * turn_share(len(turns))
    plan = VisitPlan(rule=rule, share_s=share_s, fills_share=True)
    per = settings.batch * matrix.window * operation.operations_per_call
    pairs: list[PairTimes] = []
    wrong = late = counted = 0
    for turn in turns:
        session.refresh_clock()
        timer.sync.plan.reset()
        sampler.calls = matrix.calls(turn)
        wrong_by_rank = control.gather(matrix.verify(turn, sampler))
        timer.run(sampler.calls, settings.warmups, settings.batch)
        sampler.begin(plan)
        samples = PairSamples(turn, spanning=timer.sync.plan.spans_ranks)
        sampler.collect(samples, settings.batch)
        if wrong_by_rank is not None:
            pairs += samples.pairs(per, wrong_by_rank, one_way=operation.is_one_way)
            wrong += sum(wrong_by_rank)
            late += samples.late
            counted += samples.counted
    pairs.sort(key=lambda pair: (pair.source, pair.target))
    return Sampled(settings=settings, pairs=pairs, wrong=wrong, late=late, counted=counted)


def _choose_settings(sampler: Sampler) -> FixedSettings:
    """Agree on the number of operations to time together, from the fastest pair of a turn."""
    sampler.timer.run(sampler.calls, 1, 1)
    typical_us = median_us(sampler.timer, sampler.calls, 1 + WARMUPS, 1)
    if not sampler.calls:  # idle in this turn
        typical_us = math.inf
    gathered = sampler.control.gather(typical_us)
    batch = 1
    if gathered:
        batch = batch_of(1e3 * min(gathered), sampler.reading_ns)
    return FixedSettings(warmups=WARMUPS, batch=sampler.control.broadcast_int(batch))
