"""The operations: each entry has the sizes of buffers, the busbw factor, the known result and the
call.

A backend makes a prepared `Call` of each `Request` of a primitive (``all_reduce``, ``send``, ...);
an entry composes them. To add an operation, add one entry to `OPERATIONS`.

Words: *message* is the larger of the send and the receive buffer, as in nccl-tests; *block* is one
rank's share of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from commbench.collectives.layouts import Shape, Span
from commbench.collectives.primitives import Buffer, Buffers, Ends, Primitives, Request
from commbench.errors import find_entry
from commbench.findings import UnsupportedError

REDOPS = ("sum", "min", "max", "prod", "avg")

#: Messages in flight in `bandwidth` and `bibandwidth` (OSU's window), and the most bytes that may
#: be in flight.
WINDOW_MESSAGES = 64
WINDOW_BYTES = 64 * 2**20


LengthRule = Callable[[Shape], int]
SpanRule = Callable[[Shape], Sequence[Span]]


def whole(shape: Shape) -> int:
    """Return the length of the whole message."""
    return shape.elements


def _block(shape: Shape) -> int:
    return shape.block


def _nothing(_: Shape) -> int:
    return 0


def _at_root(layout: LengthRule) -> LengthRule:
    return lambda shape: layout(shape) if shape.is_root else 0


def _at(rank: Callable[[Shape], int], layout: LengthRule) -> LengthRule:
    return lambda shape: layout(shape) if shape.rank == rank(shape) else 0


def _at_ends(layout: LengthRule) -> LengthRule:
    return lambda shape: layout(shape) if shape.rank in {0, shape.last} else 0


def own(shape: Shape) -> list[Span]:
    """Return one span: the rank's own message."""
    return [Span(offset=0, count=shape.elements, source=shape.rank)]


def _own_block(shape: Shape) -> list[Span]:
    return [Span(offset=0, count=shape.block, source=shape.rank)]


def _block_per_rank(shape: Shape) -> list[Span]:
    block = shape.block
    return [Span(offset=r * block, count=block, source=r) for r in range(shape.size)]


def _for_each_target(shape: Shape) -> list[Span]:
    block = shape.block
    return [
        Span(offset=r * block, count=block, source=shape.rank, target=r) for r in range(shape.size)
    ]


def _from_each_source(shape: Shape) -> list[Span]:
    block = shape.block
    return [
        Span(offset=r * block, count=block, source=r, target=shape.rank) for r in range(shape.size)
    ]


def _from(source: Callable[[Shape], int], layout: LengthRule = whole) -> SpanRule:
    return lambda shape: [Span(offset=0, count=layout(shape), source=source(shape))]


def _scattered(shape: Shape) -> list[Span]:
    return [Span(offset=0, count=shape.block, source=shape.root, target=shape.rank)]


def _reduced(shape: Shape) -> list[Span]:
    return [Span(offset=0, count=shape.elements, source=None)]


def _reduced_block(shape: Shape) -> list[Span]:
    return [Span(offset=0, count=shape.block, source=None, start=shape.rank * shape.block)]


def _root(shape: Shape) -> int:
    return shape.root


def _other_end(shape: Shape) -> int:
    return shape.last - shape.rank


def left(shape: Shape) -> int:
    """Return the previous rank in a ring."""
    return (shape.rank - 1) % shape.size


def right(shape: Shape) -> int:
    """Return the next rank in a ring."""
    return (shape.rank + 1) % shape.size


def _first(_: Shape) -> int:
    return 0


def _last(shape: Shape) -> int:
    return shape.last


Kind = Literal["collective", "pair", "ring"]


@dataclass(frozen=True, kw_only=True)
class ToolNames:
    """Names of an operation in other benchmarks.

    Empty if they do not measure it, or not in the same way.
    """

    nccl_tests: str = ""
    """The program of nccl-tests, if it is not the operation's name followed by ``_perf``."""
    osu: str = ""
    """The title that OSU's micro-benchmarks print; commbench prints it in their format."""
    other_osu: tuple[str, ...] = ()
    """Further titles of tables to import."""
    imb: str = ""
    """The benchmark of the Intel MPI Benchmarks."""
    param: tuple[str, ...] = ()
    """The collectives of PARAM, as it prints them."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation: its description, the sizes of its buffers, its known result and its call.

    This entry is the only registration of an operation; other packages look up its properties here.

    ``send`` and ``receive`` give a rank's buffer lengths in elements, ``inputs`` and ``answer`` the
    known content of them.
    """

    name: str
    summary: str
    kind: Kind = "collective"
    send: LengthRule = _nothing
    receive: LengthRule = _nothing
    inputs: SpanRule = lambda _: []
    answer: SpanRule = lambda _: []
    primitives: Sequence[str] = ()
    """The primitives that it calls in turn; empty: the one with its name."""
    compose: Callable[[Primitives, Buffers, Shape, str], Sequence[Any]] | None = None
    """Makes the calls where more than the names of primitives has to be said."""
    divisions: Callable[[Sequence[str]], Sequence[Sequence[tuple[int, ...]]]] = lambda _: ()
    """Returns the further divisions into groups that a composed operation uses, from the host of
    each rank."""
    busbw_factor: Callable[[int], float] = lambda _: 1.0
    """algbw times this is busbw; the argument is the number of ranks (nccl-tests,
    doc/PERFORMANCE.md)."""
    divided: bool = False
    """Whether the message consists of one block per rank: its size is then a multiple of the
    number of ranks."""
    osu_per_rank: bool = False
    """Whether OSU prints one rank's block instead of the message for this operation."""
    reduces: bool = False
    rooted: bool = False
    has_in_place: bool = False
    default_in_place: bool = False
    """The default form: in place for reductions, because all backends have that form, else out
    of place."""
    windowed: bool = False
    window_bytes: int = WINDOW_BYTES
    """The most bytes that may be in flight from one rank to another."""
    operations_per_call: int = 1
    """Number of consecutive messages in one call: 2 in a ping-pong."""
    messages_at_once: int = 1
    """Messages in flight together that the reported bandwidth counts: 2 if both directions carry
    data."""
    algorithm: str = ""
    """Name of the algorithm if commbench composes the operation; empty if the library chooses."""
    overlaps: bool = False
    """Whether it is a start and a completion of its primitive with computing in between
    (non-blocking collectives)."""
    moves_data: bool = True
    minimum_ranks: int = 1
    in_place_slice: Literal["same", "send_in_receive", "receive_in_send"] = "same"
    """In place, which buffer is a block of the other; ``same`` if both are one whole buffer."""
    has_mpi_result_at_start: bool = False
    """Whether MPI leaves the result of the in-place form at the start of the buffer, on every
    rank."""
    names: ToolNames = ToolNames()
    has_nccl_algorithms: bool = False
    """Whether NCCL chooses among several algorithms; it implements the other operations by sends
    and receives."""
    open_mpi_components: frozenset[str] = frozenset()
    """Components of Open MPI 5 (``coll/han``, ``coll/tuned``) that implement the operation in
    every version."""
    compares_ranks: bool = False
    """Whether its times reveal stragglers: every rank sends and receives the same, so all should
    take equally long."""
    quantity: Literal["both", "time", "bandwidth"] = "both"
    """The quantity that tables and figures show."""

    @property
    def is_round_trip(self) -> bool:
        """Whether its time is half a round trip."""
        return self.operations_per_call > 1

    def participants(self, size: int) -> tuple[int, ...]:
        """Return the participating ranks of ``size``.

        A pair is the first and the last rank, the farthest apart.
        """
        return (0, size - 1) if self.kind == "pair" else tuple(range(size))

    def call(
        self,
        backend: Primitives,
        buffers: Buffers,
        shape: Shape,
        redop: str,
    ) -> Sequence[Any]:
        """Return the prepared calls that are timed as one operation."""
        if self.compose is not None:
            return self.compose(backend, buffers, shape, redop)
        calls: list[Any] = []
        for name in self.primitives or [self.name]:
            request = Request(name, buffers.send, buffers.receive, redop, shape.root)
            if self.overlaps:
                calls += backend.begin(request)
            else:
                calls.append(backend.call(request))
        return calls

    @property
    def is_one_way(self) -> bool:
        """Whether only the last of two ranks receives, so that a matrix measures both directions of
        a pair.
        """
        return not self.answer(Shape(rank=0, size=2, elements=1))

    @property
    def nccl_program(self) -> str:
        """The program of nccl-tests that measures it, or the name that such a program would
        have.
        """
        return self.names.nccl_tests or f"{self.name}_perf"

    def osu_bytes(self, message_bytes: int, size: int) -> int:
        """Return the size that OSU's micro-benchmarks print for the same case, in bytes."""
        return message_bytes // size if self.osu_per_rank else message_bytes

    def message_bytes(self, osu_bytes: int, size: int) -> int:
        """Return the message, in bytes, of a case for which OSU's micro-benchmarks print
        ``osu_bytes``.
        """
        return osu_bytes * size if self.osu_per_rank else osu_bytes


def send_to(backend: Primitives, buffer: Buffer, peer: int) -> Any:  # noqa: ANN401 - a Call, which the engine defines
    """Return the call that sends a buffer."""
    return backend.call(Request("send", sends=[(buffer, peer)]))


def receive_from(backend: Primitives, buffer: Buffer, peer: int) -> Any:  # noqa: ANN401 - a Call, which the engine defines
    """Return the call that receives into a buffer."""
    return backend.call(Request("receive", receives=[(buffer, peer)]))


def exchange(
    backend: Primitives,
    shape: Shape,
    *,
    sends: Ends = (),
    receives: Ends = (),
) -> Any:  # noqa: ANN401 - a Call, which the engine defines
    """Return the call that exchanges a window of messages with each peer."""
    return backend.call(Request("window", sends=sends, receives=receives, window=shape.window))


def _ping_pong(backend: Primitives, buffers: Buffers, shape: Shape, _: str) -> list[Any]:
    if shape.rank == 0:
        there = send_to(backend, buffers.send, shape.last)
        return [there, receive_from(backend, buffers.receive, shape.last)]
    if shape.rank == shape.last:
        there = receive_from(backend, buffers.receive, 0)
        return [there, send_to(backend, buffers.send, 0)]
    return []


def _one_way(backend: Primitives, buffers: Buffers, shape: Shape, _: str) -> list[Any]:
    """Send a window of messages one way, then an empty acknowledgement, as OSU's osu_bw."""
    if shape.rank == 0:
        window = exchange(backend, shape, sends=[(buffers.send, shape.last)])
        return [window, receive_from(backend, backend.empty(), shape.last)]
    if shape.rank == shape.last:
        window = exchange(backend, shape, receives=[(buffers.receive, 0)])
        return [window, send_to(backend, backend.empty(), 0)]
    return []


def _both_ways(backend: Primitives, buffers: Buffers, shape: Shape, _: str) -> list[Any]:
    if shape.rank not in {0, shape.last}:
        return []
    peer = _other_end(shape)
    sends, receives = [(buffers.send, peer)], [(buffers.receive, peer)]
    return [exchange(backend, shape, sends=sends, receives=receives)]


def _round_the_ring(backend: Primitives, buffers: Buffers, shape: Shape, _: str) -> list[Any]:
    sends, receives = [(buffers.send, right(shape))], [(buffers.receive, left(shape))]
    return [backend.call(Request("send_receive", sends=sends, receives=receives))]


def _share(size: int) -> float:
    return (size - 1) / size


#: ``coll/han`` lacks reduce_scatter and all_to_all; a component of lower priority implements them.
_HAN_AND_TUNED = frozenset({"han", "tuned"})

_ENTRIES = (
    Operation(
        name="all_reduce",
        summary="every rank gets the reduction of all ranks' messages",
        send=whole,
        receive=whole,
        inputs=own,
        answer=_reduced,
        busbw_factor=lambda size: 2 * _share(size),
        reduces=True,
        has_in_place=True,
        default_in_place=True,
        names=ToolNames(osu="Allreduce Latency Test", imb="Allreduce", param=("all_reduce",)),
        has_nccl_algorithms=True,
        open_mpi_components=_HAN_AND_TUNED,
        compares_ranks=True,
    ),
    Operation(
        name="all_gather",
        summary="every rank gets every rank's block",
        send=_block,
        receive=whole,
        inputs=_own_block,
        answer=_block_per_rank,
        busbw_factor=_share,
        divided=True,
        osu_per_rank=True,
        has_in_place=True,
        in_place_slice="send_in_receive",
        names=ToolNames(
            osu="Allgather Latency Test", imb="Allgather", param=("all_gather", "all_gather_base")
        ),
        has_nccl_algorithms=True,
        open_mpi_components=_HAN_AND_TUNED,
        compares_ranks=True,
    ),
    Operation(
        name="reduce_scatter",
        summary="every rank gets its block of the reduction",
        send=whole,
        receive=_block,
        inputs=own,
        answer=_reduced_block,
        busbw_factor=_share,
        divided=True,
        reduces=True,
        has_in_place=True,
        in_place_slice="receive_in_send",
        has_mpi_result_at_start=True,
        names=ToolNames(
            osu="Reduce_scatter Latency Test",
            imb="Reduce_scatter",
            param=("reduce_scatter", "reduce_scatter_base"),
        ),
        has_nccl_algorithms=True,
        open_mpi_components=frozenset({"tuned"}),
        compares_ranks=True,
    ),
    Operation(
        name="all_to_all",
        summary="every rank sends a block to every rank",
        send=whole,
        receive=whole,
        inputs=_for_each_target,
        answer=_from_each_source,
        busbw_factor=_share,
        divided=True,
        osu_per_rank=True,
        has_in_place=True,
        names=ToolNames(
            nccl_tests="alltoall_perf",
            osu="All-to-All Personalized Exchange Latency Test",
            other_osu=("Alltoall", "All-to-All"),
            imb="Alltoall",
            param=("all_to_all", "all_to_all_single"),
        ),
        open_mpi_components=frozenset({"tuned"}),
        compares_ranks=True,
    ),
    Operation(
        name="broadcast",
        summary="every rank gets the root's message",
        receive=whole,
        inputs=lambda s: own(s) if s.is_root else [],
        answer=_from(_root),
        rooted=True,
        names=ToolNames(
            osu="Broadcast Latency Test", other_osu=("Bcast",), imb="Bcast", param=("broadcast",)
        ),
        has_nccl_algorithms=True,
        open_mpi_components=_HAN_AND_TUNED,
    ),
    Operation(
        name="reduce",
        summary="the root gets the reduction of all ranks' messages",
        send=whole,
        receive=_at_root(whole),
        inputs=own,
        answer=lambda s: _reduced(s) if s.is_root else [],
        reduces=True,
        rooted=True,
        has_in_place=True,
        default_in_place=True,
        names=ToolNames(osu="Reduce Latency Test", imb="Reduce", param=("reduce",)),
        has_nccl_algorithms=True,
        open_mpi_components=_HAN_AND_TUNED,
    ),
    Operation(
        name="gather",
        summary="the root gets every rank's block",
        send=_block,
        receive=_at_root(whole),
        inputs=_own_block,
        answer=lambda s: _block_per_rank(s) if s.is_root else [],
        busbw_factor=_share,
        divided=True,
        osu_per_rank=True,
        rooted=True,
        has_in_place=True,
        in_place_slice="send_in_receive",
        names=ToolNames(osu="Gather Latency Test", imb="Gather", param=("gather",)),
        open_mpi_components=_HAN_AND_TUNED,
    ),
    Operation(
        name="scatter",
        summary="every rank gets its block of the root's message",
        send=_at_root(whole),
        receive=_block,
        inputs=lambda s: _for_each_target(s) if s.is_root else [],
        answer=_scattered,
        busbw_factor=_share,
        divided=True,
        osu_per_rank=True,
        rooted=True,
        has_in_place=True,
        in_place_slice="receive_in_send",
        names=ToolNames(osu="Scatter Latency Test", imb="Scatter", param=("scatter",)),
        open_mpi_components=_HAN_AND_TUNED,
    ),
    Operation(
        name="barrier",
        summary="no rank leaves before the last has entered",
        moves_data=False,
        names=ToolNames(osu="Barrier Latency Test", imb="Barrier"),
        open_mpi_components=_HAN_AND_TUNED,
        compares_ranks=True,
        quantity="time",
    ),
    Operation(
        name="latency",
        summary="half the round trip of a ping-pong between the first and the last rank",
        kind="pair",
        send=_at_ends(whole),
        receive=_at_ends(whole),
        inputs=lambda s: own(s) if s.rank in {0, s.last} else [],
        answer=lambda s: _from(_other_end)(s) if s.rank in {0, s.last} else [],
        compose=_ping_pong,
        operations_per_call=2,
        minimum_ranks=2,
        names=ToolNames(osu="Latency Test", imb="PingPong"),
        quantity="time",
    ),
    Operation(
        name="bandwidth",
        summary="a window of messages from the first to the last rank",
        kind="pair",
        send=_at(_first, whole),
        receive=_at(_last, whole),
        inputs=lambda s: own(s) if s.rank == 0 else [],
        answer=lambda s: _from(_first)(s) if s.rank == s.last else [],
        compose=_one_way,
        windowed=True,
        minimum_ranks=2,
        names=ToolNames(osu="Bandwidth Test"),
        quantity="bandwidth",
    ),
    Operation(
        name="bibandwidth",
        summary="a window of messages both ways between the first and the last rank",
        kind="pair",
        send=_at_ends(whole),
        receive=_at_ends(whole),
        inputs=lambda s: own(s) if s.rank in {0, s.last} else [],
        answer=lambda s: _from(_other_end)(s) if s.rank in {0, s.last} else [],
        compose=_both_ways,
        windowed=True,
        messages_at_once=2,
        minimum_ranks=2,
        names=ToolNames(osu="Bi-Directional Bandwidth Test"),
        quantity="bandwidth",
    ),
    Operation(
        name="sendrecv",
        summary="every rank sends to the next and receives from the one before, in a ring",
        kind="ring",
        send=whole,
        receive=whole,
        inputs=own,
        answer=_from(left),
        compose=_round_the_ring,
        minimum_ranks=2,
        names=ToolNames(imb="Sendrecv"),
    ),
    Operation(
        name="iall_reduce",
        primitives=("all_reduce",),
        summary="non-blocking all_reduce: started, then completed; with its overlap with computing",
        send=whole,
        receive=whole,
        inputs=own,
        answer=_reduced,
        busbw_factor=lambda size: 2 * _share(size),
        overlaps=True,
        reduces=True,
        has_in_place=True,
        default_in_place=True,
        names=ToolNames(other_osu=("Non-blocking Allreduce",)),
    ),
    Operation(
        name="iall_gather",
        primitives=("all_gather",),
        summary="non-blocking all_gather: started, then completed; with its overlap with computing",
        send=_block,
        receive=whole,
        inputs=_own_block,
        answer=_block_per_rank,
        busbw_factor=_share,
        overlaps=True,
        divided=True,
        osu_per_rank=True,
        has_in_place=True,
        in_place_slice="send_in_receive",
        names=ToolNames(other_osu=("Non-blocking Allgather",)),
    ),
)

OPERATIONS = {entry.name: entry for entry in _ENTRIES}


def find_operation(name: str) -> Operation:
    """Return the entry called ``name``.

    Raises:
        InputError: there is none; the message lists the operations.
    """
    return find_entry("operation", name, OPERATIONS)


def window_of(operation: Operation, message_bytes: int) -> int:
    """Return the number of messages in flight: 64 as in OSU, fewer if 64 exceed the operation's
    ``window_bytes``.
    """
    if not operation.windowed:
        return 1
    return max(1, min(WINDOW_MESSAGES, operation.window_bytes // max(1, message_bytes)))


def true_message_bytes(operation: Operation, requested: int, itemsize: int, size: int) -> int:
    """Return the message size in bytes with each rank's share rounded up to whole elements."""
    if not operation.moves_data:
        return 0
    if not operation.divided:
        return requested
    per_rank = -(-requested // (itemsize * size))
    return per_rank * itemsize * size


def check_ranks(operation: Operation, size: int) -> None:
    """Raise `UnsupportedError` if ``operation`` is undefined on ``size`` ranks."""
    if size < operation.minimum_ranks:
        raise UnsupportedError(
            "too_few_ranks", operation=operation.name, minimum=operation.minimum_ranks, ranks=size
        )
