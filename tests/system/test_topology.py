"""Tests of a host's topology, on a simulated two-socket node with GPUs and on this machine."""

import json
import sys
from collections import Counter

import pytest
from fields import fields_of
from launching import succeeded
from simulated_nvml import SimulatedNvml
from terminals import printed
from trees import plant

from commbench.report.topology import render_topology, topology_remarks
from commbench.system.gpus import gpu_links
from commbench.system.topology import collect_topology, cpu_list, last_level_cache_bytes, nodes_of

#: Two sockets with a NUMA node each. On the first two GPUs and an adapter below one switch, a
#: further adapter below a second switch, and an Ethernet adapter on a host bridge of its own; on
#: the second two GPUs, each on its own port.
PCI = {
    "0000:19:00.0": ("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0", 0),
    "0000:1a:00.0": ("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0", 0),
    "0000:1b:00.0": ("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:02.0", 0),
    "0000:1e:00.0": (
        "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:03.0/0000:1c:00.0/0000:1d:00.0",
        0,
    ),
    "0000:31:00.0": ("pci0000:30/0000:30:01.0", 0),
    "0000:9b:00.0": ("pci0000:9a/0000:9a:01.0", 1),
    "0000:9c:00.0": ("pci0000:9a/0000:9a:02.0", 1),
}
GPUS = ["0000:19:00.0", "0000:1a:00.0", "0000:9b:00.0", "0000:9c:00.0"]
RDMA = {"mlx5_0": "0000:1b:00.0", "mlx5_1": "0000:1e:00.0"}
ETHERNET = "0000:31:00.0"
#: What nvidia-smi topo -m says of such a node.
DEVICES = ["GPU0", "GPU1", "GPU2", "GPU3", "mlx5_0", "mlx5_1"]
MATRIX = [
    ["X", "NV4", "SYS", "SYS", "PIX", "PXB"],
    ["NV4", "X", "SYS", "SYS", "PIX", "PXB"],
    ["SYS", "SYS", "X", "PHB", "SYS", "SYS"],
    ["SYS", "SYS", "PHB", "X", "SYS", "SYS"],
    ["PIX", "PIX", "SYS", "SYS", "X", "PXB"],
    ["PXB", "PXB", "SYS", "SYS", "PXB", "X"],
]


#: Files as in /sys and /proc, each with its text, and links with their targets in /sys/devices.
FILES = """
sys/devices/system/node/node0/cpulist 0-3
sys/devices/system/node/node0/meminfo Node 0 MemTotal:       1048576 kB
sys/devices/system/node/node0/distance 10 21
sys/devices/system/node/node1/cpulist 4-7
sys/devices/system/node/node1/meminfo Node 1 MemTotal:       2097152 kB
sys/devices/system/node/node1/distance 21 10
sys/class/net/lo/operstate unknown
sys/class/net/docker0/operstate up
sys/class/net/eth0/operstate up
sys/class/net/eth0/mtu 1500
sys/class/net/eth0/speed 25000
sys/class/net/ib0/operstate up
sys/class/net/ib0/speed -1
sys/class/net/ib1/operstate up
sys/class/net/ib1/speed -1
sys/class/infiniband/mlx5_0/ports/1/state 4: ACTIVE
sys/class/infiniband/mlx5_0/ports/1/rate 400 Gb/sec (4X NDR)
sys/class/infiniband/mlx5_0/ports/1/link_layer InfiniBand
sys/class/infiniband/mlx5_1/ports/1/state 1: DOWN
sys/bus/pci/drivers/bnxt_en/bind
"""
#: Network interfaces and RDMA devices by their PCI address.
ADAPTERS = {
    "net/eth0": ETHERNET,
    "net/ib0": RDMA["mlx5_0"],
    "net/ib1": RDMA["mlx5_1"],
    "infiniband/mlx5_0": RDMA["mlx5_0"],
    "infiniband/mlx5_1": RDMA["mlx5_1"],
}


@pytest.fixture
def node(root):
    """Return the root of the simulated node."""
    lines = [line.partition(" ") for line in FILES.strip().splitlines()]
    plant(root, {name: text for name, _, text in lines})
    for cpu in range(8):
        folder, core = root / f"sys/devices/system/cpu/cpu{cpu}", cpu // 2 * 2
        # two threads a core
        plant(folder / "topology", {"physical_package_id": cpu // 4, "core_id": core})
        caches = f"1 Data 48K {core}-{core + 1}", f"3 Unified 32768K {cpu // 4 * 4}-7"
        names = ("level", "type", "size", "shared_cpu_list")
        for index, cache in enumerate(caches):
            plant(folder / f"cache/index{index}", dict(zip(names, cache.split(), strict=True)))
    links = {}
    for address, (path, numa) in PCI.items():
        device = root / "sys/devices" / path / address
        links[f"bus/pci/devices/{address}"] = device
        facts = {"numa_node": numa, "vendor": "0x15b3", "class": "0x020000"}
        if address in GPUS:
            facts |= {"vendor": "0x10de", "class": "0x030200"}
            information = f"proc/driver/nvidia/gpus/{address}/information"
            plant(root, {information: "Model: \t\t NVIDIA H100\nIRQ: 1"})
        plant(device, facts)
    for name, address in ADAPTERS.items():
        links[f"class/{name}/device"] = links[f"bus/pci/devices/{address}"]
    plant(root / "sys", links)
    driver = root / "sys/bus/pci/drivers/bnxt_en"
    plant(root / "sys/bus/pci/devices" / ETHERNET, {"driver": driver})
    return root


@pytest.fixture(autouse=True)
def no_nvidia(monkeypatch):
    """Hide this machine's own GPUs."""
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.mark.usefixtures("node")
def test_links_are_as_nvidia_smi_shows_them(monkeypatch):
    """Match nvidia-smi's matrix: PCI paths from /sys, NVLinks from NVML; without it, PCI paths."""
    assert "PIX" == collect_topology()["links"]["matrix"][0][1]
    ends = {GPUS[0]: [GPUS[1]] * 4, GPUS[1]: [GPUS[0]] * 4}
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml(GPUS, nvlinks=ends))
    links = collect_topology()["links"]
    assert DEVICES == links["devices"][:6]
    assert MATRIX == [line[:6] for line in links["matrix"][:6]]
    assert "eth0" == links["devices"][6]
    assert ["NODE", "NODE", "SYS", "SYS", "NODE", "NODE", "X"] == links["matrix"][6]


def test_links_through_switches_join_all_gpus(monkeypatch):
    """Count the smaller number of switch links of two GPUs."""
    switches = ["0000:c0:00.0", "0000:c1:00.0"] * 3
    ends = dict.fromkeys(GPUS, switches) | {GPUS[0]: switches[:5]}
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml(GPUS, nvlinks=ends))
    assert Counter({"NV5": 6, "NV6": 6}) == Counter(gpu_links(GPUS).values())


@pytest.mark.usefixtures("node")
def test_processors_memory_and_devices_are_read():
    """Read NUMA nodes, CPUs, memory and devices from their Linux files."""
    topology = collect_topology()
    assert 2 == topology["sockets"]
    assert 4 == topology["cores"]
    assert 8 == topology["threads"]
    data, unified = (tuple(cache.values()) for cache in topology["caches"])
    assert (1, "data", 48 << 10, 4, 2) == data
    assert (3, "unified", 32 << 20) == unified[:3]
    assert 32 << 20 == last_level_cache_bytes()
    numa = topology["numa"]
    assert {"node": 1, "cpus": "4-7", "memory_bytes": 2 << 30, "distances": [21, 10]} == numa[1]
    assert [[0], [0, 1], []] == [nodes_of(cpus, numa) for cpus in ([1], [3, 4], [99])]
    assert [0, 1, 2, 8] == cpu_list("0-2,8")
    assert [] == cpu_list("")
    found = fields_of(topology["gpus"], "name", "pci", "numa_node")
    assert [
        ("NVIDIA H100", gpu, node) for gpu, node in zip(GPUS, [0, 0, 1, 1], strict=True)
    ] == found
    eth0, ib0, ib1 = topology["network"]
    assert {
        "name": "eth0",
        "state": "up",
        "speed_Mbps": 25000,
        "mtu": 1500,
        "driver": "bnxt_en",
        "numa_node": 0,
        "pci": ETHERNET,
        "emulated": False,
    } == eth0
    assert "ib0" == ib0["name"]
    assert ib0["speed_Mbps"] is None
    assert "ib1" == ib1["name"]
    assert {
        "device": "mlx5_0",
        "port": "1",
        "state": "ACTIVE",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "numa_node": 0,
        "pci": RDMA["mlx5_0"],
    } == topology["rdma"][0]


@pytest.mark.usefixtures("root")
def test_nothing_is_an_error():
    """Return and print an empty topology below an empty root."""
    topology = collect_topology()
    assert [None] * 3 == [topology[name] for name in ("sockets", "cores", "threads")]
    assert not any(topology[name] for name in ("caches", "numa", "gpus", "network", "rdma"))
    assert {"devices": [], "matrix": []} == topology["links"]
    assert 0 == last_level_cache_bytes()
    assert "unknown sockets" in printed(*render_topology("n0", topology, ()))


@pytest.mark.parametrize(
    ("slow", "expected"),
    [({}, 200.0), ({"slow": {"host3": "50mbit"}}, 50.0), ({"rate": "none"}, None)],
)
def test_an_emulated_host_shows_the_rate_that_is_shaped(root, slow, expected):
    """Report the shaped rate of an emulated host, marked as emulated."""
    plant(root / "sys/class/net", {"eth0/speed": 10000, "eth0/operstate": "up"})
    plant(root, {"sys/class/net/lo/mtu": 1, "proc/sys/kernel/hostname": "host3"})
    topology = collect_topology({"hosts": 4, "rate": "200mbit", **slow})
    assert [("eth0", expected, True)] == fields_of(
        topology["network"], "name", "speed_Mbps", "emulated"
    )
    *_, remark = topology_remarks(topology)
    assert "eth0" == remark.subject


# ---------------------------------------------------------------------------------- what it teaches


@pytest.mark.usefixtures("node")
def test_gpus_far_from_every_adapter_are_named():
    """Name GPUs on a socket without an active adapter, and nothing otherwise."""
    topology = collect_topology()
    (remark,) = topology_remarks(topology, [0])
    assert ("topology_far_gpus", "GPU2, GPU3") == (remark.code, remark.subject)
    assert {"adapters": "mlx5_0"} == remark.numbers
    near = {"devices": ["GPU0", "mlx5_0"], "matrix": [["X", "PIX"], ["PIX", "X"]]}
    assert [] == list(topology_remarks({**topology, "links": near}, [0]))


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        ([0, 1], []),
        ([0, 4], [("topology_unbound", "0, 1")]),
        ([5], [("topology_bound_afar", "mlx5_0")]),
        ([], []),
    ],
)
@pytest.mark.usefixtures("node")
def test_a_process_far_from_the_adapter_is_reported(cpus, expected):
    """Report a process not bound to a node or bound to another than the adapter's."""
    remarks = topology_remarks(collect_topology(), cpus)
    placed = [(each.code, each.subject) for each in remarks if "far_gpu" not in each.code]
    assert expected == placed


def test_a_node_without_memory_is_reported(node):
    """Report a NUMA node without memory."""
    plant(node, {"sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:       0 kB"})
    remarks = topology_remarks(collect_topology())
    assert ["1"] == [each.subject for each in remarks if each.code == "topology_bare"]


# ------------------------------------------------------------------------------------- this machine


def test_this_machine_has_a_topology():
    """Print this machine's topology as JSON, with the remarks of the tables."""
    command = [sys.executable, "-m", "commbench", "env", "--topology", "--json"]
    output = json.loads(succeeded(*command))
    assert output["topology"]["threads"] >= 1
    assert output["host"]
    assert isinstance(output["remarks"], list)


@pytest.mark.usefixtures("node")
def test_nvml_reports_the_links_of_each_gpu(monkeypatch):
    """Record PCIe, NVLink and peer access of each GPU."""
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml(GPUS))
    topology = collect_topology()
    ports = {"sm_clock_max_MHz": 1980, "pcie_generation": 1, "pcie_generation_max": 5}
    ports |= {"pcie_width": 16, "pcie_width_max": 16, "nvlink_version": "4.0"}
    first, *_, last = topology["gpus"]
    assert ports == {name: first[name] for name in ports}
    assert {**ports, "nvlink_version": None} == {name: last[name] for name in ports}
    assert "NV1" == topology["links"]["matrix"][0][1]
    assert ["X", "ok", "topology not supported", "topology not supported"] == topology[
        "peer_access"
    ][0]


@pytest.mark.usefixtures("root")
def test_gpus_come_from_nvml_if_linux_shows_none(monkeypatch):
    """Read GPUs, addresses and paths from NVML if /sys has no PCI devices."""
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml(GPUS, lost=GPUS[3:]))
    topology = collect_topology()
    assert GPUS[:3] == fields_of(topology["gpus"], "pci")
    assert {"NVIDIA H100"} == set(fields_of(topology["gpus"], "name"))
    assert [["X", "NV1", "SYS"], ["NV1", "X", "SYS"], ["SYS", "SYS", "X"]] == topology["links"][
        "matrix"
    ]
