"""A step of training on another network: the measured buckets again, each with other messages."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commbench import stats
from commbench.analysis.prediction.law import Family, ForecastNetwork, Place
from commbench.ddp.plan.cases import SWEEP, TrainingCase, hook_position
from commbench.ddp.plan.layout import case_layout
from commbench.ddp.plan.records import Bucket, TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.findings import UnpredictedError
from commbench.hooks.message import BucketShape
from commbench.hooks.registry import read_hook
from commbench.stats import Interval


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A step on another network; milliseconds, medians over launches."""

    case: TrainingCase
    step_ms: float
    exposed_comm_ms: float
    """Communication that continues when all gradients are ready."""
    interval: Interval | None
    """Over launches; None for one."""


@dataclass(frozen=True, kw_only=True)
class TrainedWorkload:
    """The training records of one workload, backend, number of ranks, batch and precision."""

    facts: WorkloadFacts
    records: Sequence[TrainingRecord]
    place: Place
    """The network of the training."""
    run: str = ""
    """Name of the run with the records."""

    @property
    def settings(self) -> dict[TrainingCase, list[TrainingRecord]]:
        """The valid records of each setting with DDP, in the order of the hooks.

        Compiled settings are left out: their computing takes another time.
        """
        settings: dict[TrainingCase, list[TrainingRecord]] = {}
        for record in self.records:
            case = dataclasses.replace(record.case, phase=SWEEP)
            if record.status == "ok" and record.buckets and not case.compile:
                settings.setdefault(case, []).append(record)
        return {case: settings[case] for case in sorted(settings, key=_hook_order)}

    @property
    def local_step_ms(self) -> float | None:
        """The step without DDP; None if it was not trained."""
        steps_ms = []
        for record in self.records:
            if not record.case.uses_ddp and record.status == "ok" and record.step_ms:
                steps_ms.append(statistics.median(record.step_ms))
        return statistics.median(steps_ms) if steps_ms else None

    def replay(self, network: ForecastNetwork, hook: str, place: Place) -> Replay:
        """Return the shortest step of a hook's measured settings on another network.

        Args:
            network: from which collectives are predicted.
            hook: by name.
            place: the other network.

        Raises:
            InputError: the hook has no result or sends what is not known, or the network lacks a
                collective that it uses.
        """
        replays = []
        for case in self.settings:
            if case.hook_name == hook:
                replays.append(self._replay(network, case, place))
        if not replays:
            raise UnpredictedError("hook_unmeasured", hook)
        return min(replays, key=lambda replay: replay.step_ms)

    def _replay(self, network: ForecastNetwork, case: TrainingCase, place: Place) -> Replay:
        factors = self._factors(network, case, place)
        steps_ms, exposed_ms = [], []
        for record in self.settings[case]:
            before_ms = _ends(record.buckets, [1.0] * len(record.buckets))
            after_ms = _ends(record.buckets, factors)
            steps_ms.append(statistics.median(record.step_ms) + after_ms - before_ms)
            computed_ms = max(bucket.ready_ms for bucket in record.buckets)
            exposed_ms.append(after_ms - computed_ms)
        return Replay(
            case=case,
            step_ms=statistics.median(steps_ms),
            exposed_comm_ms=statistics.median(exposed_ms),
            interval=stats.launch_interval(steps_ms),
        )

    def _factors(self, network: ForecastNetwork, case: TrainingCase, place: Place) -> list[float]:
        """Return for each bucket the time of its messages there over that as trained.

        Raises:
            InputError: as `replay`.
        """
        if not case.is_predicted:
            raise UnpredictedError("hook_bytes_unknown", case.hook_name, hook=case.hook)
        factors = []
        hook = read_hook(case.hook, density=case.density, options=case.options)
        for indices in case_layout(case, self.facts):
            parameters = [self.facts.parameters[i] for i in indices]
            times_us = []
            for each in (place, self.place):
                bucket = BucketShape(
                    shapes=[parameter.shape for parameter in parameters],
                    world_size=each.world_size,
                    dtype=parameters[0].dtype,
                )
                time_us = 0.0
                for message in hook.messages(bucket):
                    family = Family(message.operation, case.carrier, message.dtype)
                    time_us += network.time_us(family, message.message_bytes, each)
                times_us.append(time_us)
            there_us, here_us = times_us
            factors.append(there_us / here_us)
        return factors


def _hook_order(case: TrainingCase) -> tuple[object, ...]:
    """Return the registry's order of hooks, the densest first."""
    return hook_position(case.hook), -(case.density or 0.0), case.hook_name


def _ends(buckets: Iterable[Bucket], factors: Sequence[float]) -> float:
    """Return when the last bucket is done, in milliseconds since the backward pass began.

    Buckets follow each other on the link, in the order in which they were done. The time that one
    has it for itself is what follows its gradients and the bucket before; a factor lengthens it,
    except for compressing and decompressing. With factors of 1 the buckets end as measured.
    """
    measured_ms = now_ms = last_ready_ms = 0.0
    ordered = sorted(zip(buckets, factors, strict=False), key=lambda each: each[0].done_ms)
    for bucket, factor in ordered:
        alone_ms = bucket.done_ms - max(bucket.ready_ms, measured_ms)
        local_ms = min(bucket.compress_ms, alone_ms)
        begin_ms = max(bucket.ready_ms, now_ms)
        now_ms = begin_ms + local_ms + factor * (alone_ms - local_ms)
        measured_ms = bucket.done_ms
        last_ready_ms = max(last_ready_ms, bucket.ready_ms)
    return max(now_ms, last_ready_ms)
