"""Where tasks of srun meet that MPI does not see: what torchrun would tell its ranks, from Slurm's variables."""

from __future__ import annotations

import re
import socket
import subprocess
import zlib
from collections.abc import Mapping

from commbench.errors import InputError
from commbench.launch.whoami import Identity

#: Ports for meetings lie below those that systems hand out to clients by themselves.
_FIRST_PORT, _PORTS = 20000, 10000
_QUERY_S = 20


def meeting_variables(identity: Identity, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which torch.distributed finds rank 0, for a task of srun; what is set already stays.

    Rank 0 runs on the first node of the step. The port follows from the step's number, as nobody can tell the other
    tasks which one is free; Slurm's reserved ports and MASTER_PORT come first.

    Raises:
        InputError: the first node has no address that this host knows.
    """
    address = environ.get("MASTER_ADDR") or _address(first_node(environ.get("SLURM_STEP_NODELIST", "")))
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": environ.get("MASTER_PORT") or str(_port(environ)),
        "RANK": str(identity.rank),
        "WORLD_SIZE": str(identity.world_size),
        "LOCAL_RANK": str(identity.local_rank),
        "LOCAL_WORLD_SIZE": str(identity.local_size),
    }


def first_node(nodelist: str) -> str:
    """The first name of a list in Slurm's form: ``rack1-n07`` of ``rack1-n[07-12,20],login``."""
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodelist)
    return "".join(part or "" for part in found.groups()) if found else socket.gethostname()


def _port(environ: Mapping[str, str]) -> int:
    reserved = re.match(r"\d+", environ.get("SLURM_STEP_RESV_PORTS", ""))
    if reserved:
        return int(reserved[0])
    step = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    return _FIRST_PORT + zlib.crc32(step.encode()) % _PORTS


def _address(node: str) -> str:
    """The node's name where it resolves, else the address that Slurm itself uses for it."""
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        return _slurm_address(node)
    return node


def _slurm_address(node: str) -> str:
    try:
        told = subprocess.run(
            ["scontrol", "show", "node", node], capture_output=True, text=True, timeout=_QUERY_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    found = re.search(r"NodeAddr=(\S+)", told)
    if not found:
        raise InputError(f"Node {node}, where the ranks are to meet, has no address; set MASTER_ADDR to one.")
    return found[1]
