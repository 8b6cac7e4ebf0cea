"""Which GPU each rank uses, and what NCCL must be told where ranks have to share one."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from commbench.communicators.nccl_runtime import LOG, set_missing
from commbench.control import Control, gather_everywhere

#: Settings under which ranks that share a GPU can talk at all: NCCL takes each for a host of its own, and goes by TCP.
_SHARING = {"NCCL_NET": "Socket", "NCCL_NVLS_ENABLE": "0"}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a rank computes and communicates."""

    device: int
    """The GPU's number on its host."""
    ranks_per_gpu: int
    """The most ranks of the launch on one GPU."""


def place(control: Control, devices: int) -> Placement:
    """Give the k-th rank of a host its k-th GPU, in turn, all ranks together, before NCCL reads its settings.

    NCCL is told what it must know where ranks share a GPU, and to log how messages travel unless it already logs.

    Args:
        control: among all ranks of the launch.
        devices: how many GPUs this host has.
    """
    host = socket.gethostname()
    hosts = gather_everywhere(control, host)
    nth, ranks = hosts[: control.rank].count(host), hosts.count(host)
    ranks_per_gpu = max(gather_everywhere(control, -(-ranks // devices)))
    if ranks_per_gpu > 1:
        set_missing(_SHARING | {"NCCL_HOSTID": f"{host}-{nth}"})
        if len(set(hosts)) == 1:
            set_missing({"NCCL_SOCKET_IFNAME": "lo"})
    LOG.ask()
    return Placement(device=nth % devices, ranks_per_gpu=ranks_per_gpu)
