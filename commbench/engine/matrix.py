"""The matrix of pairs: every ordered pair of ranks is timed, in turns of disjoint pairs that run
at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from commbench.collectives.cases import Case, shuffled
from commbench.collectives.composed import COMPOSED, MATRIX, operation_in_pattern
from commbench.collectives.datatypes import DTYPES, KnownData
from commbench.collectives.layouts import Shape
from commbench.collectives.operations import OPERATIONS, check_ranks, window_of
from commbench.collectives.patterns import Pair, rounds_of
from commbench.collectives.primitives import Buffers
from commbench.engine.communicator import Communicator
from commbench.engine.control import gather_everywhere
from commbench.engine.records import FixedSettings
from commbench.engine.samples import PairSamples
from commbench.engine.sampling import Sampler, VisitPlan, batch_of
from commbench.engine.setup import Prepared, check_count
from commbench.engine.timing.loops import median_us
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


def in_turn(matrix: Prepared, turn: Turn) -> Prepared:
    """Return the case in a turn: its pairs are the groups, and this rank has calls unless it is
    idle.
    """
    rank, communicator = matrix.communicator.rank, matrix.communicator
    matrix = replace(matrix, groups=tuple(turn))
    for pair in turn:
        if rank in pair:
            shape = Shape(
                rank=pair.index(rank),
                size=2,
                elements=matrix.buffers.send.count,
                window=matrix.window,
                members=pair,
            )
            calls = matrix.operation.call(communicator, matrix.buffers, shape, "")
            data = replace(matrix.data, members=pair)
            return replace(matrix, shape=shape, calls=calls, data=data)
    return matrix


def turn_share(turns: int) -> float:
    """Return the time for one of ``turns`` turns, as a share of a case's time slice."""
    return min(MOST_SHARE, max(LEAST_SHARE, SLICES / turns))


def time_slices(case: Case, ranks: int) -> float:
    """Return the duration of a case on ``ranks`` ranks in time slices: 1, or more for a matrix."""
    if case.pattern != MATRIX or case.operation not in COMPOSED[MATRIX]:
        return 1.0
    turns = (ranks - 1 + ranks % 2) * (1 + OPERATIONS[case.operation].is_one_way)
    return max(1.0, turns * turn_share(turns)) if turns else 1.0


def prepare_matrix(case: Case, communicator: Communicator) -> Prepared:
    """Return the case of one pair, with one pair of buffers for all partners.

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
    send, receive = (communicator.allocate(dtype, elements) for _ in range(2))
    return Prepared(
        case=case,
        operation=operation,
        groups=(),
        world_size=communicator.size,
        communicator=communicator,
        sets=[Buffers(send=send, receive=receive)],
        data=KnownData(dtype=dtype, size=2, redop=None),
        window=window_of(operation, case.message_bytes),
    )


def sample_matrix(
    matrix: Prepared, sampler: Sampler, *, launch: int, fixed: FixedSettings | None
) -> tuple[FixedSettings, PairSamples]:
    """Measure every pair, turn by turn, each in its share of the time slice; collective.

    Args:
        matrix: the case.
        sampler: of its loop.
        launch: number of the launch.
        fixed: settings of the first launch; None in the first launch.

    Returns:
        The settings of the launch, and what was sampled, on rank 0.

    Raises:
        RuntimeError: the library refuses a pair.
    """
    session, timer, is_one_way = sampler.session, sampler.timer, matrix.operation.is_one_way
    turns = []  # in the launch's own order; both directions follow each other
    for pairs in shuffled(rounds_of(matrix.world_size), 0, launch):
        turns.append(pairs)
        if is_one_way:
            turns.append([(target, source) for source, target in pairs])
    settings = fixed
    if settings is None:
        sampler.calls = in_turn(matrix, turns[0]).calls
        settings = FixedSettings(warmups=WARMUPS, batch=_batch_of_fastest(sampler))
    sampler.batch = settings.batch
    share_s = session.budget.slice_s * turn_share(len(turns))
    plan = VisitPlan(share_s=share_s, minimum=FEWEST, floor=FEWEST, maximum=MOST, fills_share=True)
    samples = PairSamples(
        spanning=timer.sync.spans_ranks,
        one_way=is_one_way,
        per=matrix.operations(settings.batch),
    )
    for turn in turns:
        timer.sync.reset()
        prepared = in_turn(matrix, turn)
        wrong = prepared.verify(session.control, timer)
        sampler.calls = prepared.calls
        timer.run(sampler.calls, settings.warmups, settings.batch)
        sampler.begin(plan)
        samples.begin(turn)
        if sampler.collect(samples):
            samples.end(wrong)
    return settings, samples


def _batch_of_fastest(sampler: Sampler) -> int:
    """Agree on the number of operations to time together, from the fastest pair of a turn."""
    sampler.timer.run(sampler.calls, 1, 1)
    typical_us = median_us(sampler.timer, sampler.calls, 1 + WARMUPS, 1)
    if not sampler.calls:  # idle in this turn
        typical_us = math.inf
    fastest_us = min(gather_everywhere(sampler.session.control, typical_us))
    return batch_of(1e3 * fastest_us, sampler.timer.reading_ns())
