"""The comparison of environments: which values of the variables that a run varied are faster,
beside an A/A control.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import TypeVar

from commbench import stats
from commbench.ddp.plan.cases import CONFIRM
from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.findings import Finding, Value
from commbench.results import Run, once_per_run
from commbench.results.info import Launch, RunInfo
from commbench.results.summary import keyed_records, launch_values
from commbench.results.trained import trained
from commbench.stats import Comparison, Verdict
from commbench.system.env import is_control, variables_of
from commbench.words import Estimate

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
    def is_control(self) -> bool:
        """Whether it is the repetition of the first environment."""
        return is_control(self.env)

    @property
    def estimate(self) -> Estimate:
        """The ratio with its interval."""
        return Estimate(self.comparison.ratio, *self.comparison.bounds)


@dataclass(frozen=True, kw_only=True)
class EnvComparison:
    """All environments of a run against the first one."""

    first: str
    ratios: Sequence[EnvRatio]
    """The control first, then the others in the requested order; without those that have no case
    with the first."""
    is_fresh: bool = False
    """Whether the launches are those that confirm training settings."""

    @property
    def control(self) -> EnvRatio | None:
        """The repetition of the first environment; None if it was not measured."""
        return next((ratio for ratio in self.ratios if ratio.is_control), None)

    @property
    def is_sound(self) -> bool:
        """Whether the control's interval includes 1: launches then differ by no more than intervals
        show.
        """
        if self.control is None:
            return False
        low, high = self.control.comparison.bounds
        return low is not None and high is not None and low <= 1 <= high

    @property
    def best(self) -> EnvRatio | None:
        """The fastest environment of those shown to be faster than the first; None without any."""
        faster = [ratio for ratio in self.ratios if ratio.comparison.verdict is Verdict.FASTER]
        return min(faster, key=lambda ratio: ratio.comparison.ratio, default=None)

    @property
    def finding(self) -> Finding:
        """The conclusion: which environment is the fastest, and how far the control differs."""
        if self.control is None or self.control.comparison.interval is None:
            return Finding("env_few_launches", self.first)
        numbers: dict[str, Value] = {"control": self.control.estimate}
        if not self.is_sound:
            return Finding("env_unsound", self.first, numbers)
        if self.best is None:
            return Finding("env_none", self.first, numbers)
        numbers |= {"env": self.best.env, "best": self.best.estimate}
        return Finding("env_fastest", self.first, numbers)


def compare_env(by_env: Mapping[str, _Times], envs: Sequence[str]) -> EnvComparison | None:
    """Compare environments by the times of their launches, which are not paired.

    None without a second one.

    Args:
        by_env: times of each environment.
        envs: the environments in the requested order.
    """
    first, *others = envs
    counts: dict[str, int] = {}
    controls: dict[str, _Pair] = {}
    values: dict[str, _Pair] = {}
    times: dict[tuple[str, Hashable], _Pair] = {}
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
    comparisons = _comparisons(controls) | _comparisons(values)
    verdicts = Counter((env, each.verdict) for (env, _), each in _comparisons(times).items())
    ratios = [
        EnvRatio(
            env=env,
            cases=count,
            faster=verdicts[env, Verdict.FASTER],
            slower=verdicts[env, Verdict.SLOWER],
            comparison=comparisons[env],
        )
        for env, count in counts.items()
    ]
    comparison = EnvComparison(first=first, ratios=ratios)
    if not comparison.is_sound:
        return _without_verdicts(comparison)
    return comparison


def _without_verdicts(comparison: EnvComparison) -> EnvComparison:
    ratios = [
        replace(
            ratio, comparison=replace(ratio.comparison, verdict=Verdict.INCONCLUSIVE, further=None)
        )
        for ratio in comparison.ratios
    ]
    return replace(comparison, ratios=ratios)


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
    return compare_env(_collective_times(run.records), run.info.get("env") or [""])


@once_per_run
def training_envs(run: Run) -> EnvComparison | None:
    """Return the comparison of environments over all settings of a run, see
    `compare_training_envs`.
    """
    return compare_training_envs(run.training_records, run.info)


def compare_training_envs(records: Iterable[TrainingRecord], info: RunInfo) -> EnvComparison | None:
    """Return the comparison of environments over the settings of fresh launches, without any over
    those of the sweep.

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
    return comparison and replace(comparison, is_fresh=bool(confirmed))


def _collective_times(records: Iterable[Record]) -> dict[str, _Times]:
    by_env: dict[str, _Times] = {}
    for (_, group), of_row in keyed_records(records).items():
        case, times = of_row[-1].case, launch_values(of_row)
        if times:
            by_env.setdefault(case.env, {})[replace(case, env=""), group] = times
    return by_env


# ------------------------------------------------------------------------------------ the variables


def variable_findings(info: RunInfo) -> list[Finding]:
    """Return whether the ranks had the variables as asked, and what NCCL's log says.

    Empty if no variable was varied.
    """
    launches = [launch for launch in info.get("launches") or () if launch.get("variables")]
    if not launches:
        return []
    unlike: list[Finding] = []
    right, names, logged = 0, dict[str, None](), set[str]()
    for launch in launches:
        differences = _unlike(launch)
        right += not differences
        unlike += [each for each in differences if each not in unlike]
        for name, values in launch["variables"].items():
            names[name] = None
            if values["nccl"]:
                logged.add(name)
    findings = [
        Finding(
            "variables_set",
            numbers={"right": right, "starts": len(launches), "names": tuple(names)},
        ),
        *unlike,
    ]
    read = tuple(name for name in names if name in logged)
    if read:
        findings.append(Finding("variables_logged", numbers={"names": read}))
    unread = tuple(name for name in names if name.startswith("NCCL_") and name not in logged)
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
