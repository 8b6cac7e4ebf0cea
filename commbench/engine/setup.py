"""Setup of a case: buffers with known content, prepared calls, and verification of the result."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from commbench.collectives.cases import Case
from commbench.collectives.composed import operation_in_pattern
from commbench.collectives.datatypes import DTYPES, DataType, KnownData
from commbench.collectives.layouts import Shape, Span
from commbench.collectives.operations import Operation, check_ranks, true_message_bytes, window_of
from commbench.collectives.patterns import Group, groups_of
from commbench.collectives.primitives import Buffers
from commbench.engine.communicator import Communicator
from commbench.engine.control import Control, agree_on, gather_everywhere
from commbench.engine.timing.loops import Call, Timer, in_turns, order_of
from commbench.findings import UnsupportedError

#: Delay of the last rank that enters a barrier under verification, in seconds.
LATE_ENTRY_S = 0.002
#: Operations in a graph, over which its launch overhead is spread; a power of two, as batches are.
GRAPH_OPERATIONS = 16
#: Total size of rotated buffers over the cache's, because eviction is not strictly oldest first.
CACHES = 2
#: Exceptions by which libraries refuse a call.
LIBRARY_ERRORS = (RuntimeError, ValueError, TypeError, NotImplementedError)
#: The most sets of buffers and the most bytes of messages in them, to limit the time of
#: preparation.
MOST_SETS, MOST_BYTES = 512, 2**29


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A case on this rank, ready for verification and timing; a rank in no group has no calls."""

    case: Case
    operation: Operation
    groups: tuple[Group, ...]
    """The groups of ranks that each carry out the case."""
    world_size: int
    communicator: Communicator
    """Of this rank's group; of all ranks if it is in no group."""
    shape: Shape | None = None
    """Within the group; None in no group."""
    sets: Sequence[Buffers]
    """Sets of buffers that rotate: as many on all ranks, also on one in no group, where they are
    empty."""
    data: KnownData
    calls: Sequence[Call] = ()
    window: int = 1
    """Messages in flight."""
    captured: int = 1
    """Operations in a graph if ``calls`` replay graphs."""

    @property
    def buffers(self) -> Buffers:
        """Return the first set of buffers."""
        return self.sets[0]

    @property
    def active(self) -> tuple[Group, ...]:
        """Return the participating ranks of each group."""
        return tuple(
            tuple(group[i] for i in self.operation.participants(len(group)))
            for group in self.groups
        )

    @property
    def participants(self) -> tuple[int, ...]:
        """Return the participating ranks of all groups."""
        return tuple(sorted(rank for ranks in self.active for rank in ranks))

    @property
    def reports_groups(self) -> bool:
        """Whether each group is reported: not all ranks of the launch are in one group."""
        return len(self.groups[0]) < self.world_size

    @property
    def usual_window(self) -> int:
        """Return the messages in flight if there is time for them."""
        return window_of(self.operation, self.case.message_bytes)

    def operations(self, batch: int) -> int:
        """Return the operations in a repetition of ``batch`` calls."""
        return batch * self.window * self.operation.operations_per_call

    def with_window(self, window: int) -> Prepared:
        """Return the case with another number of messages in flight."""
        if self.shape is None:
            return replace(self, window=window)
        shape = replace(self.shape, window=window)
        turns = [
            self.operation.call(self.communicator, buffers, shape, self.case.redop or "")
            for buffers in self.sets
        ]
        return replace(self, window=window, shape=shape, calls=in_turns(turns))

    @property
    def is_idle(self) -> bool:
        """Whether the call is a no-op of the library: single-rank and in place, except ``avg``."""
        alone = self.shape is not None and self.shape.size == 1 and self.communicator.idle_alone
        return alone and self.case.in_place is not False and self.case.redop != "avg"

    def message_bytes(self, size: int) -> int:
        """Return the true size in a group of ``size`` ranks: a rank's share is rounded up to one
        element.
        """
        return true_message_bytes(
            self.operation, self.case.message_bytes, self.data.dtype.itemsize, size
        )

    def verify(self, control: Control, timer: Timer | None = None) -> list[int]:
        """Run the operation once in all groups at the same time and check the result; collective.

        Rotating buffers are each used once, and each graph is replayed once. With a native
        ``timer``, the timer runs the operation again on fresh data, so that the calls that will be
        timed are checked. A barrier needs ranks that share a clock.

        Returns:
            The number of wrong elements on each rank.

        Raises:
            UnsupportedError: the library refuses the operation; on all ranks.
        """
        if not self.operation.moves_data:
            return self._verify_barrier(control)
        agree_on(control, self._fill)
        self.run_once(control)
        if timer and timer.name == "native":  # other loops make the same calls as above
            agree_on(control, self._fill)
            timer.run(self.calls, len(self.sets), 1)
        return gather_everywhere(control, agree_on(control, self._count_wrong))

    def run_once(self, control: Control) -> None:
        """Run the calls.

        Raises:
            UnsupportedError: the library refuses on all ranks with calls; on all ranks.
        """
        refusal = ""
        try:
            with self.communicator.watched(replayed=self.captured > 1):
                for call in self.calls:
                    call.run()
                self.communicator.complete()
        except LIBRARY_ERRORS as error:
            refusal = _one_line(error)
            if self.operation.kind == "pair" and control.size > len(self.participants):
                raise  # the other ranks are unaware of the error
        gathered = gather_everywhere(control, refusal)
        refusals = [gathered[rank] for rank in self.participants]
        if any(refusals) and not all(refusals):
            raise RuntimeError(next(text for text in refusals if text))
        if refusals[0]:
            raise UnsupportedError("library_refused", error=refusals[0])

    def _verify_barrier(self, control: Control) -> list[int]:
        """Check a barrier: the last rank enters late, and ranks that leave before it are counted as
        wrong.
        """
        control.barrier()
        if self.shape and self.shape.rank == self.shape.last:
            time.sleep(LATE_ENTRY_S)
        entered = time.perf_counter_ns()
        for call in self.calls:
            call.run()
        self.communicator.complete()
        stamps = gather_everywhere(control, (entered, time.perf_counter_ns()))
        by_rank = [0] * control.size
        for group in self.groups:
            last_entry = max(stamps[rank][0] for rank in group)
            for rank in group:
                by_rank[rank] = int(stamps[rank][1] < last_entry)
        return by_rank

    @property
    def _accumulates(self) -> bool:
        """Return whether repeated calls change their own input, so that only cancelling data has a
        known answer.
        """
        in_place = self.operation.reduces and bool(self.case.in_place)
        return in_place and self.captured > 1 and self.case.redop not in {"min", "max"}

    def _fill(self) -> None:
        """Poison the receive buffers, then write the inputs."""
        if self.shape is None:
            return
        spans = self.operation.inputs(self.shape)
        content = self.data.content(spans)
        if self._accumulates:
            content = self.data.content(self._contributions(self.shape), cancelling=True)
        for buffers in self.sets:
            source = buffers.send
            if source is None:
                source = buffers.receive
            if buffers.receive is not None:
                self.communicator.poison(buffers.receive)
            if spans:
                self.communicator.write(source, content)

    def _contributions(self, shape: Shape) -> list[Span]:
        """Return this rank's input to an in-place reduction.

        ``target`` is the only rank that holds the result.

        The target adds its own buffer again in each repetition. An all_reduce has no such rank.
        """
        rank, size, block = shape.rank, shape.size, shape.block
        if self.operation.in_place_slice == "receive_in_send":  # reduce_scatter: one block per rank
            return [Span(offset=r * block, count=block, source=rank, target=r) for r in range(size)]
        keeper = size
        if self.operation.rooted:
            keeper = shape.root
        return [Span(offset=0, count=shape.elements, source=rank, target=keeper)]

    def _count_wrong(self) -> int:
        if self.shape is None:
            return 0
        spans = self.operation.answer(self.shape)
        if not spans:
            return 0
        expected = self.data.content(spans)
        if self._accumulates:
            expected = self.data.neutral(self.buffers.receive.count)
        counts = [self.communicator.count_wrong(each.receive, expected) for each in self.sets]
        return sum(counts)

    def refill(self) -> None:
        """Give in-place reductions neutral data before timing, so that repetitions neither grow nor
        overflow.
        """
        if not (self.shape and self.operation.reduces and self.case.in_place):
            return
        for buffers in self.sets:
            for buffer in (buffers.receive, buffers.send):
                if buffer is not None:
                    self.communicator.write(buffer, self.data.neutral(buffer.count))

    def capture(self) -> Prepared:
        """Return the case with its operations in graphs of `GRAPH_OPERATIONS`.

        All must have run before.

        Raises:
            UnsupportedError: the library's calls cannot be captured.
        """
        if not self.calls:
            return replace(self, captured=GRAPH_OPERATIONS)
        turns = order_of(self.calls, 0, GRAPH_OPERATIONS).unrolled()
        try:
            with (
                self.communicator.watched()
            ):  # libraries log an algorithm at capture, not at replay
                graphs = [[self.communicator.capture(turn)] for turn in turns]
        except LIBRARY_ERRORS as error:
            raise UnsupportedError(
                "graph_refused", operation=self.operation.name, error=_one_line(error)
            ) from error
        return replace(self, calls=in_turns(graphs), captured=GRAPH_OPERATIONS)


def _one_line(error: BaseException) -> str:
    """Return an error of a library as one line."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')[:200]}"


def sets_needed(message_bytes: int, cache_bytes: int) -> int:
    """Return the number of buffer sets, a power of two, so that each set has left the cache at its
    turn.

    Args:
        message_bytes: the fewest bytes that one operation touches.
        cache_bytes: size of the last-level cache; 0 if unknown.

    Raises:
        UnsupportedError: the cache size is unknown.
    """
    if not cache_bytes:
        raise UnsupportedError("cache_unknown")
    copies = min(CACHES * cache_bytes, MOST_BYTES) / max(1, message_bytes)
    return min(MOST_SETS, 1 << max(0, math.ceil(math.log2(copies))))


def prepare(
    case: Case, communicator: Communicator, hosts: Sequence[str] = (), sets: int = 1
) -> Prepared:
    """Divide the ranks by the case's pattern, allocate buffers and build the calls; collective.

    Args:
        case: the case, which every group runs.
        communicator: of all ranks.
        hosts: the host of each rank; empty: all are on one.
        sets: number of rotating buffer sets.

    Raises:
        UnsupportedError: the hosts do not allow such groups, or the backend or its library cannot
            do the case.
    """
    placed = (hosts or [""] * communicator.size)[: case.world_size]
    operation = operation_in_pattern(case.operation, case.pattern, len(placed))
    communicator = communicator.using(case.algorithm)
    if case.persistent:
        communicator = communicator.persistent()
    groups = groups_of(case.pattern, placed)
    within = communicator.split(groups)
    parts = []
    if operation.divisions is not None:
        parts = [communicator.split(division) for division in operation.divisions(placed)]
    dtype = DTYPES[case.dtype or "int8"]
    size = within.size if within else len(groups[0])
    idle = Prepared(
        case=case,
        operation=operation,
        groups=groups,
        world_size=communicator.size,
        communicator=communicator,
        sets=[Buffers(send=None, receive=None)] * sets,
        data=KnownData(dtype=dtype, size=size, redop=case.redop),
        window=window_of(operation, case.message_bytes),
    )
    if operation.overlaps and case.buffers == "rotated":
        raise UnsupportedError("overlap_rotates", operation=operation.name)
    if within is None:
        return idle
    check_ranks(operation, size)
    if case.root is not None and case.root >= size:
        raise UnsupportedError(
            "root_outside_group", root=case.root, pattern=case.pattern, size=size
        )
    shape = Shape(
        rank=within.rank,
        size=size,
        elements=idle.message_bytes(size) // dtype.itemsize,
        root=case.root or 0,
        parts=[part for part in parts if part],
    )
    check_count(shape.block if operation.divided else shape.elements, within)
    with within.allocating(case.buffers):
        made = [_allocate(case, operation, shape, dtype, within) for _ in range(sets)]
    member = replace(idle, communicator=within, shape=shape, sets=made)
    prepared = member.with_window(idle.window)
    if case.graph and any(call.blocking for call in prepared.calls):
        raise UnsupportedError("graph_waits", backend=within.backend, operation=case.operation)
    return prepared


def check_count(elements: int, communicator: Communicator) -> None:
    """Raise `UnsupportedError` if one call cannot take that many elements.

    It would silently move fewer.
    """
    most = communicator.most_elements
    if most is not None and elements > most:
        raise UnsupportedError(
            "message_too_large", backend=communicator.backend, most=most, elements=elements
        )


def _allocate(
    case: Case, operation: Operation, shape: Shape, dtype: DataType, communicator: Communicator
) -> Buffers:
    send_count, receive_count = operation.counts(shape)
    send = receive = None  # of a backend's own buffer type
    if case.in_place:
        send = receive = communicator.allocate(dtype, max(send_count, receive_count))
        block = (communicator.result_offset(operation, shape), shape.block)
        if operation.in_place_slice == "send_in_receive" and receive_count:
            send = receive.part(*block)
        if operation.in_place_slice == "receive_in_send" and send_count:
            receive = send.part(*block)
        if not send_count:
            send = None
        if not receive_count:
            receive = None
    else:
        if send_count:
            send = communicator.allocate(dtype, send_count)
        if receive_count:
            receive = communicator.allocate(dtype, receive_count)
    return Buffers(send=send, receive=receive)
