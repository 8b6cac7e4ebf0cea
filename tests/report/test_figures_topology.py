"""Tests of the drawing of hosts, their devices and links."""

from typing import Any

from builders import make_info
from drawings import painted, texts_of

from commbench.report.figures.topology import (
    boxes_of,
    meshes,
    near_links,
    paint_boxes,
    topology_figures,
)
from commbench.results import Run


def make_topology(gpus: int = 0, **changes: Any) -> dict[str, Any]:
    """Return the topology of a host with two sockets, each with half of the GPUs and an adapter."""
    names = [*(f"GPU{index}" for index in range(gpus)), "mlx5_0", "mlx5_1"]
    matrix = [
        [
            "X"
            if a == b
            else "NV18"
            if max(a, b) < gpus
            else "PIX"
            if (a, b) in {(0, gpus), (gpus, 0)}
            else "SYS"
            for b in range(len(names))
        ]
        for a in range(len(names))
    ]
    fields = {
        "sockets": 2,
        "cores": 8,
        "threads": 8,
        "caches": [],
        "numa": [
            {
                "node": node,
                "cpus": f"{4 * node}-{4 * node + 3}",
                "memory_bytes": 2**36,
                "distances": [10, 21],
            }
            for node in (0, 1)
        ],
        "gpus": [
            {"name": "NVIDIA H100", "pci": "", "numa_node": index % 2} for index in range(gpus)
        ],
        "network": [
            {
                "name": "eth0",
                "state": "down",
                "speed_Mbps": 100000,
                "mtu": 9000,
                "driver": "x",
                "numa_node": None,
                "pci": None,
                "emulated": False,
            }
        ],
        "rdma": [
            {
                "device": f"mlx5_{node}",
                "port": "1",
                "state": "ACTIVE",
                "rate": "400 Gb/sec",
                "link_layer": "InfiniBand",
                "numa_node": node,
                "pci": None,
            }
            for node in (0, 1)
        ],
        "links": {"devices": names, "matrix": matrix} if gpus else {"devices": [], "matrix": []},
        "ranks": [{"rank": 0, "numa_nodes": [0]}, {"rank": 1, "numa_nodes": [1]}],
    }
    return {**fields, **changes}


def run_with(*topologies: dict[str, Any] | None, names: tuple[str, ...] = (), **info: Any) -> Run:
    """Return a run of hosts with these topologies and two ranks each."""
    from pathlib import Path

    names = names or tuple(f"host{number}" for number in range(len(topologies)))
    hosts = [
        {"hostname": name, "topology": topology}
        for name, topology in zip(names, topologies, strict=True)
    ]
    ranks = [
        {"rank": rank, "host": name}
        for rank, name in enumerate(name for name in names for _ in range(2))
    ]
    return Run(
        path=Path("/runs/mine"),
        info=make_info(environment={"hosts": hosts}, ranks=ranks, **info),
        records=(),
    )


def test_hosts_that_are_alike_are_drawn_once() -> None:
    """Draw equal hosts once with their number, whatever their ranks."""
    other = {**make_topology(4), "ranks": [{"rank": 2, "numa_nodes": [0]}]}
    run = run_with(make_topology(4), other, make_topology(2))
    first, second = boxes_of(run.info)

    assert (["host0", "host1"], ["host2"], [0, 1]) == (first.hosts, second.hosts, first.ranks)
    (drawing,) = topology_figures([run])
    assert "3 hosts are of 2 kinds, each drawn once" in drawing.caption
    assert "host0: ranks 0 and 1 (1 more host alike)" in texts_of(drawing.svg)


def test_hosts_that_differ_by_a_page_are_alike() -> None:
    """Compare memory in GiB."""
    other = make_topology(4)
    other["numa"][0]["memory_bytes"] += 4096
    assert [["host0", "host1"]] == [
        box.hosts for box in boxes_of(run_with(make_topology(4), other).info)
    ]


def test_the_caption_of_very_many_kinds_is_short() -> None:
    """State the number of host types, and the content of the drawn ones."""
    (drawing,) = topology_figures([run_with(*(make_topology(gpus) for gpus in range(1, 9)))])
    assert "8 hosts are of 8 kinds, of which the first 3 are drawn: host0" in drawing.caption
    assert "host3: 1 NUMA" not in drawing.caption
    assert "; host3" not in drawing.caption


def test_devices_lie_on_their_memory_nodes() -> None:
    """Draw devices of unknown node last."""
    (box,) = boxes_of(run_with(make_topology(4)).info)
    placed = {node: [device.name for device in devices] for node, _, devices in box.nodes}
    assert {0: ["GPU0", "GPU2", "mlx5_0"], 1: ["GPU1", "GPU3", "mlx5_1"], None: ["eth0"]} == placed


def test_links_are_lines() -> None:
    """Draw a line per NVLink or switch connection, once per pair."""
    topology = make_topology(2)
    figure = painted(paint_boxes, boxes_of(run_with(topology).info))

    assert [("GPU0", "GPU1", "NV18"), ("GPU0", "mlx5_0", "PIX")] == near_links(topology)
    assert 2 == len([line for line in figure.axes[0].get_lines() if line.get_gid() == "link"])
    assert "NV18 and PIX between them" in topology_figures([run_with(topology)])[0].caption


def test_a_mesh_is_no_thicket() -> None:
    """Mark the GPUs of a full mesh instead of drawing lines."""
    topology = make_topology(8)
    figure = painted(paint_boxes, boxes_of(run_with(topology).info))
    kinds = [line.get_gid() for line in figure.axes[0].get_lines()]

    assert [([f"GPU{index}" for index in range(8)], "NV18")] == meshes(topology)
    assert (8, 1) == (kinds.count("mesh"), kinds.count("link"))
    assert [] == meshes(make_topology(2))


def test_texts_tell_what_there_is() -> None:
    """Write CPUs, memory, ranks, models and rates."""
    texts = texts_of(topology_figures([run_with(make_topology(2))])[0].svg)
    assert {
        "NUMA node 1, CPUs 4-7, 64 GiB, rank 1",
        "GPU0",
        "NVIDIA H100",
        "mlx5_1",
        "400 Gb/sec",
        "network",
    } <= set(texts)


def test_remarks_are_in_the_caption() -> None:
    """Repeat remarks on slow paths in the caption."""
    bare = make_topology()
    bare["numa"][1]["memory_bytes"] = 0
    (drawing,) = topology_figures([run_with(bare)])
    assert "NUMA node 1 has no memory of its own" in drawing.caption


def test_nothing_is_drawn_of_what_is_not_known() -> None:
    """Draw nothing for runs without topology."""
    assert [] == topology_figures([run_with(None)])
    assert [] == topology_figures([run_with()])


def test_a_host_without_anything_known_is_a_box() -> None:
    """Draw a host with empty entries."""
    empty = {
        "numa": [],
        "gpus": [],
        "network": [],
        "rdma": [],
        "links": {"devices": [], "matrix": []},
    }
    (drawing,) = topology_figures(
        [run_with({**empty, "sockets": None, "cores": None, "threads": None, "caches": []})]
    )
    assert "host0: ranks 0 and 1" in texts_of(drawing.svg)


def test_hostile_names_are_plain_text() -> None:
    """Draw host names literally."""
    name = '</svg><script>"$x$'
    (drawing,) = topology_figures([run_with(make_topology(), names=(name,))])
    assert f"{name}: ranks 0 and 1" in texts_of(drawing.svg)
    assert "<script" not in drawing.svg
