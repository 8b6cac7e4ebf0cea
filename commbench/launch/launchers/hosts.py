"""The hosts of a hostfile or a scheduler with their slots, and the network interface that a person
names.
"""

from __future__ import annotations

import ipaddress
import math
import re
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from commbench.errors import InputError
from commbench.launch.identity import expand_nodes, tasks_per_node
from commbench.system.files import decode
from commbench.system.host import usable_cpus

#: The variable that names the hostfile if none is given, as PBS_NODEFILE does in a PBS job.
HOSTFILE = "COMMBENCH_HOSTFILE"
#: Further variables that name a hostfile: of Grid Engine, and of PBS and LSF, whose files have a
#: line for each slot.
_BY_SLOT = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE")
_NAMING = (HOSTFILE, "PE_HOSTFILE", *_BY_SLOT)
#: From here on a number behind a colon is rather a port than a number of slots.
_FIRST_PORT = 1024
#: The variable with the conditions of an emulated cluster as JSON (see `commbench.launch.lab`).
EMULATED = "COMMBENCH_EMULATED"


def named_hostfile(environ: Mapping[str, str]) -> Path | None:
    """Return the hostfile that COMMBENCH_HOSTFILE names, else the file of a job of Grid Engine, PBS
    or LSF.
    """
    for variable in _NAMING:
        if environ.get(variable):
            return Path(environ[variable])
    return None


def find_hosts(hostfile: Path | None, environ: Mapping[str, str]) -> dict[str, int]:
    """Return the slots by host of the hostfile, else of Slurm's job or step, else of this host.

    Raises:
        InputError: the hostfile or Slurm's variables are not understood, or the job is
            heterogeneous.
    """
    if hostfile is not None:
        return read_hostfile(hostfile, environ).slots
    tasks = tasks_per_node(environ.get("SLURM_TASKS_PER_NODE", ""))
    if not tasks and "SLURM_HET_SIZE" in environ:
        raise InputError(
            "This Slurm job is heterogeneous, so that only srun reaches its hosts; start the ranks"
            " by srun --het-group, or name the hosts by --hostfile."
        )
    if not tasks:
        return {socket.gethostname(): local_cpus()}
    lists = [environ.get(f"SLURM_{part}_NODELIST", "") for part in ("JOB", "STEP")]
    for nodes in lists:  # in a step the tasks are the step's
        names = expand_nodes(nodes)
        if len(names) == len(tasks):
            return dict(zip(names, tasks, strict=True))
    raise InputError(
        f"Slurm's tasks per node, {tasks}, do not match its nodes,"
        f" {' or '.join(filter(None, lists))!r}; name the hosts by --hostfile."
    )


#: Options of a host that state its slots, and the most slots.
_SLOTS = ("slots", "cpu", "count")
_MOST = ("max_slots", "slots_max", "max_cpu", "cpu_max", "max_count", "count_max")
#: Other options, of Open MPI and, at the end, of Hydra.
_OTHERS = (
    *("username", "user_name", "port", "boards", "sockets", "sockets_per_board", "cores"),
    *("user", "binding"),
)
_NAME = re.compile(r"(\w[\w.-]*@)?\w[\w.-]*")


@dataclass
class Hostfile:
    """The content of a hostfile."""

    slots: Counter[str]
    """Slots by host."""
    is_plain: bool
    """Whether it has names and slots only, which a command line can state: no IPv6 address, user,
    port or binding."""


def _read_line(words: list[str]) -> tuple[str, int | None, bool]:
    """Return the host of a line, its slots if the line states them, and whether it has nothing
    else.

    Raises:
        ValueError: the line is not understood.
    """
    name, colon, number = words[0].partition(":")
    options = words[1:]
    stated = {}
    is_plain = "@" not in name
    if ":" in number:
        name, is_plain = str(ipaddress.IPv6Address(words[0])), False
    elif not _NAME.fullmatch(name):
        raise ValueError(name)
    elif colon:
        stated["slots"] = _count(number, below=_FIRST_PORT)
    elif options and options[0].isdecimal():  # Grid Engine: slots, queue, processor range
        stated["slots"] = int(options[0])
        # a second number is of a second host: LSF names all in one line
        options = [option for option in options[1:] if option.isdecimal()]
    for option in options:
        key, _, value = option.replace("-", "_").partition("=")
        if key in _SLOTS and "slots" not in stated:  # a second number contradicts the first
            stated["slots"] = _count(value)
        elif key in _MOST:
            stated["most"] = _count(value)
        elif key in _OTHERS and value:
            is_plain = False
        else:
            raise ValueError(option)
    slots = stated.get("slots", stated.get("most"))
    if slots is not None and slots > stated.get("most", slots):
        raise ValueError(slots)
    return name, slots, is_plain


def _count(text: str, below: float = math.inf) -> int:
    if not text.isdecimal() or int(text) >= below:
        raise ValueError(text)
    return int(text)


def read_hostfile(path: Path, environ: Mapping[str, str] = MappingProxyType({})) -> Hostfile:
    """Read a hostfile in the form of Open MPI (``host slots=4``), of MPICH and Intel MPI
    (``host:4``), of Grid Engine (``host 4 queue range``), or with a line for each slot.

    A host that is listed once without a number has as many slots as this host has CPUs, in the file
    of a PBS or LSF job one (``mpiprocs=1``). Of a host that is listed again, each line counts.

    Args:
        path: the file.
        environ: its variables tell whether this is the file of a job.

    Raises:
        InputError: the file cannot be read, a line is not understood, or no line names a host.
    """
    naming = [name for name in _NAMING if environ.get(name) and Path(environ[name]) == path]
    subject = " of ".join([f"hostfile {path}", *naming[:1]])
    try:
        text = decode(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"The {subject} cannot be read ({error.strerror}); name another by --hostfile."
        ) from error
    lines: dict[str, list[int | None]] = {}
    content = Hostfile(Counter(), is_plain=True)
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"\s*=\s*", "=", re.split("#|//", line)[0]).split()
        if not words:
            continue
        try:
            name, slots, is_plain = _read_line(words)
        except ValueError:
            raise InputError(
                f"Line {number} of the {subject} is not understood: {line.strip()!r}; write one"
                " host a line, e.g. `node1 slots=4`."
            ) from None
        lines.setdefault(name, []).append(slots)
        content.is_plain = content.is_plain and is_plain
    for name, stated in lines.items():
        unstated = 1
        if len(stated) == 1 and not set(naming).intersection(_BY_SLOT):
            unstated = local_cpus()
        for each in stated:
            content.slots[name] += unstated if each is None else each
    if not content.slots.total():
        raise InputError(
            f"The {subject} names no host with a slot; write one a line, e.g. `node1 slots=4`."
        )
    return content


def name_slots(slots: Mapping[str, int]) -> str:
    """Return ``a:2,b:4``, as command lines of launchers name hosts."""
    return ",".join(f"{name}:{number}" for name, number in slots.items())


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

    Without an interface there are none.

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
