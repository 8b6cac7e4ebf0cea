"""The model of a training step: messages and costs of hooks.

Calibrated on measured settings, it predicts others.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commbench.analysis.prediction.calibration import (
    Observation,
    Setting,
    Sharing,
    fit_sharing,
    settings_of,
)
from commbench.analysis.prediction.network import MeasuredNetwork
from commbench.analysis.prediction.timeline import BucketPrediction, BucketWork, overlapped, serial
from commbench.collectives.datatypes import DTYPES
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.layout import case_layout
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.errors import InputError
from commbench.findings import UnpredictedError
from commbench.hooks.message import FLOAT32_BYTES, BucketShape, Message, Shapes
from commbench.hooks.registry import read_hook

#: Buckets whose sizes differ by less than this factor cannot separate a fixed cost from a cost per
#: byte.
LEAST_SIZE_RATIO = 2.0
#: A message so small that its time is latency.
LATENCY_BYTES = 4


def messages_of(
    case: TrainingCase,
    elements: int,
    world_size: int,
    *,
    shapes: Shapes | None = None,
    dtype: str = "float32",
) -> tuple[Message, ...]:
    """Return the collectives that a case's hook issues for a bucket of gradients, in order, after
    any warm-up.

    Args:
        case: the configuration; the step without DDP sends nothing.
        elements: of the bucket.
        world_size: number of ranks.
        shapes: of the bucket's tensors, in its order; for hooks that treat tensors differently.
        dtype: of the gradients; sparsifying hooks take float32 only.

    Raises:
        InputError: no hook has this name, or its messages depend on the shapes and ``shapes`` is
            None.
    """
    if not case.uses_ddp:
        return ()
    hook = read_hook(case.hook, density=case.density, options=case.options)
    if shapes is None and hook.needs_shapes:
        raise InputError(
            f"What hook {case.hook_name} sends was asked for from the number of elements alone, but"
            " it depends on the shapes of the tensors: give these, from an inspection of the"
            " workload."
        )
    bucket = BucketShape(elements=elements, world_size=world_size, shapes=shapes, dtype=dtype)
    return hook.messages(bucket)


def tensors_of(facts: WorkloadFacts, indices: Sequence[int]) -> tuple[int, Shapes | None, str]:
    """Return the elements, the shapes (None unless all are known) and the data type of
    parameters.
    """
    parameters = [facts.parameters[i] for i in indices]
    shapes = [parameter.shape for parameter in parameters if parameter.shape is not None]
    elements = sum(parameter.numel for parameter in parameters)
    return elements, shapes if len(shapes) == len(parameters) else None, parameters[0].dtype


@dataclass(frozen=True, kw_only=True)
class HookCost:
    """Local work of a hook on a bucket of n elements, linear in n; milliseconds."""

    encode_ms: float = 0.0
    """Per bucket, on the thread of the backward pass."""
    encode_ms_per_element: float = 0.0
    decode_ms: float = 0.0
    """Per bucket, after the communication; for the ``world_size`` of the calibration."""
    decode_ms_per_element: float = 0.0

    @classmethod
    def of(cls, records: Iterable[TrainingRecord]) -> HookCost:
        """Return the cost from the measured buckets of one hook.

        Zero for hook none, whose copies DDP makes.

        A record has each bucket's total cost, and the share of encoding over all buckets. Every
        bucket gets the same share.
        """
        elements: list[float] = []
        encode: list[float] = []
        decode: list[float] = []
        for record in records:
            share = _encoding_share(record)
            for bucket in record.buckets if not record.case.is_plain else ():
                elements.append(bucket.size_bytes / FLOAT32_BYTES)
                encode.append(share * bucket.compress_ms)
                decode.append((1 - share) * bucket.compress_ms)
        encode_ms, encode_ms_per_element = _line(elements, encode)
        decode_ms, decode_ms_per_element = _line(elements, decode)
        return cls(
            encode_ms=encode_ms,
            encode_ms_per_element=encode_ms_per_element,
            decode_ms=decode_ms,
            decode_ms_per_element=decode_ms_per_element,
        )

    def encoding_ms(self, elements: float) -> float:
        """Return the time to encode a bucket, in milliseconds."""
        return self.encode_ms + self.encode_ms_per_element * elements

    def decoding_ms(self, elements: float) -> float:
        """Return the time to decode a bucket, in milliseconds."""
        return self.decode_ms + self.decode_ms_per_element * elements


def _encoding_share(record: TrainingRecord) -> float:
    """Return the share of encoding in the time of encoding and decoding."""
    if not record.compress_ms:
        return 0.0
    return min(1.0, (record.encode_ms or 0.0) / record.compress_ms)


def _line(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Return the fixed cost and the cost per unit of size by least squares, neither below 0."""
    if not sizes or not any(costs):
        return 0.0, 0.0
    x, y = np.asarray(sizes, dtype=float), np.asarray(costs, dtype=float)
    proportional = 0.0, float(x @ y / (x @ x))
    if x.max() < LEAST_SIZE_RATIO * x.min():
        return proportional
    slope, fixed = (float(value) for value in np.polyfit(x, y, 1))
    if slope < 0:
        return float(y.mean()), 0.0
    return (fixed, slope) if fixed >= 0 else proportional


# ---------------------------------------------------------------------------------------- the model


class NotTrainedError(InputError):
    """The step without DDP, or the baseline, was not trained."""


@dataclass(frozen=True, kw_only=True)
class StepPrediction:
    """A predicted step of one setting; milliseconds."""

    case: TrainingCase
    step_ms: float
    overlapped_ms: float
    """Lower bound: communication takes as long as on the network alone and overlaps perfectly."""
    serial_ms: float
    """Upper bound: communication takes as long and does not overlap."""
    exposed_comm_ms: float
    buckets: Sequence[BucketPrediction]


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """The parameters of the model of a step."""

    facts: WorkloadFacts
    network: MeasuredNetwork
    reference: TrainingCase
    """The calibrated step without DDP; predictions share its workload, batch and precision."""
    forward_ms: float
    """Of the step without DDP, with all ranks at work; so are the next three."""
    backward_ms: float
    optimizer_ms: float
    other_ms: float
    """The rest of that step."""
    ddp_forward_ms: float = 0.0
    """Time that DDP adds to the forward pass, such as broadcasts of buffers."""
    copy_ms_per_byte: float = 0.0
    """Time to copy a gradient into its bucket; copying it back takes as long."""
    hooks: Mapping[str, HookCost]
    """By `TrainingCase.hook_name`."""
    overlap: Mapping[str, float] = field(default_factory=dict)
    """1 - `Sharing.contention` by `TrainingCase.hook_name`: 1 at the lower bound, 0 at the
    upper."""
    slowdown: float = 1.0
    """`Sharing.slowdown`, the same for all hooks."""
    unexplained_ms: Mapping[str, float] = field(default_factory=dict)
    """`Sharing.unexplained_ms` by `TrainingCase.hook_name`."""

    @classmethod
    def calibrate(
        cls, facts: WorkloadFacts, network: MeasuredNetwork, records: Iterable[TrainingRecord]
    ) -> StepModel:
        """Fit to measured settings: the step without DDP, the baseline, and one or more of each
        hook.

        All settings of a hook have equal weight. Settings that look for unused parameters are left
        out if others exist. Records of another workload, batch, number of ranks or precision than
        the step without DDP are left out. So are hooks with a collective that the network lacks.

        Raises:
            NotTrainedError: the step without DDP or the baseline is not among ``records``.
            InputError: the network lacks the baseline's collectives.
        """
        settings = settings_of(records)
        local = next((setting for setting in settings if not setting.case.uses_ddp), None)
        if local is None:
            raise NotTrainedError(
                "A prediction of steps needs the step without DDP, which was not measured: measure"
                " it first."
            )
        measured = [
            setting
            for setting in settings
            if setting.case.uses_ddp and _alike(setting.case, local.case)
        ]
        plain = [s for s in measured if not s.case.unused_parameters and s.case.broadcast_buffers]
        measured = plain or measured
        base = next((s for s in measured if s.case.is_default), None)
        if base is None:
            raise NotTrainedError(
                "A prediction of steps needs the baseline (hook none, default buckets, same"
                " precision as without DDP), which was not measured: measure it first."
            )
        model = cls._of_local(facts, network, local)
        forward_ms = statistics.median(
            setting.forward_ms / setting.case.accumulation for setting in measured
        )
        model = dataclasses.replace(
            model,
            reference=dataclasses.replace(
                model.reference, unused_parameters=base.case.unused_parameters
            ),
            ddp_forward_ms=max(0.0, forward_ms - model.forward_ms),
            copy_ms_per_byte=base.copy_ms_per_byte,
        )
        by_hook: dict[str, list[Setting]] = {}
        for setting in measured:
            by_hook.setdefault(setting.case.hook_name, []).append(setting)
        predictable = {
            hook: of_hook
            for hook, of_hook in by_hook.items()
            if hook == base.case.hook_name or model._can_send(of_hook[0].case)  # noqa: SLF001 - of the same class
        }
        return model._with_hooks(predictable)  # noqa: SLF001 - of the same class

    @classmethod
    def _of_local(cls, facts: WorkloadFacts, network: MeasuredNetwork, local: Setting) -> StepModel:
        """Return the model of the step without DDP."""
        passes = local.case.accumulation
        return cls(
            facts=facts,
            network=network,
            reference=local.case,
            forward_ms=local.forward_ms / passes,
            backward_ms=local.backward_ms / passes,
            optimizer_ms=local.optimizer_ms,
            other_ms=local.step_ms - local.forward_ms - local.backward_ms - local.optimizer_ms,
            hooks={},
        )

    def _can_send(self, case: TrainingCase) -> bool:
        """Return whether the network has the collectives of a case's hook, and they are those of
        buckets.
        """
        if not case.is_predicted:
            return False
        try:
            dataclasses.replace(self, hooks={case.hook_name: HookCost()})._work_alone(case)  # noqa: SLF001 - of the same class
        except InputError:
            return False
        return True

    def _with_hooks(self, measured: Mapping[str, Sequence[Setting]]) -> StepModel:
        """Return the model with hooks fitted to their measured settings."""
        costs = {
            hook: HookCost.of(r for s in settings for r in s.records)
            for hook, settings in measured.items()
        }
        model = dataclasses.replace(self, hooks=costs)
        observe = model._observed  # noqa: SLF001 - of the same class
        sharings = fit_sharing(
            {hook: [observe(s) for s in of_hook] for hook, of_hook in measured.items()}
        )
        return dataclasses.replace(
            model,
            overlap={hook: 1 - sharing.contention for hook, sharing in sharings.items()},
            slowdown=next(iter(sharings.values())).slowdown,
            unexplained_ms={hook: sharing.unexplained_ms for hook, sharing in sharings.items()},
        )

    def _observed(self, setting: Setting) -> Observation:
        return Observation(
            work=self._work_alone(setting.case),
            backward_ms=self.backward_ms,
            servers=self._servers(setting.case),
            others_ms=self._others_ms(setting.case),
            step_ms=setting.step_ms,
        )

    def _sharing(self, case: TrainingCase) -> Sharing:
        hook, usual = case.hook_name, Sharing()
        overlap = self.overlap.get(hook, 1 - usual.contention)
        return Sharing(contention=1 - overlap, slowdown=self.slowdown)

    def predict(self, case: TrainingCase) -> StepPrediction:
        """Predict a setting; gradients as bucket views cost as much as separate gradients.

        Raises:
            InputError: its hook was not calibrated, or its workload, batch, number of ranks or
                precision differs.
        """
        self._check(case)
        work, servers, others_ms = self.work(case), self._servers(case), self._others_ms(case)
        contention = self._sharing(case).contention
        alone = self._work_alone(case)
        best = overlapped(alone, self.backward_ms, servers=servers)
        likely = overlapped(work, self.backward_ms, servers=servers, contention=contention)
        # Calibrated communication may be faster or slower than alone. A bucket that others overtake
        # is copied back late, so even slower computing can shorten a step a little.
        return StepPrediction(
            case=case,
            step_ms=others_ms + likely.end_ms,
            overlapped_ms=others_ms + min(best.end_ms, likely.end_ms),
            serial_ms=others_ms + max(serial(alone, self.backward_ms).end_ms, likely.end_ms),
            exposed_comm_ms=likely.exposed_ms,
            buckets=likely.buckets,
        )

    def _others_ms(self, case: TrainingCase) -> float:
        """Return the time of a step without its last backward pass, the one that exchanges
        gradients.
        """
        without = (case.accumulation - 1) * (self.forward_ms + self.backward_ms)
        exchanging = (
            self.ddp_forward_ms + self.unexplained_ms.get(case.hook_name, 0.0)
            if case.uses_ddp
            else 0.0
        )
        return without + self.forward_ms + exchanging + self.optimizer_ms + self.other_ms

    def _servers(self, case: TrainingCase) -> int:
        """Return the number of buckets that the network carries at once."""
        if not case.uses_ddp:
            return self.network.servers
        hook = read_hook(case.hook, density=case.density, options=case.options)
        if hook.runs_in_order:
            return 1
        return self.network.servers

    def _check(self, case: TrainingCase) -> None:
        reference = self.reference
        for condition, requested, measured in (
            ("workload", case.workload, reference.workload),
            ("batch", case.batch_per_rank, reference.batch_per_rank),
            ("precision", case.precision, reference.precision),
            ("world_size", case.world_size, self.network.world_size),
        ):
            if requested != measured:
                raise InputError(
                    f"A step with {condition} {requested} cannot be predicted from one with"
                    f" {measured}: measure {requested}, too."
                )
        if case.is_file_hook:
            raise UnpredictedError("hook_bytes_unknown", hook=case.hook)
        if case.uses_ddp and case.hook_name not in self.hooks:
            raise UnpredictedError("hook_unmeasured", case.hook_name, hooks=", ".join(self.hooks))

    def work(self, case: TrainingCase) -> list[BucketWork]:
        """Return the buckets of a case in the order of sending, with the communication times of
        training.
        """
        return self._sharing(case).slowed(self._work_alone(case))

    def _work_alone(self, case: TrainingCase) -> list[BucketWork]:
        """Return the buckets of a case with the communication times of the network alone."""
        return [self.bucket_of(case, bucket) for bucket in case_layout(case, self.facts)]

    def bucket_of(self, case: TrainingCase, indices: Sequence[int]) -> BucketWork:
        """Return the bucket of these parameters of `facts`."""
        elements, shapes, dtype = tensors_of(self.facts, indices)
        ready_ms = max(self.facts.parameters[i].ready_ms for i in indices)
        ready_ms = self.backward_ms / self.facts.backward_ms * ready_ms
        return self.bucket(case, elements, shapes=shapes, dtype=dtype, ready_ms=ready_ms)

    def bucket(
        self,
        case: TrainingCase,
        elements: int,
        *,
        shapes: Shapes | None = None,
        dtype: str = "float32",
        ready_ms: float = 0.0,
    ) -> BucketWork:
        """Return a bucket's times on the network alone and under a case's hook.

        Arguments as for `messages_of`.
        """
        messages = messages_of(case, elements, self.network.world_size, shapes=shapes, dtype=dtype)
        times = [self.network.time_us(m.operation, m.dtype, m.message_bytes) for m in messages]
        least = [self.network.time_us(m.operation, m.dtype, LATENCY_BYTES) for m in messages]
        cost = self.hooks[case.hook_name]
        size_bytes = elements * DTYPES[dtype].itemsize
        float32_elements = size_bytes / FLOAT32_BYTES  # the unit of `HookCost`
        return BucketWork(
            size_bytes=size_bytes,
            ready_ms=ready_ms,
            encode_ms=cost.encoding_ms(float32_elements),
            comm_ms=sum(times) / 1e3,
            decode_ms=cost.decoding_ms(float32_elements),
            latency_ms=sum(map(min, times, least)) / 1e3,
            copy_in_ms=self.copy_ms_per_byte * size_bytes,
            copy_out_ms=self.copy_ms_per_byte * size_bytes,
        )


def _alike(case: TrainingCase, other: TrainingCase) -> bool:
    """Return whether two cases share workload, batch, ranks, backend and precision."""
    return (case.group, case.precision) == (other.group, other.precision)
