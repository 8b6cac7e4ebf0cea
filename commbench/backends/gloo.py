"""Gloo through torch.distributed: DDP's calls, on tensors that share memory with host buffers."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import cached_property

import psutil
import torch
import torch.distributed as dist

from commbench.backends.torch_calls import (
    TorchCommunicator,
    as_tensor,
    torch_version,
)
from commbench.backends.torch_control import TIMEOUT, join_world, leave_world, unpinned
from commbench.collectives.patterns import Group
from commbench.collectives.primitives import Buffer, Request
from commbench.engine.communicator import HostCommunicator
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.timing.loops import Call


class GlooCommunicator(TorchCommunicator, HostCommunicator):
    """A Gloo process group; its operations end before a call returns."""

    backend = "gloo"
    own_threads = True

    def __init__(
        self,
        control: Control,
        group: dist.ProcessGroup | None = None,
        members: Group = (),
        hosts: Sequence[str] = (),
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
            self._self_group = dist.new_group(
                [self.rank], backend="gloo", use_local_synchronization=True
            )

    def _split(self, groups: Sequence[Group], own: Group | None) -> GlooCommunicator | None:
        """Make torch's subgroups one after the other; collective."""
        with unpinned():
            process_group, _ = dist.new_subgroups_by_enumeration(
                [list(group) for group in groups], TIMEOUT, "gloo"
            )
        if own is None:
            return None
        hosts = [self._hosts[rank] for rank in own]
        return GlooCommunicator(self._control, process_group, own, hosts)

    def library(self) -> str:
        """Return e.g. ``torch 2.13.0 gloo``."""
        return f"torch {torch_version()} gloo"

    def transport(self) -> str:
        """Return ``tcp/`` and the network interfaces of the connections.

        Within a host, the loopback.
        """
        if self.size == 1:
            return "self"
        hosts = len(set(self._hosts))
        interfaces = []
        if hosts > 1:
            interfaces += self._interfaces
        if hosts < self.size:
            interfaces.append("lo")
        return "/".join(filter(None, ("tcp", "+".join(interfaces))))

    @cached_property
    def _interfaces(self) -> list[str]:
        """Return the interfaces, except the loopback, that own the addresses of this process's TCP
        connections.
        """
        names = {
            address.address: name
            for name, addresses in psutil.net_if_addrs().items()
            for address in addresses
            if address.family in {socket.AF_INET, socket.AF_INET6}
        }
        local_names = {
            names.get(c.laddr.ip.removeprefix("::ffff:"))  # IPv6 sockets name IPv4 addresses so
            for c in psutil.Process().net_connections("tcp")
            if c.status == "ESTABLISHED"
        }
        return sorted(name for name in local_names if name and name != "lo")

    def local_calls(self) -> list[Call]:
        """Return dist.all_reduce of 8 bytes in a group of one."""
        tensor = torch.zeros(1, dtype=torch.float64)
        return [Call(run=lambda: dist.all_reduce(tensor, group=self._self_group))]

    def tensor_of(self, buffer: Buffer) -> torch.Tensor:
        """See `TorchCommunicator.tensor_of`."""
        return as_tensor(buffer.memory, buffer.dtype)

    def close(self) -> None:
        """Destroy the groups, except a default group that is the control plane's."""
        super().close()
        dist.destroy_process_group(self._group)
        if self.size == self._control.size:
            leave_world(self._control)

    def begin(self, request: Request) -> list[Call]:
        """Prepare a collective's start, and its wait."""
        start = self.start(request)
        pending = []
        return [
            Call(run=lambda: pending.append(start())),
            Call(run=lambda: pending.pop().wait()),
        ]
