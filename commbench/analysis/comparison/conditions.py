"""Under which conditions runs were measured, and which differences between them make a comparison unsound."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from commbench.analysis.comparison.sides import Measured
from commbench.results.info import RunInfo
from commbench.schema import JsonMapping
from commbench.system.environment import Environment, differing

_RANKS = "the time of an exchange depends on how many ranks take part and where they are"
_CPUS = "ranks that share cores, or have other ones, wait for each other"
_SPEED = "it sets how fast cores copy and reduce"
_NETWORK = "it sets what the network can deliver"
_CARRIER = "another one carries the operation in another way"
_TIMING = "times are taken in another way"

#: Conditions that must be alike, and why: where one differs, a difference of times could come from it as well.
UNSOUND: Mapping[str, str] = {
    # run.json
    **dict.fromkeys(("world_size", "nodes", "ranks_per_node", "ranks_per_gpu", "group_size"), _RANKS),
    **dict.fromkeys(("oversubscribed", "cpus_per_rank", "cpus_allowed", "cpu_quota", "logical_cpus"), _CPUS),
    # hosts
    "hostname": "machines of one model differ by several percent",
    **dict.fromkeys(("cpu_model", "machine", "sockets", "physical_cores", "numa_nodes"), _SPEED),
    **dict.fromkeys(("governor", "turbo", "virtualised", "gpus"), _SPEED),
    "gpu_driver": _CARRIER,
    **dict.fromkeys(("rdma", "emulated", "tcp_congestion_control"), _NETWORK),
    "clock_source": "reading another clock takes up to a microsecond longer",
    "kernel series": "it brings TCP and the scheduler",
    # rows
    "device": _SPEED,
    **dict.fromkeys(("library", "transport"), _CARRIER),
    **dict.fromkeys(("time", "sync", "loop"), _TIMING),
    "batch": "operations that are timed together overlap a little",
    "threads_per_rank": "it sets how fast a rank computes",
}
#: An interface counts only where ranks are on several hosts.
_INTERFACE = "interface "
#: Settings that choose where or how ranks are started, not how they communicate.
_STARTING = re.compile(r"SLURM_.*|PBS_.*|(OMPI|PRTE)_MCA_(plm|ras|ess)_.*|MPI4PY_.*|NUMBA_.*|CUDA_VISIBLE_DEVICES")
#: Settings of libraries that matter only where these carried something; all others matter to all.
_LIBRARIES = {
    "mpi": re.compile(r"(OMPI|PRTE|MPICH|MPIR|I_MPI|UCX|FI|PSM2|PSM3)_.*"),
    "gloo": re.compile(r"(GLOO|TORCH_GLOO)_.*"),
    "nccl": re.compile(r"(NCCL|TORCH_NCCL|CUDA_MPS|UCX|FI)_.*"),
}
_SETTING = "a setting of the libraries or of their threads is part of what is measured"
#: What carries a comparison is named beside backends where training is compared.
TRAINING = "training"

_RUN_ENTRIES = ("world_size", "nodes", "ranks_per_node", "ranks_per_gpu", "oversubscribed")
#: Merely to be known.
_RUN_NOTES = ("status", "git_commit", "budget", "launcher")
_COLUMNS = (
    *("device", "library", "transport", "group_size", "time", "sync", "loop", "algorithm", "batch"),
    *("threads_per_rank", "bucket_mb"),
)
#: How a case was timed, which a probe may choose anew in each run: it tells of that case only.
_TIMED = ("time", "sync", "loop", "batch")
#: It is always chosen so; where one of the others differs in all cases, something else was asked for.
_CHOSEN = "batch"
_ENVIRONMENT = ("hosts", "versions", "variables", "mpi_library", "nccl_library", "emulated")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A condition that runs do not have in common."""

    name: str
    text: str
    """What each side states: ``A's vs B's``, or of several baselines what they state."""
    reason: str = ""
    """Why times measured under unlike ones cannot be compared; empty where it should merely be known."""
    is_among_baselines: bool = False
    """Whether several baselines differ in it from each other."""
    is_of_cases: bool = False
    """Whether only the cases that differ in it get no verdict, and others can be judged all the same."""

    @property
    def is_unsound(self) -> bool:
        """Whether nothing can be compared soundly."""
        return bool(self.reason) and not self.is_of_cases

    def __str__(self) -> str:
        """As a line of the output has it."""
        return f"{self.name}: {self.text}"


def differences(baselines: Sequence[RunInfo], b: RunInfo, *, carriers: Collection[str]) -> list[Difference]:
    """In what run B and the baselines differ, and the baselines from each other; what makes it unsound comes first.

    A condition that a run does not state is not known, hence no difference.

    Args:
        baselines: each as ``run.json`` holds it.
        b: what ``run.json`` of B holds.
        carriers: the backends of the cases to be compared, and `TRAINING` where there are configurations among them,
            whose rows say nothing of their library.
    """
    infos = [*baselines, b]
    settings = {name for info in infos for name in _environment(info).get("variables") or ()}
    found = []
    for name, texts in _texts(infos).items():
        before, after = list(dict.fromkeys(text for text in texts[:-1] if text is not None)), texts[-1]
        if len(before) > 1 or (before and after is not None and before != [after]):
            found.append(
                Difference(
                    name=name,
                    text=", ".join(before) + (f" vs {after}" if after is not None else ""),
                    reason=_setting(name, carriers) if name in settings else _reason(name, b, carriers),
                    is_among_baselines=len(before) > 1,
                )
            )
    return sorted(found, key=lambda one: not one.reason)


def _texts(infos: Sequence[RunInfo]) -> Mapping[str, Sequence[str | None]]:
    """Each condition in the words of every run; None where it does not state it."""
    stated = [_facts(info) for info in infos]
    own = {name: [facts.get(name) for facts in stated] for name in dict.fromkeys(n for facts in stated for n in facts)}
    environments = [_environment(info) for info in infos]
    known = [at for at, environment in enumerate(environments) if environment]
    of_hosts = differing([environments[at] for at in known])
    spread = {name: dict(zip(known, texts, strict=True)) for name, texts in of_hosts.items()}
    return own | {name: [texts.get(at) for at in range(len(infos))] for name, texts in spread.items()}


def _facts(info: RunInfo) -> dict[str, str]:
    """What a run states beside the conditions of its hosts, and their names and kernels' series."""
    stated: Mapping[str, object] = info
    found = {name: str(stated[name]) for name in (*_RUN_ENTRIES, *_RUN_NOTES) if stated.get(name) is not None}
    if info.get("ranks"):
        counts = sorted({len(rank.get("cpus") or ()) for rank in info["ranks"]})
        found["cpus_per_rank"] = ", ".join(map(str, counts))
    hosts = _environment(info).get("hosts", ())
    names = {name for host in hosts if (name := host.get("hostname"))}
    series = {_series(kernel) for host in hosts if (kernel := host.get("kernel"))}
    found |= {
        name: ", ".join(sorted(texts)) for name, texts in (("hostname", names), ("kernel series", series)) if texts
    }
    return found


def _environment(info: RunInfo) -> Environment:
    """The run environment within ``run.json``; empty where no host is stated, as of an imported run."""
    stated: JsonMapping = info.get("environment", info)
    found = {name: stated[name] for name in _ENVIRONMENT if stated.get(name) is not None}
    return cast("Environment", found) if found.get("hosts") else {}


def _series(kernel: str) -> str:
    """The first two numbers of a kernel's release: patch levels within them are alike."""
    return ".".join(kernel.split(".")[:2])


def _setting(name: str, carriers: Collection[str]) -> str:
    if _STARTING.fullmatch(name):
        return ""
    concerned = [library for library, names in _LIBRARIES.items() if names.fullmatch(name)]
    matters = any(library in carrier for library in concerned for carrier in carriers) or not concerned
    return _SETTING if matters else ""


def _reason(name: str, info: RunInfo, carriers: Collection[str]) -> str:
    if name.startswith(_INTERFACE):
        return _NETWORK if (info.get("nodes") or 1) > 1 else ""
    if name == "torch":  # rows of collectives name what carried them
        return _CARRIER if TRAINING in carriers else ""
    return UNSOUND.get(name, "")


def differing_cases(pairs: Sequence[tuple[Sequence[Measured], Measured]], *, force: bool) -> list[Difference]:
    """In what the cases were carried and timed unlike, each kind once with the number of cases.

    Args:
        pairs: of each case what baselines and B measured.
        force: compare also what was timed unlike.
    """
    found: Counter[tuple[str, str]] = Counter()
    for before, own in pairs:
        for name in _COLUMNS:
            if is_unlike(before, own, name):
                texts = dict.fromkeys(one.condition(name) for one in before)
                found[name, f"{', '.join(texts)} vs {own.condition(name)}"] += 1
    totals: Counter[str] = Counter()
    for (name, _), count in found.items():
        totals[name] += count
    return [
        Difference(
            name=name,
            text=f"{text} (in {count} of {len(pairs)} cases)",
            reason=UNSOUND.get(name, ""),
            is_of_cases=name == _CHOSEN or (name in _TIMED and not force and totals[name] < len(pairs)),
        )
        for (name, text), count in found.items()
    ]


def is_unlike(before: Sequence[Measured], own: Measured, name: str) -> bool:
    """Whether baselines and B, or baselines among each other, differ in a condition that all of them state."""
    texts = [one.condition(name) for one in (*before, own)]
    return all(texts) and len(set(texts)) > 1


def is_timed_alike(before: Sequence[Measured], own: Measured, *, force: bool) -> bool:
    """Whether a case can be judged: it was timed in the same way, but for what is forced."""
    return not any(is_unlike(before, own, name) for name in ((_CHOSEN,) if force else _TIMED))
