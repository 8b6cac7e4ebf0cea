"""Topology of a host: sockets, NUMA nodes, GPUs, network adapters and the links between them.

Only /sys and /proc are needed. nvidia-ml-py reports the GPUs' own links (NVLink). If /sys shows no
PCI devices, it lists GPUs and the paths between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import TypedDict

from commbench.schema import Ranks
from commbench.system.files import read_text, system_path
from commbench.system.gpus import (
    GpuPort,
    gpu_addresses,
    gpu_links,
    gpu_ports,
    peer_access,
)
from commbench.units import parse_link_rate

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:", re.IGNORECASE)


class Emulated(TypedDict, total=False):
    """The conditions of an emulated cluster; rates are written as tc writes them."""

    hosts: int
    """Number of emulated hosts."""
    rate: str | None
    """Rate of each host's link; None: unshaped."""
    slow: Mapping[str, str] | None
    """By host, another rate."""
    racks: int
    """Number of racks."""
    uplink: str | None
    """Rate of each rack's uplink."""
    down: Sequence[str]
    """Hosts whose link is cut."""


class Cache(TypedDict):
    """A type of cache; ``count`` caches, each shared by ``shared_by`` CPUs."""

    level: int
    """1, 2 or 3."""
    type: str
    """``Data``, ``Instruction`` or ``Unified``."""
    size_bytes: int
    """Size of one cache."""
    count: int
    """Number of these caches."""
    shared_by: int
    """CPUs that share one cache."""


class NumaNode(TypedDict):
    """A NUMA node.

    ``cpus`` is a list as Linux writes it, ``distances`` has one value for each node.
    """

    node: int
    """Number of the node."""
    cpus: str | None
    """Its CPUs, a list as Linux writes it."""
    memory_bytes: int | None
    """Its memory."""
    distances: Sequence[int]
    """The kernel's distance to each node."""


class TopologyGpu(GpuPort):
    """A GPU of a topology."""

    numa_node: int | None
    """NUMA node; None: unknown."""
    pci: str
    """PCI address."""


class RdmaPort(TypedDict):
    """A port of an RDMA device as /sys states it; ``state`` has a number (4: ACTIVE)."""

    device: str
    """Name of the device."""
    port: str
    """Number of the port."""
    rate: str | None
    """Rate as Linux states it."""
    state: str | None
    """Number and word (``4: ACTIVE``); in a topology the word."""
    link_layer: str | None
    """``InfiniBand`` or ``Ethernet``."""


class TopologyPort(RdmaPort):
    """A port of an RDMA device of a topology; ``state`` is a word (ACTIVE)."""

    numa_node: int | None
    """NUMA node; None: unknown."""
    pci: str | None
    """PCI address."""


class TopologyInterface(TypedDict):
    """A network interface of a topology."""

    name: str
    """Name of the interface."""
    state: str | None
    """Operational state by Linux, such as ``up``."""
    speed_Mbps: float | None
    """Rate of the link; None: unknown."""
    numa_node: int | None
    """NUMA node; None: unknown."""
    pci: str | None
    """PCI address; None: not on PCI."""
    emulated: bool
    """Whether it belongs to a lab."""
    mtu: int | None
    """Largest frame in bytes."""
    driver: str | None
    """Name of the driver."""


class Links(TypedDict):
    """The link of each pair of devices, in the words of ``nvidia-smi topo -m``.

    ``X`` for a device itself.

    ``devices`` are GPU0, GPU1, ..., then the names of adapters.
    """

    devices: Sequence[str]
    """``GPU0``, ``GPU1`` and so on, then names of adapters."""
    matrix: Sequence[Sequence[str]]
    """The link of each pair of devices."""


class PlacedRank(TypedDict):
    """A rank and the NUMA nodes that it may run on."""

    rank: Ranks
    """Number of the rank."""
    numa_nodes: Sequence[int]
    """NUMA nodes that it may run on."""


class _Topology(TypedDict):
    """The required entries of `Topology`."""

    sockets: int | None
    """Number of sockets."""
    cores: int | None
    """Number of cores."""
    threads: int | None
    """Number of hardware threads."""
    caches: Sequence[Cache]
    """The caches."""
    numa: Sequence[NumaNode]
    """NUMA nodes."""
    gpus: Sequence[TopologyGpu]
    """GPUs."""
    network: Sequence[TopologyInterface]
    """Network interfaces."""
    rdma: Sequence[TopologyPort]
    """Ports of RDMA devices."""
    links: Links
    """Links between GPUs and adapters."""


class Topology(_Topology, total=False):
    """The topology of a host.

    ``peer_access`` is as `commbench.system.gpus.peer_access` returns it.
    """

    peer_access: Sequence[Sequence[str]]
    """For each pair of GPUs, whether one reaches the other's memory."""
    ranks: Sequence[PlacedRank]
    """The ranks of this host."""


def collect_topology(emulated: Emulated | None = None) -> Topology:
    """Collect the topology of this host, except its ``ranks``.

    Args:
        emulated: the conditions of the emulated cluster that this host belongs to, if any: its
            network interfaces then get the rate that they are shaped to.
    """
    sockets, cores, threads = count_processors()
    gpus, network, rdma = _gpus(), _network(emulated), _rdma()
    return {
        "sockets": sockets or None,
        "cores": cores or None,
        "threads": threads or None,
        "caches": _caches(),
        "numa": _numa(),
        "gpus": gpus,
        "network": network,
        "rdma": rdma,
        "links": _links(gpus, network, rdma),
        "peer_access": peer_access([gpu["pci"] for gpu in gpus]),
    }


def cpu_list(text: str | None) -> list[int]:
    """Return the CPUs of a list as Linux writes it: ``0-2,8`` is 0, 1, 2, 8."""
    cpus: list[int] = []
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def last_level_cache_bytes() -> int:
    """Return the size of a data cache of the highest level; 0 if /sys shows none."""
    data = [cache for cache in _caches() if cache["type"] != "instruction"]
    return data[-1]["size_bytes"] if data else 0  # sorted by level, type and size


def nodes_of(cpus: Iterable[int], numa: Sequence[NumaNode]) -> list[int]:
    """Return the NUMA nodes that ``cpus`` belong to; empty if /sys shows none."""
    own_cpus = set(cpus)
    return [node["node"] for node in numa if own_cpus.intersection(cpu_list(node["cpus"]))]


# ---------------------------------------------------------------------------- processors and memory


def count_processors() -> tuple[int, int, int]:
    """Return the numbers of sockets, physical cores and logical CPUs that are online; 0 if /sys
    does not state it.
    """
    folders = list(system_path("sys/devices/system/cpu").glob("cpu[0-9]*/topology"))
    names = ("physical_package_id", "die_id", "core_id")
    cores = {tuple(read_text(folder, name) for name in names) for folder in folders}
    return len({package for package, _, _ in cores}), len(cores), len(folders)


def _caches() -> list[Cache]:
    """Return the types of caches with their counts; a cache that CPUs share counts once."""
    sharers_by_type: dict[tuple[int, str, int], set[str]] = {}
    for cache in system_path("sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size = read_text(cache, "level"), read_text(cache, "size")
        if level and size and re.fullmatch(r"\d+K", size):
            name = (read_text(cache, "type") or "").lower()
            own_cpu = cache.parent.parent.name.removeprefix("cpu")
            cache_type = (int(level), name, 1024 * int(size[:-1]))
            sharers = sharers_by_type.setdefault(cache_type, set())
            sharers.add(read_text(cache, "shared_cpu_list") or own_cpu)
    caches: list[Cache] = []
    for (rank, name, nbytes), cpus in sorted(sharers_by_type.items()):
        caches.append(
            {
                "level": rank,
                "type": name,
                "size_bytes": nbytes,
                "count": len(cpus),
                "shared_by": max(len(cpu_list(listed)) for listed in cpus),
            }
        )
    return caches


def numa_folders() -> list[Path]:
    """Return the folders of the NUMA nodes in /sys, by number."""
    nodes = system_path("sys/devices/system/node").glob("node[0-9]*")
    return sorted(nodes, key=_number)


def _number(node: Path) -> int:
    return int(node.name.removeprefix("node"))


def _numa() -> list[NumaNode]:
    nodes: list[NumaNode] = []
    for node in numa_folders():
        total = re.search(r"MemTotal:\s*(\d+) kB", read_text(node, "meminfo") or "")
        nodes.append(
            {
                "node": _number(node),
                "cpus": read_text(node, "cpulist") or "",
                "memory_bytes": 1024 * int(total.group(1)) if total else None,
                "distances": list(map(int, (read_text(node, "distance") or "").split())),
            }
        )
    return nodes


# ------------------------------------------------------------------------------------------ devices


def _gpus() -> list[TopologyGpu]:
    """Return NVIDIA's GPUs in the order of their bus addresses."""
    addresses = gpu_addresses()
    gpus: list[TopologyGpu] = []
    for address, port in zip(addresses, gpu_ports(addresses), strict=True):
        information = read_text(f"proc/driver/nvidia/gpus/{address}/information")
        model = re.search(r"Model:\s*(.+)", information or "")
        if model:
            port["name"] = model.group(1).strip()
        numa_node = _numa_node(system_path("sys/bus/pci/devices", address))
        gpus.append({**port, "pci": address, "numa_node": numa_node})
    return gpus


def _network(emulated: Emulated | None) -> list[TopologyInterface]:
    """Return adapters and bonds.

    Without either, as in a container, every interface but the loopback.
    """
    folders = sorted(system_path("sys/class/net").glob("*"))
    real = [each for each in folders if (each / "device").exists() or (each / "bonding").exists()]
    others = [folder for folder in folders if folder.name != "lo"]
    return [_interface(folder, emulated) for folder in real or others]


def _interface(folder: Path, emulated: Emulated | None) -> TopologyInterface:
    device, mtu = folder / "device", read_text(folder, "mtu")
    driver, speed = device / "driver", int(read_text(folder, "speed") or 0)
    speed_Mbps: float | None = speed if speed > 0 else None
    if emulated:  # what the link is shaped to, in place of its driver's nominal speed
        hostname = read_text("proc/sys/kernel/hostname") or ""
        text = (emulated.get("slow") or {}).get(hostname, emulated.get("rate"))
        rate_bps = parse_link_rate(str(text))
        speed_Mbps = None if rate_bps is None else rate_bps / 1e6
    return {
        "name": folder.name,
        "state": read_text(folder, "operstate"),
        "speed_Mbps": speed_Mbps,
        "mtu": int(mtu) if mtu else None,
        "driver": driver.resolve().name if driver.exists() else None,
        "numa_node": _numa_node(device),
        "pci": _pci_address(device),
        "emulated": bool(emulated),
    }


def rdma_ports() -> list[RdmaPort]:
    """Return the ports of RDMA devices (InfiniBand, RoCE, EFA) as /sys states them."""
    return [
        {
            "device": port.parent.parent.name,
            "port": port.name,
            "state": read_text(port, "state"),
            "rate": read_text(port, "rate"),
            "link_layer": read_text(port, "link_layer"),
        }
        for port in sorted(system_path("sys/class/infiniband").glob("*/ports/*"))
    ]


def _rdma() -> list[TopologyPort]:
    """Return the RDMA ports with the NUMA node and the PCI address of their devices."""
    ports: list[TopologyPort] = []
    for port in rdma_ports():
        if port["state"]:
            port["state"] = port["state"].split()[-1]  # "4: ACTIVE"
        device = system_path("sys/class/infiniband", port["device"], "device")
        ports.append({**port, "numa_node": _numa_node(device), "pci": _pci_address(device)})
    return ports


def _numa_node(device: Path) -> int | None:
    """Return the NUMA node of a device or, if /sys has none for it, of its parents.

    None if it is unknown (-1).
    """
    path = device.resolve()
    for folder in (path, *path.parents[:2]):
        text = read_text(folder, "numa_node")
        if text is not None:
            return int(text) if int(text) >= 0 else None
    return None


def _pci_address(device: Path) -> str | None:
    """Return the PCI address of a device, or of the PCI device that it belongs to."""
    for part in reversed(device.resolve().parts):
        if _PCI_ADDRESS.fullmatch(part):
            return part
    return None


# -------------------------------------------------------------------------------------------- links


def _links(
    gpus: Sequence[TopologyGpu],
    network: Sequence[TopologyInterface],
    rdma: Sequence[TopologyPort],
) -> Links:
    """Return the link of every pair of GPUs and adapters.

    None without GPUs, as only GPUs' traffic crosses these links.

    An RDMA device counts once, whatever its number of ports. A network interface counts if it has a
    PCI device of its own that is not listed as an RDMA device.
    """
    if not gpus:
        return {"devices": [], "matrix": []}
    devices: dict[str, _Device] = {f"GPU{index}": gpu for index, gpu in enumerate(gpus)}
    devices |= {port["device"]: port for port in rdma}
    rdma_addresses = {None, *(port["pci"] for port in rdma)}
    for interface in network:
        if interface["pci"] not in rdma_addresses:
            devices[interface["name"]] = interface
    matrix = []
    for end in devices.values():
        matrix.append([_pci_link(end, other) for other in devices.values()])
    for index, row in enumerate(matrix):
        row[index] = "X"
    addresses = [gpu["pci"] for gpu in gpus]
    by_pci = not all(_pci_path(address) for address in addresses)
    for (gpu, peer), link in gpu_links(addresses, by_pci=by_pci).items():
        matrix[gpu][peer] = link
    return {"devices": list(devices), "matrix": matrix}


_Device = TopologyGpu | TopologyPort | TopologyInterface


def _pci_link(end: _Device, other: _Device) -> str:
    """Return the PCI path between two devices in nvidia-smi's words, by the common part of their
    paths in /sys.

    As in NCCL: below one switch PIX, below several PXB, below one host bridge PHB; else NODE or
    SYS, by NUMA node.
    """
    paths = [_pci_path(device["pci"]) for device in (end, other)]
    common = sum(one == two for one, two in zip(*paths, strict=False))
    if common == 0:
        node = end["numa_node"]
        return "NODE" if node is not None and node == other["numa_node"] else "SYS"
    if common == 1:
        return "PHB"
    beyond_switch = 2  # the switch's port towards the device, and the device
    return "PIX" if max(map(len, paths)) - common <= beyond_switch else "PXB"


def _pci_path(address: str | None) -> list[str]:
    """Return the host bridge, the bridges below it and the device.

    Empty if /sys does not show it.
    """
    if address is None:
        return []
    parts = system_path("sys/bus/pci/devices", address).resolve().parts
    return list(dropwhile(lambda part: not _HOST_BRIDGE.match(part), parts))
