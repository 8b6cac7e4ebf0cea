"""Making a case ready to run: buffers with known content, prepared calls, and the check of the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.arrangements import arranged
from commbench.cases import Case
from commbench.collectives import Operation, Shape, check_ranks, window_of
from commbench.communicators.base import Communicator
from commbench.control import Control, gather_everywhere
from commbench.datatypes import DTYPES, DataType, KnownData
from commbench.errors import UnsupportedError
from commbench.primitives import Buffers
from commbench.timing.loops import Call, Timer

#: How late the last rank enters the barrier that is being verified.
LATE_ENTRY_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A case on this rank, ready to be verified and timed."""

    case: Case
    operation: Operation
    shape: Shape
    communicator: Communicator
    buffers: Buffers[Any]
    data: KnownData
    calls: Sequence[Call]

    @property
    def window(self) -> int:
        """Messages in flight."""
        return self.shape.window

    @property
    def participants(self) -> tuple[int, ...]:
        """The ranks that take part."""
        return self.operation.participants(self.shape.size)

    def verify(
        self,
        control: Control,
        *,
        shared_clock: bool,
        timer: Timer | None = None,
        tamper: Callable[[Any], None] | None = None,
    ) -> tuple[str, int | None]:
        """Run the operation once and check it: (refusal of the library or "", wrong elements over all ranks or None).

        None says that there was nothing to check. With a native ``timer`` it is run again by that, on fresh data, and
        what is checked are the calls that will be timed. ``tamper`` gets this rank's result before it is checked: the
        test of this test.
        """
        if not self.operation.moves_data:
            return self._verify_barrier(control) if shared_clock else ("", None)
        self._fill()
        control.barrier()
        refusal = self._run_once(control)
        if refusal:
            return refusal, None
        if timer and timer.name == "native":  # other loops make the very calls that have just been made
            self._fill()
            timer.run(self.calls, 1, 1)
        if tamper and self.buffers.receive is not None:
            tamper(self.buffers.receive)
        return "", sum(gather_everywhere(control, self._count_wrong()))

    def _run_once(self, control: Control) -> str:
        """Run the calls; if every rank's library refuses, the sentence it gave."""
        refusal = ""
        try:
            for call in self.calls:
                call.run()
            self.communicator.complete()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            refusal = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
            if len(self.participants) < control.size:
                raise  # the other ranks cannot know
        refusals = gather_everywhere(control, refusal)
        if any(refusals) and not all(refusals):
            raise RuntimeError(next(text for text in refusals if text))
        return refusals[0]

    def _verify_barrier(self, control: Control) -> tuple[str, int]:
        """The last rank enters late: a rank that leaves before has not waited. Counts such ranks."""
        control.barrier()
        if self.shape.rank == self.shape.last:
            time.sleep(LATE_ENTRY_S)
        entered = time.perf_counter_ns()
        for call in self.calls:
            call.run()
        self.communicator.complete()
        stamps = gather_everywhere(control, (entered, time.perf_counter_ns()))
        last_entry = max(entry for entry, _ in stamps)
        return "", sum(exit_ < last_entry for _, exit_ in stamps)

    def _fill(self) -> None:
        """Receive buffers get bytes that no answer holds, then the inputs are written."""
        send, receive = self.buffers.send, self.buffers.receive
        if receive is not None:
            self.communicator.spoil(receive)
        source = send if send is not None else receive
        pieces = self.operation.inputs(self.shape)
        if pieces:
            self.communicator.write(source, self.data.inputs(pieces))

    def _count_wrong(self) -> int:
        pieces = self.operation.answer(self.shape)
        return self.communicator.count_wrong(self.buffers.receive, self.data.answer(pieces)) if pieces else 0

    def refill(self) -> None:
        """Before timing: in-place reductions get neutral data, so that repeating them neither grows nor overflows."""
        if not (self.operation.reduces and self.case.in_place):
            return
        for buffer, layout in (
            (self.buffers.receive, self.operation.receive),
            (self.buffers.send, self.operation.send),
        ):
            if buffer is not None:
                self.communicator.write(buffer, self.data.neutral(layout(self.shape)))


def prepare(case: Case, communicator: Communicator) -> Prepared:
    """Allocate buffers and build the calls of a case.

    Raises:
        UnsupportedError: the backend or its library cannot do the case; the same on every rank.
    """
    operation = arranged(case.operation, case.pattern, communicator.size)
    check_ranks(operation, communicator.size)
    dtype = DTYPES[case.dtype or "int8"]
    shape = Shape(
        rank=communicator.rank,
        size=communicator.size,
        elements=case.message_bytes // dtype.itemsize,
        root=case.root or 0,
        window=window_of(operation, case.message_bytes),
    )
    check_count(shape.block if operation.divided else shape.elements, communicator)
    data = KnownData(dtype=dtype, size=communicator.size, redop=case.redop)
    buffers = _allocate(case, operation, shape, dtype, communicator)
    calls = operation.call(communicator, buffers, shape, case.redop or "")
    return Prepared(
        case=case,
        operation=operation,
        shape=shape,
        communicator=communicator,
        buffers=buffers,
        data=data,
        calls=calls,
    )


def check_count(elements: int, communicator: Communicator) -> None:
    """Raise `UnsupportedError` where one call cannot take so many elements: it would silently move fewer."""
    most = communicator.most_elements
    if most is not None and elements > most:
        raise UnsupportedError(
            f"{communicator.backend} takes at most {most} elements in one call, this case has {elements}; "
            "use a larger data type or a smaller message"
        )


def _allocate(
    case: Case, operation: Operation, shape: Shape, dtype: DataType, communicator: Communicator
) -> Buffers[Any]:
    send_count, receive_count = operation.send(shape), operation.receive(shape)

    def separate(count: int) -> Any:  # noqa: ANN401 - a backend's own buffer type
        return communicator.allocate(dtype, count) if count else None

    if not case.in_place:
        return Buffers(send=separate(send_count), receive=separate(receive_count))
    whole = communicator.allocate(dtype, max(send_count, receive_count))
    if operation.in_place_slice == "same":
        return Buffers(send=whole if send_count else None, receive=whole if receive_count else None)
    block = (communicator.result_offset(operation, shape), shape.block)
    if operation.in_place_slice == "send_in_receive":
        return (
            Buffers(send=communicator.part(whole, *block), receive=whole)
            if receive_count
            else Buffers(send=whole, receive=None)
        )
    return (
        Buffers(send=whole, receive=communicator.part(whole, *block))
        if send_count
        else Buffers(send=None, receive=whole)
    )
