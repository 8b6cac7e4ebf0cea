"""Starting torch.distributed with Gloo, and the control plane over it where MPI does not see the ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from commbench.control import Control, gather_everywhere
from commbench.errors import InputError

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise InputError("Backend gloo needs PyTorch, which is not installed: pip install torch.") from error

T = TypeVar("T")

#: Our own watchdog ends hung launches; this only keeps a lost rank from waiting for ever.
TIMEOUT = timedelta(minutes=10)


@contextmanager
def unpinned() -> Iterator[None]:
    """Let threads started inside use every core of the process's control group, whatever the launcher pinned us to.

    Gloo moves data in threads of its own, which would otherwise share the one core of the thread that waits for them.
    """
    pinned = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    except OSError:  # not allowed here: stay where we are
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, pinned)


def join_world(control: Control) -> None:
    """Create torch's default process group over Gloo among the ranks of ``control``, all ranks together."""
    if dist.is_initialized():
        return
    prepare_process(gather_everywhere(control, socket.gethostname()))
    host = control.broadcast(_own_address())
    store = None
    if control.rank == 0:
        store = dist.TCPStore(host, 0, control.size, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    port = control.broadcast_int(store.port if store else 0)
    store = store or dist.TCPStore(host, port, control.size, is_master=False, timeout=TIMEOUT)
    with unpinned():
        dist.init_process_group("gloo", store=store, rank=control.rank, world_size=control.size, timeout=TIMEOUT)


def prepare_process(hosts: list[str]) -> None:
    """Settings a measuring rank wants before Gloo starts: one compute thread, loopback where all share a host."""
    torch.set_num_threads(1)
    if len(set(hosts)) == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _own_address() -> str:
    """An address by which other ranks reach this host; loopback where the host name leads nowhere else."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _meet() -> None:
    """Create the default process group as the environment says."""
    try:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        port = os.environ.get("MASTER_PORT")
        raise InputError(
            f"Port {port} of this host, where the ranks were to meet, is in use; set MASTER_PORT to a free one."
        ) from error


class TorchControl:
    """Ranks agree over the default process group; they meet where MASTER_ADDR and MASTER_PORT say.

    Raises:
        InputError: the port is in use.
    """

    def __init__(self) -> None:
        if int(os.environ.get("LOCAL_WORLD_SIZE", "0")) == int(os.environ.get("WORLD_SIZE", "-1")):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        with unpinned():
            _meet()
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._instant = torch.zeros(1, dtype=torch.int64)
        self._letter = torch.zeros(1, dtype=torch.int64)
        self._token = torch.zeros(1, dtype=torch.int8)
        self._inbox = torch.zeros(1, dtype=torch.int8)

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value on rank 0."""
        values: list[T] | None = [value] * self.size if self.rank == 0 else None
        dist.gather_object(value, values)
        return values

    def broadcast(self, value: T) -> T:
        """Rank 0's value."""
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]

    def broadcast_int(self, value: int, *, patient: bool = False) -> int:  # noqa: ARG002 - Gloo blocks anyway
        """Rank 0's integer."""
        self._instant[0] = value
        dist.broadcast(self._instant, 0)
        return int(self._instant[0])

    def barrier(self, *, patient: bool = False) -> None:  # noqa: ARG002 - Gloo blocks anyway
        """Wait for all ranks."""
        dist.barrier()

    def exchange(self, target: int, source: int) -> None:
        """Exchange one byte, the least that torch sends."""
        sent = dist.isend(self._token, target)
        dist.recv(self._inbox, source)
        if sent is not None:
            sent.wait()

    def send_int(self, value: int, target: int) -> None:
        """Send an integer."""
        self._letter[0] = value
        dist.send(self._letter, target)

    def receive_int(self, source: int) -> int:
        """Receive an integer."""
        dist.recv(self._letter, source)
        return int(self._letter[0])

    def abort(self, code: int) -> None:
        """Leave at once; torchrun then ends the other ranks."""
        os._exit(code)

    def close(self) -> None:
        """Destroy the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()
