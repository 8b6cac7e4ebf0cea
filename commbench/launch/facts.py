"""The conditions that the ranks of a launch report, and whether all hosts run the same software."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import commbench
from commbench.backends.nccl_library import LOG
from commbench.collectives.backends import MPI_BACKENDS, NCCL_BACKENDS
from commbench.engine.control import Assembly, gather_everywhere
from commbench.errors import InputError
from commbench.launch.events import Session
from commbench.launch.launchers import EMULATED
from commbench.results.info import RunInfo, VariableValues
from commbench.system.clock import clock_domain
from commbench.system.environment import Environment, unlike
from commbench.system.host import Host, collect_host, usable_cpus
from commbench.system.software import UNTIMED_PACKAGES, collect_versions
from commbench.system.topology import Emulated, collect_topology, nodes_of
from commbench.system.variables import relevant_variables

_MPI_VARIABLES = ("OMPI_", "PRTE_", "PMIX_", "PMI_", "MPICH_", "I_MPI_", "UCX_", "FI_")


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

    @property
    def machine(self) -> str:
        """The machine: its ranks share CPUs, also in containers with different host names."""
        return self.clock.partition("/")[0]


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


def share_clock(places: Sequence[Place]) -> bool:
    """Return whether all ranks read the same clock."""
    return len({place.clock for place in places}) == 1


def are_oversubscribed(places: Sequence[Place]) -> bool:
    """Return whether some ranks share a CPU: on any machine, more ranks than CPUs that they may use
    together.
    """
    machines: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        machines[place.machine].append(place)
    return any(
        len(group) > len({cpu for place in group for cpu in place.cpus})
        for group in machines.values()
    )


def gather_places(control: Assembly) -> list[Place]:
    """Return every rank's place, by rank, on every rank."""
    return gather_everywhere(control, own_place(control.rank))


def collect_session(
    control: Assembly,
    places: Sequence[Place],
    communicators: Mapping[str, Carrier],
    variables: Mapping[str, str],
    varied: Collection[str] = (),
) -> Session | None:
    """Return the session of a launch on rank 0, None elsewhere; all ranks call it together.

    Args:
        control: the ranks.
        places: of every rank, as `gather_places` gives them.
        communicators: the open backends, by name, and the backend that trains on GPUs.
        variables: environment variables of rank 0 that affect times, read before any library was
            loaded, without those in ``varied``.
        varied: names of the variables that the launch gives its ranks, see `commbench.system.env`.

    Returns:
        ``environment`` (see `commbench.system.environment.Environment`), ``ranks`` (rank, host,
        pid, cpus), ``libraries`` by backend, ``ranks_per_gpu`` (None without GPUs),
        ``nccl_settings`` (the variables that were set for NCCL on rank 0 beyond ``variables``),
        ``mpi_init_s`` and ``mpi_takes_gpu_memory`` (whether the library says so; None without MPI),
        ``shared_clock``, ``oversubscribed``, and ``launch_variables`` (by name, the values of those
        in ``varied``). ``environment`` also has ``emulated`` in an emulated cluster.
    """
    hosts = control.gather(own_host(control.rank, places))
    init_s = control.gather(getattr(getattr(control, "start", None), "init_s", None))
    values = control.gather(_own_variables(varied, communicators))
    if hosts is None or init_s is None or values is None:
        return None
    session = session_of(hosts, places, communicators, variables, varied)
    session["mpi_init_s"] = max(
        (seconds for seconds in init_s if seconds is not None), default=None
    )
    if varied:
        session["launch_variables"] = _merged(values)
    return session


def session_of(
    hosts: Sequence[Host | None],
    places: Sequence[Place],
    communicators: Mapping[str, Carrier],
    variables: Mapping[str, str],
    varied: Collection[str] = (),
) -> Session:
    """Return the session of a launch from what its ranks have told rank 0.

    The arguments are as for `collect_session`; ``hosts`` are those of `own_host`, by rank.
    """
    libraries = {name: communicator.library() for name, communicator in communicators.items()}
    mpi = next((libraries[name] for name in MPI_BACKENDS if name in libraries), "")
    return {
        "environment": {
            "hosts": [host for host in hosts if host is not None],
            "versions": collect_versions(),
            "variables": dict(variables),
            **({"mpi_library": mpi} if mpi else {}),
            **({"nccl_library": libraries["nccl"]} if "nccl" in libraries else {}),
            **({"emulated": emulated} if (emulated := emulated_conditions()) else {}),
        },
        "ranks": [
            {"rank": place.rank, "host": place.host, "pid": place.pid, "cpus": list(place.cpus)}
            for place in places
        ],
        "libraries": libraries,
        "ranks_per_gpu": max(
            (c.ranks_per_gpu for c in communicators.values() if c.ranks_per_gpu), default=None
        ),
        "nccl_settings": _nccl_settings({*variables, *varied}),
        "mpi_init_s": None,
        "mpi_takes_gpu_memory": _takes_gpu_memory(communicators.values()),
        "shared_clock": share_clock(places),
        "oversubscribed": are_oversubscribed(places),
    }


def _own_variables(
    varied: Collection[str], communicators: Collection[str]
) -> dict[str, tuple[str | None, str | None]]:
    """Return by name the value of a variable in this rank's environment, and the value that its
    NCCL read.
    """
    of_nccl = LOG.settings() if any(name in NCCL_BACKENDS for name in communicators) else {}
    return {name: (os.environ.get(name), of_nccl.get(name)) for name in varied}


def _merged(
    values: Sequence[Mapping[str, tuple[str | None, str | None]]],
) -> dict[str, VariableValues]:
    """Return by name the different values over all ranks."""
    merged: dict[str, VariableValues] = {}
    for name in values[0]:
        ranks, nccl = (
            list(dict.fromkeys(of_rank[name][part] for of_rank in values)) for part in (0, 1)
        )
        merged[name] = VariableValues(
            ranks=ranks, nccl=[value for value in nccl if value is not None]
        )
    return merged


def _nccl_settings(before: Collection[str]) -> dict[str, str]:
    """Return NCCL's variables that were set since, except those of its log."""
    now = relevant_variables(os.environ)
    return {
        name: value
        for name, value in now.items()
        if name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG") and name not in before
    }


def _takes_gpu_memory(communicators: Iterable[Carrier]) -> bool | None:
    """Return whether the MPI library states that it accepts GPU memory.

    None without an MPI backend.
    """
    answers = (getattr(communicator, "takes_gpu_memory", None) for communicator in communicators)
    return next((answer for answer in answers if answer is not None), None)


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


def header_fields(session: Session, info: RunInfo) -> RunInfo:
    """Return the entries of run.json that a session changes; ``info`` are its present entries.

    The environment of the first launch stays; libraries that only a later launch used are added.
    ``clock`` is the worst agreement over all launches, ``energy`` comes from the launch with the
    fewest counted devices.
    """
    ranks = session["ranks"]
    hosts = [rank["host"] for rank in ranks]
    ticks_us = [
        tick_s * 1e6
        for host in session["environment"]["hosts"]
        if (tick_s := host.get("timer_tick_s"))
    ]
    fields: RunInfo = {
        "environment": {**session["environment"], **info.get("environment", {})},
        "ranks": ranks,
        "libraries": {**session["libraries"], **info.get("libraries", {})},
        "mpi_init_s": session["mpi_init_s"],
        "mpi_takes_gpu_memory": session.get("mpi_takes_gpu_memory"),
        "shared_clock": session["shared_clock"],
        "oversubscribed": session["oversubscribed"],
        "world_size": len(ranks),
        "nodes": len(set(hosts)),
        "ranks_per_node": max(hosts.count(host) for host in hosts),
        "ranks_per_gpu": session.get("ranks_per_gpu") or info.get("ranks_per_gpu"),
        "nccl_settings": {**info.get("nccl_settings", {}), **session.get("nccl_settings", {})},
        "tick_us": max(ticks_us, default=None),
    }
    if clocks := [facts["clock"] for facts in (info, session) if facts.get("clock")]:
        fields["clock"] = max(clocks, key=lambda clock: clock["error_us"])
    if energies := [facts["energy"] for facts in (info, session) if facts.get("energy")]:
        fields["energy"] = min(energies, key=lambda energy: len(energy["counted"]))
    if session.get("fast_selection"):
        fields["fast_selection"] = session["fast_selection"]
    return fields


def remark(session: Session) -> str:
    """Return a sentence about a condition that the user may not expect; empty without one."""
    if session.get("fast_selection") != "torch.topk":
        return ""
    on_gpus = session.get("ranks_per_gpu")
    package, wheel = ("cupy", "'cupy-cuda13x[ctk]' (or cuda12x)") if on_gpus else ("numba", "numba")
    return (
        f"Hook topk selects by torch.topk, for selection=fast is compiled by {package}, which is"
        f" not installed: pip install {wheel}."
    )


def changed_conditions(session: Session, info: RunInfo) -> list[str]:
    """Return how the conditions of a session differ from those in run.json.

    Empty if run.json has none.

    In training, MPI carries nothing that is measured, so its settings are ignored.
    """
    if not info.get("environment"):
        return []
    before, after = info["environment"], session["environment"]
    if session.get("training"):
        before, after = _without_mpi(before), _without_mpi(after)
    return unlike(before, after)


def _without_mpi(environment: Environment) -> Environment:
    variables = environment.get("variables") or {}
    return {
        **environment,
        "variables": {k: v for k, v in variables.items() if not k.startswith(_MPI_VARIABLES)},
    }


def refuse_other_conditions(session: Session, info: RunInfo) -> None:
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


#: More hosts than this are counted rather than listed above a column.
_LISTED = 3


@dataclass(frozen=True, kw_only=True)
class Software:
    """The software of a rank."""

    rank: int
    host: str
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions by name: all packages on the lowest rank of each host; elsewhere loaded software
    only."""


def refuse_unlike_software(control: Assembly) -> str:
    """Return why the ranks' software does not match, the same on every rank; empty if it does.

    Collective.
    """
    hosts = gather_everywhere(control, socket.gethostname())
    versions = _running(control)
    if hosts.index(hosts[control.rank]) == control.rank:
        versions = {**collect_versions(), **versions}
    software = Software(rank=control.rank, host=hosts[control.rank], versions=versions)
    return describe_differences(gather_everywhere(control, software))


def _running(control: Assembly) -> dict[str, str]:
    """Return the versions of loaded software; this is cheap enough for every rank of a host."""
    library = getattr(control, "library", None)
    mpi = {"MPI library": library()} if library else {}
    return {"commbench": commbench.__version__, "python": platform.python_version(), **mpi}


def describe_differences(ranks: Sequence[Software]) -> str:
    """Return a sentence and a table with a column for each group of equal ranks.

    Empty for a single group.
    """
    names = sorted({name for software in ranks for name in software.versions} - UNTIMED_PACKAGES)
    by_host = {
        software.host: software.versions for software in reversed(ranks)
    }  # the lowest rank's come last

    def versions_of(software: Software) -> tuple[str, ...]:
        versions = {**by_host[software.host], **software.versions}
        return tuple(versions.get(name, "none") for name in names)

    groups: dict[tuple[str, ...], list[Software]] = {}
    for software in ranks:
        groups.setdefault(versions_of(software), []).append(software)
    if len(groups) < 2:  # noqa: PLR2004 - equal software
        return ""
    header = ["", *(_label(group, ranks) for group in groups.values())]
    rows = [[name, *versions] for name, *versions in zip(names, *groups, strict=True)]
    return (
        "Hosts run different software;"
        " install the same on every"
        f" host.\n{_table([header, *(row for row in rows if len(set(row[1:])) > 1)])}"
    )


def _label(group: Sequence[Software], ranks: Sequence[Software]) -> str:
    """Return the group's hosts; or its ranks if the ranks of a host differ."""
    hosts = list(dict.fromkeys(software.host for software in group))
    if any(software.host in hosts and software not in group for software in ranks):
        return _list([f"{software.host} rank {software.rank}" for software in group])
    return _list(hosts)


def _list(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(f"  {line}".rstrip() for line in lines)
