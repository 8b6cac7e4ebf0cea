"""The start of torch.distributed with Gloo, and the control plane over Gloo for ranks that MPI does
not see.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import psutil
import torch
import torch.distributed as dist

from commbench.engine.control import Control, gather_everywhere
from commbench.errors import InputError

T = TypeVar("T")

#: Our watchdog ends hung launches; this only limits how long a lost rank waits.
TIMEOUT = timedelta(minutes=10)
#: The variable with the network interfaces that Gloo uses.
INTERFACE = "GLOO_SOCKET_IFNAME"
_LOOPBACK = "lo"
#: An address that is reserved for documentation (RFC 5737): no host has it.
_UNREACHABLE_ADDRESS = ("192.0.2.1", 9)
#: The control plane of each communicator that uses the default group.
_world_members: list[Control] = []


@contextmanager
def unpinned() -> Iterator[None]:
    """Let threads that start inside use every core of the process's control group, not only those
    the launcher bound.

    Gloo moves data in its own threads. They would share one core with the thread that waits for
    them.
    """
    pinned = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    except OSError:  # not allowed: keep the mask
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, pinned)


def join_world(control: Control) -> None:
    """Create torch's default process group over Gloo among the ranks of ``control``; collective.

    Raises:
        InputError: other hosts cannot reach this host.
    """
    _world_members.append(control)
    if dist.is_initialized():
        return
    torch.set_num_threads(1)
    choose_interface(one_host=len(set(gather_everywhere(control, socket.gethostname()))) == 1)
    host = control.broadcast(_own_address())
    store = None
    if control.rank == 0:
        store = dist.TCPStore(
            host, 0, control.size, is_master=True, wait_for_workers=False, timeout=TIMEOUT
        )
    port = control.broadcast_int(store.port if store else 0)
    store = store or dist.TCPStore(host, port, control.size, is_master=False, timeout=TIMEOUT)
    with unpinned():
        dist.init_process_group(
            "gloo", store=store, rank=control.rank, world_size=control.size, timeout=TIMEOUT
        )


def leave_world(control: Control) -> None:
    """Destroy the default group when its last user leaves, unless it is the control plane's own."""
    _world_members.remove(control)
    if not _world_members and not isinstance(control, TorchControl):
        dist.destroy_process_group()


def choose_interface(*, one_host: bool) -> None:
    """Set Gloo's interface if unset: the loopback if all ranks share a host, else the default
    route's interface.

    Gloo would choose the address that the host's name resolves to; in Debian's /etc/hosts this is
    127.0.1.1.

    Raises:
        InputError: the name resolves to the loopback, and there is no default route.
    """
    if os.environ.get(INTERFACE):
        return
    if one_host:
        os.environ[INTERFACE] = _LOOPBACK
    elif _hostname_address().startswith("127."):
        address = _default_route_address()
        names = [name for name in psutil.net_if_addrs() if address and address in _addresses(name)]
        if not names:
            raise InputError(
                f"The name of host {socket.gethostname()} leads to {_hostname_address()}, where"
                " other hosts cannot reach it, and there is no default route; name the network"
                " interface by --interface."
            )
        os.environ[INTERFACE] = names[0]


def _own_address() -> str:
    """Return an address at which other ranks reach this host: of Gloo's interface, else of the
    host's name.

    Raises:
        InputError: the interface has no address.
    """
    name = os.environ.get(INTERFACE, "").split(",")[0]
    if not name:
        return _hostname_address()
    addresses = _addresses(name)
    if not addresses:
        raise InputError(
            f"{INTERFACE} is {name}, and host {socket.gethostname()} has no such interface with an"
            " IPv4 address; name another one by --interface."
        )
    return addresses[0]


def _addresses(interface: str) -> list[str]:
    """Return the IPv4 addresses of an interface."""
    return [
        each.address
        for each in psutil.net_if_addrs().get(interface, [])
        if each.family == socket.AF_INET
    ]


def _hostname_address() -> str:
    """Return the address that the host's name resolves to; the loopback if it does not resolve."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _default_route_address() -> str:
    """Return the source address of the default route, without sending a packet.

    Empty without such a route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNREACHABLE_ADDRESS)
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
        return address


def _rendezvous() -> None:
    """Create the default process group at MASTER_ADDR and MASTER_PORT."""
    try:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        port = os.environ.get("MASTER_PORT")
        raise InputError(
            f"Port {port} of this host, where the ranks were to meet, is in use; set MASTER_PORT to"
            " a free one."
        ) from error


class TorchControl:
    """The control plane over the default process group, whose rendezvous is at MASTER_ADDR and
    MASTER_PORT.

    Raises:
        InputError: the port is in use, or other hosts cannot reach this host.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        choose_interface(
            one_host=os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE", "1")
        )
        with unpinned():
            _rendezvous()
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._integer = torch.zeros(1, dtype=torch.int64)
        self._token = torch.zeros(1, dtype=torch.int8)
        self._inbox = torch.zeros(1, dtype=torch.int8)

    def gather(self, value: T) -> list[T] | None:
        """Return every rank's value on rank 0."""
        values: list[T] | None = [value] * self.size if self.rank == 0 else None
        dist.gather_object(value, values)
        return values

    def broadcast(self, value: T) -> T:
        """Return rank 0's value."""
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]

    def broadcast_int(self, value: int, *, patient: bool = False) -> int:
        """Return rank 0's integer."""
        self._integer[0] = value
        dist.broadcast(self._integer, 0)
        return int(self._integer[0])

    def barrier(self, *, patient: bool = False) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def exchange(self, target: int, source: int) -> None:
        """Exchange messages of one byte, the shortest in torch."""
        sending = dist.isend(self._token, target)
        dist.recv(self._inbox, source)
        sending.wait()

    def send_int(self, value: int, target: int) -> None:
        """Send an integer."""
        self._integer[0] = value
        dist.send(self._integer, target)

    def receive_int(self, source: int) -> int:
        """Receive an integer."""
        dist.recv(self._integer, source)
        return int(self._integer[0])

    def abort(self, code: int) -> None:
        """Exit at once; torchrun then ends the other ranks."""
        os._exit(code)

    def close(self) -> None:
        """Destroy the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()
