"""The time of a training step for settings that were not measured, between two bounds, calibrated on measured ones."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from commbench.errors import InputError
from commbench.prediction.exchange import FLOAT32_BYTES, HookCost, Shapes, messages_of
from commbench.prediction.network import Network
from commbench.prediction.timeline import BucketPrediction, BucketWork, Timeline, overlapped, serial
from commbench.training.cases import DEFAULT_CAP, TrainingCase
from commbench.training.layout import case_layout
from commbench.training.records import TrainingRecord
from commbench.training.workload import WorkloadFacts

#: A collective of so few bytes shows its latency.
LATENCY_BYTES = 4
#: Halvings after which a calibrated number is exact enough: 2^-20.
HALVINGS = 20
#: Bounds of what communication in training may take, relative to the network alone.
SLOWEST, FASTEST = 4.0, 0.25


@dataclass(frozen=True, kw_only=True)
class StepPrediction:
    """A predicted step of one setting; milliseconds."""

    case: TrainingCase
    step_ms: float
    overlapped_ms: float
    """If communication overlapped perfectly: the lower bound."""
    serial_ms: float
    """If it did not overlap at all: the upper bound."""
    exposed_comm_ms: float
    buckets: Sequence[BucketPrediction]


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """All that a step's time is predicted from."""

    facts: WorkloadFacts
    network: Network
    reference: TrainingCase
    """The step without DDP that it is calibrated on: a prediction shares its workload, batch and precision."""
    forward_ms: float
    """Of the step without DDP, as all ranks measured it side by side; likewise the next three."""
    backward_ms: float
    optimizer_ms: float
    other_ms: float
    """What of the step is none of these."""
    ddp_forward_ms: float = 0.0
    """What DDP adds to the forward pass, such as broadcasting buffers."""
    copy_ms_per_byte: float = 0.0
    """Copying a gradient into its bucket."""
    hooks: Mapping[str, HookCost]
    """By `TrainingCase.hook_name`."""
    overlap: Mapping[str, float]
    """Overlap efficiency by `TrainingCase.hook_name`: 1 at the lower bound, 0 at the upper."""
    slowdown: Mapping[str, float] = field(default_factory=dict)
    """How much longer communication takes than on the network alone, where the bounds do not hold the measured step."""

    @classmethod
    def calibrate(cls, facts: WorkloadFacts, network: Network, records: Iterable[TrainingRecord]) -> StepModel:
        """Fit to measured settings: the step without DDP, the baseline, and one or more of each hook.

        Raises:
            InputError: the step without DDP or the baseline is not among ``records``.
        """
        settings = _by_setting(records)
        local = next((seen for case, seen in settings.items() if not case.uses_ddp), None)
        if local is None:
            raise InputError("A step is predicted from one without DDP, which was not measured: measure it first.")
        model = _of_local(facts, network, local)
        measured = {case: seen for case, seen in settings.items() if case.uses_ddp and _alike(case, local.case)}
        if not any(case.hook == "none" and case.bucket_cap_mb == DEFAULT_CAP for case in measured):
            raise InputError(
                "A step is predicted from the baseline (hook none, default buckets, same precision as without DDP), "
                "which was not measured: measure it first."
            )
        added = statistics.median(seen.forward_ms / case.accumulation for case, seen in measured.items())
        model = dataclasses.replace(model, ddp_forward_ms=max(0.0, added - model.forward_ms))
        by_hook: dict[str, dict[TrainingCase, _Measured]] = {}
        for case, seen in measured.items():
            by_hook.setdefault(case.hook_name, {})[case] = seen
        for hook, seen_cases in by_hook.items():
            model = _with_hook(model, hook, seen_cases)
        return model

    def predict(self, case: TrainingCase) -> StepPrediction:
        """Predict a setting.

        Raises:
            InputError: its hook has not been calibrated, or it is of another workload, batch or precision.
        """
        self._check(case)
        work = self.work(case)
        servers = 1 if case.hook == "powersgd" else self.network.servers
        contention = 1 - self.overlap.get(case.hook_name, 1.0)
        best = overlapped(work, self.backward_ms, servers=servers)
        likely = overlapped(work, self.backward_ms, servers=servers, contention=contention) if contention else best
        return StepPrediction(
            case=case,
            step_ms=self._step_ms(case, likely),
            overlapped_ms=self._step_ms(case, best),
            serial_ms=self._step_ms(case, serial(work, self.backward_ms)),
            exposed_comm_ms=likely.exposed_ms,
            buckets=likely.buckets,
        )

    def _step_ms(self, case: TrainingCase, timeline: Timeline) -> float:
        """All passes of a step; gradients are exchanged in the last."""
        others = (case.accumulation - 1) * (self.forward_ms + self.backward_ms)
        last = self.forward_ms + self.ddp_forward_ms + timeline.end_ms
        return others + last + self.optimizer_ms + self.other_ms

    def _check(self, case: TrainingCase) -> None:
        mine = self.reference
        for what, asked, found in (
            ("workload", case.workload, mine.workload),
            ("batch", case.batch_per_rank, mine.batch_per_rank),
            ("precision", case.precision, mine.precision),
            ("world_size", case.world_size, self.network.world_size),
        ):
            if asked != found:
                raise InputError(
                    f"A step with {what} {asked} was to be predicted, but {found} was measured: measure {asked}, too."
                )
        if case.uses_ddp and case.hook_name not in self.hooks:
            raise InputError(
                f"A step with hook {case.hook_name} was to be predicted, but only {', '.join(self.hooks)} were "
                "measured: measure one setting of it first."
            )

    def work(self, case: TrainingCase) -> list[BucketWork]:
        """The buckets of a case as the timeline takes them in, in the order of sending."""
        return [self.bucket_of(case, bucket) for bucket in case_layout(case, self.facts)]

    def bucket_of(self, case: TrainingCase, indices: Sequence[int]) -> BucketWork:
        """The bucket of these parameters of `facts`."""
        parameters = [self.facts.parameters[i] for i in indices]
        shapes = [parameter.shape for parameter in parameters if parameter.shape is not None]
        return self.bucket(
            case,
            sum(parameter.numel for parameter in parameters),
            shapes=shapes if len(shapes) == len(parameters) else None,
            ready_ms=self.backward_ms / self.facts.backward_ms * max(parameter.ready_ms for parameter in parameters),
        )

    def bucket(self, case: TrainingCase, elements: int, *, shapes: Shapes = None, ready_ms: float = 0.0) -> BucketWork:
        """What a bucket of so many elements costs under a case's hook; see `messages_of` for ``shapes``."""
        messages = messages_of(case, elements, self.network.world_size, shapes=shapes)
        times = [self.network.time_us(m.operation, m.dtype, m.message_bytes) for m in messages]
        least = [self.network.time_us(m.operation, m.dtype, LATENCY_BYTES) for m in messages]
        cost, slowdown = self.hooks[case.hook_name], self.slowdown.get(case.hook_name, 1.0)
        size_bytes = elements * FLOAT32_BYTES
        return BucketWork(
            size_bytes=size_bytes,
            ready_ms=ready_ms,
            encode_ms=cost.encoding_ms(elements),
            comm_ms=slowdown * sum(times) / 1e3,
            decode_ms=cost.decoding_ms(elements),
            latency_ms=slowdown * sum(map(min, times, least)) / 1e3,
            copy_in_ms=self.copy_ms_per_byte * size_bytes,
        )


def _of_local(facts: WorkloadFacts, network: Network, local: _Measured) -> StepModel:
    """The model that knows the step without DDP."""
    passes = local.case.accumulation
    return StepModel(
        facts=facts,
        network=network,
        reference=local.case,
        forward_ms=local.forward_ms / passes,
        backward_ms=local.backward_ms / passes,
        optimizer_ms=local.optimizer_ms,
        other_ms=local.step_ms - local.forward_ms - local.backward_ms - local.optimizer_ms,
        hooks={},
        overlap={},
    )


def _alike(case: TrainingCase, other: TrainingCase) -> bool:
    """Whether two cases are of the same workload, batch, ranks, backend and precision."""
    return (case.group, case.precision) == (other.group, other.precision)


def _with_hook(model: StepModel, hook: str, measured: Mapping[TrainingCase, _Measured]) -> StepModel:
    """The model that also knows a hook, whose overlap comes nearest to the measured steps."""
    cost = HookCost.of(record for seen in measured.values() for record in seen.records)

    def at(overlap: float, slowdown: float) -> StepModel:
        return dataclasses.replace(
            model,
            hooks={**model.hooks, hook: cost},
            overlap={**model.overlap, hook: overlap},
            slowdown={**model.slowdown, hook: slowdown},
        )

    def excess(overlap: float, slowdown: float) -> float:
        tried = at(overlap, slowdown)
        return sum(tried.predict(case).step_ms / seen.step_ms - 1 for case, seen in measured.items())

    if excess(1.0, 1.0) > 0:
        return at(1.0, _root(lambda slowdown: excess(1.0, slowdown), FASTEST, 1.0))
    if excess(0.0, 1.0) < 0:
        return at(0.0, _root(lambda slowdown: excess(0.0, slowdown), 1.0, SLOWEST))
    return at(_root(lambda overlap: -excess(overlap, 1.0), 0.0, 1.0), 1.0)


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """One setting in all its launches: medians over launches of a launch's medians, milliseconds."""

    case: TrainingCase
    records: Sequence[TrainingRecord]

    def _median(self, of: Callable[[TrainingRecord], float | None]) -> float:
        return statistics.median(of(record) or 0.0 for record in self.records)

    @property
    def step_ms(self) -> float:
        return self._median(lambda record: statistics.median(record.step_ms))

    @property
    def forward_ms(self) -> float:
        return self._median(lambda record: record.forward_ms)

    @property
    def backward_ms(self) -> float:
        return self._median(lambda record: record.backward_ms)

    @property
    def optimizer_ms(self) -> float:
        return self._median(lambda record: record.optimizer_ms)


def _by_setting(records: Iterable[TrainingRecord]) -> dict[TrainingCase, _Measured]:
    """Sound records by setting, the fewest passes a step first; sweep and confirmation are the same setting."""
    found: dict[TrainingCase, list[TrainingRecord]] = {}
    for record in records:
        if record.status == "ok" and record.step_ms:
            found.setdefault(dataclasses.replace(record.case, phase="sweep"), []).append(record)
    ordered = sorted(found, key=lambda case: case.accumulation)
    return {case: _Measured(case=case, records=found[case]) for case in ordered}


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where an increasing function crosses 0, by halving; the nearer end where it does not."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2
