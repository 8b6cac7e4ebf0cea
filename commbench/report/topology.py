"""The topology of a host as tables, and remarks on what slows communication."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import RenderableType

from commbench.fields import join_names
from commbench.findings import Finding
from commbench.report.columns import Table, plain_table
from commbench.system.topology import Topology, nodes_of
from commbench.units import counted, format_size

#: Mbit/s in a Gbit/s.
_GIGA = 1000


def render_topology(
    host: str, topology: Topology, cpus: Sequence[int] = ()
) -> Iterator[RenderableType]:
    """Yield tables of the topology, then one sentence for each remark.

    Args:
        host: the host's name.
        topology: from `commbench.system.topology.collect_topology`.
        cpus: the CPUs that this process may use; empty for the topology of another host.
    """
    counts = [
        _count(topology["sockets"], "socket"),
        _count(topology["cores"], "core"),
        _count(topology["threads"], "thread"),
    ]
    yield f"{host}: {', '.join(counts)}"
    caches = []
    for cache in topology["caches"]:
        size = format_size(cache["size_bytes"])
        caches.append(f"{cache['count']} x L{cache['level']} {cache['type']} {size}")
    if caches:
        yield f"caches: {', '.join(caches)}"
    interfaces = []
    for port in topology["network"]:
        speed = _speed(port["speed_Mbps"])
        if port["emulated"]:
            speed += " (emulated)"
        interfaces.append({**port, "speed": speed})
    nodes = []
    for node in topology["numa"]:
        memory = node["memory_bytes"]
        nodes.append({**node, "memory": None if memory is None else format_size(memory)})
    gpus = [{**gpu, "GPU": index} for index, gpu in enumerate(topology["gpus"])]
    tables = [
        _devices("NUMA nodes", "node cpus memory", nodes),
        _devices("GPUs", "GPU name numa_node", gpus),
        _devices("Network interfaces", "name state speed mtu driver numa_node", interfaces),
        _devices("RDMA ports", "device port state rate link_layer numa_node", topology["rdma"]),
        _links_table(topology),
    ]
    yield from (table for table in tables if table.lines)
    for remark in topology_remarks(topology, cpus):
        yield f"- {remark}"


def topology_remarks(topology: Topology, cpus: Sequence[int] = ()) -> Iterator[Finding]:
    """Yield what slows communication or is emulated; see `render_topology`."""
    yield from _far_gpus(topology)
    yield from _placement(topology, cpus)
    bare = [str(node["node"]) for node in topology["numa"] if node["memory_bytes"] == 0]
    if bare:
        yield Finding("topology_bare", join_names(bare))
    for port in topology["network"]:
        if port["emulated"] and port["speed_Mbps"]:
            rate = {"rate": _speed(port["speed_Mbps"])}
            yield Finding("topology_emulated_rate", port["name"], rate)
        elif port["emulated"]:
            yield Finding("topology_emulated", port["name"])


def _far_gpus(topology: Topology) -> Iterator[Finding]:
    """Yield the GPUs that reach active adapters only across sockets."""
    devices, matrix = topology["links"]["devices"], topology["links"]["matrix"]
    gpus = [index for index, name in enumerate(devices) if name.startswith("GPU")]
    adapters = [index for index, name in enumerate(devices) if name in _in_use(topology)]
    far = []
    for gpu in gpus:
        if adapters and {matrix[gpu][port] for port in adapters} == {"SYS"}:
            far.append(devices[gpu])
    if far:
        names = {"adapters": join_names(devices[port] for port in adapters)}
        yield Finding("topology_far_gpus", join_names(far), names)


def _placement(topology: Topology, cpus: Sequence[int]) -> Iterator[Finding]:
    """Yield this process's NUMA nodes if it has several, or others than the active adapters."""
    own_nodes, ports = nodes_of(cpus, topology["numa"]), _in_use(topology)
    adapter_nodes = sorted({node for node in ports.values() if node is not None})
    if len(own_nodes) > 1:
        yield Finding("topology_unbound", join_names(map(str, own_nodes)))
    elif own_nodes and adapter_nodes and own_nodes[0] not in adapter_nodes:
        nodes = tuple(map(str, adapter_nodes))
        subject = join_names(ports)
        yield Finding(
            "topology_bound_afar", subject, {"node": own_nodes[0], "adapter_nodes": nodes}
        )


def _in_use(topology: Topology) -> dict[str, int | None]:
    """Return the NUMA node of each active adapter by name: RDMA devices, or network interfaces if
    there are none.
    """
    active, up = {}, {}
    for port in topology["rdma"]:
        if port["state"] == "ACTIVE":
            active[port["device"]] = port["numa_node"]
    for interface in topology["network"]:
        if interface["state"] == "up" and interface["pci"]:
            up[interface["name"]] = interface["numa_node"]
    return active or up


# ------------------------------------------------------------------------------------------- tables


def _devices(title: str, names: str, devices: Iterable[Mapping[str, object]]) -> Table:
    """Return a table of facts about devices, by name."""
    keys = names.split()
    lines = [[_or_unknown(device.get(key)) for key in keys] for device in devices]
    return plain_table([key.replace("_", " ") for key in keys], lines, title=title)


def _links_table(topology: Topology) -> Table:
    devices, matrix = topology["links"]["devices"], topology["links"]["matrix"]
    title = (
        "Links: NV# NVLinks, PIX one PCIe switch, PXB several, PHB a host bridge, NODE two, SYS"
        " between sockets"
    )
    lines = [(name, *line) for name, line in zip(devices, matrix, strict=True)]
    return plain_table(("", *devices), lines, title=title)


def _speed(megabits: float | None) -> str:
    if megabits is None:
        return "unknown"
    if megabits >= _GIGA:
        return f"{megabits / _GIGA:g} Gbit/s"
    return f"{megabits:g} Mbit/s"


def _count(number: int | None, name: str) -> str:
    return f"unknown {name}s" if number is None else counted(number, name)


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)
