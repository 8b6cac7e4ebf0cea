"""What lies under the ranks of a host: sockets, NUMA nodes, GPUs, network adapters and the links between them.

A *topology* is the dictionary of :func:`collect_topology`. What cannot be read is None or empty, never an error. Only
/sys and /proc are needed; GPUs' own links (NVLink) are asked of nvidia-ml-py, else of the program nvidia-smi. Where
/sys shows no PCI devices, nvidia-ml-py tells of GPUs and the paths between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from commbench.system.gpus import gpu_ports, nvlinks, pci_links, peer_access
from commbench.system.host import ROOT, gpu_addresses, read_text

Topology = dict[str, Any]

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:", re.IGNORECASE)


def collect_topology(root: Path = ROOT, emulated: Mapping[str, Any] | None = None) -> Topology:
    """Collect the topology of this host, as JSON-able values.

    Args:
        root: where /proc and /sys are found, for tests.
        emulated: the conditions of the emulated cluster that this host belongs to, if any: its network interfaces then
            get the rate that they are shaped to.

    Returns:
        ``sockets``, ``cores``, ``threads``; ``caches`` (level, type, size_bytes, count, shared_by: CPUs that share
        one); ``numa`` (node, cpus, memory_bytes, distances to all nodes); ``gpus`` (name, pci, numa_node and what
        `commbench.system.gpus.gpu_ports` tells); ``network`` (name, state, speed_Mbps, mtu, driver, numa_node, pci,
        emulated); ``rdma`` (device, port, state, rate, link_layer, numa_node, pci); ``links`` (``devices``: GPU0, ...,
        names of adapters; ``matrix``: of each pair the link in the words of ``nvidia-smi topo -m``, X for a device
        itself); ``peer_access`` (see `commbench.system.gpus.peer_access`).
    """
    gpus, network, rdma = _gpus(root), _network(root, emulated), _rdma(root)
    return {
        **_processors(root),
        "caches": _caches(root),
        "numa": _numa(root),
        "gpus": gpus,
        "network": network,
        "rdma": rdma,
        "links": _links(root, gpus, [*_distinct(rdma), *(port for port in network if _is_apart(port, rdma))]),
        "peer_access": peer_access([gpu["pci"] for gpu in gpus]),
    }


def cpu_list(text: str | None) -> list[int]:
    """The CPUs of a list as Linux writes it: ``0-2,8`` is 0, 1, 2, 8."""
    ranges = (part.partition("-") for part in (text or "").split(",") if part.strip())
    return [cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)]


def last_level_cache_bytes(root: Path = ROOT) -> int:
    """The size of a data cache of the highest level there is; 0 where /sys tells of none."""
    data = [cache for cache in _caches(root) if cache["type"] != "instruction"]
    return max((cache["size_bytes"] for cache in data if cache["level"] == data[-1]["level"]), default=0)


def nodes_of(cpus: Iterable[int], numa: Sequence[Mapping[str, Any]]) -> list[int]:
    """The NUMA nodes on which ``cpus`` lie; empty where /sys tells of none."""
    wanted = set(cpus)
    return [node["node"] for node in numa if wanted.intersection(cpu_list(node["cpus"]))]


# --------------------------------------------------------------------------------------------- processors and memory


def _processors(root: Path) -> dict[str, int | None]:
    folders = [path for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*") if (path / "topology").is_dir()]
    names = ("physical_package_id", "die_id", "core_id")
    cores = {tuple(read_text(folder, f"topology/{name}") for name in names) for folder in folders}
    sockets = {package for package, _, _ in cores}
    return {"sockets": len(sockets) or None, "cores": len(cores) or None, "threads": len(folders) or None}


def _caches(root: Path) -> list[dict[str, Any]]:
    """The kinds of caches, each with how many there are: those of different CPUs that are shared count once."""
    found: dict[tuple[int, str, int], set[str]] = {}
    for cache in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size = read_text(cache, "level"), re.fullmatch(r"(\d+)K", read_text(cache, "size") or "")
        if level and size:
            kind = (int(level), read_text(cache, "type") or "", 1024 * int(size.group(1)))
            found.setdefault(kind, set()).add(read_text(cache, "shared_cpu_list") or cache.parent.parent.name)
    return [
        {
            "level": level,
            "type": kind.lower(),
            "size_bytes": size,
            "count": len(shared),
            "shared_by": max(len(cpu_list(cpus)) if cpus[0].isdigit() else 1 for cpus in shared),
        }
        for (level, kind, size), shared in sorted(found.items())
    ]


def _numa(root: Path) -> list[dict[str, Any]]:
    nodes = (root / "sys/devices/system/node").glob("node[0-9]*")
    return [
        {
            "node": int(node.name.removeprefix("node")),
            "cpus": read_text(node, "cpulist") or "",
            "memory_bytes": _node_memory(read_text(node, "meminfo")),
            "distances": [int(distance) for distance in (read_text(node, "distance") or "").split()],
        }
        for node in sorted(nodes, key=lambda path: int(path.name.removeprefix("node")))
    ]


def _node_memory(meminfo: str | None) -> int | None:
    total = re.search(r"MemTotal:\s*(\d+) kB", meminfo or "")
    return 1024 * int(total.group(1)) if total else None


# ----------------------------------------------------------------------------------------------------------- devices


def _gpus(root: Path) -> list[dict[str, Any]]:
    """NVIDIA's GPUs in the order of their bus addresses."""
    addresses = gpu_addresses(root)
    return [
        {
            **ports,
            "name": _gpu_name(root, address) or ports["name"],
            "pci": address,
            "numa_node": _numa_node(root / "sys/bus/pci/devices" / address),
        }
        for address, ports in zip(addresses, gpu_ports(addresses), strict=True)
    ]


def _gpu_name(root: Path, address: str) -> str | None:
    model = re.search(r"Model:\s*(.+)", read_text(root, f"proc/driver/nvidia/gpus/{address}/information") or "")
    return model.group(1).strip() if model else None


def _network(root: Path, emulated: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Adapters and bonds; only where there is neither, as in a container, what else is there but the loopback."""
    folders = sorted((root / "sys/class/net").glob("*"))
    real = [folder for folder in folders if (folder / "device").exists() or (folder / "bonding").exists()]
    chosen = real or [folder for folder in folders if folder.name != "lo"]
    return [_interface(root, folder, emulated) for folder in chosen]


def _interface(root: Path, folder: Path, emulated: Mapping[str, Any] | None) -> dict[str, Any]:
    device, mtu = folder / "device", read_text(folder, "mtu")
    return {
        "name": folder.name,
        "state": read_text(folder, "operstate"),
        "speed_Mbps": _shaped_Mbps(root, emulated) if emulated else _speed_Mbps(folder),
        "mtu": int(mtu) if mtu else None,
        "driver": (device / "driver").resolve().name if (device / "driver").exists() else None,
        "numa_node": _numa_node(device),
        "pci": _pci_address(device),
        "emulated": bool(emulated),
    }


def _speed_Mbps(folder: Path) -> int | None:  # noqa: N802 - a unit
    """What the driver claims; unknown is written as -1, or cannot be read at all where the link is down."""
    speed = read_text(folder, "speed")
    return int(speed) if speed and int(speed) > 0 else None


def _shaped_Mbps(root: Path, emulated: Mapping[str, Any]) -> float | None:  # noqa: N802 - a unit
    """The rate that the links of this emulated host are shaped to; what the driver claims there means nothing."""
    own = (emulated.get("slow") or {}).get(read_text(root, "proc/sys/kernel/hostname"), emulated.get("rate"))
    rate = re.fullmatch(r"([0-9.]+)\s*([kmg])bit", str(own), re.IGNORECASE)
    return float(rate.group(1)) * {"k": 1e-3, "m": 1.0, "g": 1e3}[rate.group(2).lower()] if rate else None


def _rdma(root: Path) -> list[dict[str, Any]]:
    """The ports of RDMA devices: InfiniBand, RoCE, EFA."""
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    return [
        {
            "device": port.parent.parent.name,
            "port": port.name,
            "state": (read_text(port, "state") or "").rpartition(" ")[2] or None,  # "4: ACTIVE"
            "rate": read_text(port, "rate"),
            "link_layer": read_text(port, "link_layer"),
            "numa_node": _numa_node(port.parent.parent / "device"),
            "pci": _pci_address(port.parent.parent / "device"),
        }
        for port in ports
    ]


def _numa_node(device: Path) -> int | None:
    """The NUMA node a device hangs on; a virtual device's is that of its parents, unknown is written as -1."""
    here = device.resolve()
    texts = (read_text(folder, "numa_node") for folder in (here, *here.parents[:2]))
    node = next((int(text) for text in texts if text is not None), -1)
    return node if node >= 0 else None


def _pci_address(device: Path) -> str | None:
    """The address of the PCI device that ``device`` is or hangs on."""
    return next((part for part in reversed(device.resolve().parts) if _PCI_ADDRESS.fullmatch(part)), None)


# ------------------------------------------------------------------------------------------------------------- links


def _distinct(rdma: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """RDMA devices by name, whatever their number of ports."""
    return [{"name": name, **port} for name, port in {port["device"]: port for port in rdma}.items()]


def _is_apart(interface: Mapping[str, Any], rdma: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an interface is an adapter of its own, rather than one that is listed as an RDMA device."""
    return interface["pci"] is not None and interface["pci"] not in {port["pci"] for port in rdma}


def _links(root: Path, gpus: Sequence[Mapping[str, Any]], adapters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The link of every pair of GPUs and adapters; without GPUs none, since adapters do not talk to each other."""
    if not gpus:
        return {"devices": [], "matrix": []}
    devices = [*gpus, *adapters]
    matrix = [["X" if one is other else _pci_link(root, one, other) for other in devices] for one in devices]
    addresses = [gpu["pci"] for gpu in gpus]
    shown = all(_pci_path(root, address) for address in addresses)
    for (one, other), link in (({} if shown else pci_links(addresses)) | nvlinks(addresses)).items():
        matrix[one][other] = link
    return {
        "devices": [*(f"GPU{index}" for index in range(len(gpus))), *(str(adapter["name"]) for adapter in adapters)],
        "matrix": matrix,
    }


def _pci_link(root: Path, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The PCI path between two devices in nvidia-smi's words, by how far their paths in /sys go together.

    As in NCCL: below one switch PIX, below several PXB, below one host bridge PHB; else NODE or SYS, by NUMA node.
    """
    paths = [_pci_path(root, device["pci"]) for device in (one, other)]
    together = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*paths, strict=False)))
    if together == 0:
        return "NODE" if one["numa_node"] is not None and one["numa_node"] == other["numa_node"] else "SYS"
    if together == 1:
        return "PHB"
    beyond_switch = 2  # its port towards the device, and the device
    return "PIX" if max(len(path) for path in paths) - together <= beyond_switch else "PXB"


def _pci_path(root: Path, address: str | None) -> list[str]:
    """The host bridge, the bridges below it and the device; empty where /sys does not show it."""
    parts = (root / "sys/bus/pci/devices" / (address or "none")).resolve().parts
    first = next((index for index, part in enumerate(parts) if _HOST_BRIDGE.match(part)), len(parts))
    return list(parts[first:]) if address else []
