"""The host: its CPUs, memory, kernel, network interfaces and GPUs, read without any heavy
import.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TypedDict

import psutil

from commbench.system.clock import boot_id, time_namespace, timer_cost_s, timer_tick_s
from commbench.system.files import parse_fields, read_text, system_path
from commbench.system.gpus import Gpu, list_gpus
from commbench.system.topology import RdmaPort, Topology, count_processors, numa_folders, rdma_ports


class Interface(TypedDict):
    """A network interface that is up."""

    name: str
    """Name of the interface."""
    speed_Mbps: float | None
    """Rate of the link; None: unknown."""
    mtu: int | None
    """Largest frame in bytes."""


class Host(TypedDict, total=False):
    """The conditions of a host that affect timing; a missing fact is unknown.

    ``cpu_quota`` is in CPUs (None: no limit). ``cpu_steal_ratio`` is the share of CPU time since
    boot that other guests took (0 to 1). ``load_average`` holds the averages over 1, 5 and 15
    minutes.
    """

    hostname: str
    """Name of the host."""
    machine: str | None
    """Processor architecture."""
    kernel: str
    """Release of the kernel."""
    os: str
    """Name and version of the distribution."""
    boot_id: str | None
    """The kernel's identifier of this boot."""
    time_namespace: str | None
    """The kernel's identifier of the time namespace."""
    clock_source: str | None
    """The kernel's clock source."""
    timer_tick_s: float | None
    """Smallest step of the clock."""
    timer_cost_s: float | None
    """Duration of a reading of the clock."""
    virtualised: bool | None
    """Whether a hypervisor is present."""
    container: bool
    """Whether the process is in a container."""
    superuser: bool | None
    """Whether the process runs as root."""
    cpu_model: str | None
    """Model of the processor."""
    sockets: int | None
    """Number of sockets."""
    physical_cores: int | None
    """Number of cores."""
    logical_cpus: int | None
    """Number of CPUs that Linux lists."""
    cpus_allowed: int | None
    """Number of CPUs that the process may use."""
    cpu_quota: float | None
    """Limit of the control group in CPUs; None: no limit."""
    numa_nodes: int | None
    """Number of NUMA nodes."""
    governor: str | None
    """Frequency governor."""
    turbo: bool | None
    """Whether turbo frequencies are on."""
    cpu_steal_ratio: float | None
    """Share of CPU time since boot that other guests took, 0 to 1."""
    load_average: Sequence[float] | None
    """Load averages over 1, 5 and 15 minutes."""
    memory_total_bytes: int | None
    """Memory of the host."""
    memory_available_bytes: int | None
    """Memory that is available."""
    tcp_congestion_control: str | None
    """TCP's congestion control."""
    interfaces: Sequence[Interface]
    """Network interfaces."""
    rdma: Sequence[RdmaPort]
    """Ports of RDMA devices."""
    gpus: Sequence[Gpu]
    """GPUs."""
    topology: Topology | None
    """NUMA nodes, devices and their links."""


def memory_bytes() -> tuple[int | None, int | None]:
    """Return the total and the available memory of this host in bytes.

    None if unknown: a service may see no file of /proc but processes'.
    """
    try:
        memory = psutil.virtual_memory()
    except OSError:
        return None, None
    return memory.total, memory.available


def collect_host() -> Host:
    """Collect the conditions of this host, except its ``topology``; unknown values are None."""
    sockets, cores, _ = count_processors()
    total, available = memory_bytes()
    loads = (read_text("proc/loadavg") or "").split()[:3]
    release = parse_fields(read_text("etc/os-release"), "=")
    # a container engine's, also in a virtual machine made from a container image
    markers = (".dockerenv", "run/.containerenv", ".singularity.d")
    has_marker = any(system_path(name).exists() for name in markers)
    clock_source = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    return {
        "hostname": socket.gethostname(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "os": release.get("PRETTY_NAME") or platform.system(),
        "boot_id": boot_id(),
        "time_namespace": time_namespace(),
        "clock_source": read_text(clock_source),
        "timer_tick_s": timer_tick_s(),
        "timer_cost_s": timer_cost_s(),
        "virtualised": is_virtualised(),
        "container": has_marker or "KUBERNETES_SERVICE_HOST" in os.environ,
        "superuser": is_superuser(),
        "cpu_model": cpu_model(),
        "sockets": sockets or None,
        "physical_cores": cores or None,
        "logical_cpus": os.cpu_count(),
        "cpus_allowed": len(usable_cpus()),
        "cpu_quota": cpu_quota(),
        "numa_nodes": len(numa_folders()) or None,
        "governor": _governor(),
        "turbo": _turbo(),
        "cpu_steal_ratio": _steal_ratio(),
        "load_average": list(map(float, loads)) or None,
        "memory_total_bytes": total,
        "memory_available_bytes": available,
        "tcp_congestion_control": read_text("proc/sys/net/ipv4/tcp_congestion_control"),
        "interfaces": _interfaces(),
        "rdma": rdma_ports(),
        "gpus": list_gpus(),
    }


def is_superuser() -> bool:
    """Return whether this process runs as root."""
    return os.geteuid() == 0


def is_virtualised() -> bool | None:
    """Return whether this kernel runs under a hypervisor, by the x86 CPU flag; None on others."""
    flags = parse_fields(read_text("proc/cpuinfo"), ":").get("flags")
    if flags is None:
        return None
    return "hypervisor" in flags.split()


def usable_cpus() -> list[int]:
    """Return the CPUs that this process may use, by its affinity mask."""
    return sorted(os.sched_getaffinity(0))


def cpu_model() -> str | None:
    """Return the name of the CPU: x86 'model name', POWER 'cpu', else Arm's implementer and part
    numbers.
    """
    info = parse_fields(read_text("proc/cpuinfo"), ":")
    if "CPU part" in info and "model name" not in info:
        return f"implementer {info.get('CPU implementer')} part {info['CPU part']}"
    return info.get("model name") or info.get("cpu") or platform.processor() or None


def cpu_quota() -> float | None:
    """Return the CPU time that control groups (version 1 or 2) allow, in CPUs.

    None without a limit.

    The limits of parent groups apply too: the lowest limit counts.
    """
    return min(filter(None, map(_quota, _control_groups())), default=None)


def _control_groups() -> Iterator[Path]:
    """Yield this process's CPU control groups and their parents."""
    for line in (read_text("proc/self/cgroup") or "").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        group_path = PurePosixPath(path.lstrip("/"))
        for mount in (controllers, "cpu") if controllers else ("", "unified"):
            for group in (group_path, *group_path.parents):
                yield system_path("sys/fs/cgroup", mount, group)


def _quota(group: Path) -> float | None:
    quota, _, period = (read_text(group, "cpu.max") or "").partition(" ")  # version 2
    if not quota:
        quota = read_text(group, "cpu.cfs_quota_us") or "max"
        period = read_text(group, "cpu.cfs_period_us") or ""
    if quota == "max" or not period or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def _governor() -> str | None:
    """Return the frequency governor; if CPUs differ, all of them, sorted and joined by commas."""
    policies = system_path("sys/devices/system/cpu/cpufreq").glob("policy[0-9]*")
    governors = {read_text(policy, "scaling_governor") for policy in policies}
    return ",".join(sorted(filter(None, governors))) or None


def _turbo() -> bool | None:
    for name, on in (("intel_pstate/no_turbo", "0"), ("cpufreq/boost", "1")):
        text = read_text(f"sys/devices/system/cpu/{name}")
        if text is not None:
            return text == on
    return None


def _steal_ratio() -> float | None:
    """Return the share of CPU time since boot that other guests took; None if unknown."""
    try:
        times = psutil.cpu_times()
    except OSError:
        return None
    total: float = sum(times[:8])  # user time already includes guest time, from the 9th on
    if not hasattr(times, "steal") or not total:  # sandboxes such as gVisor report only zeros
        return None
    return float(times.steal) / total


def _interfaces() -> list[Interface]:
    """Return the network interfaces that are up, without addresses."""
    try:
        states = psutil.net_if_stats()
    except OSError:
        return []
    return [
        {"name": name, "speed_Mbps": state.speed or None, "mtu": state.mtu}
        for name, state in sorted(states.items())
        if state.isup
    ]
