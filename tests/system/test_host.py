"""Tests of commbench.system.host, on simulated /proc and /sys trees."""

import json
import sys
from types import SimpleNamespace
from typing import NoReturn

import psutil
import pytest
from trees import plant

from commbench.system.host import collect_host, cpu_model, cpu_quota, is_virtualised

X86 = (
    "processor\t: 0\nmodel name\t: Xeon 8480\nflags\t\t: fpu tsc{}\n\nprocessor\t: 1\nmodel name\t:"
    " other\n"
)


def _topology(cpu: int, package: int, core: int) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
    return {f"{folder}/physical_package_id": f"{package}\n", f"{folder}/core_id": f"{core}\n"}


def test_collect_host_reads_the_tree(root):
    """Read each condition from its Linux file."""
    plant(
        root,
        {
            "etc/os-release": 'NAME="Some"\nPRETTY_NAME="Some Linux 9"\n',
            "proc/cpuinfo": X86.format(" hypervisor"),
            "proc/loadavg": "1.50 0.70 0.10 2/90 1234\n",
            "proc/sys/kernel/random/boot_id": "b00t\n",
            "proc/sys/net/ipv4/tcp_congestion_control": "cubic\n",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
            "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "powersave\n",
            "sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "performance\n",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
            "sys/devices/system/node/node0/cpulist": "0-1\n",
            "sys/devices/system/node/node1/cpulist": "2-3\n",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
            "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            ".dockerenv": "",
            **_topology(0, 0, 0),
            **_topology(1, 0, 0),
            **_topology(2, 1, 0),
            **_topology(3, 1, 1),
        },
    )
    port = {
        "device": "mlx5_0",
        "port": "1",
        "state": "4: ACTIVE",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": None,
    }
    expected = {
        "os": "Some Linux 9",
        "boot_id": "b00t",
        "clock_source": "hpet",
        "virtualised": True,
        "container": True,
        "cpu_model": "Xeon 8480",
        "sockets": 2,
        "physical_cores": 3,
        "cpu_quota": None,
        "numa_nodes": 2,
        "governor": "performance,powersave",
        "turbo": False,
        "load_average": [1.5, 0.7, 0.1],
        "tcp_congestion_control": "cubic",
        "rdma": [port],
    }
    host = collect_host()
    assert expected == {name: host[name] for name in expected}


@pytest.mark.usefixtures("root")
def test_collect_host_survives_an_empty_tree(monkeypatch):
    """Return None or empty values without /proc, /sys and a GPU library."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    host = collect_host()
    names = "boot_id clock_source sockets physical_cores governor turbo load_average"
    assert {None} == {host[name] for name in names.split()}
    assert [] == host["gpus"]
    assert [] == host["rdma"]
    assert host["cpus_allowed"] >= 1


def test_a_host_compares_equal_to_a_stored_one():
    """Return values that JSON preserves."""
    this = collect_host()
    assert this == json.loads(json.dumps(this))
    assert 0 < this["memory_available_bytes"] <= this["memory_total_bytes"]
    assert 0 <= this["cpu_steal_ratio"] < 1


def test_a_host_that_counts_no_time_has_no_share_of_steal(stub):
    """Return None where the kernel reports zeros for all times, as gVisor does."""
    zeros = type(psutil.cpu_times())(*[0.0] * len(psutil.cpu_times()))
    stub("psutil.cpu_times", zeros)
    assert collect_host()["cpu_steal_ratio"] is None


def test_what_a_service_may_not_read_is_unknown(monkeypatch):
    """State no memory and no steal where systemd hides these files of /proc."""

    def hidden() -> NoReturn:
        raise FileNotFoundError

    for name in ("virtual_memory", "cpu_times"):
        monkeypatch.setattr(psutil, name, hidden)
    names = ("memory_total_bytes", "memory_available_bytes", "cpu_steal_ratio")
    host = dict(collect_host())
    assert [None] * 3 == [host[name] for name in names]


def test_interfaces_that_are_up_are_listed(stub):
    """List interfaces that are up; treat a speed of 0 as unknown."""
    states = {
        "eth1": SimpleNamespace(isup=True, speed=10000, mtu=9000),
        "eth0": SimpleNamespace(isup=True, speed=0, mtu=1500),
        "down0": SimpleNamespace(isup=False, speed=1000, mtu=1500),
    }
    stub("psutil.net_if_stats", states)
    expected = [
        {"name": "eth0", "speed_Mbps": None, "mtu": 1500},
        {"name": "eth1", "speed_Mbps": 10000, "mtu": 9000},
    ]
    assert expected == collect_host()["interfaces"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/cpuinfo": X86.format("")}, False),
        ({"proc/cpuinfo": X86.format(" hypervisor")}, True),
        ({}, None),
    ],
)
def test_is_virtualised(root, files, *, expected):
    """Detect virtual machines by the x86 CPU flag."""
    plant(root, files)
    assert expected == is_virtualised()


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (X86.format(""), "Xeon 8480"),
        (
            "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd40\n",
            "implementer 0x41 part 0xd40",
        ),
        ("processor : 0\ncpu : POWER9\n", "POWER9"),
    ],
)
def test_cpu_model(root, cpuinfo, expected):
    """Return the CPU model on x86, Arm and POWER."""
    plant(root, {"proc/cpuinfo": cpuinfo})
    assert expected == cpu_model()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/outer/inner\n",
                "sys/fs/cgroup/outer/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/outer/inner/cpu.max": "400000 100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/job\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_cpu_quota(root, files, expected):
    """Return the tightest limit of the own control group and its parents, in versions 1 and 2."""
    plant(root, files)
    assert expected == cpu_quota()


GPU = {"name": "NVIDIA H200", "uuid": "GPU-1", "memory_total_bytes": None}


@pytest.mark.usefixtures("root")
def test_gpus_come_from_nvml(monkeypatch):
    """List GPUs by NVML, decode bytes, and keep a GPU with a missing field."""
    nvml = SimpleNamespace(  # without nvmlDeviceGetMemoryInfo
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _handle: b"NVIDIA H200",
        nvmlDeviceGetUUID=lambda _handle: "GPU-1",
        nvmlSystemGetDriverVersion=lambda: "580.1",
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert [{**GPU, "driver_version": "580.1"}] == collect_host()["gpus"]


def test_gpus_come_from_the_driver_without_nvml(monkeypatch, root):
    """List GPUs from the driver if nvidia-ml-py is not installed."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    driver = "proc/driver/nvidia"
    files = {
        f"{driver}/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65",
        f"{driver}/gpus/0000:01:00.0/information": "Model: \t NVIDIA H200\nGPU UUID: \t GPU-1",
    }
    plant(root, files)
    assert [{**GPU, "driver_version": "580.65"}] == collect_host()["gpus"]
