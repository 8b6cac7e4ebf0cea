"""The identity of this process: conductor, or a rank of mpirun, torchrun or srun, and where srun's
tasks rendezvous.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from commbench.errors import InputError, check_choice

Role = Literal["conductor", "rank"]

#: Variables of rank, world size, local rank and local size by launcher, the first before the rest.
_VARIABLES = {
    "torchrun": "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE",
    "openmpi": (
        "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK"
        " OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    "mpich": "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS",
}
#: Launchers whose ranks MPI does not see.
_WITHOUT_MPI = ("torchrun",)
#: Set in every rank of torchrun; others set RANK as well.
_TORCHRUN = "TORCHELASTIC_RUN_ID"
#: Slurm numbers the steps that hold a shell rather than tasks (interactive, batch, extern) from
#: here on.
_SLURM_SPECIAL_STEPS = 0xFFFFFFF0


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The role of this process and, for a rank, its place in the launch."""

    role: Role
    launcher: str = ""
    """``openmpi``, ``mpich`` (any launcher that speaks PMI), ``torchrun`` or ``slurm``; empty
    for a conductor."""
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    carries_mpi: bool = True
    """Whether MPI sees the ranks: not those of torchrun, nor those of an srun that speaks
    neither PMI nor PMIx."""


def identify(environ: Mapping[str, str], requested_role: str | None = None) -> Identity:
    """Return the identity of this process by its environment; ``requested_role`` overrides it.

    Variables of a launcher precede Slurm's: mpirun inside ``salloc`` leaves SLURM_PROCID=0 in every
    rank. Variables of
    torchrun precede all others: if mpirun or srun starts a torchrun on each host, its ranks inherit
    the variables of that one process. A requested rank without a launcher is the only rank of its
    launch.

    Raises:
        InputError: an unknown role, or a rank variable that is not a number.
    """
    if requested_role is not None:
        check_choice("role", requested_role, get_args(Role))
    if requested_role == "conductor":
        return Identity(role="conductor")
    for launcher, names in _VARIABLES.items():
        rank, size, local_rank, local_size = names.split()
        if rank not in environ or (launcher == "torchrun" and _TORCHRUN not in environ):
            continue
        identity = Identity(
            role="rank",
            launcher=launcher,
            rank=_number(environ, rank, 0),
            world_size=_number(environ, size, 1),
            local_rank=_number(environ, local_rank, 0),
            local_size=_number(environ, local_size, 1),
            carries_mpi=launcher not in _WITHOUT_MPI,
        )
        task = _slurm(environ)
        if task and local_size not in environ:  # Slurm's PMI does not tell who shares a host
            return replace(identity, local_rank=task.local_rank, local_size=task.local_size)
        return identity
    role: Role = "conductor"
    if requested_role is not None:
        role = "rank"
    return _slurm(environ) or Identity(role=role)


def without_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that do not name this process's rank, for a conductor inside a rank.

    The ranks that it starts by another launcher would take them for their own.
    """
    names = {_TORCHRUN}.union(*(text.split() for text in _VARIABLES.values()))
    return {name: value for name, value in environ.items() if name not in names}


def _slurm(environ: Mapping[str, str]) -> Identity | None:
    """Return the identity of a task of srun; None for a batch script or an interactive shell.

    Both have SLURM_PROCID too. A batch script has no step of its own, and the one task of ``srun
    --pty`` is a shell.
    """
    if "SLURM_PROCID" not in environ or "SLURM_STEP_ID" not in environ:
        return None
    if "SLURM_PTY_PORT" in environ and _number(environ, "SLURM_STEP_NUM_TASKS", 0) == 1:
        return None
    if _number(environ, "SLURM_STEP_ID", 0) >= _SLURM_SPECIAL_STEPS:
        return None
    per_node = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(environ, "SLURM_NODEID", 0)
    pmi = {"PMIX_NAMESPACE", "PMI_RANK", "I_MPI_PMI_LIBRARY"}
    return Identity(
        role="rank",
        launcher="slurm",
        rank=_number(environ, "SLURM_PROCID", 0),
        world_size=_number(environ, "SLURM_STEP_NUM_TASKS", 1),
        local_rank=_number(environ, "SLURM_LOCALID", 0),
        local_size=per_node[node] if node < len(per_node) else 1,
        carries_mpi=not pmi.isdisjoint(environ),
    )


def tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's ``2(x3),1`` to [2, 2, 2, 1]; empty for an empty text.

    Raises:
        InputError: another form.
    """
    tasks = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise InputError(
                f"Slurm's tasks per node are {text!r}, which is not understood; name the hosts by"
                " --hostfile."
            )
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def expand_nodes(text: str) -> list[str]:
    """Expand Slurm's ``rack1-n[07-08,20],login`` to rack1-n07, rack1-n08, rack1-n20, login.

    Raises:
        InputError: a range is not one of numbers.
    """
    names = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        expanded = [""]
        for index, piece in enumerate(re.split(r"\[([^\]]*)\]", part)):
            endings = [piece]
            if index % 2:  # what was in brackets
                endings = _expand_ranges(piece)
            expanded = [head + ending for head in expanded for ending in endings]
        names += expanded
    return names


def _expand_ranges(text: str) -> list[str]:
    numbers = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise InputError(
                f"Slurm's list of nodes has {text!r}, which is not understood; name the hosts by"
                " --hostfile."
            )
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            numbers.append(str(number).zfill(len(match[1])))
    return numbers


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    if not text.isdecimal():
        raise InputError(
            f"{name} is {text!r}, which is not a number; start the ranks again or give --role"
            " conductor."
        )
    return int(text)


#: Ports for the rendezvous lie below the ephemeral ports, which systems assign to clients.
_FIRST_PORT, _PORTS = 20000, 10000
_QUERY_S = 20


def rendezvous_variables(identity: Identity, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which torch.distributed finds rank 0, for a task of srun.

    Set variables are kept.

    Rank 0 runs on the first node of the step. The port follows from the step's number, as no task
    can tell the others which port is free. Slurm's reserved ports and MASTER_PORT take precedence.

    Raises:
        InputError: the first node has no address that this host knows.
    """
    address = environ.get("MASTER_ADDR", "")
    if not address:
        nodes = expand_nodes(environ.get("SLURM_STEP_NODELIST", ""))
        address = _address(nodes[0] if nodes else socket.gethostname())
    step = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    port = str(_FIRST_PORT + zlib.crc32(step.encode()) % _PORTS)
    reserved = re.match(r"\d+", environ.get("SLURM_STEP_RESV_PORTS", ""))
    if reserved:
        port = reserved[0]
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": environ.get("MASTER_PORT") or port,
        "RANK": str(identity.rank),
        "WORLD_SIZE": str(identity.world_size),
        "LOCAL_RANK": str(identity.local_rank),
        "LOCAL_WORLD_SIZE": str(identity.local_size),
    }


def _address(node: str) -> str:
    """Return the node's name if it resolves, else the address that Slurm uses for it."""
    with contextlib.suppress(OSError):
        socket.getaddrinfo(node, None)
        return node
    match = re.search(r"NodeAddr=(\S+)", output_of(["scontrol", "show", "node", node]))
    if not match:
        raise InputError(
            f"Node {node}, where the ranks are to meet, has no address; set MASTER_ADDR to one."
        )
    return match[1]


def output_of(command: Sequence[str]) -> str:
    """Return the stdout of a program; empty if it does not start or answer."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_QUERY_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
