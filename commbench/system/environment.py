"""The environment of a run: its hosts, software and settings, and the conditions in which
environments differ.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypedDict

from commbench.system.host import Host
from commbench.system.software import UNTIMED_PACKAGES
from commbench.system.topology import Emulated


class Environment(TypedDict, total=False):
    """The conditions of a run."""

    hosts: Sequence[Host]
    """The hosts."""
    versions: Mapping[str, str | None]
    """By package, its version."""
    variables: Mapping[str, str]
    """Environment variables that affect timing, without secrets."""
    mpi_library: str | None
    """Name and version of MPI."""
    nccl_library: str | None
    """Version of NCCL."""
    emulated: Emulated | None
    """The emulated network; None: a real one."""


RANKS = "the time of an exchange depends on how many ranks take part and where they are"
CPUS = "ranks that share cores, or have other ones, wait for each other"
SPEED = "it sets how fast cores copy and reduce"
NETWORK = "it sets what the network can deliver"
CARRIER = "another one carries the operation in another way"
TIMING = "times are taken in another way"
#: What a difference makes unsound: the whole comparison; the cases that differ, unless all do; only
#: the cases that differ, because a probe chooses it.
WHOLE, CASES, CHOSEN = "whole", "cases", "chosen"


class Condition(NamedTuple):
    """A condition of a measurement."""

    name: str
    source: str
    """``host``: an entry of a host; ``library``: of the environment; ``run``: of ``run.json``;
    ``row``: of a row; ``derived``: computed."""
    why: str
    """Why it must agree; empty if a difference is only to be known."""
    weight: str
    """`WHOLE`, `CASES` or `CHOSEN`."""


def _conditions_by_name() -> dict[str, Condition]:
    conditions = {}
    for source, why, weight, names in (
        ("run", RANKS, WHOLE, "world_size, nodes, ranks_per_node, ranks_per_gpu"),
        ("run", CPUS, WHOLE, "oversubscribed"),
        ("run", "", WHOLE, "status, git_commit, budget, launcher"),
        ("derived", CPUS, WHOLE, "cpus_per_rank, cpu_quota"),
        ("derived", "machines of one model differ by several percent", WHOLE, "hostname"),
        ("derived", "it brings TCP and the scheduler", WHOLE, "kernel series"),
        ("host", SPEED, WHOLE, "cpu_model, machine, sockets, physical_cores, numa_nodes"),
        ("host", CPUS, WHOLE, "logical_cpus, cpus_allowed"),
        ("host", SPEED, WHOLE, "governor, turbo, virtualised"),
        ("host", "", WHOLE, "container, os, kernel"),
        ("host", "reading another clock takes up to a microsecond longer", WHOLE, "clock_source"),
        ("host", NETWORK, WHOLE, "tcp_congestion_control"),
        ("derived", SPEED, WHOLE, "gpus"),
        ("derived", CARRIER, WHOLE, "gpu_driver"),
        ("derived", NETWORK, WHOLE, "rdma, emulated"),
        ("library", "", WHOLE, "mpi_library, nccl_library"),
        ("row", SPEED, WHOLE, "device"),
        ("row", CARRIER, WHOLE, "library, transport"),
        ("row", RANKS, WHOLE, "group_size"),
        ("row", TIMING, CASES, "time, sync, loop"),
        ("row", "", WHOLE, "algorithm, bucket_mb"),
        ("row", "operations that are timed together overlap a little", CHOSEN, "batch"),
        ("row", "it sets how fast a rank computes", WHOLE, "threads_per_rank"),
    ):
        for name in names.split(", "):
            conditions[name] = Condition(name, source, why, weight)
    return conditions


#: All conditions by name, but versions, variables and interfaces, whose names only a run states.
CONDITIONS: Mapping[str, Condition] = _conditions_by_name()


def conditions_from(source: str) -> list[str]:
    """Return the names of the conditions from one source."""
    return [name for name, condition in CONDITIONS.items() if condition.source == source]


#: Variables that name a run or permit it to start; they do not affect timing.
_NEUTRAL_VARIABLES = re.compile(
    r"SLURM_JOB_ID|PBS_JOBID|NCCL_COMM_ID|NCCL_HOSTID|COMMBENCH_.*|OMPI_ALLOW_RUN_AS_ROOT.*"
)


def unlike(a: Environment, b: Environment) -> list[str]:
    """Name the conditions that make timings taken under a and b incomparable, each as 'cpu_model: X
    vs Y'.

    A condition that one side does not state is unknown and counts as no difference. If the hosts of
    one run differ, X lists their values.
    """
    return [f"{name}: {' vs '.join(map(str, texts))}" for name, texts in differing([a, b]).items()]


def differing(environments: Sequence[Environment]) -> dict[str, list[str | None]]:
    """Return the conditions in which environments differ, each with its text in every environment.

    None stands for a condition that an environment does not state; that alone is no difference.
    """
    facts = [_conditions(environment) for environment in environments]
    names = dict.fromkeys(name for of_one in facts for name in of_one)
    texts = {name: [of_one.get(name) for of_one in facts] for name in names}
    variables = [environment.get("variables") for environment in environments]
    for name in sorted({name for of_one in variables for name in of_one or ()}):
        if not _NEUTRAL_VARIABLES.fullmatch(name):
            # "unset" is a value if an environment states variables at all
            values = [None if each is None else each.get(name, "unset") for each in variables]
            texts[name] = values
    return {name: values for name, values in texts.items() if len({*values} - {None}) > 1}


def _conditions(environment: Environment) -> dict[str, str]:
    """Flatten an environment to one text per condition."""
    values_by_name: dict[str, set[str]] = {}
    for host in environment.get("hosts", ()):
        for name, value in _host_conditions(host):
            values_by_name.setdefault(name, set()).add(value)
    conditions = {name: ", ".join(sorted(values)) for name, values in values_by_name.items()}
    for name in conditions_from("library"):
        if environment.get(name):
            conditions[name] = str(environment.get(name))
    conditions["emulated"] = "no"  # not stated: a real network
    if environment.get("emulated"):
        conditions["emulated"] = json.dumps(environment["emulated"], sort_keys=True)
    return conditions | _software(environment.get("versions", {}))


def _host_conditions(host: Host) -> Iterator[tuple[str, str]]:
    for name in conditions_from("host"):
        if host.get(name) is not None:
            yield name, str(host.get(name))
    if "cpu_quota" in host:
        yield "cpu_quota", str(host["cpu_quota"] or "no limit")
    if "gpus" in host:
        counts = Counter(str(gpu["name"]) for gpu in host["gpus"])
        texts = [f"{count} x {name}" for name, count in sorted(counts.items())]
        yield "gpus", " + ".join(texts) or "none"
        for driver in {gpu["driver_version"] for gpu in host["gpus"]}:
            yield "gpu_driver", str(driver)
    if "rdma" in host:
        texts = [f"{port['device']}/{port['port']} {port['rate']}" for port in host["rdma"]]
        yield "rdma", "; ".join(texts) or "none"
    for interface in host.get("interfaces", ()):
        text = f"{interface['speed_Mbps'] or '?'} Mb/s MTU {interface['mtu']}"
        yield f"interface {interface['name']}", text


def _software(versions: Mapping[str, str | None]) -> dict[str, str]:
    """Return the versions of the packages that affect timing.

    Wheels for different versions of CUDA get one name.
    """
    software: dict[str, str] = {}
    for package, version in versions.items():
        text = str(version)
        family = re.sub(r"^(cupy|nvidia-nccl)-.*", r"\1", package)
        if family != package:
            text = f"{package} {version}"
        software[family] = text
    return {name: version for name, version in software.items() if name not in UNTIMED_PACKAGES}
