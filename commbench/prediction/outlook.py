"""All that ``commbench predict`` says: rows of collectives, training steps and break-evens, each a prediction."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commbench.collectives import OPERATIONS
from commbench.errors import InputError
from commbench.prediction.breakeven import break_even
from commbench.prediction.bucketing import candidate_caps
from commbench.prediction.growing import GrowingCurve, HeldOut
from commbench.prediction.larger import Family, GrowingNetwork, LargerNetwork
from commbench.prediction.larger_steps import best_buckets, hook_case, local_step_ms, on_network
from commbench.prediction.steps import StepModel
from commbench.training.cases import DEFAULT_CAP, SWEEP, baseline_of
from commbench.training.records import TrainingRecord
from commbench.training.workload import WorkloadFacts
from commbench.units import algbw_GBps, format_link_rate

PREDICTED = "predicted"
#: Bucket sizes that are compared on each network; more differ by less than a prediction is off.
_CAPS = 6
#: Settings at most that are left out in turn to see how far off predictions are.
_MOST_LEFT_OUT = 8


def _column(about: str, default: Any = None) -> Any:  # noqa: ANN401 - a field of any type
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, kw_only=True)
class CollectiveOutlook:
    """One operation on one network. None is an empty cell."""

    kind: str = PREDICTED
    operation: str = ""
    backend: str = ""
    dtype: str = ""
    pattern: str = ""
    message_bytes: int = 0
    world_size: int = 0
    ranks_per_node: int = 1
    rate: str = _column("of every host's link; empty: as measured", "")
    time_us: float | None = None
    time_us_low: float | None = _column("95 % interval")
    time_us_high: float | None = None
    busbw_GBps: float | None = None  # noqa: N815 - a unit
    algorithm: str = ""
    held_out_error: float | None = _column("median absolute relative error of such predictions")
    held_out_over: str = ""
    status: str = "ok"
    reason: str = _column("one sentence where nothing is predicted", "")


@dataclass(frozen=True, kw_only=True)
class StepOutlook:
    """A training step with one hook at the best bucket size on one network. None is an empty cell."""

    kind: str = PREDICTED
    workload: str = ""
    backend: str = ""
    batch_per_rank: int = 0
    hook: str = ""
    world_size: int = 0
    ranks_per_node: int = 1
    rate: str = ""
    bucket_cap_mb: str = _column("the best of those compared", "")
    step_ms: float | None = None
    overlapped_ms: float | None = _column("if communication overlapped perfectly")
    serial_ms: float | None = _column("if it did not overlap at all")
    exposed_comm_ms: float | None = None
    default_step_ms: float | None = _column("with DDP's default buckets")
    local_step_ms: float | None = _column("the step without DDP, as measured")
    scaling_efficiency: float | None = _column("local_step_ms over step_ms")
    held_out_error: float | None = _column("median absolute relative error of such predictions")
    held_out_over: str = ""
    status: str = "ok"
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class BreakEvenOutlook:
    """The density below which top-k beats sending gradients whole, on one network. None is an empty cell."""

    kind: str = PREDICTED
    workload: str = ""
    backend: str = ""
    batch_per_rank: int = 0
    world_size: int = 0
    ranks_per_node: int = 1
    rate: str = ""
    dense_step_ms: float | None = None
    density: float | None = _column("below it top-k is faster; empty: at none")
    byte_density: float | None = _column("above it top-k sends more bytes than a ring all_reduce")
    status: str = "ok"
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Networks:
    """The networks that are asked about."""

    world_sizes: Sequence[int]
    rates_bps: Sequence[float | None]
    """None: as measured."""
    ranks_per_node: int = 1

    def __iter__(self) -> Iterator[tuple[float | None, int]]:
        """Each rate, and with it each number of ranks."""
        return iter(itertools.product(self.rates_bps, self.world_sizes))

    def named(self, world_size: int, rate_bps: float | None) -> dict[str, Any]:
        """The columns that name one."""
        rate = "" if rate_bps is None else format_link_rate(rate_bps)
        return {"world_size": world_size, "ranks_per_node": self.ranks_per_node, "rate": rate}


def collective_outlooks(
    network: GrowingNetwork, asked: Networks, sizes: Sequence[int] | None = None
) -> list[CollectiveOutlook]:
    """Predict every operation that was measured; a row says why where it cannot be.

    Args:
        network: as measured.
        asked: on which networks.
        sizes: message sizes in bytes; None: up to three of those measured.
    """
    rows = []
    for family, curve in network.curves.items():
        for (rate, ranks), size in itertools.product(asked, sizes or _some_sizes(curve)):
            named = family._asdict() | asked.named(ranks, rate) | {"message_bytes": size}
            rows.append(_collective(family, curve, named, rate, asked.ranks_per_node))
    return rows


def _collective(
    family: Family, curve: GrowingCurve, named: Mapping[str, Any], rate: float | None, ranks_per_node: int
) -> CollectiveOutlook:
    size, ranks = named["message_bytes"], named["world_size"]
    try:
        curve.check_hosts(ranks, ranks_per_node, rate)
        estimate = curve.estimate(size, ranks, rate)
    except InputError as error:
        return CollectiveOutlook(**named, status="unsupported", reason=str(error))
    return CollectiveOutlook(
        **named,
        time_us=estimate.time_us,
        time_us_low=estimate.low_us,
        time_us_high=estimate.high_us,
        busbw_GBps=OPERATIONS[family.operation].busbw_factor(ranks) * algbw_GBps(size, estimate.time_us),
        algorithm=estimate.algorithm,
        held_out_error=curve.held_out.error,
        held_out_over=curve.held_out.over,
    )


def _some_sizes(curve: GrowingCurve) -> list[int]:
    """The smallest, the middle and the largest size that were measured on the most ranks."""
    sizes = list(curve.measured[-1].curve.sizes)
    return sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})


# ---------------------------------------------------------------------------------------------------------- training


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One workload as it was trained: what the model of its step is made of."""

    facts: WorkloadFacts
    records: Sequence[TrainingRecord]
    """Of one workload, backend, number of ranks and batch."""

    @property
    def named(self) -> dict[str, Any]:
        """The columns that name it."""
        case = self.records[0].case
        return {"workload": case.workload, "backend": case.backend, "batch_per_rank": case.batch_per_rank}

    def network(
        self, network: GrowingNetwork, asked: Networks, world_size: int, rate_bps: float | None
    ) -> LargerNetwork:
        """One of the networks that are asked about, as its training sees it."""
        backend = self.records[0].case.backend
        return network.at(backend, world_size, rate_bps=rate_bps, ranks_per_node=asked.ranks_per_node)

    def held_out(self, network: GrowingNetwork) -> HeldOut:
        """How far off its steps are where one setting at a time is left out of what the model is made from.

        Raises:
            InputError: as `model`.
        """
        cases = dict.fromkeys(dataclasses.replace(r.case, phase=SWEEP) for r in self.records if r.status == "ok")
        baseline = baseline_of([case for case in cases if case.uses_ddp])
        errors = []
        for case in [case for case in cases if case.uses_ddp and case != baseline][:_MOST_LEFT_OUT]:
            left = [r for r in self.records if dataclasses.replace(r.case, phase=SWEEP) == case and r.step_ms]
            others = [r for r in self.records if dataclasses.replace(r.case, phase=SWEEP) != case]
            if left and any(r.case.hook_name == case.hook_name for r in others):
                predicted = dataclasses.replace(self, records=others).model(network).predict(case).step_ms
                measured = statistics.median(statistics.median(r.step_ms) for r in left)
                errors.append(abs(predicted / measured - 1))
        ranks = self.records[0].case.world_size
        over = f"settings on {ranks} ranks, each predicted from the others; more ranks were not trained"
        return HeldOut(error=statistics.median(errors) if errors else None, over=over)

    def model(self, network: GrowingNetwork) -> StepModel:
        """Its step as it was measured, on the network where it was.

        Raises:
            InputError: the network was not measured, or something that the model needs was not trained.
        """
        case = self.records[0].case
        return StepModel.calibrate(self.facts, network.at(case.backend, case.world_size, crowded=True), self.records)


def step_outlooks(
    trained: Trained, network: GrowingNetwork, asked: Networks, hooks: Iterable[str] | None = None
) -> list[StepOutlook]:
    """Predict the step of every hook that was trained, or of ``hooks``, at the best bucket size of each network.

    Raises:
        InputError: as `Trained.model`.
    """
    model = trained.model(network)
    caps = candidate_caps(trained.facts, most=_CAPS)
    held_out = trained.held_out(network)
    known = {**trained.named, "held_out_error": held_out.error, "held_out_over": held_out.over}
    rows = []
    for rate, ranks in asked:
        there = on_network(model, trained.network(network, asked, ranks, rate))
        named = {**known, **asked.named(ranks, rate)}
        rows += [_step(there, hook, caps, {**named, "hook": hook}) for hook in hooks or model.hooks]
    return rows


def _step(model: StepModel, hook: str, caps: Sequence[str], named: Mapping[str, Any]) -> StepOutlook:
    try:
        best = best_buckets(model, hook, caps)
        default = model.predict(hook_case(model, hook, DEFAULT_CAP))
    except InputError as error:
        return StepOutlook(**named, status="unsupported", reason=str(error))
    local_ms = local_step_ms(model)
    return StepOutlook(
        **named,
        bucket_cap_mb=best.case.bucket_cap_mb,
        step_ms=best.step_ms,
        overlapped_ms=best.overlapped_ms,
        serial_ms=best.serial_ms,
        exposed_comm_ms=best.exposed_comm_ms,
        default_step_ms=default.step_ms,
        local_step_ms=local_ms,
        scaling_efficiency=local_ms / best.step_ms,
    )


def break_even_outlooks(trained: Trained, network: GrowingNetwork, asked: Networks) -> list[BreakEvenOutlook]:
    """Predict on each network below which density top-k beats the best step that sends gradients whole in float32.

    Raises:
        InputError: as `Trained.model`.
    """
    model = trained.model(network)
    caps = candidate_caps(trained.facts, most=_CAPS)
    rows = []
    for rate, ranks in asked:
        there = on_network(model, trained.network(network, asked, ranks, rate))
        rows.append(_break_even(there, caps, {**trained.named, **asked.named(ranks, rate)}))
    return rows


def _break_even(model: StepModel, caps: Sequence[str], named: Mapping[str, Any]) -> BreakEvenOutlook:
    try:
        found = break_even(model, caps)
    except InputError as error:
        return BreakEvenOutlook(**named, status="unsupported", reason=str(error))
    return BreakEvenOutlook(
        **named, dense_step_ms=found.dense_ms, density=found.density, byte_density=found.byte_density
    )


def columns_of(row: type[Any]) -> tuple[str, ...]:
    """The columns of a kind of row."""
    return tuple(each.name for each in dataclasses.fields(row))
