"""Conditions of measurements, and which differences between them make a comparison unsound."""

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

#: Conditions that must agree, and why: if one differs, it could explain a difference of times.
UNSOUND: Mapping[str, str] = {
    # run.json
    **dict.fromkeys(
        ("world_size", "nodes", "ranks_per_node", "ranks_per_gpu", "group_size"), _RANKS
    ),
    **dict.fromkeys(
        ("oversubscribed", "cpus_per_rank", "cpus_allowed", "cpu_quota", "logical_cpus"), _CPUS
    ),
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
#: Interfaces count only if ranks are on several hosts.
_INTERFACE = "interface "
#: Variables that choose where and how ranks start, not how they communicate.
_STARTING = re.compile(
    r"SLURM_.*|PBS_.*|(OMPI|PRTE)_MCA_(plm|ras|ess)_.*|MPI4PY_.*|NUMBA_.*|CUDA_VISIBLE_DEVICES"
)
#: Variables that matter only if their library was used; all other variables always matter.
_LIBRARIES = {
    "mpi": re.compile(r"(OMPI|PRTE|MPICH|MPIR|I_MPI|UCX|FI|PSM2|PSM3)_.*"),
    "gloo": re.compile(r"(GLOO|TORCH_GLOO)_.*"),
    "nccl": re.compile(r"(NCCL|TORCH_NCCL|CUDA_MPS|UCX|FI)_.*"),
}
_SETTING = "a setting of the libraries or of their threads is part of what is measured"
#: Carrier of a comparison of training, beside backends.
TRAINING = "training"

_RUN_ENTRIES = ("world_size", "nodes", "ranks_per_node", "ranks_per_gpu", "oversubscribed")
#: Differences that are listed without consequences.
_RUN_NOTES = ("status", "git_commit", "budget", "launcher")
_COLUMNS = (
    *("device", "library", "transport", "group_size", "time", "sync", "loop", "algorithm", "batch"),
    *("threads_per_rank", "bucket_mb"),
)
#: How a case was timed. A probe may choose it in each run, so a difference concerns that case only.
_TIMED = ("time", "sync", "loop", "batch")
#: A probe always chooses the batch. If another one of `_TIMED` differs in all cases, the runs were
#: requested differently.
_CHOSEN = "batch"
_ENVIRONMENT = ("hosts", "versions", "variables", "mpi_library", "nccl_library", "emulated")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A condition in which runs differ."""

    name: str
    text: str
    """The values: ``A's vs B's``; with several baselines, all of theirs."""
    reason: str = ""
    """Why times under different conditions cannot be compared; empty if they can."""
    is_among_baselines: bool = False
    """Whether the baselines differ in it."""
    is_of_cases: bool = False
    """Whether only cases that differ in it lack a verdict."""

    @property
    def is_unsound(self) -> bool:
        """Whether it makes the whole comparison unsound."""
        return bool(self.reason) and not self.is_of_cases

    def __str__(self) -> str:
        """Return its line of the output."""
        return f"{self.name}: {self.text}"


def differences(
    baselines: Sequence[RunInfo], b: RunInfo, *, carriers: Collection[str]
) -> list[Difference]:
    """Return the conditions in which run B and the baselines differ, or the baselines among each
    other.

    Those that make a comparison unsound come first. A condition that a run does not state makes no
    difference.

    Args:
        baselines: contents of ``run.json`` of each.
        b: contents of ``run.json`` of B.
        carriers: backends of the compared cases, and `TRAINING` if there are training
            configurations, whose rows do not name their library.
    """
    infos = [*baselines, b]
    settings = {name for info in infos for name in _environment(info).get("variables") or ()}
    unequal = []
    for name, texts in _texts(infos).items():
        before, after = (
            list(dict.fromkeys(text for text in texts[:-1] if text is not None)),
            texts[-1],
        )
        if len(before) > 1 or (before and after is not None and before != [after]):
            unequal.append(
                Difference(
                    name=name,
                    text=", ".join(before) + (f" vs {after}" if after is not None else ""),
                    reason=(
                        _setting(name, carriers) if name in settings else _reason(name, b, carriers)
                    ),
                    is_among_baselines=len(before) > 1,
                )
            )
    return sorted(unequal, key=lambda difference: not difference.reason)


def _texts(infos: Sequence[RunInfo]) -> Mapping[str, Sequence[str | None]]:
    """Return each condition's text in every run; None if a run does not state it."""
    run_facts = [_facts(info) for info in infos]
    of_runs = {
        name: [facts.get(name) for facts in run_facts]
        for name in dict.fromkeys(n for facts in run_facts for n in facts)
    }
    environments = [_environment(info) for info in infos]
    stated_at = [place for place, environment in enumerate(environments) if environment]
    of_hosts = differing([environments[place] for place in stated_at])
    spread = {name: dict(zip(stated_at, texts, strict=True)) for name, texts in of_hosts.items()}
    return of_runs | {
        name: [texts.get(place) for place in range(len(infos))] for name, texts in spread.items()
    }


def _facts(info: RunInfo) -> dict[str, str]:
    """Return the conditions that a run states, with the names and kernel series of its hosts."""
    entries: Mapping[str, object] = info
    facts = {
        name: str(entries[name])
        for name in (*_RUN_ENTRIES, *_RUN_NOTES)
        if entries.get(name) is not None
    }
    if info.get("ranks"):
        counts = sorted({len(rank.get("cpus") or ()) for rank in info["ranks"]})
        facts["cpus_per_rank"] = ", ".join(map(str, counts))
    hosts = _environment(info).get("hosts", ())
    names = {name for host in hosts if (name := host.get("hostname"))}
    series = {_series(kernel) for host in hosts if (kernel := host.get("kernel"))}
    facts |= {
        name: ", ".join(sorted(texts))
        for name, texts in (("hostname", names), ("kernel series", series))
        if texts
    }
    return facts


def _environment(info: RunInfo) -> Environment:
    """Return the environment within ``run.json``.

    Empty for an imported run, which states no host.
    """
    entries: JsonMapping = info.get("environment") or {}
    environment = {name: entries[name] for name in _ENVIRONMENT if entries.get(name) is not None}
    return cast("Environment", environment) if environment.get("hosts") else {}


def _series(kernel: str) -> str:
    """Return the first two numbers of a kernel's release; patch levels do not matter."""
    return ".".join(kernel.split(".")[:2])


def _setting(name: str, carriers: Collection[str]) -> str:
    if _STARTING.fullmatch(name):
        return ""
    concerned = [library for library, names in _LIBRARIES.items() if names.fullmatch(name)]
    matters = (
        any(library in carrier for library in concerned for carrier in carriers) or not concerned
    )
    return _SETTING if matters else ""


def _reason(name: str, info: RunInfo, carriers: Collection[str]) -> str:
    if name.startswith(_INTERFACE):
        return _NETWORK if (info.get("nodes") or 1) > 1 else ""
    if name == "torch":  # rows of collectives name their library
        return _CARRIER if TRAINING in carriers else ""
    return UNSOUND.get(name, "")


def differing_cases(
    pairs: Sequence[tuple[Sequence[Measured], Measured]], *, force: bool
) -> list[Difference]:
    """Return the differences in how cases were carried and timed, each kind once with its number of
    cases.

    Args:
        pairs: for each case, the rows of the baselines and of B.
        force: whether to compare cases that were timed differently.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for before, row_b in pairs:
        for name in _COLUMNS:
            if is_unlike(before, row_b, name):
                texts = dict.fromkeys(row.condition(name) for row in before)
                counts[name, f"{', '.join(texts)} vs {row_b.condition(name)}"] += 1
    totals: Counter[str] = Counter()
    for (name, _), count in counts.items():
        totals[name] += count
    return [
        Difference(
            name=name,
            text=f"{text} (in {count} of {len(pairs)} cases)",
            reason=UNSOUND.get(name, ""),
            is_of_cases=name == _CHOSEN
            or (name in _TIMED and not force and totals[name] < len(pairs)),
        )
        for (name, text), count in counts.items()
    ]


def is_unlike(before: Sequence[Measured], row_b: Measured, name: str) -> bool:
    """Return whether B and the baselines, or the baselines among each other, differ in a condition
    that all state.
    """
    texts = [row.condition(name) for row in (*before, row_b)]
    return all(texts) and len(set(texts)) > 1


def is_timed_alike(before: Sequence[Measured], row_b: Measured, *, force: bool) -> bool:
    """Return whether a case can be judged: it was timed in the same way, except for what ``force``
    allows.
    """
    return not any(is_unlike(before, row_b, name) for name in ((_CHOSEN,) if force else _TIMED))
