"""Composed operations: the entries of operations in the patterns ring, fan, hierarchical and
matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from commbench.collectives.layouts import Shape
from commbench.collectives.operations import WINDOW_BYTES, Operation, find_operation
from commbench.collectives.patterns import Group, groups_of
from commbench.collectives.primitives import Backend, Buffers, Request
from commbench.findings import UnsupportedError

MATRIX = "matrix"
#: The fields of an entry that differ in a pattern.
Changes: TypeAlias = Mapping[str, Any]
_TO_THE_NEXT: Changes = {
    "kind": "ring",
    "send": "message of self",
    "receive": "message of left",
    "to": "right",
}
#: The most bytes in flight between the two ranks of a pair in a matrix.
MATRIX_WINDOW_BYTES = 4 * 2**20


def _hierarchy(hosts: Sequence[str]) -> tuple[Sequence[Group], Sequence[Group]]:
    """Return the ranks of each host, and the rails across the hosts.

    Raises:
        UnsupportedError: there is one host, a host has one rank, or the hosts have different
            numbers of ranks.
    """
    counts = Counter(hosts)
    if (
        len(counts) < 2 or len(set(counts.values())) > 1 or min(counts.values()) < 2
    ):  # more than one
        placement = ", ".join(
            f"{count} on {host or 'this host'}" for host, count in sorted(counts.items())[:4]
        )
        more = ", ..." if len(counts) > 4 else ""  # as many as are named
        raise UnsupportedError("hosts_unequal", found=f"{placement}{more}")
    return groups_of("node", hosts), groups_of("cross", hosts)


def _by_levels(backend: Backend, buffers: Buffers, shape: Shape, redop: str) -> list[Any]:
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


#: A few MiB suffice for a pair's bandwidth, and there are many pairs.
_SHORT_WINDOW: Changes = {"window_bytes": MATRIX_WINDOW_BYTES}
_FAN_BOTH_WAYS: Changes = {
    "send": "message of self",
    "receive": "root: message of others; others: message of root",
    "to": "root: others; others: root",
}
#: For each pattern, the operations that it has and the fields of their entries that differ.
#: Patterns that are not listed have all operations, unchanged.
COMPOSED: Mapping[str, Mapping[str, Changes]] = {
    "ring": {
        "latency": _TO_THE_NEXT,  # a token that is passed on once round; the time of one hop
        "bandwidth": _TO_THE_NEXT,
        "bibandwidth": {
            **_TO_THE_NEXT,
            "receive": "message of left+right",
            "to": "right+left",
            "window_bytes": WINDOW_BYTES // 2,
        },
        "sendrecv": {},
    },
    "fan-in": {
        "bandwidth": {
            "send": "others: message of self",
            "receive": "root: message of others",
            "to": "others: root",
        },
        "bibandwidth": _FAN_BOTH_WAYS,
    },
    "fan-out": {
        "bandwidth": {
            "send": "root: message of self",
            "receive": "others: message of root",
            "to": "root: others",
        },
        "bibandwidth": _FAN_BOTH_WAYS,
    },
    "hierarchical": {
        "all_reduce": {
            "compose": _by_levels,
            "divisions": _hierarchy,
            "divided": True,  # into a block per rank, which a host's ranks can divide
            "algorithm": "commbench hierarchical",
        }
    },
    MATRIX: {
        "latency": _SHORT_WINDOW,
        "bandwidth": _SHORT_WINDOW,
        "bibandwidth": _SHORT_WINDOW,
        "sendrecv": _SHORT_WINDOW,
    },
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
    changes = dict(composed[name])
    if pattern == "ring" and name == "latency":
        changes["operations_per_call"] = size
    if pattern in {"fan-in", "fan-out"}:  # every message crosses the root's link
        peers = max(1, size - 1)
        changes |= {"kind": "collective", "rooted": True, "window_bytes": WINDOW_BYTES // peers}
        changes["messages_at_once"] = peers * plain.messages_at_once
    return replace(plain, **changes)
