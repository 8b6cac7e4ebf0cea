"""The operations: each entry has the sizes of buffers, the busbw factor, the known result and the
call.

A backend makes a prepared `Call` of each `Request` of a primitive (``all_reduce``, ``send``, ...);
an entry composes them. To add an operation, add one entry to `OPERATIONS`.

Words: *message* is the larger of the send and the receive buffer, as in nccl-tests; *block* is one
rank's share of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from commbench.collectives.layouts import Shape, Span, count_of, peers_of, spans_of
from commbench.collectives.primitives import Backend, Buffers, Request
from commbench.errors import find_entry
from commbench.findings import UnsupportedError

REDOPS = ("sum", "min", "max", "prod", "avg")

#: Messages in flight in `bandwidth` and `bibandwidth` (OSU's window), and the most bytes that may
#: be in flight.
WINDOW_MESSAGES = 64
WINDOW_BYTES = 64 * 2**20


Kind = Literal["collective", "pair", "ring"]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation: its description, the sizes of its buffers, its known result and its call.

    This entry is the only registration of an operation; other packages look up its properties here.

    ``send`` and ``receive`` are the layouts of a rank's buffers (`commbench.collectives.layouts`),
    which say their lengths and their known content before and after.
    """

    name: str
    summary: str
    kind: Kind = "collective"
    send: str = ""
    receive: str = ""
    sends_from_receive: bool = False
    """Whether there is no send buffer: the receive buffer holds what a rank sends."""
    exchange: Literal["", "window", "turns", "send_receive"] = ""
    """How messages between two ranks follow each other: windows of them at once, each rank after
    the other, or a send and a receive at once; empty for a collective."""
    to: str = ""
    """The ranks to which each rank sends its messages, see `peers_of`."""
    primitives: Sequence[str] = ()
    """The primitives that it calls in turn; empty: the one with its name."""
    compose: Callable[[Backend, Buffers, Shape, str], Sequence[Any]] | None = None
    """Makes the calls where more than the names of primitives has to be said."""
    divisions: Callable[[Sequence[str]], Sequence[Sequence[tuple[int, ...]]]] | None = None
    """Returns the further divisions into groups that a composed operation uses, from the host of
    each rank."""
    messages_on_bus: int = 0
    """On n ranks, busbw is algbw times this times (n-1)/n (nccl-tests, doc/PERFORMANCE.md); 0: both
    are equal."""
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
    nccl_tests_name: str = ""
    """The program of nccl-tests, if it is not the operation's name followed by ``_perf``."""
    osu_title: str = ""
    """The title that OSU's micro-benchmarks print; commbench prints it in their format. It is
    empty, as the names below, if they do not measure the operation, or not in the same way."""
    other_osu_titles: tuple[str, ...] = ()
    """Further titles of tables to import."""
    imb_name: str = ""
    """The benchmark of the Intel MPI Benchmarks."""
    param_names: tuple[str, ...] = ()
    """The collectives of PARAM, as it prints them."""
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

    def applied(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields of a case, with None for those that the operation does not have."""
        applies = {
            "dtype": self.moves_data,
            "redop": self.reduces,
            "root": self.rooted,
            "in_place": self.has_in_place,
        }
        return {**fields, **{name: None for name, does in applies.items() if not does}}

    def participants(self, size: int) -> tuple[int, ...]:
        """Return the participating ranks of ``size``.

        A pair is the first and the last rank, the farthest apart.
        """
        return (0, size - 1) if self.kind == "pair" else tuple(range(size))

    @property
    def windowed(self) -> bool:
        """Whether several messages are in flight to one rank."""
        return self.exchange == "window"

    def counts(self, shape: Shape) -> tuple[int, int]:
        """Return the elements of this rank's send buffer and of its receive buffer."""
        receive_count = count_of(self.receive, shape)
        if self.sends_from_receive:
            return 0, receive_count
        return count_of(self.send, shape), receive_count

    def inputs(self, shape: Shape) -> list[Span]:
        """Return what this rank's buffer holds before the operation."""
        return spans_of(self.send, shape)

    def answer(self, shape: Shape) -> list[Span]:
        """Return what this rank's receive buffer holds after the operation."""
        return spans_of(self.receive, shape)

    def busbw_factor(self, size: int) -> float:
        """Return busbw over algbw on ``size`` ranks."""
        if not self.messages_on_bus:
            return 1.0
        return self.messages_on_bus * (size - 1) / size

    def call(self, backend: Backend, buffers: Buffers, shape: Shape, redop: str) -> Sequence[Any]:
        """Return the prepared calls that are timed as one operation."""
        if self.compose is not None:
            return self.compose(backend, buffers, shape, redop)
        if self.exchange:
            return self._messages(backend, buffers, shape)
        calls = []
        for name in self.primitives or [self.name]:
            request = Request(name, buffers.send, buffers.receive, redop, shape.root)
            if self.overlaps:
                calls += backend.begin(request)
            else:
                calls.append(backend.call(request))
        return calls

    def _messages(self, backend: Backend, buffers: Buffers, shape: Shape) -> list[Any]:
        sends = [(buffers.send, shape.number(peer)) for peer in peers_of(self.to, shape)]
        receives = []
        for span in self.answer(shape):
            slot = buffers.receive.part(span.offset, span.count)
            receives.append((slot, shape.number(span.source or 0)))
        if not sends and not receives:
            return []
        if self.exchange == "turns":  # the first rank begins
            calls = [
                backend.call(Request("send", sends=sends)),
                backend.call(Request("receive", receives=receives)),
            ]
            if shape.rank:
                calls.reverse()
            return calls
        name, window = self.exchange, shape.window
        calls = [backend.call(Request(name, sends=sends, receives=receives, window=window))]
        if not receives:  # whoever only receives acknowledges each window, as in OSU's osu_bw
            for _, peer in sends:
                calls.append(backend.call(Request("receive", receives=[(backend.token(), peer)])))
        if not sends:
            for _, peer in receives:
                calls.append(backend.call(Request("send", sends=[(backend.token(), peer)])))
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
        return self.nccl_tests_name or f"{self.name}_perf"

    def osu_bytes(self, message_bytes: int, size: int) -> int:
        """Return the size that OSU's micro-benchmarks print for the same case, in bytes."""
        return message_bytes // size if self.osu_per_rank else message_bytes

    def message_bytes(self, osu_bytes: int, size: int) -> int:
        """Return the message, in bytes, of a case for which OSU's micro-benchmarks print
        ``osu_bytes``.
        """
        return osu_bytes * size if self.osu_per_rank else osu_bytes


#: ``coll/han`` lacks reduce_scatter and all_to_all; a component of lower priority implements them.
_HAN_AND_TUNED = frozenset({"han", "tuned"})

_ENTRIES = (
    Operation(
        name="all_reduce",
        summary="every rank gets the reduction of all ranks' messages",
        send="message of self",
        receive="reduction",
        messages_on_bus=2,
        reduces=True,
        has_in_place=True,
        default_in_place=True,
        osu_title="Allreduce Latency Test",
        imb_name="Allreduce",
        param_names=("all_reduce",),
        has_nccl_algorithms=True,
        open_mpi_components=_HAN_AND_TUNED,
        compares_ranks=True,
    ),
    Operation(
        name="all_gather",
        summary="every rank gets every rank's block",
        send="block of self",
        receive="block of all",
        messages_on_bus=1,
        divided=True,
        osu_per_rank=True,
        has_in_place=True,
        in_place_slice="send_in_receive",
        osu_title="Allgather Latency Test",
        imb_name="Allgather",
        param_names=("all_gather", "all_gather_base"),
        has_nccl_algorithms=True,
        open_mpi_components=_HAN_AND_TUNED,
        compares_ranks=True,
    ),
    Operation(
        name="reduce_scatter",
        summary="every rank gets its block of the reduction",
        send="message of self",
        receive="block of reduction",
        messages_on_bus=1,
        divided=True,
        reduces=True,
        has_in_place=True,
        in_place_slice="receive_in_send",
        has_mpi_result_at_start=True,
        osu_title="Reduce_scatter Latency Test",
        imb_name="Reduce_scatter",
        param_names=("reduce_scatter", "reduce_scatter_base"),
        has_nccl_algorithms=True,
        open_mpi_components=frozenset({"tuned"}),
        compares_ranks=True,
    ),
    Operation(
        name="all_to_all",
        summary="every rank sends a block to every rank",
        send="block for all",
        receive="block from all",
        messages_on_bus=1,
        divided=True,
        osu_per_rank=True,
        has_in_place=True,
        nccl_tests_name="alltoall_perf",
        osu_title="All-to-All Personalized Exchange Latency Test",
        other_osu_titles=("Alltoall", "All-to-All"),
        imb_name="Alltoall",
        param_names=("all_to_all", "all_to_all_single"),
        open_mpi_components=frozenset({"tuned"}),
        compares_ranks=True,
    ),
    Operation(
        name="broadcast",
        summary="every rank gets the root's message",
        send="root: message of self",
        receive="message of root",
        sends_from_receive=True,
        rooted=True,
        osu_title="Broadcast Latency Test",
        other_osu_titles=("Bcast",),
        imb_name="Bcast",
        param_names=("broadcast",),
        has_nccl_algorithms=True,
        open_mpi_components=_HAN_AND_TUNED,
    ),
    Operation(
        name="reduce",
        summary="the root gets the reduction of all ranks' messages",
        send="message of self",
        receive="root: reduction",
        reduces=True,
        rooted=True,
        has_in_place=True,
        default_in_place=True,
        osu_title="Reduce Latency Test",
        imb_name="Reduce",
        param_names=("reduce",),
        has_nccl_algorithms=True,
        open_mpi_components=_HAN_AND_TUNED,
    ),
    Operation(
        name="gather",
        summary="the root gets every rank's block",
        send="block of self",
        receive="root: block of all",
        messages_on_bus=1,
        divided=True,
        osu_per_rank=True,
        rooted=True,
        has_in_place=True,
        in_place_slice="send_in_receive",
        osu_title="Gather Latency Test",
        imb_name="Gather",
        param_names=("gather",),
        open_mpi_components=_HAN_AND_TUNED,
    ),
    Operation(
        name="scatter",
        summary="every rank gets its block of the root's message",
        send="root: block for all",
        receive="block from root",
        messages_on_bus=1,
        divided=True,
        osu_per_rank=True,
        rooted=True,
        has_in_place=True,
        in_place_slice="receive_in_send",
        osu_title="Scatter Latency Test",
        imb_name="Scatter",
        param_names=("scatter",),
        open_mpi_components=_HAN_AND_TUNED,
    ),
    Operation(
        name="barrier",
        summary="no rank leaves before the last has entered",
        moves_data=False,
        osu_title="Barrier Latency Test",
        imb_name="Barrier",
        open_mpi_components=_HAN_AND_TUNED,
        compares_ranks=True,
        quantity="time",
    ),
    Operation(
        name="latency",
        summary="half the round trip of a ping-pong between the first and the last rank",
        send="first+last: message of self",
        receive="first+last: message of opposite",
        exchange="turns",
        to="first+last: opposite",
        kind="pair",
        operations_per_call=2,
        minimum_ranks=2,
        osu_title="Latency Test",
        imb_name="PingPong",
        quantity="time",
    ),
    Operation(
        name="bandwidth",
        summary="a window of messages from the first to the last rank",
        send="first: message of self",
        receive="last: message of first",
        exchange="window",
        to="first: last",
        kind="pair",
        minimum_ranks=2,
        osu_title="Bandwidth Test",
        quantity="bandwidth",
    ),
    Operation(
        name="bibandwidth",
        summary="a window of messages both ways between the first and the last rank",
        send="first+last: message of self",
        receive="first+last: message of opposite",
        exchange="window",
        to="first+last: opposite",
        kind="pair",
        messages_at_once=2,
        minimum_ranks=2,
        osu_title="Bi-Directional Bandwidth Test",
        quantity="bandwidth",
    ),
    Operation(
        name="sendrecv",
        summary="every rank sends to the next and receives from the one before, in a ring",
        send="message of self",
        receive="message of left",
        exchange="send_receive",
        to="right",
        kind="ring",
        minimum_ranks=2,
        imb_name="Sendrecv",
    ),
    Operation(
        name="iall_reduce",
        primitives=("all_reduce",),
        summary="non-blocking all_reduce: started, then completed; with its overlap with computing",
        send="message of self",
        receive="reduction",
        messages_on_bus=2,
        overlaps=True,
        reduces=True,
        has_in_place=True,
        default_in_place=True,
        other_osu_titles=("Non-blocking Allreduce",),
    ),
    Operation(
        name="iall_gather",
        primitives=("all_gather",),
        summary="non-blocking all_gather: started, then completed; with its overlap with computing",
        send="block of self",
        receive="block of all",
        messages_on_bus=1,
        overlaps=True,
        divided=True,
        osu_per_rank=True,
        has_in_place=True,
        in_place_slice="send_in_receive",
        other_osu_titles=("Non-blocking Allgather",),
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
