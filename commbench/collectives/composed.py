"""Composed operations: the entries of operations in the patterns ring, fan, hierarchical and
matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from commbench.collectives.layouts import Shape, Span
from commbench.collectives.operations import (
    WINDOW_BYTES,
    Operation,
    exchange,
    find_operation,
    left,
    own,
    receive_from,
    right,
    send_to,
    whole,
)
from commbench.collectives.patterns import Group, groups_of
from commbench.collectives.primitives import Buffer, Buffers, Ends, Primitives, Request
from commbench.findings import UnsupportedError

MATRIX = "matrix"
#: The most bytes in flight between the two ranks of a pair in a matrix.
MATRIX_WINDOW_BYTES = 4 * 2**20

Compose = Callable[[Operation, int], Operation]
"""Make the entry of a pattern from the plain entry and the number of ranks."""


def _plain(plain: Operation, _: int) -> Operation:
    return plain


# --------------------------------------------------------------------------------------------- ring


def _from_left(shape: Shape) -> list[Span]:
    return _messages(shape, [left(shape)])


def _messages(shape: Shape, sources: Sequence[int]) -> list[Span]:
    """Return a whole message of each source, one after the other."""
    count = shape.elements
    return [
        Span(offset=index * count, count=count, source=source)
        for index, source in enumerate(sources)
    ]


def _receive_slots(buffer: Buffer, shape: Shape, sources: Sequence[int]) -> Ends:
    """Return the part of a buffer that receives the message of each source, in the order of
    `_messages`.
    """
    count = shape.elements
    return [(buffer.part(index * count, count), source) for index, source in enumerate(sources)]


def _token(backend: Primitives, buffers: Buffers, shape: Shape, _: str) -> list[Any]:
    """Pass a token round the ring: rank 0 sends first and receives last, all others receive
    first.
    """
    calls = [
        send_to(backend, buffers.send, right(shape)),
        receive_from(backend, buffers.receive, left(shape)),
    ]
    if shape.rank:
        calls.reverse()
    return calls


def _to_the_next(backend: Primitives, buffers: Buffers, shape: Shape, _: str) -> list[Any]:
    sends, receives = [(buffers.send, right(shape))], [(buffers.receive, left(shape))]
    return [exchange(backend, shape, sends=sends, receives=receives)]


def _with_both(backend: Primitives, buffers: Buffers, shape: Shape, _: str) -> list[Any]:
    sends = [(buffers.send, right(shape)), (buffers.send, left(shape))]
    receives = _receive_slots(buffers.receive, shape, [left(shape), right(shape)])
    return [exchange(backend, shape, sends=sends, receives=receives)]


def _ring(plain: Operation, **changes: Any) -> Operation:  # noqa: ANN401 - fields of an entry
    common = {"kind": "ring", "send": whole, "receive": whole, "inputs": own, "answer": _from_left}
    return replace(plain, **{**common, **changes})


_RING: dict[str, Compose] = {
    "latency": lambda plain, size: _ring(
        plain,
        summary="a token that is passed on from rank to rank, once round; the time of one hop",
        compose=_token,
        operations_per_call=size,
    ),
    "bandwidth": lambda plain, _: _ring(
        plain,
        summary=(
            "every rank sends a window of messages to the next and receives one from the rank"
            " before"
        ),
        compose=_to_the_next,
    ),
    "bibandwidth": lambda plain, _: _ring(
        plain,
        summary="every rank exchanges windows of messages with both neighbours",
        receive=lambda shape: 2 * shape.elements,
        answer=lambda shape: _messages(shape, [left(shape), right(shape)]),
        compose=_with_both,
        window_bytes=WINDOW_BYTES // 2,
    ),
    "sendrecv": _plain,
}

# --------------------------------------------------------------------------------------------- fans


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


def _fan_in(backend: Primitives, buffers: Buffers, shape: Shape, _: str) -> list[Any]:
    """Send a window of messages from every other rank to the root.

    The root acknowledges each window.
    """
    if not shape.is_root:
        window = exchange(backend, shape, sends=[(buffers.send, shape.root)])
        return [window, receive_from(backend, backend.empty(), shape.root)]
    slots = _receive_slots(buffers.receive, shape, _others(shape))
    window = exchange(backend, shape, receives=slots)
    return [window, *(send_to(backend, backend.empty(), other) for other in _others(shape))]


def _fan_out(backend: Primitives, buffers: Buffers, shape: Shape, _: str) -> list[Any]:
    """Send a window of one message from the root to every other rank.

    Each acknowledges its window.
    """
    if not shape.is_root:
        window = exchange(backend, shape, receives=[(buffers.receive, shape.root)])
        return [window, send_to(backend, backend.empty(), shape.root)]
    others = _others(shape)
    window = exchange(backend, shape, sends=[(buffers.send, other) for other in others])
    return [window, *(receive_from(backend, backend.empty(), other) for other in others)]


def _fan_both(backend: Primitives, buffers: Buffers, shape: Shape, _: str) -> list[Any]:
    if not shape.is_root:
        sends, receives = [(buffers.send, shape.root)], [(buffers.receive, shape.root)]
        return [exchange(backend, shape, sends=sends, receives=receives)]
    sends = [(buffers.send, other) for other in _others(shape)]
    slots = _receive_slots(buffers.receive, shape, _others(shape))
    return [exchange(backend, shape, sends=sends, receives=slots)]


def _fan(plain: Operation, size: int, **changes: Any) -> Operation:  # noqa: ANN401 - fields of an entry
    """Count every message over the root's link.

    All peers' windows together stay within `WINDOW_BYTES`.
    """
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
        compose=_fan_both,
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
        compose=_fan_in,
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
        compose=_fan_out,
    ),
    "bibandwidth": _fan_both_ways,
}

# ---------------------------------------------------------------------------------------- hierarchy


def _hierarchy(hosts: Sequence[str]) -> tuple[Sequence[Group], Sequence[Group]]:
    """Return the ranks of each host, and the rails across the hosts.

    Raises:
        UnsupportedError: there is one host, a host has one rank, or the hosts have different
            numbers of ranks.
    """
    counts = Counter(hosts)
    if len(counts) < 2 or len(set(counts.values())) > 1 or min(counts.values()) < 2:  # noqa: PLR2004 - more than one
        placement = ", ".join(
            f"{count} on {host or 'this host'}" for host, count in sorted(counts.items())[:4]
        )
        more = ", ..." if len(counts) > 4 else ""  # noqa: PLR2004 - as many as are named
        raise UnsupportedError("hosts_unequal", found=f"{placement}{more}")
    return groups_of("node", hosts), groups_of("cross", hosts)


def _by_levels(backend: Primitives, buffers: Buffers, shape: Shape, redop: str) -> list[Any]:
    """Reduce-scatter within each host, all-reduce the pieces across hosts, one rail each,
    all-gather within each host.

    The message crosses between hosts once, in as many streams as a host has ranks, as in Horovod's
    NCCLHierarchicalAllreduce.
    """
    node, rail = shape.parts
    piece = backend.allocate(buffers.receive.dtype, shape.elements // node.size)
    return [
        node.call(Request("reduce_scatter", buffers.send, piece, redop)),
        rail.call(Request("all_reduce", piece, piece, redop)),
        node.call(Request("all_gather", piece, buffers.receive)),
    ]


def _hierarchical(plain: Operation, _: int) -> Operation:
    """Return the hierarchical entry.

    Its message is rounded up to a block per rank, which a host's ranks can divide.
    """
    return replace(
        plain,
        summary=(
            "reduce_scatter in each host, all_reduce of the pieces across hosts, all_gather in each"
            " host"
        ),
        compose=_by_levels,
        divisions=_hierarchy,
        divided=True,
        algorithm="commbench hierarchical",
    )


def _short_window(plain: Operation, _: int) -> Operation:
    """Return the operation with a shorter window: a few MiB suffice for a pair's bandwidth.

    A matrix has many pairs.
    """
    return replace(plain, window_bytes=MATRIX_WINDOW_BYTES)


#: For each pattern, the operations that it has and the function that changes their entry. Patterns
#: that are not listed have all operations, unchanged.
COMPOSED: Mapping[str, Mapping[str, Compose]] = {
    "ring": _RING,
    "fan-in": _FAN_IN,
    "fan-out": _FAN_OUT,
    "hierarchical": {"all_reduce": _hierarchical},
    MATRIX: dict.fromkeys(("latency", "bandwidth", "bibandwidth", "sendrecv"), _short_window),
}


def operation_in_pattern(name: str, pattern: str, size: int) -> Operation:
    """Return the entry of an operation in a pattern on ``size`` ranks.

    In a matrix, the entry for one pair.

    Raises:
        InputError: there is no such operation.
        UnsupportedError: the pattern does not have the operation; the message lists the operations
            that it has.
    """
    plain = find_operation(name)
    composed = COMPOSED.get(pattern)
    if composed is None:
        return plain
    if name not in composed:
        *other_names, last = composed
        offered = f"{', '.join(other_names)} or {last}" if other_names else last
        raise UnsupportedError(
            "operation_not_in_pattern", pattern=pattern, offered=offered, operation=name
        )
    return composed[name](plain, size)
