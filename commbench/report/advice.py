"""Advice on conditions that distort a measurement."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from commbench.fields import join_names
from commbench.findings import Finding, Numbers, Value
from commbench.results.info import RunInfo, environment_of, is_live
from commbench.system.host import Host
from commbench.system.software import MPI_WHEELS

QUIET_LOAD_PER_CPU = 0.1  # if a tenth of the CPUs is busy, one rank in ten is delayed
QUIET_LOAD = 0.5  # lower loads are normal on an idle system
NOTABLE_STEAL_RATIO = 0.01


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The input of the rules; a rule ignores None."""

    host: Host
    """From ``host.collect_host``."""
    ranks: int | None = None
    """Number of ranks on this host."""
    transport: str | None = None
    """The value of the column ``transport``."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """From ``host.collect_versions``."""


def advise(conditions: Conditions) -> Iterator[Finding]:
    """Yield warnings about the conditions on one host, the most severe of each kind first.

    The detail of each is its remedy. A rule with unknown input yields nothing.
    """
    yield from _busy(conditions)
    yield from _slow_clocks(conditions)
    yield from _unused_fabric(conditions)
    yield from _gpus(conditions)


def advise_run(info: RunInfo) -> list[Finding]:
    """Return the advice on all hosts of a run, each remedy once.

    Args:
        info: the content of ``run.json``.
    """
    environment = environment_of(info)
    # an MPI that is installed need not have started a person's own training
    unused = MPI_WHEELS if is_live(info) else ()
    found = environment.get("versions", {}).items()
    versions = {name: version for name, version in found if version and name not in unused}
    ranks = Counter(rank["host"] for rank in info.get("ranks", []))
    by_remedy: dict[str, Finding] = {}  # the numbers of a warning differ from host to host
    for host in environment.get("hosts", []):
        conditions = Conditions(
            host=host,
            ranks=ranks.get(host.get("hostname", ""), info.get("ranks_per_node")),
            versions=versions,
        )
        for advice in advise(conditions):
            by_remedy.setdefault(str(advice.details[0]), advice)
    return list(by_remedy.values())


def _advice(code: str, remedy: str = "", /, **numbers: Value) -> Finding:
    """Return a warning with its remedy, whose sentence may name the same numbers."""
    remedies = (Finding(code=remedy or f"{code}_remedy", numbers=numbers),)
    return Finding(code=code, numbers=numbers, level="warning", details=remedies)


def _busy(conditions: Conditions) -> Iterator[Finding]:
    """Yield what else takes time of the ranks' processors."""
    host, ranks = conditions.host, conditions.ranks
    cpus, cores = host.get("cpus_allowed"), host.get("physical_cores")
    if ranks is not None and cpus is not None:
        if ranks > cpus:
            yield _advice("host_oversubscribed", ranks=ranks, cpus=cpus)
        elif cores is not None and ranks > cores:
            yield _advice("host_shared_cores", ranks=ranks, cores=cores)
    quota, users = host.get("cpu_quota"), ranks or cpus
    if quota is not None and users is not None and quota < users:
        kind = "ranks" if ranks else "CPUs"
        yield _advice("host_quota", quota=quota, users=f"{users} {kind}")
    loads, all_cpus = host.get("load_average"), host.get("logical_cpus")
    if loads and all_cpus is not None and loads[0] > max(QUIET_LOAD, QUIET_LOAD_PER_CPU * all_cpus):
        yield _advice("host_load", load=loads[0], cpus=all_cpus)
    steal = host.get("cpu_steal_ratio") or 0.0
    if steal >= NOTABLE_STEAL_RATIO:
        yield _advice("host_virtual_shared", "host_virtual_remedy", steal=100 * steal)
    elif host.get("virtualised"):
        yield _advice("host_virtual")


def _slow_clocks(conditions: Conditions) -> Iterator[Finding]:
    """Yield a changing frequency, and a slow clock source."""
    host = conditions.host
    governor = host.get("governor")
    # userspace: a user has set the frequency
    if governor not in {None, "performance", "userspace"}:
        yield _advice("host_governor", governor=str(governor))
    source = host.get("clock_source")
    # other architectures have one clock source; x86 falls back to slow ones if its tsc is
    # unreliable
    is_x86 = host.get("machine") in {"x86_64", "AMD64", "i686"}
    if is_x86 and source not in {None, "tsc"}:
        yield _advice("host_clock", source=str(source))


def _unused_fabric(conditions: Conditions) -> Iterator[Finding]:
    transport, versions = conditions.transport or "", conditions.versions
    active = set()
    for port in conditions.host.get("rdma", ()):
        if "ACTIVE" in str(port.get("state")).upper():
            active.add(str(port["device"]))
    if not active:
        return
    fabric = join_names(sorted(active))
    if re.search(r"tcp|socket", transport, re.IGNORECASE):
        yield _advice("host_fabric_unused", transport=transport, fabric=fabric)
    for wheel in MPI_WHEELS:
        if wheel in versions:
            yield _advice("host_wheel", fabric=fabric, wheel=wheel, version=versions[wheel])
            return


def _gpus(conditions: Conditions) -> Iterator[Finding]:
    """Yield what prevents GPUs from being used or watched."""
    gpus, versions = conditions.host.get("gpus", ()), conditions.versions
    if not gpus or not versions:
        return
    found: Numbers = {"gpus": len(gpus), "model": gpus[0]["name"] or ""}
    torch = versions.get("torch")
    if not any(name.startswith("cupy") for name in versions):
        if torch is None:
            yield _advice("host_gpu_unused", **found)
        # a torch version without '+cpu' may or may not be a CUDA build, so no rule applies
        elif "+cpu" in torch:
            yield _advice("host_gpu_without_cuda", "host_gpu_unused_remedy", torch=torch, **found)
    if "nvidia-ml-py" not in versions:
        yield _advice("host_gpu_unwatched", **found)
