"""What a run says about the links that its messages crossed: their rate, and who shares the cores behind them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Row
from commbench.results.info import RunInfo
from commbench.stats import Floats
from commbench.system.host import Host, Interface
from commbench.system.topology import Emulated
from commbench.units import format_link_rate, parse_link_rate

#: Bytes of IPv4, TCP with timestamps, and Ethernet, in every frame; a real wire adds preamble, checksum and gap.
_IP_TCP, _ETHERNET, _WIRE = 52, 14, 24
_USUAL_MTU = 1500


@dataclass(frozen=True, kw_only=True)
class Link:
    """A host's link to the others, each way."""

    rate_bps: float | None = None
    """Bits per second; infinite within a host and where an emulated link is not shaped; None: not known."""
    payload: float = 1.0
    """Share of the rate that messages get: the rest is headers; 1 where there is no frame to count."""
    shared_cores: int | None = None
    """Cores that all hosts share, because they are emulated; None: every host has its own."""
    told_by: str = ""
    """Where the rate is from, for people."""
    directions: int = 1
    """How many of its directions messages fill at once: 2 where both ends send."""

    @property
    def us_per_byte(self) -> float:
        """What the link itself takes for a byte of a message, in microseconds; NaN where the rate is not known."""
        return math.nan if self.rate_bps is None else 8e6 / (self.rate_bps * self.payload)

    @property
    def bound_bps(self) -> float | None:
        """What goes over it at most, in bits per second: the rate of all directions that are filled."""
        return None if self.rate_bps is None else self.directions * self.rate_bps

    @property
    def is_within_host(self) -> bool:
        """Whether messages never left a host."""
        return self == WITHIN_HOST

    def at_rate(self, rate_bps: float) -> Link:
        """The same link, were it so fast."""
        if self.rate_bps is not None and rate_bps == self.rate_bps:
            return self
        payload = self.payload if self.payload < 1 else _payload(_USUAL_MTU, _WIRE)
        return Link(rate_bps=rate_bps, payload=payload, shared_cores=self.shared_cores, told_by="what if")

    def is_like(self, other: Link, world_size: int) -> bool:
        """Whether so many ranks find the same over both."""
        return bool(self.rate_bps == other.rate_bps and self.crowding(world_size) == other.crowding(world_size))

    def crowding(self, world_size: float | Floats) -> Floats:
        """How many times as long a rank's own work takes because ranks of other hosts want the same cores."""
        return np.maximum(1.0, np.asarray(world_size) / (self.shared_cores or math.inf))

    def __str__(self) -> str:
        """Name it for people."""
        if self.rate_bps is None:
            return "a link of unknown rate"
        if math.isinf(self.rate_bps):
            return self.told_by
        both = "both ways of " if self.directions > 1 else ""
        return f"{both}{format_link_rate(self.rate_bps)} ({self.told_by})"


#: What ranks of the same host have between them.
WITHIN_HOST = Link(rate_bps=math.inf, told_by="within one host")


def link_of(info: RunInfo, transport: str) -> Link:
    """The link of a run's hosts, as its emulation or the network interface named by a record's ``transport`` has it.

    Args:
        info: what ``run.json`` holds.
        transport: of a record, e.g. ``tcp/eth0``.
    """
    environment = info.get("environment") or {}
    hosts = environment.get("hosts") or [{}]
    if emulated := _emulation(info):
        cores = hosts[0].get("cpus_allowed") or hosts[0].get("logical_cpus")
        return _emulated(emulated, cores, _mtu(hosts, transport))
    if info.get("nodes") == 1:
        return WITHIN_HOST
    crossed = _interfaces(hosts, transport)
    speeds = [speed for interface in crossed if (speed := interface.get("speed_Mbps"))]
    if not speeds or len(speeds) < len(crossed):
        return Link()
    payload = _payload(_mtu(hosts, transport), _WIRE)
    return Link(rate_bps=1e6 * min(speeds), payload=payload, told_by=f"slowest {transport}")


def limit_of(row: Row, info: RunInfo) -> Link | None:
    """The link whose rate bounds a row's bus bandwidth; None where none is known to.

    With one rank on each of several hosts all that is sent crosses it, and all wait for the slowest; between two of
    many ranks there may be a faster one.
    """
    if row.ranks_per_node != 1 or (row.nodes or 1) < 2 or row.pattern != "flat":  # noqa: PLR2004 - several
        return None
    operation, emulated = OPERATIONS[row.operation], _emulation(info) or {}
    link = link_of(info, row.transport)
    if link.rate_bps is None or math.isinf(link.rate_bps):
        return None
    if (emulated.get("slow") or emulated.get("uplink")) and (row.group_size or 0) < (row.world_size or 0):
        return None
    return dataclasses.replace(link, directions=operation.messages_at_once)


def _emulation(info: RunInfo) -> Emulated | None:
    found: Emulated | None = info.get("emulated") or (info.get("environment") or {}).get("emulated")
    return found


def _emulated(emulated: Emulated, cores: int | None, mtu: int) -> Link:
    """The slowest link of an emulated cluster: in a ring, and in most else, all wait for it."""
    texts = [emulated.get("rate"), *(emulated.get("slow") or {}).values(), emulated.get("uplink")]
    rates = [rate for text in texts if text and (rate := parse_link_rate(str(text)))]
    told_by = "emulated" if rates else "emulated without a rate"
    if len(set(rates)) > 1:
        told_by = "the slowest, emulated"
    return Link(rate_bps=min(rates, default=math.inf), payload=_payload(mtu), shared_cores=cores, told_by=told_by)


def _interfaces(hosts: Iterable[Host], transport: str) -> list[Interface]:
    """The interfaces of all hosts that a transport such as ``tcp/eth0+lo`` names, but the loopback."""
    names = set(transport.removeprefix("tcp/").split("+")) - {"lo"}
    return [each for host in hosts for each in host.get("interfaces") or () if each.get("name") in names]


def _payload(mtu: int, unseen: int = 0) -> float:
    """The share of what the link carries that is neither header nor, with ``unseen`` bytes a frame, the wire's own."""
    return (mtu - _IP_TCP) / (mtu + _ETHERNET + unseen)


def _mtu(hosts: Iterable[Host], transport: str) -> int:
    return min((each.get("mtu") or _USUAL_MTU for each in _interfaces(hosts, transport)), default=_USUAL_MTU)
