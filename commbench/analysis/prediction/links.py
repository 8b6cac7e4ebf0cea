"""Links between hosts: their rate, their headers, and the cores that ranks share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from commbench.collectives.operations import OPERATIONS
from commbench.engine.records import Row
from commbench.results.info import RunInfo, environment_of
from commbench.system.host import Host, Interface
from commbench.units import format_link_rate, parse_link_rate

#: Header bytes of a frame: IPv4 and TCP with timestamps; Ethernet; preamble, checksum and gap on a
#: physical link.
_IP_TCP, _ETHERNET, _WIRE = 52, 14, 24
_USUAL_MTU = 1500


@dataclass(frozen=True, kw_only=True)
class Link:
    """A host's link to the other hosts, in each direction."""

    rate_bps: float | None = None
    """Bits per second; infinite within a host and on an emulated link without a rate; None:
    unknown."""
    payload: float = 1.0
    """Share of the rate that is left for messages beside headers; 1 if there are no frames."""
    shared_cores: int | None = None
    """Cores that all emulated hosts share; None: every host has its own."""
    source: str = ""
    """Source of the rate, in words."""

    @property
    def us_per_byte(self) -> float:
        """The link's time for a byte of a message, in microseconds; NaN if the rate is unknown."""
        return math.nan if self.rate_bps is None else 8e6 / (self.rate_bps * self.payload)

    @property
    def is_within_host(self) -> bool:
        """Return whether messages stay within a host."""
        return self == WITHIN_HOST

    def with_rate(self, rate_bps: float) -> Link:
        """Return the same link with another rate."""
        if self.rate_bps is not None and rate_bps == self.rate_bps:
            return self
        payload = self.payload if self.payload < 1 else _payload(_USUAL_MTU, _WIRE)
        return Link(
            rate_bps=rate_bps, payload=payload, shared_cores=self.shared_cores, source="what if"
        )

    def __str__(self) -> str:
        """Return the rate and its source, in words."""
        if self.rate_bps is None:
            return "a link of unknown rate"
        if math.isinf(self.rate_bps):
            return self.source
        return f"{format_link_rate(self.rate_bps)} ({self.source})"


#: The link between ranks of one host.
WITHIN_HOST = Link(rate_bps=math.inf, source="within one host")


def link_of(info: RunInfo, transport: str) -> Link:
    """Return the link of a run's hosts, from the emulation or from the network interfaces that
    ``transport`` names.

    Of an emulated cluster it is the slowest link, which bounds a ring and most other patterns.

    Args:
        info: contents of ``run.json``.
        transport: of a record, e.g. ``tcp/eth0``.
    """
    environment = environment_of(info)
    hosts = environment.get("hosts") or [{}]
    crossed = _interfaces(hosts, transport)
    mtu = min((each.get("mtu") or _USUAL_MTU for each in crossed), default=_USUAL_MTU)
    if emulated := environment.get("emulated"):
        slow = (emulated.get("slow") or {}).values()
        texts = [emulated.get("rate"), *slow, emulated.get("uplink")]
        rates = list(filter(None, (parse_link_rate(str(text)) for text in texts)))
        source = "emulated" if rates else "emulated without a rate"
        if len(set(rates)) > 1:
            source = "the slowest, emulated"
        return Link(
            rate_bps=min(rates, default=math.inf),
            payload=_payload(mtu),
            shared_cores=hosts[0].get("cpus_allowed") or hosts[0].get("logical_cpus"),
            source=source,
        )
    if info.get("nodes") == 1:
        return WITHIN_HOST
    slowest_Mbps = min((each.get("speed_Mbps") or 0 for each in crossed), default=0)
    if not slowest_Mbps:
        return Link()
    payload = _payload(mtu, _WIRE)
    return Link(rate_bps=1e6 * slowest_Mbps, payload=payload, source=f"slowest {transport}")


def limit_of(row: Row, info: RunInfo) -> tuple[float, str] | None:
    """Return the bound that a link sets to a row's bus bandwidth, in GB/s, and the link in words.

    None if no such link is known.

    A bound exists only with one rank on each of several hosts: then all traffic crosses the link,
    and all ranks wait for the slowest. Two ranks among many may have a faster link.
    """
    if row.ranks_per_node != 1 or (row.nodes or 1) < 2 or row.pattern != "flat":  # several
        return None
    link = link_of(info, row.transport)
    if link.rate_bps is None or math.isinf(link.rate_bps):
        return None
    emulated = environment_of(info).get("emulated") or {}
    differ = emulated.get("slow") or emulated.get("uplink")
    if differ and (row.group_size or 0) < (row.world_size or 0):
        return None
    directions, words = OPERATIONS[row.operation].messages_at_once, str(link)
    if directions > 1:
        words = f"both ways of {words}"
    return directions * link.rate_bps / 8e9, words


def _interfaces(hosts: Iterable[Host], transport: str) -> list[Interface]:
    """Return the interfaces of all hosts that a transport such as ``tcp/eth0+lo`` names, except the
    loopback.
    """
    names = set(transport.removeprefix("tcp/").split("+")) - {"lo"}
    found = []
    for host in hosts:
        for interface in host.get("interfaces", ()):
            if interface.get("name") in names:
                found.append(interface)
    return found


def _payload(mtu: int, wire_bytes: int = 0) -> float:
    """Return the share of a frame that is payload.

    ``wire_bytes`` more are on the wire for each frame.
    """
    return (mtu - _IP_TCP) / (mtu + _ETHERNET + wire_bytes)
