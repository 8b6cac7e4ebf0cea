"""The launches of a training configuration, and comparisons of two configurations by speed and by
learning.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np

from commbench import stats
from commbench.ddp.plan.cases import SWEEP, TrainingCase, baseline_of
from commbench.ddp.plan.records import TrainingRecord
from commbench.results.info import RunInfo
from commbench.results.summary import outcome_of, records_by_case
from commbench.results.tables import Columns, rows_by
from commbench.stats import DEFAULT_LEVEL, Interval, median
from commbench.stats.components import FEWEST_VISITS

#: A loss is the mean over the last tenth of the steps.
LOSS_WINDOW = 10

#: Launches of a live tuning from which on its speedups are compared by launch; fewer are compared
#: by their blocks. Student's t over 2 or 3 launches is wider than the interval over the blocks of
#: one.
FEWEST_LIVE_LAUNCHES = 4

#: The most values of a block in pairs of steps.
_MOST_STEPS = 25

Group = tuple[str, str, int, int, str]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A configuration and the latest record of each of its launches, in the order of writing."""

    case: TrainingCase
    records: Sequence[TrainingRecord]

    @cached_property
    def timed(self) -> dict[int, TrainingRecord]:
        """The records of valid launches, by launch."""
        return {r.launch: r for r in self.records if r.status == "ok" and len(r.step_ms)}

    @cached_property
    def steps_ms(self) -> dict[int, float]:
        """The median step in milliseconds of each timed launch."""
        return {launch: median(record.step_ms) for launch, record in self.timed.items()}

    @property
    def outcome(self) -> Columns:
        """Status and reason of the configuration, see `outcome_of`."""
        return outcome_of(self.records)

    @property
    def is_ok(self) -> bool:
        """Whether it is valid and has a time."""
        return self.outcome["status"] == "ok" and bool(self.timed)

    def sample_ms(self, launch: int) -> float:
        """Return the median time per sample in a launch."""
        return self.steps_ms[launch] / self.case.samples_per_step

    def round_samples_ms(self, launch: int) -> dict[int, stats.Floats]:
        """Return the times per sample in each round of a launch: of the steps of its block."""
        record = self.timed[launch]
        blocks = blocks_ms(record)
        times = {}
        for number, steps_ms in zip(record.rounds or range(len(blocks)), blocks, strict=True):
            times[number] = steps_ms / self.case.samples_per_step
        return times


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """The speedup of a configuration over another, by the time per sample."""

    ratio: float
    launches: int
    """Launches that ran both."""
    ratios: Sequence[float] = ()
    """Of each launch; empty where blocks are compared."""
    interval: Interval | None = None
    """The interval over launches, at 95 % unless requested otherwise; over blocks where
    ``blocks`` is not 0."""
    blocks: int = 0
    """Pairs of blocks behind it in a live tuning with fewer launches than
    `FEWEST_LIVE_LAUNCHES`; else 0."""


def blocks_ms(record: TrainingRecord) -> list[stats.Floats]:
    """Return the timed steps of each block of a record in milliseconds."""
    ends = np.cumsum(record.block_lengths)[:-1]
    return [block for block in np.split(np.asarray(record.step_ms), ends) if len(block)]


def block_medians_ms(record: TrainingRecord) -> list[float]:
    """Return the median step of each block of a record in milliseconds."""
    return [median(block) for block in blocks_ms(record)]


def trained(records: Iterable[TrainingRecord], phase: str = SWEEP) -> dict[str, Trained]:
    """Return the configurations of one phase by case key, including those without DDP."""
    by_case = records_by_case(record for record in records if record.case.phase == phase)
    return {
        key: Trained(case=of_case[-1].case, records=of_case) for key, of_case in by_case.items()
    }


def baseline_case(cases: Sequence[TrainingCase], info: RunInfo) -> TrainingCase:
    """Return the baseline of a group of alternatives: in a live tuning the script's own setting,
    else DDP's default.

    Args:
        cases: of one group and phase.
        info: as ``run.json`` holds it; its ``baseline`` is read.
    """
    if key := info.get("baseline"):
        own = dataclasses.replace(TrainingCase.from_key(key), phase=cases[0].phase)
        if own.group == cases[0].group:
            return own
    return baseline_of(cases)


def groups_of(known: Mapping[str, Trained]) -> dict[Group, list[Trained]]:
    """Return the configurations that are alternatives to each other, by group, without those that
    do not use DDP.
    """
    with_ddp = [each for each in known.values() if each.case.uses_ddp]
    return rows_by(with_ddp, attrgetter("case.group"))


def speedup_of(
    configuration: Trained, baseline: Trained, *, level: float = DEFAULT_LEVEL
) -> Speedup | None:
    """Return the speedup of a configuration over ``baseline`` in the launches that have both.

    None without any.

    It is the median of the ratios of `paired_sample_ms`, with `commbench.stats.launch_interval`:
    launches that are slow as a whole cancel out. Where launches differ by 4 % and configurations
    within them by 1.5 %, its interval covers 95 to 97 % with 2 to 6 launches, and it spreads a
    fifth less than the ratio of the medians (simulated, lognormal). Where blocks were divided, the
    ratio of a launch is itself one of many steps and the interval is Student's unless launches have
    two modes, as for the visits of a collective. Pairs of blocks of a live tuning:
    `speedup_of_rounds`.
    """
    own, base = paired_sample_ms(configuration, baseline)
    if not own or min(own + base) <= 0:
        return None
    ratios = [theirs / ours for ours, theirs in zip(own, base, strict=True)]
    launches = common_launches(configuration, baseline)
    if pairs_blocks(configuration, baseline):
        return dataclasses.replace(speedup_of_rounds(ratios, level), launches=len(launches))
    interval = stats.launch_interval(ratios, level)
    divided = [has_rounds(configuration, baseline, launch) for launch in launches]
    if len(divided) > 1 and all(divided) and not stats.is_bimodal(ratios):
        interval = stats.student_interval(ratios, level)
    return Speedup(ratio=median(ratios), launches=len(launches), ratios=ratios, interval=interval)


def speedup_of_rounds(ratios: Sequence[float], level: float) -> Speedup:
    """Return the speedup of a live tuning from those of its rounds.

    Each round draws the order of its blocks, so that the logarithm of a ratio is distributed
    symmetrically about that of the true speedup, as signed ranks assume. Their interval is a fifth
    narrower than that of the median (normal noise, 32 rounds). Too few rounds for signed ranks have
    Student's interval.
    """
    logs = np.log(ratios)
    interval = stats.signed_rank_interval(logs, level)
    if interval is not None:
        interval = Interval(low=math.exp(interval.low), high=math.exp(interval.high), level=level)
    elif len(ratios) > 1:
        interval = stats.student_interval(ratios, level)
    return Speedup(
        ratio=math.exp(stats.hodges_lehmann(logs)),
        launches=1,
        interval=interval,
        blocks=len(ratios),
    )


def paired_sample_ms(configuration: Trained, baseline: Trained) -> tuple[list[float], list[float]]:
    """Return the median times per sample of both in each launch that has both.

    Where blocks were divided into short ones, whose numbers are those of rounds, the ratio of the
    two times is `ratio_of_neighbours`: what slows the machine for a while cancels out.
    In a live tuning with few launches they are those of all rounds. A launch that is slow as a
    whole cancels out of each ratio.
    """
    are_blocks = pairs_blocks(configuration, baseline)
    pairs = []
    for launch in common_launches(configuration, baseline):
        if are_blocks:
            pairs += _pairs_of_rounds(configuration, baseline, launch)
            continue
        own_ms, base_ms = configuration.sample_ms(launch), baseline.sample_ms(launch)
        if has_rounds(configuration, baseline, launch):
            base_ms = own_ms * ratio_of_neighbours(
                configuration.round_samples_ms(launch), baseline.round_samples_ms(launch)
            )
        pairs.append((own_ms, base_ms))
    return [own for own, _ in pairs], [theirs for _, theirs in pairs]


def _pairs_of_rounds(
    configuration: Trained, baseline: Trained, launch: int
) -> list[tuple[float, float]]:
    """Return the median times per sample of both in each round of a launch that has both."""
    own, theirs = configuration.round_samples_ms(launch), baseline.round_samples_ms(launch)
    return [(median(own[number]), median(theirs[number])) for number in own if number in theirs]


def ratio_of_neighbours(
    own: Mapping[int, stats.Floats], theirs: Mapping[int, stats.Floats]
) -> float:
    """Return how many times as long the steps of another configuration take, from the steps of
    rounds of both.

    It is the median of the ratios of all pairs of steps in the same round or in neighbouring ones:
    the shift of Hodges and Lehmann (1963) for two samples, on logarithms, of steps that the machine
    made within a short time. One slow step in ten does not move it much, a slow phase of the
    machine hardly. Of lognormal steps it spreads as much as the mean of the rounds' ratios; where
    one step in eight is slow, a third less (simulated). A block counts by `_MOST_STEPS` quantiles
    at most.

    Raises:
        ValueError: the two have no round, or none next to each other.
    """
    own_logs = {number: np.log(_thinned(steps)) for number, steps in own.items()}
    their_logs = {number: np.log(_thinned(steps)) for number, steps in theirs.items()}
    differences = []
    for number, logs in own_logs.items():
        for neighbour in (number - 1, number, number + 1):
            if neighbour in their_logs:
                differences.append(np.subtract.outer(their_logs[neighbour], logs).ravel())
    return math.exp(median(np.concatenate(differences)))


def _thinned(steps: stats.Floats) -> stats.Floats:
    """Return the steps, or `_MOST_STEPS` evenly spaced quantiles of more."""
    if len(steps) <= _MOST_STEPS:
        return steps
    return np.quantile(steps, (np.arange(_MOST_STEPS) + 0.5) / _MOST_STEPS)


def pairs_blocks(configuration: Trained, baseline: Trained) -> bool:
    """Return whether two configurations are compared by blocks: in a live tuning with few launches
    that have both.
    """
    launches = common_launches(configuration, baseline)
    records = [each.timed[launch] for launch in launches for each in (configuration, baseline)]
    return 0 < len(launches) < FEWEST_LIVE_LAUNCHES and all(
        len(record.block_at) for record in records
    )


def has_rounds(configuration: Trained, baseline: Trained, launch: int) -> bool:
    """Return whether a launch compares both in rounds: in those of a search, or in at least
    `FEWEST_VISITS` because the blocks of both were divided.
    """
    own, base = (each.timed[launch] for each in (configuration, baseline))
    if own.rounds and base.rounds:
        return bool(_pairs_of_rounds(configuration, baseline, launch))
    rounds = len(own.block_lengths)
    return (
        rounds >= FEWEST_VISITS
        and rounds == len(base.block_lengths)
        and own.is_divided
        and base.is_divided
    )


def common_launches(configuration: Trained, baseline: Trained) -> list[int]:
    """Return the launches in which both were timed."""
    return sorted(configuration.steps_ms.keys() & baseline.steps_ms.keys())


# ------------------------------------------------------------------------------------- the learning


@dataclass(frozen=True, kw_only=True)
class EqualLosses:
    """The training loss of a configuration in one launch; each the mean over a window of steps."""

    steps: float
    """After as many steps as all configurations of the group made in that launch."""
    time: float
    """Loss when the fastest configuration of the group finished."""
    count: int
    """Steps that all of them made."""


Losses = Mapping[tuple[str, int], EqualLosses]
"""The losses of configurations by case key and launch."""


def equal_losses(group: Sequence[Trained]) -> Losses:
    """Return the losses of a group's configurations by (case key, launch).

    Each launch has its own data.

    The window is a tenth of the common steps, one at least. A configuration finishes after all its
    steps, each of its median time.
    """
    by_launch: dict[int, list[Trained]] = {}
    for member in group:
        for launch, record in member.timed.items():
            if len(record.losses):
                by_launch.setdefault(launch, []).append(member)
    equal = {}
    for launch, members in by_launch.items():
        made = [len(member.timed[launch].losses) for member in members]
        count, width = min(made), max(1, min(made) // LOSS_WINDOW)
        lasted_ms = [
            steps * member.steps_ms[launch] for steps, member in zip(made, members, strict=True)
        ]
        for member in members:
            losses, step_ms = member.timed[launch].losses, member.steps_ms[launch]
            reached = count
            if step_ms:
                reached = math.floor(min(lasted_ms) / step_ms + 1e-9)
            equal[member.case.key, launch] = EqualLosses(
                steps=_ending(losses, count, width),
                time=_ending(losses, reached, width),
                count=count,
            )
    return equal


def paired_losses(
    configuration: Trained, base: Trained, losses: Losses
) -> list[tuple[EqualLosses, EqualLosses]]:
    """Return the losses of two configurations in each launch that has both."""
    pairs = []
    for launch in common_launches(configuration, base):
        own = losses.get((configuration.case.key, launch))
        theirs = losses.get((base.case.key, launch))
        if own is not None and theirs is not None:
            pairs.append((own, theirs))
    return pairs


def _ending(losses: Sequence[float], end: int, width: int) -> float:
    """Return the mean of ``width`` losses up to step ``end``, or of as many as there are."""
    end = min(max(end, 1), len(losses))
    return float(np.mean(losses[max(0, end - width) : end]))


def time_to_target_s(configuration: Trained) -> float | None:
    """Return the median seconds until the metric meets its target.

    None unless it does in most launches.

    For the direction of a metric see `falls`.
    """
    times = []
    for launch, record in configuration.timed.items():
        if record.target is not None and len(record.metrics):
            times.append(_reached(record) * configuration.steps_ms[launch] / 1e3)
    time_s = median_known(times)
    if time_s is None or not math.isfinite(time_s):
        return None
    return time_s


def _reached(record: TrainingRecord) -> float:
    """Return the number of steps after which the metric first meets its target.

    Infinite if never.
    """
    target = record.target or 0.0
    for step, value in record.metrics:
        is_met = value >= target
        if falls(record.metric_name):
            is_met = value <= target
        if is_met:
            return step
    return math.inf


def falls(metric_name: str) -> bool:
    """Return whether a lower metric is better: true of ``loss`` only."""
    return metric_name == "loss"


def median_known(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None; None without any."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return float(np.median(present))  # a loss may be NaN
