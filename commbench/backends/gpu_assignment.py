"""The GPU of each rank, NCCL's settings for ranks that share a GPU, and the error for buffers
beyond its memory.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from commbench.backends.nccl_library import LOG, set_defaults
from commbench.engine.control import Control, gather_everywhere
from commbench.findings import UnsupportedError
from commbench.system.clock import machine_id
from commbench.units import format_size

#: Settings that let ranks share a GPU: NCCL treats each rank as a separate host and uses TCP.
_SHARING = {"NCCL_NET": "Socket", "NCCL_NVLS_ENABLE": "0"}


def assign_gpu(control: Control, visible: Sequence[str]) -> tuple[int, int]:
    """Assign a GPU to each rank before NCCL reads its settings; collective.

    If all ranks of a host see all GPUs, its k-th rank gets the k-th GPU, round robin. A launcher
    may show different GPUs to each rank. PCI addresses identify them, even if containers of one
    machine have different host names. Parts of one GPU (MIG) count as that GPU, as in NCCL.

    Sets NCCL's variables for ranks that share a GPU, and enables NCCL's log of transports unless a
    log is configured.

    Args:
        control: among all ranks of the launch.
        visible: the PCI address, or else another identifier, of each GPU that this rank can use, in
            CUDA's order.

    Returns:
        The number of this rank's GPU among those that it sees, and the largest number of ranks of
        the launch on one physical GPU.
    """
    gathered = gather_everywhere(control, (machine_id(), socket.gethostname(), tuple(visible)))
    devices, ranks_per_gpu = distribute([(machine, gpus) for machine, _, gpus in gathered])
    if ranks_per_gpu > 1:
        hosts = [host for _, host, _ in gathered]
        host = hosts[control.rank]
        set_defaults(_SHARING | {"NCCL_HOSTID": f"{host}-{hosts[: control.rank].count(host)}"})
        if len(set(hosts)) == 1:
            set_defaults({"NCCL_SOCKET_IFNAME": "lo"})
    LOG.enable()
    return devices[control.rank], ranks_per_gpu


def distribute(visible_by_rank: Sequence[tuple[str, Sequence[str]]]) -> tuple[list[int], int]:
    """Give each rank in turn the GPU with the fewest ranks so far.

    Of several, the first that the rank sees.

    Args:
        visible_by_rank: the machine of each rank and the GPUs that the rank sees.

    Returns:
        The number of each rank's GPU among those that it sees, and the largest number of ranks on
        one GPU.
    """
    ranks_on: Counter[tuple[str, str]] = Counter()
    devices = []
    for machine, gpus in visible_by_rank:
        counts = [ranks_on[machine, gpu] for gpu in gpus]
        device = counts.index(min(counts))
        ranks_on[machine, gpus[device]] += 1
        devices.append(device)
    return devices, max(ranks_on.values())


@contextmanager
def room_for(nbytes: int, full: type[BaseException]) -> Iterator[None]:
    """Turn the library's out-of-memory error, raised inside, into `UnsupportedError`.

    Args:
        nbytes: the memory that is requested inside.
        full: the type of the library's out-of-memory error.

    Raises:
        UnsupportedError: the GPU's memory is full.
    """
    try:
        yield
    except full as error:
        raise UnsupportedError("gpu_memory_full", size=format_size(nbytes)) from error
