"""What NCCL's own log says about how messages travel and how operations are carried."""

from __future__ import annotations

import re

from commbench.algorithms import CHOOSING, COPY, SYMMETRIC, Choice

#: E.g. ``Channel 00/02 : 0[0] -> 1[1] via P2P/CUMEM``; of a network the kind and the adapter's number follow.
_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : .* via (?P<how>(?:P2P|SHM|NET)(?:/[A-Za-z]+)?)")
#: E.g. ``AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}``, since 2.24 on the first rank only.
_CHOSEN = re.compile(
    r"(?P<name>\w+)(?: \[[\w ]+\])?: \d+ Bytes -> "
    r"(?:Algo (?P<algorithm>\w+) proto (?P<protocol>\w+) channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\}"
    r"|Kernel (?P<kernel>\w+)|(?P<copy>cudaMemcpy|.*RMA proxy))"
)
#: Its names of the operations that it logs.
_OPERATIONS = {"".join(map(str.capitalize, name.split("_"))): name for name in CHOOSING}
_DUPLICATE = re.compile(r"Duplicate GPU detected : rank (\d+) and rank (\d+) both on CUDA device")


def transports_in(log: str) -> list[str]:
    """What carries this rank's channels, e.g. ``NET/Socket``, ``SHM/direct``, ``P2P/CUMEM``; each once, sorted.

    Read from the lines that NCCL writes with ``NCCL_DEBUG=INFO`` and ``NCCL_DEBUG_SUBSYS=INIT`` when ranks connect
    (NCCL 2.28: transport/net.cc, shm.cc, p2p.cc). They do not say in which communicator. What it says there of NVLS is
    what the GPUs could do.
    """
    return sorted({match["how"] for match in _CHANNEL.finditer(log)})


def algorithms_in(log: str) -> dict[str, str]:
    """How each operation was carried last, e.g. ``{"all_reduce": "ring/ll/2ch"}``; those alone that the log tells.

    Read from the lines that NCCL writes with ``NCCL_DEBUG_SUBSYS=TUNING`` (NCCL 2.28: enqueue.cc). Kernels on
    symmetric memory are told by name, ``symmetric/allreduce_agxll_r``, and GPUs' copy engines as ``copy``.
    """
    return {_OPERATIONS[found["name"]]: _said(found) for found in _CHOSEN.finditer(log) if found["name"] in _OPERATIONS}


def _said(found: re.Match[str]) -> str:
    if found["copy"]:
        return COPY
    if found["kernel"]:
        return f"{SYMMETRIC}{found['kernel'].lower()}"
    channels = int(found["high"]) - int(found["low"]) + 1
    algorithm, protocol = (found[name].lower().replace("_", "") for name in ("algorithm", "protocol"))
    return str(Choice(algorithm=algorithm, protocol=protocol, channels=channels))


def duplicates_in(log: str) -> tuple[int, int] | None:
    """The two ranks that NCCL has refused because they are on one GPU of one host; None where it has not.

    It says so as a warning, so that any ``NCCL_DEBUG`` but none shows it (NCCL 2.28: init.cc).
    """
    found = _DUPLICATE.search(log)
    return (int(found[1]), int(found[2])) if found else None
