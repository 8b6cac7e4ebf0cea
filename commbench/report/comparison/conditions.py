"""Under which conditions runs were measured, and which differences between them make a comparison unsound."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.environment import stated_conditions, stated_variables
from commbench.records import Row
from commbench.training.records import TrainingRow

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
    **dict.fromkeys(("sync", "loop"), _TIMING),
    "threads_per_rank": "it sets how fast a rank computes",
    "torch (which carries the training)": _CARRIER,
}
#: An interface counts only where ranks are on several hosts.
_INTERFACE = "interface "
#: Settings that choose where or how ranks are started, not how they communicate.
_STARTING = re.compile(r"SLURM_.*|PBS_.*|(OMPI|PRTE)_MCA_(plm|ras|ess)_.*|MPI4PY_.*|NUMBA_.*|CUDA_VISIBLE_DEVICES")
_SETTING = "a setting of the libraries or of their threads is part of what is measured"

_RUN_ENTRIES = ("world_size", "nodes", "ranks_per_node", "ranks_per_gpu", "oversubscribed")
#: Merely to be known.
_RUN_NOTES = ("status", "git_commit", "budget", "launcher")
_COLUMNS = (
    *("device", "library", "transport", "group_size", "sync", "loop", "algorithm", "batch"),
    *("threads_per_rank", "bucket_mb"),
)
_ENVIRONMENT = ("hosts", "versions", "variables", "mpi_library", "nccl_library", "emulated")

Facts = Mapping[str, str]
AnyRow = Row | TrainingRow


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A condition that runs do not have in common."""

    name: str
    text: str
    """What each side states: ``A's vs B's``, or of several baselines what they state."""
    reason: str = ""
    """Why times measured under unlike ones cannot be compared; empty where it should merely be known."""

    def __str__(self) -> str:
        """As a line of the output has it."""
        return f"{self.name}: {self.text}"


def facts_of(info: Mapping[str, Any], *, trains: bool) -> Facts:
    """What a run states about its conditions, each as one text.

    Args:
        info: as ``run.json`` holds it, hosts and the like under ``environment`` or at the top.
        trains: whether training is to be compared, which says nothing of its library in its rows.
    """
    found = {name: str(info[name]) for name in (*_RUN_ENTRIES, *_RUN_NOTES) if info.get(name) is not None}
    if info.get("ranks"):
        counts = sorted({len(rank.get("cpus") or ()) for rank in info["ranks"]})
        found["cpus_per_rank"] = ", ".join(map(str, counts))
    return found | _host_facts(_environment(info), trains=trains)


def _environment(info: Mapping[str, Any]) -> dict[str, Any]:
    """The run environment within ``run.json``; empty where no host is stated, as of an imported run."""
    stated = info.get("environment", info)
    found = {name: stated[name] for name in _ENVIRONMENT if stated.get(name) is not None}
    if isinstance(found.get("hosts"), Mapping):
        found["hosts"] = list(found["hosts"].values())
    return found if found.get("hosts") else {}


def _host_facts(environment: Mapping[str, Any], *, trains: bool) -> dict[str, str]:
    if not environment:
        return {}
    found = stated_conditions(environment)
    names = sorted({str(host["hostname"]) for host in environment["hosts"] if host.get("hostname")})
    if names:
        found["hostname"] = ", ".join(names)
    if "kernel" in found:
        found["kernel series"] = ", ".join(sorted({_series(kernel) for kernel in found["kernel"].split(", ")}))
    if trains and "torch" in found:
        found["torch (which carries the training)"] = found.pop("torch")
    return found


def _series(kernel: str) -> str:
    """The first two numbers of a kernel's release: patch levels within them are alike."""
    return ".".join(kernel.split(".")[:2])


def differences(baselines: Sequence[Mapping[str, Any]], b: Mapping[str, Any], *, trains: bool) -> list[Difference]:
    """In what run B and the baselines differ, all of which are given as ``run.json`` holds them."""
    stated, own = [facts_of(info, trains=trains) for info in baselines], facts_of(b, trains=trains)
    found = [
        Difference(name=name, text=f"{', '.join(values)} vs {own[name]}", reason=_reason(name, own))
        for name, values in _together(stated).items()
        if name in own and values != [own[name]]
    ]
    return found + _differing_variables(baselines, b)


def among(baselines: Sequence[Mapping[str, Any]], *, trains: bool) -> list[Difference]:
    """In what the baselines differ from each other."""
    stated = [facts_of(info, trains=trains) for info in baselines]
    found = [
        Difference(name=name, text=", ".join(values), reason=_reason(name, stated[0]))
        for name, values in _together(stated).items()
        if len(values) > 1
    ]
    others = {str(each): each for other in baselines[1:] for each in _differing_variables(baselines[:1], other)}
    return found + list(others.values())


def _together(stated: Iterable[Facts]) -> dict[str, list[str]]:
    """All values of each condition, in order; a run that does not state one is not known to differ."""
    found: dict[str, list[str]] = {}
    for facts in stated:
        for name, text in facts.items():
            if text not in found.setdefault(name, []):
                found[name].append(text)
    return {name: found[name] for name in sorted(found, key=_place)}


def _place(name: str) -> int:
    """What makes a comparison unsound comes first."""
    return list(UNSOUND).index(name) if name in UNSOUND else len(UNSOUND)


def _reason(name: str, facts: Facts) -> str:
    if name.startswith(_INTERFACE):
        return _NETWORK if facts.get("nodes", "1") != "1" else ""
    return UNSOUND.get(name, "")


def _differing_variables(baselines: Sequence[Mapping[str, Any]], b: Mapping[str, Any]) -> list[Difference]:
    """Settings that differ, where being unset is a value too."""
    stated = [stated_variables(_environment(info)) for info in baselines]
    known = [variables for variables in stated if variables is not None]
    own = stated_variables(_environment(b))
    if own is None or not known:
        return []
    found = []
    for name in sorted({name for variables in (*known, own) for name in variables}):
        values = list(dict.fromkeys(variables.get(name, "unset") for variables in known))
        after = own.get(name, "unset")
        if values != [after]:
            reason = "" if _STARTING.fullmatch(name) else _SETTING
            found.append(Difference(name=name, text=f"{', '.join(values)} vs {after}", reason=reason))
    return found


def differing_rows(pairs: Sequence[tuple[Sequence[AnyRow], AnyRow]]) -> list[Difference]:
    """In what the cases were carried and timed unlike, each kind once with the number of cases.

    Args:
        pairs: of each case the baselines' rows and B's.
    """
    found: Counter[tuple[str, str]] = Counter()
    for rows, own in pairs:
        for name in _COLUMNS:
            before = list(dict.fromkeys(str(getattr(row, name, None) or "") for row in rows))
            after = str(getattr(own, name, None) or "")
            if after and all(before) and before != [after]:
                found[name, f"{', '.join(before)} vs {after}"] += 1
    return [
        Difference(name=name, text=f"{text} (in {count} of {len(pairs)} cases)", reason=UNSOUND.get(name, ""))
        for (name, text), count in found.items()
    ]
