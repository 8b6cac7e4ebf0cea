"""NCCL through cupy: every operation is a call of the library on device buffers, timed by events on
one stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import cupy
from cupy.cuda import nccl

from commbench.backends.cupy_device import CupyMemory
from commbench.backends.nccl_library import (
    ANY_ALGORITHM,
    LOG,
    NcclBase,
    variables_set,
    version_text,
)
from commbench.collectives.algorithms import Choice
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Buffer, Ends, Request
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.timing.loops import Call
from commbench.findings import UnsupportedError

_CODES = {
    "float64": nccl.NCCL_FLOAT64,
    "float32": nccl.NCCL_FLOAT32,
    "float16": nccl.NCCL_FLOAT16,
    "bfloat16": nccl.NCCL_BFLOAT16,
    "int32": nccl.NCCL_INT32,
    "int8": nccl.NCCL_INT8,
}
_REDOPS = {
    "sum": nccl.NCCL_SUM,
    "min": nccl.NCCL_MIN,
    "max": nccl.NCCL_MAX,
    "prod": nccl.NCCL_PROD,
    "avg": nccl.NCCL_AVG,
}
#: cupy's function of each primitive and its arguments in words; the stream is the last.
_FUNCTIONS = {
    "all_reduce": "allReduce send receive count type op",
    "all_gather": "allGather send receive count type",
    "reduce_scatter": "reduceScatter send receive count type op",
    "broadcast": "broadcast receive receive count type root",
    "reduce": "reduce send receive count type op root",
    "send": "send send count type target",
    "receive": "recv receive count type source",
}
#: Errors of NCCL (nccl.h) that cupy 13 has no name for: it raises KeyError.
_UNNAMED_ERRORS = {6: "ncclRemoteError", 7: "ncclInProgress", 8: "ncclTimeout"}
#: Keeps one thread of the device busy; clock64 counts the cycles of its multiprocessor.
_SPIN = """
extern "C" __global__ void spin(long long cycles) {
    const long long begun = clock64();
    while (clock64() - begun < cycles) {
    }
}
"""


class NcclCommunicator(NcclBase, CupyMemory):
    """An NCCL communicator on this rank's GPU.

    A communicator of a group or with a requested algorithm uses the device and the stream of its
    ``parent``.
    """

    backend = "nccl"

    def __init__(
        self,
        control: Control,
        parent: NcclCommunicator | None = None,
        *,
        members: Group = (),
        identity: object = None,
        choice: Choice = ANY_ALGORITHM,
    ) -> None:
        super().__init__(control, members, choice)
        if parent is None:
            self.use_assigned_gpu(control)
        else:
            self._stream = parent._stream  # noqa: SLF001 - of the same class
        if not members:
            identity = control.broadcast(nccl.get_unique_id() if control.rank == 0 else None)
        with variables_set(choice.variables), _named_errors():
            self._comm = nccl.NcclCommunicator(self.size, identity, self.rank)
        self._token = self.token()

    def library(self) -> str:
        """Return the loaded version, e.g. ``NCCL 2.28.9``."""
        return f"NCCL {version_text(nccl.get_version())}"

    def by_choice(self, choice: Choice) -> NcclCommunicator:
        """See `NcclBase.by_choice`."""
        if choice.channels:
            raise UnsupportedError("channels_fixed")
        return NcclCommunicator(self._control, self, choice=choice)

    @contextmanager
    def watched(self, *, replayed: bool = False) -> Iterator[None]:
        """See `NcclBase.watched`."""
        with super().watched(replayed=replayed), _named_errors():
            yield

    def _split(self, groups: Sequence[Group], own: Group | None) -> NcclCommunicator | None:
        """Create this rank's communicator of its group.

        The first rank of each group shares the unique id.

        All communicators use the parent's stream, where the timed loop records its events: their
        order is kept.
        """
        leads = own is not None and own[0] == self.rank
        identities = gather_everywhere(self._control, nccl.get_unique_id() if leads else None)
        if own is None:
            return None
        return NcclCommunicator(
            self._control, self, members=own, identity=identities[own[0]], choice=self._choice
        )

    def abort(self) -> None:
        """See `NcclBase.abort`."""
        super().abort()
        self._comm.abort()

    def close(self) -> None:
        """Destroy the communicators, and remove the log."""
        super().close()
        self._comm.destroy()
        LOG.remove()

    # Graphs

    def capture(self, calls: Sequence[Call]) -> Call:
        """Capture the calls in a CUDA graph.

        Return its launch, on the stream that it was captured from.
        """
        self._stream.begin_capture()
        try:
            for call in calls:
                call.run()
        finally:  # a stream that is still capturing would run nothing
            graph = self._stream.end_capture()
        graph.upload(self._stream)
        self.complete()
        return Call(run=partial(graph.launch, self._stream), keep=tuple(calls))

    # The device clock of the timed loop

    def spin(self, cycles: int) -> None:
        """See `DeviceClock.spin`."""
        with self._stream:
            _spin_kernel()((1,), (1,), (cycles,))

    def rendezvous(self) -> None:
        """See `DeviceClock.rendezvous`: an all-reduce of one byte."""
        self._reduce_token()

    def new_event(self) -> Any:
        """See `DeviceClock.new_event`."""
        return _Event(self._stream)

    # Primitives

    def call(self, request: Request) -> Call:
        """Prepare a function of NCCL, or messages in one group where NCCL has no function."""
        if request.name == "barrier":  # an all-reduce ends on no rank before every rank began it
            return Call(run=self._reduce_token)
        if request.name in _FUNCTIONS:
            return self._function(request)
        if request.name == "all_to_all" and request.in_place:
            raise UnsupportedError("missing", backend="NCCL", what="in-place all_to_all")
        sends, receives = request.sends, request.receives
        if request.buffers:
            sends, receives = self._blocks(request)
        return self._exchange(sends, receives, request.window)

    def _function(self, request: Request) -> Call:
        name, *words = _FUNCTIONS[request.name].split()
        values = {"root": request.root, "op": _REDOPS.get(request.redop, 0)}
        send, receive = request.send, request.receive
        if request.sends:
            ((send, values["target"]),) = request.sends
        if request.receives:
            ((receive, values["source"]),) = request.receives
        if request.name == "reduce" and receive is None:
            receive = send  # all ranks but the root pass the send buffer instead
        for word, buffer in (("send", send), ("receive", receive)):
            if buffer is not None:
                values[word] = buffer.address
                values["type"] = _CODES[buffer.dtype.name]
                values["count"] = min(buffer.count, values.get("count", buffer.count))
        arguments = [values[word] for word in words]
        run = partial(getattr(self._comm, name), *arguments, self._stream.ptr)
        return Call(run=run, keep=(request,))

    def _blocks(self, request: Request) -> tuple[Ends, Ends]:
        """Return the messages of all_to_all, gather and scatter; in place, the root's block
        stays.
        """
        ranks = list(range(self.size))
        send, receive, root = request.send, request.receive, request.root
        if request.name == "all_to_all":
            return self._divided(send, ranks), self._divided(receive, ranks)
        if request.in_place:
            ranks.remove(root)
        if request.name == "gather":
            own = [] if request.in_place else [(send, root)]
            return own, self._divided(receive, ranks)
        own = [] if request.in_place else [(receive, root)]
        return self._divided(send, ranks), own

    def _divided(self, buffer: Buffer | None, ranks: Iterable[int]) -> Ends:
        """Return the block of a buffer for each rank, with the rank."""
        if buffer is None:
            return []
        block = buffer.count // self.size
        return [(buffer.part(rank * block, block), rank) for rank in ranks]

    def _exchange(self, sends: Ends, receives: Ends, window: int) -> Call:
        """Return a call that exchanges all messages in one group, ``window`` times each."""
        out = [self.call(Request("send", sends=[end])) for end in sends]
        into = [self.call(Request("receive", receives=[end])) for end in receives]
        steps = [call.run for call in out * window + into * window]

        def run() -> None:
            nccl.groupStart()
            try:
                for step in steps:
                    step()
            finally:  # without the end of the group, NCCL would only queue later calls
                nccl.groupEnd()

        return Call(run=run, keep=(*out, *into))

    def _reduce_token(self) -> None:
        ends = (self._token.address, self._token.address, 1, nccl.NCCL_INT8, nccl.NCCL_MAX)
        self._comm.allReduce(*ends, self._stream.ptr)


class _Event:
    """An event on a stream, with methods of `torch.cuda.Event`."""

    def __init__(self, stream: Any) -> None:
        self._event, self._stream = cupy.cuda.Event(), stream

    def record(self) -> None:
        """Queue the event after everything that was queued before."""
        self._event.record(self._stream)

    def query(self) -> bool:
        """Return whether the event has occurred, without waiting for it."""
        return bool(self._event.done)

    def synchronize(self) -> None:
        """Wait until the event has occurred."""
        self._event.synchronize()

    def elapsed_time(self, later: _Event) -> float:
        """Return the milliseconds from this event to a later one; both have occurred."""
        return float(cupy.cuda.get_elapsed_time(self._event, later._event))


@contextmanager
def _named_errors() -> Iterator[None]:
    """Raise errors of NCCL inside as RuntimeError, including those that cupy has no name for."""
    try:
        yield
    except KeyError as error:
        code = error.args[0]
        if not isinstance(code, int):
            raise
        name = _UNNAMED_ERRORS.get(code, f"error {code}, which has no name here")
        raise RuntimeError(f"NCCL returned {name}") from error


@cache
def _spin_kernel() -> Any:
    """Return the spin kernel; cupy compiles it at its first use on each device."""
    return cupy.RawKernel(_SPIN, "spin")
