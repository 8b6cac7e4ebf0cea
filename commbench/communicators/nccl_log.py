"""What NCCL's own log says about how messages travel."""

from __future__ import annotations

import re

#: E.g. ``Channel 00/02 : 0[0] -> 1[1] via P2P/CUMEM``; of a network the kind and the adapter's number follow.
_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : .* via (?P<how>(?:P2P|SHM|NET)(?:/[A-Za-z]+)?)")
_MULTICAST = re.compile(r"NVLS (?:multicast|comm) .*|Connected NVLS tree")
_DUPLICATE = re.compile(r"Duplicate GPU detected : rank (\d+) and rank (\d+) both on CUDA device")


def transports_in(log: str) -> list[str]:
    """What carries this rank's channels, e.g. ``NET/Socket``, ``SHM``, ``P2P/CUMEM``, ``NVLS``; each once, sorted.

    Read from the lines that NCCL writes with ``NCCL_DEBUG=INFO`` and ``NCCL_DEBUG_SUBSYS=INIT`` when ranks connect
    (NCCL 2.28: transport/net.cc, shm.cc, p2p.cc, nvls.cc).
    """
    found = {match["how"] for match in _CHANNEL.finditer(log)}
    if _MULTICAST.search(log):
        found.add("NVLS")
    return sorted(found)


def duplicates_in(log: str) -> tuple[int, int] | None:
    """The two ranks that NCCL has refused because they are on one GPU of one host; None where it has not.

    It says so as a warning, so that any ``NCCL_DEBUG`` but none shows it (NCCL 2.28: init.cc).
    """
    found = _DUPLICATE.search(log)
    return (int(found[1]), int(found[2])) if found else None
