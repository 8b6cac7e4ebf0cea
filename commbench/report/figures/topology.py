"""The hosts of a run as boxes: NUMA nodes, GPUs and adapters, the links between them and to the
network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commbench.report.figures.drawing import (
    GRID,
    INK,
    MUTED,
    PAPER,
    SERIES,
    SHADE,
    Drawing,
    Style,
    slug,
)
from commbench.report.figures.words import prefixes, sentences
from commbench.report.formats import listed
from commbench.report.topology import topology_remarks
from commbench.results import Run
from commbench.results.info import RunInfo
from commbench.system.topology import NumaNode, Topology, TopologyInterface
from commbench.units import counted, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The most types of hosts that are drawn; further types are counted.
MOST_HOSTS = 3
#: Size of a host's box, of rows of devices, and of a device's box, in drawing units.
_WIDTH, _ROW, _BOX = 100.0, 11.0, 7.0
_ACROSS = 4
#: Link types that only state the same host; they are not drawn.
_LINK_TEXT: Style = {"ha": "right", "va": "center", "fontsize": 8, "color": SERIES[1]}
_FAR = frozenset({"X", "SYS", "NODE", "PHB"})


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU or an adapter."""

    name: str
    text: str
    """Its name, and on a second line its model or rate."""
    is_gpu: bool
    numa_node: int | None
    is_up: bool = True


@dataclass(frozen=True, kw_only=True)
class Box:
    """Hosts with the same hardware, drawn once."""

    hosts: Sequence[str]
    ranks: Sequence[int]
    """The devices of the first host."""
    topology: Topology
    devices: Sequence[Device]

    @property
    def nodes(self) -> list[tuple[int | None, str, list[Device]]]:
        """Each NUMA node with a text and its devices; devices of unknown node come last."""
        numa = self.topology.get("numa") or []
        nodes: list[tuple[int | None, str, list[Device]]] = [
            (
                node["node"],
                _node_text(node, self.topology),
                [d for d in self.devices if d.numa_node == node["node"]],
            )
            for node in numa
        ]
        numbers = {node["node"] for node in numa}
        unplaced = [device for device in self.devices if device.numa_node not in numbers]
        return nodes + ([(None, "", unplaced)] if unplaced or not nodes else [])

    @property
    def height(self) -> float:
        """Size in drawing units."""
        return 9 + sum(
            _node_height(devices, titled=bool(text)) + 2 for _, text, devices in self.nodes
        )


def topology_figures(runs: Sequence[Run]) -> list[Drawing]:
    """Return one drawing for each run that recorded its topology."""
    drawings = []
    for number, (run, prefix) in enumerate(zip(runs, prefixes(runs), strict=True), start=1):
        boxes = boxes_of(run.info)
        if boxes:
            drawings.append(
                _drawing(run, boxes, prefix, slug("topology", number if len(runs) > 1 else ""))
            )
    return drawings


def _drawing(run: Run, boxes: Sequence[Box], prefix: str, name: str) -> Drawing:
    hosts = sum(len(box.hosts) for box in boxes)
    height = sum(box.height + 4 for box in boxes[:MOST_HOSTS]) + 8
    return Drawing(
        paint=lambda figure: paint_boxes(figure, boxes[:MOST_HOSTS]),
        name=name,
        section="topology",
        title=(
            f"{prefix}{counted(hosts, 'host')} and what"
            f" {'is in it' if hosts == 1 else 'is in them'}"
        ),
        caption=caption_of(run.info, boxes),
        alt=f"{counted(hosts, 'host')} of {counted(len(boxes), 'kind')}: "
        + "; ".join(_contents(box) for box in boxes[:MOST_HOSTS]),
        height_in=5.0 * height / _WIDTH,
    )


# --------------------------------------------------------------------------------------------- what


def boxes_of(info: RunInfo) -> list[Box]:
    """Group hosts by hardware; empty if no host recorded its topology."""
    hosts = (info.get("environment") or {}).get("hosts") or []
    ranks: dict[str, list[int]] = {}
    for rank in info.get("ranks") or ():
        ranks.setdefault(str(rank["host"]), []).append(rank["rank"])
    kinds: dict[str, list[tuple[str, Topology]]] = {}
    for host in hosts:
        topology = host.get("topology")
        if topology:
            kind = f"{_kind(topology)} {len(ranks.get(str(host.get('hostname')), []))}"
            kinds.setdefault(kind, []).append((str(host.get("hostname", "")), topology))
    return [
        Box(
            hosts=[name for name, _ in hosts_of_kind],
            ranks=ranks.get(hosts_of_kind[0][0], []),
            topology=hosts_of_kind[0][1],
            devices=_devices(hosts_of_kind[0][1]),
        )
        for hosts_of_kind in kinds.values()
    ]


def _kind(topology: Topology) -> str:
    """Return the hardware of a host as a key: without its ranks, and with memory rounded to one
    GiB.
    """
    numa = [
        {
            **node,
            "memory_bytes": round(size / 2**30) if (size := node.get("memory_bytes")) else size,
        }
        for node in topology.get("numa") or ()
    ]
    hardware = {name: value for name, value in topology.items() if name != "ranks"} | {"numa": numa}
    return json.dumps(hardware, sort_keys=True, default=str)


def _devices(topology: Topology) -> list[Device]:
    gpus = [
        Device(
            name=f"GPU{index}",
            text=f"GPU{index}\n{gpu['name'] or ''}".strip(),
            is_gpu=True,
            numa_node=gpu["numa_node"],
        )
        for index, gpu in enumerate(topology.get("gpus") or ())
    ]
    rdma = {
        port["device"]: Device(
            name=port["device"],
            text=f"{port['device']}\n{port['rate'] or ''}".strip(),
            is_gpu=False,
            numa_node=port["numa_node"],
            is_up=port["state"] == "ACTIVE",
        )
        for port in topology.get("rdma") or ()
    }
    network = [
        Device(
            name=port["name"],
            text=f"{port['name']}\n{_speed(port)}".strip(),
            is_gpu=False,
            numa_node=port["numa_node"],
            is_up=port["state"] == "up",
        )
        for port in topology.get("network") or ()
    ]
    return [*gpus, *rdma.values(), *network]


def _speed(port: TopologyInterface) -> str:
    megabits = port["speed_Mbps"]
    if megabits is None:
        return ""
    return f"{megabits / 1e3:g} Gbit/s" if megabits >= 1e3 else f"{megabits:g} Mbit/s"  # noqa: PLR2004 - kilo


def _node_text(node: NumaNode, topology: Topology) -> str:
    placed = [
        str(rank["rank"])
        for rank in topology.get("ranks") or ()
        if node["node"] in rank["numa_nodes"]
    ]
    words = [f"NUMA node {node['node']}", f"CPUs {node['cpus']}" if node.get("cpus") else ""]
    words += [format_size(node["memory_bytes"]) if node["memory_bytes"] else ""]
    words += [f"rank{'s' if len(placed) > 1 else ''} {listed(placed, 8)}" if placed else ""]
    return ", ".join(filter(None, words))


def _contents(box: Box) -> str:
    gpus = sum(device.is_gpu for device in box.devices)
    parts = [
        counted(len(box.topology.get("numa") or []), "NUMA node"),
        counted(gpus, "GPU") if gpus else "",
    ]
    adapters = [device.name for device in box.devices if not device.is_gpu]
    return (
        f"{listed(box.hosts)}: {', '.join(filter(None, parts))},"
        f" {listed(adapters, 8) or 'no adapter'}"
    )


# ---------------------------------------------------------------------------------------------- how


def _node_height(devices: Sequence[Device], *, titled: bool) -> float:
    return (6 if titled else 1) + _ROW * -(-len(devices) // _ACROSS)


def paint_boxes(figure: Figure, boxes: Sequence[Box]) -> None:
    """Draw hosts one above the other, connected to a line for the network."""
    axes = figure.subplots()
    axes.set_axis_off()
    top = 0.0
    for box in boxes:
        _paint_host(axes, box, top)
        top -= box.height + 4
    axes.plot([2, 2], [-4, top - 3], color=INK, linewidth=2.5, solid_capstyle="round")
    axes.text(4, top - 3, "network", color=MUTED, fontsize=9, va="center")
    axes.set(xlim=(0, _WIDTH), ylim=(top - 6, 1))


def _paint_host(axes: Axes, box: Box, top: float) -> None:
    _rectangle(axes, (10, top - box.height, 89, box.height), fill="none", edge=INK)
    more = f" ({counted(len(box.hosts) - 1, 'more host')} alike)" if len(box.hosts) > 1 else ""
    ranks = (
        f": rank{'s' if len(box.ranks) > 1 else ''} {listed(map(str, box.ranks), 8)}"
        if box.ranks
        else ""
    )
    axes.text(12, top - 3.5, f"{box.hosts[0]}{ranks}{more}", va="center", fontweight="bold")
    places: dict[str, tuple[float, float]] = {}
    at = top - 7
    for node, text, devices in box.nodes:
        height = _node_height(devices, titled=bool(text))
        if node is not None:
            _rectangle(axes, (12, at - height, 85, height), fill=SHADE, edge=GRID)
        axes.text(14, at - 3, text, va="center", fontsize=9)
        for index, device in enumerate(devices):
            x, y = (
                14 + 20.5 * (index % _ACROSS),
                at - (6 if text else 1) - _ROW * (index // _ACROSS) - _BOX,
            )
            _paint_device(axes, device, x, y)
            places[device.name] = (x + 9.5, y + _BOX / 2)
        at -= height + 2
    _paint_links(axes, box, places, top)
    axes.plot([2, 10], [top - 3.5] * 2, color=INK, linewidth=1.2)


def _paint_device(axes: Axes, device: Device, x: float, y: float) -> None:
    colour = SERIES[0] if device.is_gpu else SERIES[2]
    _rectangle(
        axes,
        (x, y, 19, _BOX),
        fill=PAPER,
        edge=colour if device.is_up else MUTED,
        dashed=not device.is_up,
    )
    first, _, second = device.text.partition("\n")
    axes.text(x + 9.5, y + _BOX - 2.2, first[:14], ha="center", va="center", fontsize=8)
    if second:
        axes.text(x + 9.5, y + 2, second[:22], ha="center", va="center", fontsize=6.5, color=MUTED)


def _paint_links(
    axes: Axes, box: Box, places: Mapping[str, tuple[float, float]], top: float
) -> None:
    """Draw lines between devices that are linked within a socket; draw a full mesh as bars."""
    gpu_meshes = meshes(box.topology)
    for members, kind in gpu_meshes:
        axes.text(
            97,
            top - box.height + 2.2,
            f"\N{BOX DRAWINGS HEAVY HORIZONTAL} {kind}, each with each",
            **_LINK_TEXT,
        )
        for name in (member for member in members if member in places):
            x, y = places[name]
            axes.plot(
                [x - 9, x + 9], [y - _BOX / 2 - 0.9] * 2, color=SERIES[1], linewidth=2.5, gid="mesh"
            )
    mesh_members = [set(members) for members, _ in gpu_meshes]
    for first, second, kind in near_links(box.topology):
        if (
            first in places
            and second in places
            and not any({first, second} <= members for members in mesh_members)
        ):
            width = 1.8 if kind.startswith("NV") else 0.9
            (x, y), (u, v) = places[first], places[second]
            axes.plot([x, u], [y, v], color=SERIES[1], linewidth=width, zorder=0.5, gid="link")


def meshes(topology: Topology) -> list[tuple[list[str], str]]:
    """Return sets of three or more GPUs with the same NVLinks between every two, with the link
    type.
    """
    by_kind: dict[str, set[frozenset[str]]] = {}
    for first, second, kind in near_links(topology):
        if kind.startswith("NV"):
            by_kind.setdefault(kind, set()).add(frozenset((first, second)))
    meshes = []
    for kind, pairs in by_kind.items():
        members = sorted(set().union(*pairs))
        if len(members) > 2 and len(pairs) == len(members) * (len(members) - 1) // 2:  # noqa: PLR2004 - two are a line
            meshes.append((members, kind))
    return meshes


def near_links(topology: Topology) -> list[tuple[str, str, str]]:
    """Return the pairs of devices with NVLinks or a common PCIe switch, each once."""
    devices, matrix = topology["links"]["devices"], topology["links"]["matrix"]
    return [
        (devices[row], devices[column], kind)
        for row, line in enumerate(matrix)
        for column, kind in enumerate(line)
        if row < column and kind not in _FAR
    ]


def _rectangle(
    axes: Axes,
    bounds: tuple[float, float, float, float],
    *,
    fill: str,
    edge: str,
    dashed: bool = False,
) -> None:
    """Draw a rectangle with the ``bounds`` left, bottom, width and height."""
    from matplotlib.patches import Rectangle

    style, zorder = ("--" if dashed else "-"), 1 if fill == PAPER else 0
    x, y, width, height = bounds
    patch = Rectangle(
        (x, y), width, height, facecolor=fill, edgecolor=edge, linestyle=style, zorder=zorder
    )
    patch.set_linewidth(1.0)
    axes.add_patch(patch)


# ------------------------------------------------------------------------------------------ caption


def caption_of(info: RunInfo, boxes: Sequence[Box]) -> str:
    """Return the caption: how to read the figure, the types of hosts and links, and what slows
    communication.
    """
    remarks_by_hosts = [
        (listed(box.hosts), remark) for box in boxes for remark in topology_remarks(box.topology)
    ]
    remarks = [
        f"On {hosts}: {remark}" if len(boxes) > 1 else remark for hosts, remark in remarks_by_hosts
    ]
    kinds = sorted({kind for box in boxes for _, _, kind in near_links(box.topology)})
    hosts = sum(len(box.hosts) for box in boxes)
    types = f"All {hosts} hosts are alike and drawn once." if len(boxes) == 1 and hosts > 1 else ""
    if len(boxes) > 1:
        visible_boxes = boxes[:MOST_HOSTS]
        extent = (
            "each drawn once"
            if len(visible_boxes) == len(boxes)
            else f"of which the first {len(visible_boxes)} are drawn"
        )
        types = (
            f"{hosts} hosts are of {len(boxes)} kinds, {extent}:"
            f" {'; '.join(map(_contents, visible_boxes))}."
        )
    return sentences(
        "Grey boxes are memory nodes with their CPUs, small boxes GPUs (blue) and adapters (green,"
        " dashed where down).",
        f"Orange lines join devices with {listed(kinds)} between them." if kinds else "",
        types,
        *remarks[:3],
        (
            ""
            if not (info.get("environment") or {}).get("emulated") or remarks
            else "The hosts are emulated on one machine."
        ),
    )
