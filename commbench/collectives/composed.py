"""Composed operations: the entries of operations in the patterns ring, fan, hierarchical and matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from commbench.collectives.operations import (
    WINDOW_BYTES,
    Operation,
    Shape,
    Span,
    find_operation,
    left,
    own,
    right,
    whole,
)
from commbench.collectives.patterns import Group, groups_of
from commbench.collectives.primitives import Buffers, CallT_co, Ends, Primitives
from commbench.errors import UnsupportedError

MATRIX = "matrix"
#: The most bytes in flight between the two ranks of a pair of a matrix.
MATRIX_WINDOW_BYTES = 4 * 2**20

Compose = Callable[[Operation, int], Operation]
"""Make the entry of a pattern from the plain entry and the number of ranks."""


def _plain(plain: Operation, _: int) -> Operation:
    return plain


# ------------------------------------------------------------------------------------------------------------- ring


def _from_left(shape: Shape) -> list[Span]:
    return _messages(shape, [left(shape)])


def _messages(shape: Shape, sources: Sequence[int]) -> list[Span]:
    """A whole message of each source, one behind the other."""
    count = shape.elements
    return [Span(offset=index * count, count=count, source=source) for index, source in enumerate(sources)]


def _places(
    backend: Primitives[Any, Any],
    buffer: Any,  # noqa: ANN401 - a backend's own
    shape: Shape,
    sources: Sequence[int],
) -> Ends[Any]:
    """Where the message of each source goes, as `_messages` describes it."""
    count = shape.elements
    return [(backend.part(buffer, index * count, count), source) for index, source in enumerate(sources)]


def _token(backend: Primitives[Any, CallT_co], buffers: Buffers[Any], shape: Shape, _: str) -> list[CallT_co]:
    """Rank 0 sends to the next and waits until the last has sent to it; the others pass on."""
    send, receive = backend.send(buffers.send, right(shape)), backend.receive(buffers.receive, left(shape))
    return [receive, send] if shape.rank else [send, receive]


def _to_the_next(backend: Primitives[Any, CallT_co], buffers: Buffers[Any], shape: Shape, _: str) -> list[CallT_co]:
    ends = [(buffers.send, right(shape))], [(buffers.receive, left(shape))]
    return [backend.exchange_window(*ends, shape.window)]


def _with_both(backend: Primitives[Any, CallT_co], buffers: Buffers[Any], shape: Shape, _: str) -> list[CallT_co]:
    sends = [(buffers.send, right(shape)), (buffers.send, left(shape))]
    receives = _places(backend, buffers.receive, shape, [left(shape), right(shape)])
    return [backend.exchange_window(sends, receives, shape.window)]


def _ring(plain: Operation, **changes: Any) -> Operation:  # noqa: ANN401 - fields of an entry
    common = {"kind": "ring", "send": whole, "receive": whole, "inputs": own, "answer": _from_left}
    return replace(plain, **{**common, **changes})


_RING: dict[str, Compose] = {
    "latency": lambda plain, size: _ring(
        plain,
        summary="a token that is passed on from rank to rank, once round; the time of one hop",
        call=_token,
        operations_per_call=size,
    ),
    "bandwidth": lambda plain, _: _ring(
        plain,
        summary="every rank sends a window of messages to the next and receives one from the rank before",
        call=_to_the_next,
    ),
    "bibandwidth": lambda plain, _: _ring(
        plain,
        summary="every rank exchanges windows of messages with both neighbours",
        receive=lambda shape: 2 * shape.elements,
        answer=lambda shape: _messages(shape, [left(shape), right(shape)]),
        call=_with_both,
        window_bytes=WINDOW_BYTES // 2,
    ),
    "sendrecv": _plain,
}

# ------------------------------------------------------------------------------------------------------------- fans


def _others(shape: Shape) -> list[int]:
    return [rank for rank in range(shape.size) if rank != shape.root]


def _at_root(shape: Shape) -> int:
    return shape.elements if shape.is_root else 0


def _elsewhere(shape: Shape) -> int:
    return 0 if shape.is_root else shape.elements


def _all_at_root(shape: Shape) -> int:
    return shape.elements * (shape.size - 1) if shape.is_root else 0


def _from_others(shape: Shape) -> list[Span]:
    return _messages(shape, _others(shape)) if shape.is_root else []


def _from_root(shape: Shape) -> list[Span]:
    return [] if shape.is_root else _messages(shape, [shape.root])


def _fan_in(backend: Primitives[Any, CallT_co], buffers: Buffers[Any], shape: Shape, _: str) -> list[CallT_co]:
    """A window of messages from every other rank to the root, which acknowledges each with an empty one."""
    if not shape.is_root:
        window = backend.exchange_window([(buffers.send, shape.root)], [], shape.window)
        return [window, backend.receive(backend.empty(), shape.root)]
    places = _places(backend, buffers.receive, shape, _others(shape))
    window = backend.exchange_window([], places, shape.window)
    return [window, *(backend.send(backend.empty(), other) for other in _others(shape))]


def _fan_out(backend: Primitives[Any, CallT_co], buffers: Buffers[Any], shape: Shape, _: str) -> list[CallT_co]:
    """A window of the same message from the root to every other rank, which acknowledges with an empty one."""
    if not shape.is_root:
        window = backend.exchange_window([], [(buffers.receive, shape.root)], shape.window)
        return [window, backend.send(backend.empty(), shape.root)]
    window = backend.exchange_window([(buffers.send, other) for other in _others(shape)], [], shape.window)
    return [window, *(backend.receive(backend.empty(), other) for other in _others(shape))]


def _fan_both(backend: Primitives[Any, CallT_co], buffers: Buffers[Any], shape: Shape, _: str) -> list[CallT_co]:
    if not shape.is_root:
        ends = [(buffers.send, shape.root)], [(buffers.receive, shape.root)]
        return [backend.exchange_window(*ends, shape.window)]
    places = _places(backend, buffers.receive, shape, _others(shape))
    return [backend.exchange_window([(buffers.send, other) for other in _others(shape)], places, shape.window)]


def _fan(plain: Operation, size: int, **changes: Any) -> Operation:  # noqa: ANN401 - fields of an entry
    """Every message that passes the root's link counts, and together they keep to the window's bytes."""
    peers = max(1, size - 1)
    return replace(
        plain,
        kind="collective",
        rooted=True,
        messages_at_once=peers * plain.messages_at_once,
        window_bytes=WINDOW_BYTES // peers,
        **changes,
    )


def _fan_both_ways(plain: Operation, size: int) -> Operation:
    return _fan(
        plain,
        size,
        summary="every other rank exchanges a window of messages with the root",
        send=whole,
        receive=lambda shape: _elsewhere(shape) + _all_at_root(shape),
        inputs=own,
        answer=lambda shape: _from_others(shape) + _from_root(shape),
        call=_fan_both,
    )


_FAN_IN: dict[str, Compose] = {
    "bandwidth": lambda plain, size: _fan(
        plain,
        size,
        summary="every other rank sends a window of messages to the root",
        send=_elsewhere,
        receive=_all_at_root,
        inputs=lambda shape: [] if shape.is_root else own(shape),
        answer=_from_others,
        call=_fan_in,
    ),
    "bibandwidth": _fan_both_ways,
}
_FAN_OUT: dict[str, Compose] = {
    "bandwidth": lambda plain, size: _fan(
        plain,
        size,
        summary="the root sends a window of messages to every other rank",
        send=_at_root,
        receive=_elsewhere,
        inputs=lambda shape: own(shape) if shape.is_root else [],
        answer=_from_root,
        call=_fan_out,
    ),
    "bibandwidth": _fan_both_ways,
}

# -------------------------------------------------------------------------------------------------------- hierarchy


def _hierarchy(hosts: Sequence[str]) -> tuple[Sequence[Group], Sequence[Group]]:
    """The ranks of each host, and the rails across the hosts.

    Raises:
        UnsupportedError: not every rank of a host has its like on every other.
    """
    counts = Counter(hosts)
    if len(counts) < 2 or len(set(counts.values())) > 1 or min(counts.values()) < 2:  # noqa: PLR2004 - more than one
        found = ", ".join(f"{count} on {host or 'this host'}" for host, count in sorted(counts.items())[:4])
        more = ", ..." if len(counts) > 4 else ""  # noqa: PLR2004 - those that are named
        raise UnsupportedError("hosts_unequal", found=f"{found}{more}")
    return groups_of("node", hosts), groups_of("cross", hosts)


def _by_levels(backend: Primitives[Any, CallT_co], buffers: Buffers[Any], shape: Shape, redop: str) -> list[Any]:
    """Reduce a piece for each rank of the host, reduce the pieces across hosts on one rail each, put them together.

    The first and the last step stay within the host; the message crosses between hosts once, in as many streams as a
    host has ranks (as Horovod's NCCLHierarchicalAllreduce divides it).
    """
    node, rail = shape.parts
    piece = backend.like(buffers.receive, shape.elements // node.size)
    return [
        node.reduce_scatter(buffers.send, piece, redop),
        rail.all_reduce(piece, piece, redop),
        node.all_gather(piece, buffers.receive),
    ]


def _hierarchical(plain: Operation, _: int) -> Operation:
    """The message is rounded up as if every rank had a block of it: then the ranks of any host divide it too."""
    return replace(
        plain,
        summary="reduce_scatter in each host, all_reduce of the pieces across hosts, all_gather in each host",
        call=_by_levels,
        divisions=_hierarchy,
        divided=True,
        algorithm="commbench hierarchical",
    )


def _short_window(plain: Operation, _: int) -> Operation:
    """Return the operation with a shorter window: a few MiB show a pair's bandwidth, and pairs are many."""
    return replace(plain, window_bytes=MATRIX_WINDOW_BYTES)


#: By pattern, the operations that it has and what it makes of each; patterns that are not listed have all operations,
#: unchanged.
COMPOSED: Mapping[str, Mapping[str, Compose]] = {
    "ring": _RING,
    "fan-in": _FAN_IN,
    "fan-out": _FAN_OUT,
    "hierarchical": {"all_reduce": _hierarchical},
    MATRIX: dict.fromkeys(("latency", "bandwidth", "bibandwidth", "sendrecv"), _short_window),
}


def operation_in_pattern(name: str, pattern: str, size: int) -> Operation:
    """Return the entry of an operation in a pattern on ``size`` ranks; in a matrix, the entry for one pair.

    Raises:
        InputError: there is no such operation.
        UnsupportedError: the pattern does not have the operation; the message lists the operations that it has.
    """
    plain = find_operation(name)
    composed = COMPOSED.get(pattern)
    if composed is None:
        return plain
    if name not in composed:
        *others, last = composed
        offered = f"{', '.join(others)} or {last}" if others else last
        raise UnsupportedError("operation_not_in_pattern", pattern=pattern, offered=offered, operation=name)
    return composed[name](plain, size)
