"""The conditions that the ranks of a launch report, and whether all hosts run the same software."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

import commbench
from commbench.backends.nccl_library import LOG
from commbench.collectives.backends import MPI_BACKENDS, NCCL_BACKENDS
from commbench.engine.control import Assembly, gather_everywhere
from commbench.errors import InputError
from commbench.findings import Finding
from commbench.launch.events import SessionStarted
from commbench.launch.launchers.hosts import EMULATED
from commbench.results.info import RunInfo, VariableValues
from commbench.system.clock import clock_domain
from commbench.system.environment import Environment, unlike
from commbench.system.host import Host, collect_host, usable_cpus
from commbench.system.software import UNTIMED_PACKAGES, collect_versions
from commbench.system.topology import Emulated, collect_topology, nodes_of
from commbench.system.variables import relevant_variables


class Carrier(Protocol):
    """A carrier of messages in a launch: an open backend, or a device that trains."""

    ranks_per_gpu: int | None
    """The most ranks of the launch on one GPU; None if no GPU is used."""

    def library(self) -> str:
        """Name and version of the library."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a rank: ``cpus`` are the CPUs that it may use, ``clock`` names the clock that it
    reads.
    """

    rank: int
    host: str
    pid: int
    cpus: Sequence[int]
    clock: str


def own_place(rank: int) -> Place:
    """Return the place of this rank."""
    return Place(
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        cpus=usable_cpus(),
        clock=clock_domain(),
    )


def emulated_conditions() -> Emulated | None:
    """Return the conditions of the emulated cluster that this host belongs to.

    None on a real one.
    """
    conditions: Emulated | None = json.loads(os.environ.get(EMULATED) or "null")
    return conditions


def are_oversubscribed(places: Sequence[Place]) -> bool:
    """Return whether some ranks share a CPU: on any machine, more ranks than CPUs that they may use
    together.
    """
    ranks: Counter[str] = Counter()
    cpus: dict[str, set[int]] = defaultdict(set)
    for place in places:
        machine = place.clock.partition("/")[0]  # also of containers with different host names
        ranks[machine] += 1
        cpus[machine].update(place.cpus)
    return any(number > len(cpus[machine]) for machine, number in ranks.items())


def collect_session(
    control: Assembly,
    places: Sequence[Place],
    communicators: Mapping[str, Carrier],
    variables: Mapping[str, str],
    varied: Collection[str] = (),
) -> SessionStarted | None:
    """Return the session of a launch on rank 0, None elsewhere; all ranks call it together.

    Args:
        control: the ranks.
        places: of every rank, by rank.
        communicators: the open backends, by name, and the backend that trains on GPUs.
        variables: environment variables of rank 0 that affect times, read before any library was
            loaded, without those in ``varied``.
        varied: names of the variables that the launch gives its ranks, see `commbench.system.env`.

    Returns:
        Entries of run.json, where ``nccl_settings`` are the variables that were set for NCCL on
        rank 0 beyond ``variables``; and the values of the variables in ``varied``.
    """
    init_s = getattr(control, "init_s", None)  # of MPI
    of_nccl = {}
    if any(name in NCCL_BACKENDS for name in communicators):
        of_nccl = LOG.settings()
    values = {name: (os.environ.get(name), of_nccl.get(name)) for name in varied}
    told = control.gather((own_host(control.rank, places), init_s, values))
    if told is None:
        return None
    facts = session_of([host for host, _, _ in told], places, communicators, variables, varied)
    inits_s = [seconds for _, seconds, _ in told if seconds is not None]
    facts["mpi_init_s"] = max(inits_s, default=None)
    merged = {}
    for name in varied:
        ranks = dict.fromkeys(values[name][0] for _, _, values in told)
        nccl = dict.fromkeys(values[name][1] for _, _, values in told)
        read = [value for value in nccl if value is not None]
        merged[name] = VariableValues(ranks=list(ranks), nccl=read)
    return SessionStarted(facts=facts, variables=merged)


def session_of(
    hosts: Sequence[Host | None],
    places: Sequence[Place],
    communicators: Mapping[str, Carrier],
    variables: Mapping[str, str],
    varied: Collection[str] = (),
) -> RunInfo:
    """Return the conditions of a launch from what its ranks have told rank 0.

    The arguments are as for `collect_session`; ``hosts`` are those of `own_host`, by rank.
    """
    libraries = {name: communicator.library() for name, communicator in communicators.items()}
    environment: Environment = {
        "hosts": [host for host in hosts if host is not None],
        "versions": collect_versions(),
        "variables": dict(variables),
    }
    for name in MPI_BACKENDS:
        if name in libraries:
            environment["mpi_library"] = libraries[name]
            break
    if "nccl" in libraries:
        environment["nccl_library"] = libraries["nccl"]
    emulated = emulated_conditions()
    if emulated:
        environment["emulated"] = emulated
    takes_gpu_memory, ranks_per_gpu = None, None
    for carrier in communicators.values():
        if takes_gpu_memory is None:  # only MPI states it
            takes_gpu_memory = getattr(carrier, "takes_gpu_memory", None)
        if carrier.ranks_per_gpu:
            ranks_per_gpu = max(carrier.ranks_per_gpu, ranks_per_gpu or 0)
    nccl_settings = {}
    for name, value in relevant_variables(os.environ).items():  # also what NCCL has set since
        is_new = name not in variables and name not in varied
        if is_new and name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG"):
            nccl_settings[name] = value
    return {
        "environment": environment,
        "ranks": [
            {"rank": place.rank, "host": place.host, "pid": place.pid, "cpus": list(place.cpus)}
            for place in places
        ],
        "libraries": libraries,
        "ranks_per_gpu": ranks_per_gpu,
        "nccl_settings": nccl_settings,
        "mpi_init_s": None,
        "mpi_takes_gpu_memory": takes_gpu_memory,
        "shared_clock": len({place.clock for place in places}) == 1,
        "oversubscribed": are_oversubscribed(places),
    }


def own_host(rank: int, places: Sequence[Place]) -> Host | None:
    """Return this rank's host if it is the lowest rank there.

    ``cpus_allowed`` counts the CPUs of all ranks on it.

    Its ``topology`` (`commbench.system.topology`) also has ``ranks``: the ``numa_nodes`` of each
    ``rank``.
    """
    host_places = [place for place in places if place.host == places[rank].host]
    if host_places[0].rank != rank:
        return None
    topology = collect_topology(emulated=emulated_conditions())
    topology["ranks"] = [
        {"rank": place.rank, "numa_nodes": nodes_of(place.cpus, topology["numa"])}
        for place in host_places
    ]
    allowed = len({cpu for place in host_places for cpu in place.cpus})
    return {**collect_host(), "cpus_allowed": allowed, "topology": topology}


def header_fields(session: RunInfo, info: RunInfo) -> RunInfo:
    """Return the entries of run.json that a session changes; ``info`` are its present entries.

    The environment of the first launch stays; libraries that only a later launch used are added.
    ``clock`` is the worst agreement over all launches, ``energy`` comes from the launch with the
    fewest counted devices.
    """
    hosts = [rank["host"] for rank in session["ranks"]]
    ticks_s = [host.get("timer_tick_s") or 0.0 for host in session["environment"]["hosts"]]
    fields: RunInfo = {
        **session,
        "environment": {**session["environment"], **info.get("environment", {})},
        "libraries": {**session["libraries"], **info.get("libraries", {})},
        "world_size": len(hosts),
        "nodes": len(set(hosts)),
        "ranks_per_node": max(map(hosts.count, hosts)),
        "ranks_per_gpu": session.get("ranks_per_gpu") or info.get("ranks_per_gpu"),
        "nccl_settings": {**info.get("nccl_settings", {}), **session.get("nccl_settings", {})},
        "tick_us": max(ticks_s) * 1e6 or None,
    }
    if "clock" in fields and "clock" in info:
        fields["clock"] = max(info["clock"], fields["clock"], key=itemgetter("error_us"))
    if "energy" in fields and "energy" in info:
        both = (info["energy"], fields["energy"])
        fields["energy"] = min(both, key=lambda energy: len(energy["counted"]))
    return fields


def remark(session: RunInfo) -> str:
    """Return a sentence about a condition that the user may not expect; empty without one."""
    if session.get("fast_selection") != "torch.topk":
        return ""
    package, wheel = "numba", "numba"
    if session.get("ranks_per_gpu"):
        package, wheel = "cupy", "'cupy-cuda13x[ctk]' (or cuda12x)"
    return (
        f"Hook topk selects by torch.topk, for selection=fast is compiled by {package}, which is"
        f" not installed: pip install {wheel}."
    )


def changed_conditions(session: RunInfo, info: RunInfo) -> list[str]:
    """Return how the conditions of a session differ from those in run.json.

    Empty if run.json has none.
    """
    if not info.get("environment"):
        return []
    return unlike(info["environment"], session["environment"])


def refuse_other_conditions(session: RunInfo, info: RunInfo) -> None:
    """Refuse to add measurements to a run that was begun under other conditions.

    Raises:
        InputError: the conditions differ; the sentence names the differences.
    """
    changes = changed_conditions(session, info)
    if changes:
        raise InputError(
            f"This run was begun under other conditions ({'; '.join(changes[:3])}), and unlike"
            " conditions do not mix; choose another --out."
        )


#: More hosts than this are counted rather than listed with a version.
_LISTED = 3


#: The host of a rank and its versions by name: of all packages on the lowest rank of each host,
#: elsewhere of loaded software.
Software = tuple[str, Mapping[str, str]]


def refuse_unlike_software(control: Assembly) -> str:
    """Return why the ranks' software does not match, the same on every rank; empty if it does.

    Collective.
    """
    hosts = gather_everywhere(control, socket.gethostname())
    versions = {"commbench": commbench.__version__, "python": platform.python_version()}
    library = getattr(control, "library", None)
    if library:
        versions["MPI library"] = library()
    if hosts.index(hosts[control.rank]) == control.rank:
        versions = {**collect_versions(), **versions}
    return describe_differences(gather_everywhere(control, (hosts[control.rank], versions)))


def describe_differences(ranks: Sequence[Software]) -> str:
    """Return a sentence and a line for each name, with the hosts of each version.

    Empty if all ranks run the same.
    """
    names: set[str] = set()
    by_host: dict[str, Mapping[str, str]] = {}
    for host, versions in ranks:
        names.update(versions)
        by_host.setdefault(host, versions)  # the lowest rank's
    lines = []
    for name in sorted(names - UNTIMED_PACKAGES):
        hosts: dict[str, dict[str, None]] = {}
        for host, versions in ranks:
            version = versions.get(name, by_host[host].get(name, "none"))
            hosts.setdefault(version, {})[host] = None
        if len(hosts) == 1:
            continue
        line = f"  {name}"
        for version, where in hosts.items():
            listed = list(where)
            if len(listed) > _LISTED:
                listed[_LISTED:] = [f"and {len(listed) - _LISTED} more"]
            line += f"  {version} ({', '.join(listed)})"
        lines.append(line)
    if not lines:
        return ""
    return str(Finding("software_unlike", numbers={"table": "\n".join(lines)}))
