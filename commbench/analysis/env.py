"""The comparison of environments: which values of the variables that a run varied are faster,
beside an A/A control.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import geometric_mean
from typing import TypeVar

from commbench import stats
from commbench.ddp.plan.cases import CONFIRM
from commbench.ddp.plan.records import TrainingRecord
from commbench.findings import Finding, Numbers
from commbench.results import Run, once_per_run
from commbench.results.info import Launch, RunInfo
from commbench.results.summary import keyed_records, launch_values
from commbench.results.trained import trained
from commbench.stats import Comparison, Verdict
from commbench.system.env import is_control, variables_of

KeyT = TypeVar("KeyT", bound=Hashable)
#: Time by case and launch, of one environment.
_Times = dict[Hashable, dict[int, float]]
#: Times of launches under the first environment and under another.
_Pair = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class EnvRatio:
    """The time under one environment over that under the first, over all cases that both have."""

    env: str
    cases: int
    """Number of these cases."""
    faster: int
    """Number of cases that are faster when judged one by one."""
    slower: int
    comparison: Comparison
    """Of the geometric means over cases of the launches.

    Its verdict is inconclusive if the control differs.
    """

    @property
    def launches(self) -> int:
        """Number of launches under it."""
        return self.comparison.launches_b


@dataclass(frozen=True, kw_only=True)
class EnvComparison:
    """All environments of a run against the first one."""

    first: str
    ratios: Sequence[EnvRatio]
    """The control first, then the others in the requested order; without those that have no case
    with the first."""
    best: EnvRatio | None
    """The fastest environment of those shown to be faster than the first; None without any."""
    finding: Finding
    """The conclusion: which environment is the fastest, and how far the control differs."""
    is_confirmation: bool = False
    """Whether the launches are those that confirm training settings."""


def compare_env(by_env: Mapping[str, _Times], envs: Sequence[str]) -> EnvComparison | None:
    """Compare environments by the times of their launches, which are not paired.

    None without a second one.

    Args:
        by_env: times of each environment.
        envs: the environments in the requested order.
    """
    first, *others = envs
    counts = {}
    controls: dict[str, _Pair] = {}
    values: dict[str, _Pair] = {}
    times = {}
    before = by_env.get(first, {})
    for env in others:
        after = by_env.get(env, {})
        cases = [case for case, by_launch in before.items() if by_launch and after.get(case)]
        if cases:
            means = values
            if is_control(env):
                means = controls
            means[env] = _means(before, cases), _means(after, cases)
            counts[env] = len(cases)
        for case in cases:
            times[env, case] = [*before[case].values()], [*after[case].values()]
    if not counts:
        return None
    comparisons = _comparisons(controls)
    control = next(iter(comparisons.values()), None)
    comparisons |= _comparisons(values)
    verdicts = Counter((env, each.verdict) for (env, _), each in _comparisons(times).items())
    numbers: Numbers = {}
    code, is_sound = "env_few_launches", False
    if control is not None and control.interval is not None:
        # launches differ by no more than intervals show
        is_sound = control.interval.low <= 1 <= control.interval.high
        numbers["control"] = control.estimate
        code = "env_none" if is_sound else "env_unsound"
    ratios = []
    for env, count in counts.items():
        comparison = comparisons[env]
        if not is_sound:
            comparison = replace(comparison, verdict=Verdict.INCONCLUSIVE, further=None)
        ratio = EnvRatio(
            env=env,
            cases=count,
            faster=verdicts[env, Verdict.FASTER],
            slower=verdicts[env, Verdict.SLOWER],
            comparison=comparison,
        )
        ratios.append(ratio)
    faster = [ratio for ratio in ratios if ratio.comparison.verdict is Verdict.FASTER]
    best = min(faster, key=attrgetter("comparison.ratio"), default=None)
    if best is not None:
        code = "env_fastest"
        numbers |= {"env": best.env, "best": best.comparison.estimate}
    finding = Finding(code, first, numbers)
    return EnvComparison(first=first, ratios=ratios, best=best, finding=finding)


def _comparisons(pairs: Mapping[KeyT, _Pair]) -> dict[KeyT, Comparison]:
    """Return the comparisons of pairs, judged as one family."""
    comparisons = stats.compare_family(list(pairs.values()))
    return dict(zip(pairs, comparisons, strict=True))


def _means(times: _Times, cases: Sequence[Hashable]) -> list[float]:
    """Return the geometric mean over the cases of each launch that has all of them."""
    means = []
    for launch in sorted(set.intersection(*(set(times[case]) for case in cases))):
        of_cases = [times[case][launch] for case in cases]
        if min(of_cases) > 0:
            means.append(geometric_mean(of_cases))
    return means


@once_per_run
def collective_envs(run: Run) -> EnvComparison | None:
    """Return the comparison of environments over all collectives of a run.

    None if it varied none.
    """
    by_env: dict[str, _Times] = {}
    for (_, group), of_row in keyed_records(run.records).items():
        case, times = of_row[-1].case, launch_values(of_row)
        if times:
            by_env.setdefault(case.env, {})[replace(case, env=""), group] = times
    return compare_env(by_env, run.info.get("env") or [""])


@once_per_run
def training_envs(run: Run) -> EnvComparison | None:
    """Return the comparison of environments over all settings of a run, see
    `compare_training_envs`.
    """
    return compare_training_envs(run.training_records, run.info)


def compare_training_envs(records: Iterable[TrainingRecord], info: RunInfo) -> EnvComparison | None:
    """Return the comparison of environments over the settings of confirmation launches, without
    any over those of the sweep.

    None if no environment was varied or nothing was trained.
    """
    records = list(records)
    confirmed = trained(records, CONFIRM)
    settings = confirmed or trained(records)
    by_env: dict[str, _Times] = {}
    for setting in settings.values():
        if setting.case.uses_ddp and setting.is_ok:
            case = replace(setting.case, env="")
            by_env.setdefault(setting.case.env, {})[case] = setting.steps_ms
    comparison = compare_env(by_env, info.get("env") or [""])
    return comparison and replace(comparison, is_confirmation=bool(confirmed))


# ------------------------------------------------------------------------------------ the variables


def variable_findings(info: RunInfo) -> list[Finding]:
    """Return whether the ranks had the variables as asked, and what NCCL's log says.

    Empty if no variable was varied.
    """
    launches = [launch for launch in info.get("launches", ()) if launch.get("variables")]
    if not launches:
        return []
    unlike = []
    right = 0
    is_logged: dict[str, bool] = {}
    for launch in launches:
        differences = _unlike(launch)
        right += not differences
        unlike += [each for each in differences if each not in unlike]
        for name, values in launch["variables"].items():
            is_logged[name] = is_logged.get(name, False) or bool(values["nccl"])
    findings = [
        Finding(
            "variables_set",
            numbers={"right": right, "starts": len(launches), "names": tuple(is_logged)},
        ),
        *unlike,
    ]
    read = tuple(name for name in is_logged if is_logged[name])
    if read:
        findings.append(Finding("variables_logged", numbers={"names": read}))
    unread = tuple(name for name in is_logged if name.startswith("NCCL_") and not is_logged[name])
    if unread:
        findings.append(Finding("variables_unlogged", numbers={"names": unread}))
    return findings


def _unlike(launch: Launch) -> list[Finding]:
    """Return how the variables of a launch's ranks, and the values that NCCL read, differ from what
    was asked.
    """
    requested, findings = variables_of(launch["env"]), []
    for name, values in launch["variables"].items():
        value = requested.get(name)
        setting = f"{name}={value or 'default'}"
        if list(values["ranks"]) != [value]:
            had = [each or "no value" for each in values["ranks"]]
            numbers = {"had": " or ".join(had)}
            findings.append(Finding("variables_ranks_had", setting, numbers))
        read = {text.lower() for text in values["nccl"]}
        if value is not None and read and read != {value.lower()}:
            texts = {"read": tuple(values["nccl"])}
            findings.append(Finding("variables_nccl_read", setting, texts))
    return findings
