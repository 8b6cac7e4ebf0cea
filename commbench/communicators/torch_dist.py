"""Gloo through torch.distributed: the calls that DDP makes, on tensors that share memory with host buffers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist

from commbench.communicators.base import HostBuffer, HostCommunicator
from commbench.communicators.torch_control import TIMEOUT, join_world, unpinned
from commbench.control import Control, gather_everywhere
from commbench.datatypes import DTYPES, DataType
from commbench.errors import UnsupportedError
from commbench.patterns import Group
from commbench.primitives import Ends
from commbench.timing.loops import Call, PythonTimer, Timer
from commbench.timing.progress import Progress
from commbench.timing.sync import Synchroniser, SyncPlan

_REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "prod": dist.ReduceOp.PRODUCT,
    "avg": dist.ReduceOp.AVG,
}


def _newest(*names: str) -> Callable[..., Any]:
    """The first of several spellings that this torch has: 2.13 renamed ``*_tensor`` to ``*_single``."""
    function: Callable[..., Any] = next(getattr(dist, name) for name in names if hasattr(dist, name))
    return function


_all_gather = _newest("all_gather_single", "all_gather_into_tensor")
_reduce_scatter = _newest("reduce_scatter_single", "reduce_scatter_tensor")


class GlooCommunicator(HostCommunicator):
    """A Gloo process group that carries nothing but what is measured.

    torch counts roots and peers by their rank in the launch, in whatever group: ``_members`` translates.
    """

    backend = "gloo"
    own_threads = True

    def __init__(
        self, control: Control, group: dist.ProcessGroup | None = None, members: Group = (), hosts: Sequence[str] = ()
    ) -> None:
        self._control = control
        self._members = members or tuple(range(control.size))
        self.rank = self._members.index(control.rank)
        self.size = len(self._members)
        if group is not None:
            self._group, self._hosts = group, hosts
            return
        join_world(control)
        self._hosts = gather_everywhere(control, socket.gethostname())
        with unpinned():
            self._group = dist.new_group(timeout=TIMEOUT, backend="gloo")
            self._alone = dist.new_group([self.rank], backend="gloo", use_local_synchronization=True)

    def _split(self, groups: Sequence[Group]) -> GlooCommunicator | None:
        """By torch's subgroups: all ranks together make one after the other."""
        with unpinned():
            own, _ = dist.new_subgroups_by_enumeration([list(group) for group in groups], TIMEOUT, "gloo")
        if own is None:
            return None
        members = next(group for group in groups if self.rank in group)
        return GlooCommunicator(self._control, own, members, [self._hosts[rank] for rank in members])

    def library(self) -> str:
        """E.g. ``torch 2.13.0 gloo``."""
        return f"torch {torch.__version__.split('+')[0]} gloo"

    def transport(self) -> str:
        """``tcp/`` and the network interfaces that carry the connections: within a host the kernel's loopback."""
        if self.size == 1:
            return "self"
        here, elsewhere = len(set(self._hosts)) < self.size, len(set(self._hosts)) > 1
        names = [*(self._interfaces if elsewhere else []), *(["lo"] if here else [])]
        return f"tcp/{'+'.join(names)}" if names else "tcp"

    @cached_property
    def _interfaces(self) -> list[str]:
        """The interfaces but the loopback that this process's established connections have their addresses from."""
        names = {
            address.address: name
            for name, addresses in psutil.net_if_addrs().items()
            for address in addresses
            if address.family in {socket.AF_INET, socket.AF_INET6}
        }
        used = {
            names.get(_plain(c.laddr.ip)) for c in psutil.Process().net_connections("tcp") if c.status == "ESTABLISHED"
        }
        return sorted(name for name in used if name and name != "lo")

    def timer(self, loop: str, plan: SyncPlan, progress: Progress) -> Timer:  # noqa: ARG002 - there is one loop
        """Calls of torch are timed from Python."""
        return PythonTimer(Synchroniser(self._control, plan, patient=True), progress)

    def null_calls(self) -> list[Call]:
        """all_reduce of 8 bytes in a group of one."""
        tensor = torch.zeros(1, dtype=torch.float64)
        return [Call(run=lambda: dist.all_reduce(tensor, group=self._alone))]

    def empty(self) -> HostBuffer:
        """One byte: torch sends no empty tensors."""
        return self.allocate(DTYPES["int8"], 1)

    def close(self) -> None:
        """Destroy the groups; the default group belongs to the control plane where that is torch's."""
        super().close()
        dist.destroy_process_group(self._group)
        is_whole = self.size == self._control.size
        if is_whole and self._control.__class__.__name__ != "TorchControl":
            dist.destroy_process_group()

    # Collectives

    def all_reduce(self, send: HostBuffer, receive: HostBuffer, redop: str) -> Call:
        """dist.all_reduce, which is in place."""
        if not send.shares_memory(receive):
            raise UnsupportedError("torch.distributed reduces in place only; use --in-place in")
        tensor, op = _tensor(receive), _REDOPS[redop]
        return Call(run=lambda: dist.all_reduce(tensor, op, self._group))

    def all_gather(self, send: HostBuffer, receive: HostBuffer) -> Call:
        """dist.all_gather_into_tensor."""
        out, own = _tensor(receive), _tensor(send)
        return Call(run=lambda: _all_gather(out, own, group=self._group))

    def reduce_scatter(self, send: HostBuffer, receive: HostBuffer, redop: str) -> Call:
        """dist.reduce_scatter_tensor."""
        out, own, op = _tensor(receive), _tensor(send), _REDOPS[redop]
        return Call(run=lambda: _reduce_scatter(out, own, op, group=self._group))

    def all_to_all(self, send: HostBuffer, receive: HostBuffer) -> Call:
        """dist.all_to_all_single."""
        if send.shares_memory(receive):
            raise UnsupportedError("torch.distributed has no in-place all_to_all")
        out, own = _tensor(receive), _tensor(send)
        return Call(run=lambda: dist.all_to_all_single(out, own, group=self._group))

    def broadcast(self, buffer: HostBuffer, root: int) -> Call:
        """dist.broadcast."""
        tensor, source = _tensor(buffer), self._members[root]
        return Call(run=lambda: dist.broadcast(tensor, source, self._group))

    def reduce(self, send: HostBuffer, receive: HostBuffer | None, redop: str, root: int) -> Call:
        """dist.reduce, which is in place at the root."""
        if receive is not None and not send.shares_memory(receive):
            raise UnsupportedError("torch.distributed reduces in place only; use --in-place in")
        tensor, op, target = _tensor(send), _REDOPS[redop], self._members[root]
        return Call(run=lambda: dist.reduce(tensor, target, op, self._group))

    def gather(self, send: HostBuffer, receive: HostBuffer | None, root: int) -> Call:
        """dist.gather into views of one buffer."""
        own, target = _tensor(send), self._members[root]
        blocks = list(_tensor(receive).chunk(self.size)) if receive else None
        return Call(run=lambda: dist.gather(own, blocks, target, self._group))

    def scatter(self, send: HostBuffer | None, receive: HostBuffer, root: int) -> Call:
        """dist.scatter from views of one buffer."""
        own, source = _tensor(receive), self._members[root]
        blocks = list(_tensor(send).chunk(self.size)) if send else None
        return Call(run=lambda: dist.scatter(own, blocks, source, self._group))

    def iall_reduce(self, send: HostBuffer, receive: HostBuffer, redop: str) -> list[Call]:
        """dist.all_reduce with async_op, and wait."""
        if not send.shares_memory(receive):
            raise UnsupportedError("torch.distributed reduces in place only; use --in-place in")
        tensor, op = _tensor(receive), _REDOPS[redop]
        return _start_and_wait(lambda: dist.all_reduce(tensor, op, self._group, async_op=True))

    def iall_gather(self, send: HostBuffer, receive: HostBuffer) -> list[Call]:
        """dist.all_gather_into_tensor with async_op, and wait."""
        out, own = _tensor(receive), _tensor(send)
        return _start_and_wait(lambda: _all_gather(out, own, group=self._group, async_op=True))

    def barrier(self) -> Call:
        """dist.barrier."""
        return Call(run=lambda: dist.barrier(self._group))

    # Point to point

    def send(self, buffer: HostBuffer, peer: int) -> Call:
        """dist.send."""
        tensor, target = _tensor(buffer), self._members[peer]
        return Call(run=lambda: dist.send(tensor, target, self._group))

    def receive(self, buffer: HostBuffer, peer: int) -> Call:
        """dist.recv."""
        tensor, source = _tensor(buffer), self._members[peer]
        return Call(run=lambda: dist.recv(tensor, source, self._group))

    def send_receive(self, send: HostBuffer, target: int, receive: HostBuffer, source: int) -> Call:
        """dist.isend and dist.irecv."""
        out, into = _tensor(send), _tensor(receive)
        ahead, behind = self._members[target], self._members[source]

        def run() -> None:
            _wait_all([dist.irecv(into, behind, self._group), dist.isend(out, ahead, self._group)])

        return Call(run=run)

    def exchange_window(self, sends: Ends[HostBuffer], receives: Ends[HostBuffer], window: int) -> Call:
        """dist.irecv and dist.isend ``window`` times with each peer, then wait for all."""
        into = [(_tensor(buffer), self._members[peer]) for buffer, peer in receives]
        out = [(_tensor(buffer), self._members[peer]) for buffer, peer in sends]

        def run() -> None:
            works = [dist.irecv(tensor, other, self._group) for tensor, other in into for _ in range(window)]
            works += [dist.isend(tensor, other, self._group) for tensor, other in out for _ in range(window)]
            _wait_all(works)

        return Call(run=run)


def _start_and_wait(start: Callable[[], Any]) -> list[Call]:
    """The two calls of a non-blocking collective."""
    pending: list[Any] = []
    return [Call(run=lambda: pending.append(start())), Call(run=lambda: pending.pop().wait())]


def _wait_all(works: list[Any]) -> None:
    for work in works:
        work.wait()


def _tensor(buffer: HostBuffer) -> torch.Tensor:
    """The same memory as a tensor, shape (count,)."""
    return _view(torch.from_numpy(_signed(buffer.memory, buffer.dtype)), buffer.dtype)


def _signed(memory: Any, dtype: DataType) -> Any:  # noqa: ANN401 - numpy arrays of several types
    return memory.view(np.int16) if dtype.name == "bfloat16" else memory


def _view(tensor: torch.Tensor, dtype: DataType) -> torch.Tensor:
    return tensor.view(torch.bfloat16) if dtype.name == "bfloat16" else tensor


def _plain(address: str) -> str:
    """An IPv4 address also where the socket is IPv6 (``::ffff:10.0.0.1``)."""
    return address.removeprefix("::ffff:")
