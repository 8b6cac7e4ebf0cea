"""Which GPU each rank uses, what NCCL must be told where ranks have to share one, and what does not fit its memory."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from commbench.backends.nccl_library import LOG, set_missing
from commbench.engine.control import Control, gather_everywhere
from commbench.errors import UnsupportedError
from commbench.system.host import machine_id
from commbench.units import format_size

#: Settings under which ranks that share a GPU can talk at all: NCCL takes each for a host of its own, and goes by TCP.
_SHARING = {"NCCL_NET": "Socket", "NCCL_NVLS_ENABLE": "0"}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a rank computes and communicates."""

    device: int
    """The GPU's number among those that this rank sees."""
    ranks_per_gpu: int
    """The most ranks of the launch on one physical GPU."""


def place(control: Control, visible: Sequence[str]) -> Placement:
    """Give each rank a GPU, all ranks together, before NCCL reads its settings.

    Where all ranks of a host see all GPUs, its k-th rank gets the k-th, in turn. A launcher may show each rank others:
    what tells them apart is where they are plugged in, also where containers of a machine are hosts of their own. Parts
    of one GPU (MIG) are that GPU, as they are to NCCL.

    NCCL is told what it must know where ranks share a GPU, and to log how messages travel unless it already logs.

    Args:
        control: among all ranks of the launch.
        visible: the PCI address of each GPU that this rank can use, in CUDA's order, or what else tells it from others.
    """
    stated = gather_everywhere(control, (machine_id(), socket.gethostname(), tuple(visible)))
    numbers, ranks_per_gpu = share_out([(machine, gpus) for machine, _, gpus in stated])
    if ranks_per_gpu > 1:
        hosts = [host for _, host, _ in stated]
        host = hosts[control.rank]
        set_missing(_SHARING | {"NCCL_HOSTID": f"{host}-{hosts[: control.rank].count(host)}"})
        if len(set(hosts)) == 1:
            set_missing({"NCCL_SOCKET_IFNAME": "lo"})
    LOG.ask()
    return Placement(device=numbers[control.rank], ranks_per_gpu=ranks_per_gpu)


def share_out(seen: Sequence[tuple[str, Sequence[str]]]) -> tuple[list[int], int]:
    """Give each rank, one after another, the one that the fewest have of the GPUs that it sees, the first of several.

    Args:
        seen: of each rank its machine and the GPUs that it sees.

    Returns:
        The number of each rank's GPU among those that it sees, and the most ranks on one.
    """
    taken: Counter[tuple[str, str]] = Counter()
    numbers = []
    for machine, gpus in seen:
        users = [taken[machine, gpu] for gpu in gpus]
        number = users.index(min(users))
        taken[machine, gpus[number]] += 1
        numbers.append(number)
    return numbers, max(taken.values())


@contextmanager
def room_for(nbytes: int, full: type[BaseException], free_bytes: Callable[[], int]) -> Iterator[None]:
    """Have what needs so much of the GPU's memory refused where that is full.

    Args:
        nbytes: what is asked for.
        full: what the library raises then.
        free_bytes: what nobody uses of the GPU's memory.

    Raises:
        UnsupportedError: it was raised.
    """
    try:
        yield
    except full as error:
        raise UnsupportedError(
            f"the GPU's memory has no room for another {format_size(nbytes)}, {format_size(free_bytes())} are free; "
            "choose smaller --sizes"
        ) from error
