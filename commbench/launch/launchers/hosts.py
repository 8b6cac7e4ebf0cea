"""The hosts of a hostfile, PBS or Slurm with their slots, and the network interface that a person
names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psutil

from commbench.errors import InputError
from commbench.launch.identity import tasks_per_node
from commbench.system.host import usable_cpus

#: The variable that names the hostfile if none is given, as PBS_NODEFILE does in a PBS job.
HOSTFILE = "COMMBENCH_HOSTFILE"
#: The variable with the conditions of an emulated cluster as JSON (see `commbench.launch.lab`).
EMULATED = "COMMBENCH_EMULATED"


def named_hostfile(environ: Mapping[str, str]) -> Path | None:
    """Return the hostfile that COMMBENCH_HOSTFILE names, else a PBS job's node file."""
    name = environ.get(HOSTFILE) or environ.get("PBS_NODEFILE")
    return Path(name) if name else None


def node_slots(hostfile: Path | None, environ: Mapping[str, str]) -> list[int]:
    """Return the slots of each host of the hostfile, else of Slurm's allocation, else of this host.

    Raises:
        InputError: the hostfile cannot be used.
    """
    if hostfile is not None:
        return list(
            read_hostfile(hostfile, each_line_a_slot=is_pbs_file(hostfile, environ)).values()
        )
    return tasks_per_node(environ.get("SLURM_TASKS_PER_NODE", "")) or [local_cpus()]


def is_pbs_file(hostfile: Path, environ: Mapping[str, str]) -> bool:
    """Return whether it is a PBS job's node file, in which a host that is listed once has one slot
    (``mpiprocs=1``).
    """
    return str(hostfile) == environ.get("PBS_NODEFILE")


def read_hostfile(hostfile: Path, *, each_line_a_slot: bool = False) -> dict[str, int]:
    """Return the slots by host of a hostfile in Open MPI's form (``host slots=4``) or MPICH's and
    Intel's (``host:4``).

    A host that is listed k times without a number has k slots. A host that is listed once without a
    number has as many slots as this host has CPUs.

    Args:
        hostfile: the file.
        each_line_a_slot: a host that is listed once has one slot.

    Raises:
        InputError: the file cannot be read or names no host.
    """
    try:
        lines = hostfile.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"The hostfile {hostfile} cannot be read ({error.strerror}).") from error
    entries = [line for line in (line.partition("#")[0].strip() for line in lines) if line]
    if not entries:
        raise InputError(
            f"The hostfile {hostfile} names no host; write one a line, e.g. `node1 slots=4`."
        )
    slots: Counter[str] = Counter()
    lines_without_number: Counter[str] = Counter()
    for entry in entries:
        name = re.split(r"[\s:]", entry)[0]
        count = re.search(r"(?:\bslots\s*=\s*|^[^\s:]+:)(\d+)", entry)
        slots[name] += int(count[1]) if count else 0
        lines_without_number[name] += 0 if count else 1
    slots_if_listed_once = 1 if each_line_a_slot else local_cpus()
    return {
        name: slots[name] + (slots_if_listed_once if times == 1 else times)
        for name, times in lines_without_number.items()
    }


def local_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(usable_cpus())


def local_cores() -> int:
    """Return the number of physical cores among the CPUs that this process may use.

    Of CPUs if that is unknown.
    """
    system = Path("/sys/devices/system/cpu")
    siblings = [system / f"cpu{cpu}/topology/thread_siblings_list" for cpu in usable_cpus()]
    try:
        return len({file.read_text() for file in siblings})
    except OSError:
        return local_cpus()


def interface_variables(interface: str | None) -> dict[str, str]:
    """Return the variables that make MPI, UCX, libfabric, Gloo and NCCL use ``interface``.

    None for None.

    UCX then uses no RDMA device either, as the named interface is to be measured.
    """
    if interface is None:
        return {}
    return {
        "OMPI_MCA_btl_tcp_if_include": interface,
        "OMPI_MCA_oob_tcp_if_include": interface,  # Open MPI 4: how its daemons find each other
        "PRTE_MCA_prte_if_include": interface,  # Open MPI 5
        "UCX_NET_DEVICES": interface,
        "FI_TCP_IFACE": interface,
        "FI_SOCKETS_IFACE": interface,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": (
            f"={interface}"
        ),  # without the sign: every interface whose name begins with it
    }


def check_interface(interface: str) -> None:
    """Refuse an interface that this host lacks.

    Raises:
        InputError: this host lacks it; the sentence lists the interfaces of this host.
    """
    available = sorted(psutil.net_if_addrs())
    if interface not in available:
        raise InputError(
            f"--interface {interface} was asked for and this host has {', '.join(available)}; name"
            " one of these."
        )
