"""The time of a training step for settings that were not measured, between two bounds, calibrated on measured ones."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from commbench.analysis.prediction.calibration import (
    Calibration,
    Observation,
    Setting,
    Sharing,
    fit_sharing,
    settings_of,
)
from commbench.analysis.prediction.messages import HookCost, messages_of
from commbench.analysis.prediction.network import Network
from commbench.analysis.prediction.timeline import BucketPrediction, BucketWork, overlapped, serial
from commbench.collectives.datatypes import DTYPES
from commbench.ddp.plan.cases import DEFAULT_CAP, TrainingCase
from commbench.ddp.plan.layout import case_layout
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.errors import InputError, UnpredictedError
from commbench.hooks.message import FLOAT32_BYTES, Message, Shapes
from commbench.hooks.registry import find_hook

#: A collective of so few bytes shows its latency.
LATENCY_BYTES = 4


class NotTrainedError(InputError):
    """The step without DDP, or DDP's default, is not among what was trained."""


@dataclass(frozen=True, kw_only=True)
class StepPrediction:
    """A predicted step of one setting; milliseconds."""

    case: TrainingCase
    step_ms: float
    overlapped_ms: float
    """The lower bound: if communication took as long as on the network alone and overlapped perfectly, or less."""
    serial_ms: float
    """The upper bound: if it took as long and did not overlap at all, or more."""
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
    """Of the step without DDP, as all ranks measured it side by side; so are the next three."""
    backward_ms: float
    optimizer_ms: float
    other_ms: float
    """What of the step is none of these."""
    ddp_forward_ms: float = 0.0
    """What DDP adds to the forward pass, such as broadcasting buffers."""
    copy_ms_per_byte: float = 0.0
    """Copying a gradient into its bucket, and as much for copying it back."""
    hooks: Mapping[str, HookCost]
    """By `TrainingCase.hook_name`."""
    overlap: Mapping[str, float] = field(default_factory=dict)
    """1 - `Sharing.contention` by `TrainingCase.hook_name`: the efficiency, 1 at the lower bound and 0 at the upper."""
    slowdown: float = 1.0
    """`Sharing.slowdown`, the same for all hooks."""
    rest_ms: Mapping[str, float] = field(default_factory=dict)
    """`Sharing.rest_ms` by `TrainingCase.hook_name`."""
    calibration: Calibration | None = field(default=None, repr=False, compare=False)
    """What the last three come from."""

    @classmethod
    def calibrate(cls, facts: WorkloadFacts, network: Network, records: Iterable[TrainingRecord]) -> StepModel:
        """Fit to measured settings: the step without DDP, the baseline, and one or more of each hook.

        Where several settings of a hook were measured, all of them count alike. Records of other workloads, batches,
        numbers of ranks or precisions than those of the step without DDP are left out, and so are hooks of whose
        collectives the network knows nothing.

        Raises:
            NotTrainedError: the step without DDP or the baseline is not among ``records``.
            InputError: the network knows nothing of the baseline's collectives.
        """
        settings = settings_of(records)
        local = next((setting for setting in settings if not setting.case.uses_ddp), None)
        if local is None:
            raise NotTrainedError("A step is predicted from one without DDP, which was not measured: measure it first.")
        measured = [setting for setting in settings if setting.case.uses_ddp and _alike(setting.case, local.case)]
        base = next((s for s in measured if s.case.hook == "none" and s.case.bucket_cap_mb == DEFAULT_CAP), None)
        if base is None:
            raise NotTrainedError(
                "A step is predicted from the baseline (hook none, default buckets, same precision as without DDP), "
                "which was not measured: measure it first."
            )
        model = cls._of_local(facts, network, local)
        forward_ms = statistics.median(setting.forward_ms / setting.case.accumulation for setting in measured)
        model = dataclasses.replace(
            model,
            ddp_forward_ms=max(0.0, forward_ms - model.forward_ms),
            copy_ms_per_byte=base.copy_ms_per_byte,
        )
        by_hook: dict[str, list[Setting]] = {}
        for setting in measured:
            by_hook.setdefault(setting.case.hook_name, []).append(setting)
        kept = {
            hook: of_hook
            for hook, of_hook in by_hook.items()
            if hook == base.case.hook_name or model._can_send(of_hook[0].case)  # noqa: SLF001 - of the same class
        }
        return model._with_hooks(kept)  # noqa: SLF001 - of the same class

    @classmethod
    def _of_local(cls, facts: WorkloadFacts, network: Network, local: Setting) -> StepModel:
        """The model that knows the step without DDP."""
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
        """Whether the network knows the collectives of a case's hook."""
        try:
            dataclasses.replace(self, hooks={case.hook_name: HookCost()})._work_alone(case)  # noqa: SLF001 - of the same class
        except InputError:
            return False
        return True

    def _with_hooks(self, measured: Mapping[str, Sequence[Setting]]) -> StepModel:
        """The model that also knows hooks, fitted to the measured settings of them."""
        costs = {hook: HookCost.of(r for s in settings for r in s.records) for hook, settings in measured.items()}
        model = dataclasses.replace(self, hooks=costs)
        observe = model._observed  # noqa: SLF001 - of the same class
        calibration = fit_sharing({hook: [observe(s) for s in of_hook] for hook, of_hook in measured.items()})
        return dataclasses.replace(model, calibration=calibration)._shared(calibration.likely)  # noqa: SLF001 - of the same class

    def _shared(self, sharings: Mapping[str, Sharing]) -> StepModel:
        """The model in which hooks share as given."""
        return dataclasses.replace(
            self,
            overlap={hook: 1 - sharing.contention for hook, sharing in sharings.items()},
            slowdown=next(iter(sharings.values())).slowdown,
            rest_ms={hook: sharing.rest_ms for hook, sharing in sharings.items()},
        )

    @property
    def error(self) -> float:
        """Root mean square of the relative errors at the measured settings; 0 where they leave none."""
        return self.calibration.error if self.calibration else 0.0

    def extremes(self) -> tuple[StepModel, StepModel]:
        """The model with the least and with the most slowdown that the measured steps allow, at 95 %.

        All predict the measured steps alike, and on networks that communicate longer the more apart the less
        communication there was in these. A model that was not calibrated is its own extremes.
        """
        found = self.calibration
        return (self._shared(found.least), self._shared(found.most)) if found else (self, self)

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
        """Predict a setting; gradients as views of buckets are predicted as gradients of their own, which cost as much.

        Raises:
            InputError: its hook has not been calibrated, or it is of another workload, batch, number of ranks or
                precision.
        """
        self._check(case)
        work, servers, others_ms = self.work(case), self._servers(case), self._others_ms(case)
        contention = self._sharing(case).contention
        alone = self._work_alone(case)
        best = overlapped(alone, self.backward_ms, servers=servers)
        likely = overlapped(work, self.backward_ms, servers=servers, contention=contention)
        # Communication may be faster or slower than alone. A bucket that others overtake is copied back late, so that
        # slower computing, too, can by little gain time.
        return StepPrediction(
            case=case,
            step_ms=others_ms + likely.end_ms,
            overlapped_ms=others_ms + min(best.end_ms, likely.end_ms),
            serial_ms=others_ms + max(serial(alone, self.backward_ms).end_ms, likely.end_ms),
            exposed_comm_ms=likely.exposed_ms,
            buckets=likely.buckets,
        )

    def _others_ms(self, case: TrainingCase) -> float:
        """What of a step is not its last backward pass, in which gradients are exchanged."""
        without = (case.accumulation - 1) * (self.forward_ms + self.backward_ms)
        exchanging = self.ddp_forward_ms + self.rest_ms.get(case.hook_name, 0.0) if case.uses_ddp else 0.0
        return without + self.forward_ms + exchanging + self.optimizer_ms + self.other_ms

    def _servers(self, case: TrainingCase) -> int:
        """Return how many buckets the network carries at once."""
        return 1 if case.uses_ddp and find_hook(case.hook).runs_in_order else self.network.servers

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
            raise UnpredictedError("hook_unmeasured", case.hook_name, hooks=", ".join(self.hooks))

    def work(self, case: TrainingCase) -> list[BucketWork]:
        """The buckets of a case as the timeline takes them in, in the order of sending."""
        return self._sharing(case).slowed(self._work_alone(case))

    def _work_alone(self, case: TrainingCase) -> list[BucketWork]:
        """The same with communication as on the network alone."""
        return [self.bucket_of(case, bucket) for bucket in case_layout(case, self.facts)]

    def messages(self, case: TrainingCase) -> list[Message]:
        """All that the buckets of a case send, in the order of sending."""
        found: list[Message] = []
        for bucket in case_layout(case, self.facts):
            elements, shapes, dtype = self._tensors(bucket)
            found += messages_of(case, elements, self.network.world_size, shapes=shapes, dtype=dtype)
        return found

    def _tensors(self, indices: Sequence[int]) -> tuple[int, Shapes | None, str]:
        """The elements, the shapes where all are known, and the type of these parameters of `facts`."""
        parameters = [self.facts.parameters[i] for i in indices]
        shapes = [parameter.shape for parameter in parameters if parameter.shape is not None]
        elements = sum(parameter.numel for parameter in parameters)
        return elements, shapes if len(shapes) == len(parameters) else None, parameters[0].dtype

    def bucket_of(self, case: TrainingCase, indices: Sequence[int]) -> BucketWork:
        """The bucket of these parameters of `facts`."""
        elements, shapes, dtype = self._tensors(indices)
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
        """What a bucket costs on the network alone and under a case's hook; the arguments are `messages_of`'s."""
        messages = messages_of(case, elements, self.network.world_size, shapes=shapes, dtype=dtype)
        times = [self.network.time_us(m.operation, m.dtype, m.message_bytes) for m in messages]
        least = [self.network.time_us(m.operation, m.dtype, LATENCY_BYTES) for m in messages]
        cost = self.hooks[case.hook_name]
        size_bytes = elements * DTYPES[dtype].itemsize
        coded = size_bytes / FLOAT32_BYTES  # as `HookCost` counts
        return BucketWork(
            size_bytes=size_bytes,
            ready_ms=ready_ms,
            encode_ms=cost.encoding_ms(coded),
            comm_ms=sum(times) / 1e3,
            decode_ms=cost.decoding_ms(coded),
            latency_ms=sum(map(min, times, least)) / 1e3,
            copy_in_ms=self.copy_ms_per_byte * size_bytes,
            copy_out_ms=self.copy_ms_per_byte * size_bytes,
        )


def _alike(case: TrainingCase, other: TrainingCase) -> bool:
    """Whether two cases are of the same workload, batch, ranks, backend and precision."""
    return (case.group, case.precision) == (other.group, other.precision)
