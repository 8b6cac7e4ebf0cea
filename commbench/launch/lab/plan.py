"""The plan of an emulated cluster: its hosts, their addresses, slots and links, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path

from commbench.errors import InputError
from commbench.launch.launchers.hosts import EMULATED, HOSTFILE
from commbench.schema import read_as
from commbench.system.topology import Emulated
from commbench.units import format_link_rate, parse_link_rate

#: Addresses of the hosts. Every lab has a network stack of its own, so that labs and real networks
#: never clash.
NETWORK = IPv4Network("10.99.0.0/16")
#: Where a lab mounts its files, visible to its own processes only.
DIRECTORY = Path("/run/commbench-lab")
#: Name of the file there with the present plan.
PLAN = "plan"
#: The network interface of every host.
INTERFACE = "eth0"
#: More hosts than this would share one machine so thinly that no measurement on them means
#: anything.
MAX_HOSTS = 200
#: How to write a rate, for messages and help texts.
RATE_HINT = "write a rate such as 1gbit or 200mbit (from 1mbit to 100gbit), or none"

_SLOWEST, _FASTEST = 10**6, 100 * 10**9
#: Prefixes of a batch system's variables, which would lead launchers to its real nodes.
_BATCH_SYSTEMS = ("SLURM_", "PBS_", "LSB_")


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """One host: its name, address, room for ranks, rack and the rate of its link each way (bit/s;
    None: not shaped).
    """

    name: str
    address: str
    slots: int
    rate_bps: int | None
    rack: int = 0
    is_up: bool = True
    """Whether the link is up."""


@dataclass(frozen=True, kw_only=True)
class LabPlan:
    """An emulated cluster: hosts on one switch, or in racks whose switches hang from a core
    switch.
    """

    hosts: tuple[HostPlan, ...]
    rate_bps: int | None
    """The default rate of a host's link (bit/s)."""
    racks: int = 1
    uplink_bps: int | None = None
    """Rate of the link between each rack and the core, each way (bit/s; None: not shaped); one
    rack has no uplink."""

    @classmethod
    def parse(
        cls,
        hosts: int,
        rate: str,
        *,
        ranks_per_host: int = 1,
        slow: Sequence[str] | None = None,
        racks: int = 1,
        uplink: str | None = None,
    ) -> LabPlan:
        """Return the plan of a cluster.

        Args:
            hosts: number of hosts; their names are host0, host1, ...
            rate: of each host's link, as tc writes it (``1gbit``, ``200mbit``), or ``none`` to
                leave links unshaped.
            ranks_per_host: slots of each host in the hostfile.
            slow: hosts whose link has another rate, each written ``HOST=RATE``.
            racks: switches among which the hosts are spread evenly, in order; several hang from a
                core switch.
            uplink: rate of each rack's link to the core, each way; without it, that of a host's
                link.

        Raises:
            InputError: too few or too many hosts, ranks or racks, or a malformed rate or slow host.
        """
        if not 1 <= hosts <= MAX_HOSTS:
            raise InputError(
                f"{hosts} emulated hosts were asked for; choose from 1 to {MAX_HOSTS}."
            )
        if ranks_per_host < 1:
            raise InputError(f"{ranks_per_host} ranks per host were asked for; choose 1 or more.")
        if not 1 <= racks <= hosts:
            raise InputError(
                f"{racks} racks were asked for {hosts} emulated hosts; choose from 1 to {hosts}."
            )
        if uplink is not None and racks == 1:
            raise InputError(
                f"The uplink rate {uplink!r} was given but one rack has no uplink; add --racks 2 or"
                " more."
            )
        rate_bps = uplink_bps = parse_rate(rate)
        if uplink is not None:
            uplink_bps = parse_rate(uplink)
        if racks == 1:
            uplink_bps = None
        rates = _parse_slow(slow or (), hosts)
        plans = []
        for number in range(hosts):
            name = f"host{number}"
            plans.append(
                HostPlan(
                    name=name,
                    address=str(NETWORK[number + 1]),
                    slots=ranks_per_host,
                    rate_bps=rates.get(name, rate_bps),
                    rack=number * racks // hosts,
                )
            )
        return cls(hosts=tuple(plans), rate_bps=rate_bps, racks=racks, uplink_bps=uplink_bps)

    @property
    def conditions(self) -> Emulated:
        """The conditions that a record states about the cluster.

        Defaults are left out, so that equal labs agree.
        """
        conditions: Emulated = {"hosts": len(self.hosts), "rate": format_rate(self.rate_bps)}
        slow, down = {}, []
        for host in self.hosts:
            if host.rate_bps != self.rate_bps:
                slow[host.name] = format_rate(host.rate_bps)
            if not host.is_up:
                down.append(host.name)
        if slow:
            conditions["slow"] = slow
        if self.racks > 1:
            conditions |= {"racks": self.racks, "uplink": format_rate(self.uplink_bps)}
        if down:
            conditions["down"] = down
        return conditions

    def host(self, name: str | None) -> HostPlan:
        """Return the host of a name; the first host for None.

        Raises:
            InputError: there is no such host.
        """
        for host in self.hosts:
            if name in {host.name, None}:
                return host
        raise InputError(
            f"There is no emulated host {name!r}; choose from {host_range(len(self.hosts))}."
        )

    def with_host(self, changed: HostPlan) -> LabPlan:
        """Return the plan with one host replaced."""
        hosts = {host.name: host for host in self.hosts}
        hosts[changed.name] = changed
        return replace(self, hosts=tuple(hosts.values()))

    def to_json(self) -> str:
        """Return the plan as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LabPlan:
        """Return the plan that `to_json` wrote."""
        return read_as(cls, json.loads(text))

    def environment(self, environ: Mapping[str, str], directory: Path) -> dict[str, str]:
        """Return the environment of a program on a host: ``environ`` without a batch system, over
        the emulated links.

        It overrides the machine's own settings of interfaces and fabrics: a real fabric, or the
        memory that the hosts share, would carry messages past the shaped links.
        """
        inherited = dict(environ)
        for name in environ:
            if name.startswith(_BATCH_SYSTEMS):
                del inherited[name]
        agent = str(directory / "agent")
        return inherited | {
            HOSTFILE: str(directory / "hostfile"),
            EMULATED: json.dumps(self.conditions),
            "COMMBENCH_SSH": agent,  # for a person's own launcher
            "PRTE_MCA_plm_ssh_agent": agent,  # Open MPI 5
            "OMPI_MCA_plm_rsh_agent": agent,  # Open MPI 4
            "PRTE_MCA_prte_if_include": INTERFACE,
            "PRTE_MCA_prte_tmpdir_base": str(
                directory
            ),  # its session directories go when the lab goes
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,sm,tcp",
            "OMPI_MCA_btl_tcp_if_include": INTERFACE,
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "NCCL_SOCKET_IFNAME": INTERFACE,
            "NCCL_IB_DISABLE": "1",
        }


def _parse_slow(slow: Sequence[str], hosts: int) -> dict[str, int | None]:
    """Return the rates (bit/s) of the hosts in ``slow``, each written ``HOST=RATE``.

    Raises:
        InputError: an entry is malformed, names an unknown host, or names a host twice.
    """
    rates = {}
    for text in slow:
        name, equals, rate = text.partition("=")
        if not equals:
            raise InputError(
                f"The slow host {text!r} is not understood; write HOST=RATE, such as host1=100mbit."
            )
        if name not in {f"host{number}" for number in range(hosts)}:
            raise InputError(
                f"There is no emulated host {name!r} to slow down; choose from {host_range(hosts)}."
            )
        if name in rates:
            raise InputError(f"The slow host {name!r} was given twice; give it one rate.")
        rates[name] = parse_rate(rate)
    return rates


def host_range(hosts: int) -> str:
    """Return the hosts' names for messages: ``host0 to host3``."""
    return f"host0 to host{hosts - 1}"


def parse_rate(text: str) -> int | None:
    """Return the bits per second that ``text`` names (``1gbit``, ``200mbit``, as tc writes them).

    None for ``none``.

    Raises:
        InputError: it is not a rate, or too low or high to shape a link to.
    """
    if text.strip().lower() == "none":
        return None
    rate_bps = parse_link_rate(text)
    if rate_bps is None or not _SLOWEST <= rate_bps <= _FASTEST:
        raise InputError(f"The rate {text!r} cannot be emulated; {RATE_HINT}.")
    return rate_bps


def format_rate(rate_bps: int | None) -> str:
    """Write a rate as `parse_rate` reads it, in the largest unit that leaves no fraction:
    ``1gbit``, ``1500mbit``.
    """
    if rate_bps is None:
        return "none"
    return format_link_rate(rate_bps)
