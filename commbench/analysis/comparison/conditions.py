"""Conditions of measurements, and which differences between them make a comparison unsound."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from commbench.analysis.comparison.sides import Measured
from commbench.findings import Finding
from commbench.results.info import RunInfo, environment_of
from commbench.system.environment import (
    CARRIER,
    CHOSEN,
    CONDITIONS,
    NETWORK,
    WHOLE,
    Environment,
    conditions_from,
    differing,
)
from commbench.units import counted

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
#: How a case was timed: a difference of these concerns the cases that differ in it.
_TIMED = [each.name for each in CONDITIONS.values() if each.weight != WHOLE]
_CHOSEN = [each.name for each in CONDITIONS.values() if each.weight == CHOSEN]


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

    @property
    def finding(self) -> Finding:
        """What differs, and what follows from it."""
        code = "condition_known"
        if self.is_unsound:
            code = "condition_unsound"
        elif self.is_of_cases:
            code = "condition_of_cases"
        return Finding(code, self.name, {"values": self.text, "why": self.reason})


def differences(
    baselines: Sequence[RunInfo], b: RunInfo, *, carriers: Collection[str]
) -> list[Difference]:
    """Return the conditions in which run B and the baselines differ, or the baselines among each
    other.

    A condition that a run does not state makes no difference.

    Args:
        baselines: contents of ``run.json`` of each.
        b: contents of ``run.json`` of B.
        carriers: backends of the compared cases, and `TRAINING` if there are training
            configurations, whose rows do not name their library.
    """
    infos = [*baselines, b]
    settings = {name for info in infos for name in _environment(info).get("variables", ())}
    unequal = []
    for name, texts in _texts(infos).items():
        before = list(dict.fromkeys(text for text in texts[:-1] if text is not None))
        after = texts[-1]
        among = len(before) > 1
        if not among and (not before or after is None or before == [after]):
            continue
        text = ", ".join(before)
        if after is not None:
            text = f"{text} vs {after}"
        reason = _reason(name, b, carriers)
        if name in settings:
            reason = _setting(name, carriers)
        unequal.append(Difference(name=name, text=text, reason=reason, is_among_baselines=among))
    return unequal


def _texts(infos: Sequence[RunInfo]) -> Mapping[str, Sequence[str | None]]:
    """Return each condition's text in every run; None if a run does not state it."""
    facts_of_runs = [_facts(info) for info in infos]
    texts = {}
    for facts in facts_of_runs:
        for name in facts:
            texts[name] = [each.get(name) for each in facts_of_runs]
    environments = [_environment(info) for info in infos]
    stated_at = [place for place, environment in enumerate(environments) if environment]
    for name, of_hosts in differing([environments[place] for place in stated_at]).items():
        texts[name] = [None] * len(infos)
        for place, of_host in zip(stated_at, of_hosts, strict=True):
            texts[name][place] = of_host
    return texts


def _facts(info: RunInfo) -> dict[str, str]:
    """Return the conditions that a run states, with the names and kernel series of its hosts."""
    entries: Mapping[str, object] = info
    facts = {}
    for name in conditions_from("run"):
        if entries.get(name) is not None:
            facts[name] = str(entries[name])
    if info.get("ranks"):
        counts = sorted({len(rank.get("cpus") or ()) for rank in info["ranks"]})
        facts["cpus_per_rank"] = ", ".join(map(str, counts))
    names, series = set(), set()
    for host in _environment(info).get("hosts", ()):
        if hostname := host.get("hostname"):
            names.add(hostname)
        if kernel := host.get("kernel"):  # patch levels do not matter
            series.add(".".join(kernel.split(".")[:2]))
    for name, texts in (("hostname", names), ("kernel series", series)):
        if texts:
            facts[name] = ", ".join(sorted(texts))
    return facts


def _environment(info: RunInfo) -> Environment:
    """Return the environment within ``run.json``.

    Empty for an imported run, which states no host.
    """
    environment = environment_of(info)
    return environment if environment.get("hosts") else {}


def _setting(name: str, carriers: Collection[str]) -> str:
    """Return why a variable must agree; empty if it concerns none of the carriers."""
    if _STARTING.fullmatch(name):
        return ""
    concerned = [library for library, names in _LIBRARIES.items() if names.fullmatch(name)]
    if not concerned:
        return _SETTING
    for carrier in carriers:
        if any(library in carrier for library in concerned):
            return _SETTING
    return ""


def _reason(name: str, info: RunInfo, carriers: Collection[str]) -> str:
    """Return why a condition must agree; empty if a difference is only to be known."""
    if name.startswith(_INTERFACE) and (info.get("nodes") or 1) > 1:
        return NETWORK
    if name == "torch" and TRAINING in carriers:  # rows of collectives name their library
        return CARRIER
    if name not in CONDITIONS:
        return ""
    return CONDITIONS[name].why


def differing_cases(cases: Sequence[Sequence[Measured]], *, force: bool) -> list[Difference]:
    """Return the differences in how cases were carried and timed, each kind once with its number of
    cases.

    Args:
        cases: the rows of each in the baselines, and in B.
        force: whether to compare cases that were timed differently.
    """
    differences = []
    for name in conditions_from("row"):
        counts: Counter[str] = Counter()
        for rows in cases:
            if is_unlike(rows, name):
                *before, after = [row.condition(name) for row in rows]
                counts[f"{', '.join(dict.fromkeys(before))} vs {after}"] += 1
        # a probe always chooses the batch; if another way of timing differs in all cases, the runs
        # were requested differently
        is_timing = name in _TIMED and not force and counts.total() < len(cases)
        for text, count in counts.items():
            difference = Difference(
                name=name,
                text=f"{text} (in {count} of {counted(len(cases), 'case')})",
                reason=CONDITIONS[name].why,
                is_of_cases=is_timing or name in _CHOSEN,
            )
            differences.append(difference)
    return differences


def is_unlike(rows: Sequence[Measured], name: str) -> bool:
    """Return whether the rows of a case differ in a condition that all state."""
    texts = {row.condition(name) for row in rows}
    return all(texts) and len(texts) > 1


def is_timed_alike(rows: Sequence[Measured], *, force: bool) -> bool:
    """Return whether a case can be judged: it was timed in the same way, except for what ``force``
    allows.
    """
    names = _CHOSEN if force else _TIMED
    return not any(is_unlike(rows, name) for name in names)
