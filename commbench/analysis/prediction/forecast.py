"""The rows of ``commbench predict``: collectives and training steps, with their intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from commbench.analysis.prediction.bucketing import candidate_caps
from commbench.analysis.prediction.fits import LEVEL, log_half_width
from commbench.analysis.prediction.growth import GrowingCurve, HeldOut
from commbench.analysis.prediction.larger import (
    Family,
    GrowingNetwork,
    LargerNetwork,
    TrainedWorkload,
    best_buckets,
    hook_case,
    local_step_ms,
    model_on_network,
    model_on_own_cores,
)
from commbench.analysis.prediction.steps import StepModel, StepPrediction
from commbench.collectives.operations import OPERATIONS
from commbench.ddp.plan.cases import DEFAULT_CAP, TrainingCase
from commbench.errors import InputError, Reason
from commbench.schema import JsonObject
from commbench.stats import Interval
from commbench.units import algbw_GBps, format_link_rate, format_size

_LEVEL = 0.95
PREDICTED = "predicted"
#: Bucket sizes compared on each network; the step hardly differs between more.
_CAPS = 6
#: Above this share of start-ups nothing is predicted if start-ups between hosts are unmeasured.
_MOST_UNKNOWN = 0.5


@dataclass(frozen=True, kw_only=True)
class NetworkEnd:
    """A predicted network with all collective times at the same end of their 95 % intervals."""

    network: LargerNetwork
    is_high: bool
    _cached_us: dict[tuple[str, str, float], float] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.network.world_size

    @property
    def servers(self) -> int:
        """Concurrent buckets."""
        return self.network.servers

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:
        """Return the time of one operation alone at that end, in microseconds.

        Raises:
            InputError: as `LargerNetwork.time_us`.
        """
        key = operation, dtype, message_bytes
        if key not in self._cached_us:
            likely = self.network.time_us(*key)
            estimate = self.network.estimate(*key)
            self._cached_us[key] = (
                max(likely, estimate.high_us) if self.is_high else min(likely, estimate.low_us)
            )
        return self._cached_us[key]


@dataclass(frozen=True, kw_only=True)
class UncertainSteps:
    """The model of a step on one network, and pairs of models at the ends of each independent
    uncertainty.
    """

    likely: StepModel
    ends: Sequence[tuple[StepModel, StepModel]]
    """At the ends of the network's intervals, and of the slowdown's interval."""
    network: LargerNetwork
    held_out: HeldOut
    """The error of steps."""

    @classmethod
    def on(cls, model: StepModel, network: LargerNetwork, held_out: HeldOut) -> UncertainSteps:
        """Return the model of a measured step on another network."""
        low, high = (
            model_on_network(model, NetworkEnd(network=network, is_high=is_high))
            for is_high in (False, True)
        )
        least, most = (model_on_network(extreme, network) for extreme in model.extremes())
        ends = [(low, high), (least, most)]
        return cls(
            likely=model_on_network(model, network), ends=ends, network=network, held_out=held_out
        )

    def sent(self, case: TrainingCase) -> list[tuple[str, str, float]]:
        """Return a case's messages: operation, data type and bytes, as for
        `LargerNetwork.estimate`.
        """
        return [
            (message.operation, message.dtype, message.message_bytes)
            for message in self.likely.messages(case)
        ]

    def interval_ms(self, step: StepPrediction) -> Interval:
        """Return the interval of a predicted step.

        Without a held-out error, it lacks the model's error.

        Raises:
            InputError: the network lacks a collective that the hook uses.
        """
        below, above = self._log_half_widths(step)
        return Interval(
            low=step.step_ms * math.exp(-math.hypot(below, self._model_half_width)),
            high=step.step_ms * math.exp(math.hypot(above, self._model_half_width)),
            level=_LEVEL,
        )

    @property
    def _model_half_width(self) -> float:
        """The half-width of a step's interval in logarithms, on a network with known times."""
        return log_half_width(self.held_out.error or 0.0)

    def _log_half_widths(self, step: StepPrediction) -> tuple[float, float]:
        """Return how far a step's logarithm may lie below and above, from independent
        uncertainties.
        """
        below, above = [0.0], [0.0]
        for pair in self.ends:
            logs = [math.log(model.predict(step.case).step_ms / step.step_ms) for model in pair]
            below.append(max(0.0, -min(logs)))
            above.append(max(0.0, *logs))
        return math.hypot(*below), math.hypot(*above)


# --------------------------------------------------------------------------------------------- rows


def _column(about: str, default: Any = None) -> Any:  # noqa: ANN401 - a field of any type
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, kw_only=True)
class CollectiveForecast:
    """One operation on one network. None is an empty cell."""

    kind: str = PREDICTED
    about: str = "collective"
    operation: str = ""
    backend: str = ""
    dtype: str = ""
    pattern: str = ""
    message_bytes: int = 0
    world_size: int = 0
    ranks_per_node: int = 1
    rate: str = _column("of every host's link; empty: as measured", "")
    time_us: float | None = None
    time_us_low: float | None = _column("interval")
    time_us_high: float | None = _column("empty: it takes longer, by an unknown amount")
    level: float | None = _column("of the interval; empty: it rests on an assumed error")
    busbw_GBps: float | None = None  # noqa: N815 - a unit
    algorithm: str = ""
    held_out_error: float | None = _column("median absolute relative error of such predictions")
    held_out_over: str = ""
    status: str = "ok"
    reason: Reason | None = field(
        default=None, metadata={"about": "one sentence where nothing is predicted"}
    )

    @property
    def subject(self) -> str:
        """The predicted operation, in words."""
        return f"{self.backend} {self.operation}"


@dataclass(frozen=True, kw_only=True)
class TrainingForecast:
    """The columns that every prediction about a training begins with."""

    kind: str = PREDICTED
    about: str = ""
    workload: str = ""
    backend: str = ""
    batch_per_rank: int = 0
    precision: str = ""
    trained_on: str = _column("ranks and run", "")


@dataclass(frozen=True, kw_only=True)
class StepForecast(TrainingForecast):
    """A training step with one hook at the best bucket size on one network.

    None is an empty cell.
    """

    about: str = "step"
    hook: str = ""
    world_size: int = 0
    ranks_per_node: int = 1
    rate: str = ""
    bucket_cap_mb: str = _column("the best of those compared", "")
    step_ms: float | None = None
    step_ms_low: float | None = _column(
        "interval; without the error of steps where no held-out error is known"
    )
    step_ms_high: float | None = _column("empty: it takes longer, by an unknown amount")
    level: float | None = _column(
        "of the interval; empty: it lacks that error, or rests on an assumed one"
    )
    overlapped_ms: float | None = _column(
        "if communication took what it takes alone and overlapped perfectly"
    )
    serial_ms: float | None = _column("the same if it did not overlap at all")
    exposed_comm_ms: float | None = None
    default_step_ms: float | None = _column("with DDP's default buckets")
    local_step_ms: float | None = _column(
        "the step without DDP, as measured, by ranks with cores of their own"
    )
    ranks_a_core: float = _column("as it was trained, taken out of its computing; 1 or more", 1.0)
    scaling_efficiency: float | None = _column("local_step_ms over step_ms")
    held_out_error: float | None = _column("median absolute relative error of such predictions")
    held_out_over: str = ""
    network_error: float | None = _column(
        "the same of the collectives that it sends, the largest; empty: measured"
    )
    status: str = "ok"
    reason: Reason | None = None

    @property
    def subject(self) -> str:
        """The predicted hook."""
        return self.hook


#: Values of columns that forecasts share, by the name of the column.
Columns: TypeAlias = Mapping[str, Any]

AnyForecast = CollectiveForecast | StepForecast
#: Columns of one table of all rows; a row leaves the columns of other kinds empty.
COLUMNS = tuple(
    dict.fromkeys(each.name for row in (CollectiveForecast, StepForecast) for each in fields(row))
)


def row_to_json(row: AnyForecast) -> JsonObject:
    """Return the columns of a row; the reason as its sentence."""
    return {each.name: getattr(row, each.name) for each in fields(row)} | {
        "reason": str(row.reason or "")
    }


@dataclass(frozen=True, kw_only=True)
class Networks:
    """The requested networks."""

    world_sizes: Sequence[int]
    rates_bps: Sequence[float | None]
    """None: as measured."""
    ranks_per_node: int = 1

    def __iter__(self) -> Iterator[tuple[float | None, int]]:
        """Iterate over rates and, for each, numbers of ranks."""
        return iter(itertools.product(self.rates_bps, self.world_sizes))

    def named(self, world_size: int, rate_bps: float | None) -> dict[str, Any]:
        """Return the columns that name a network."""
        rate = "" if rate_bps is None else format_link_rate(rate_bps)
        return {"world_size": world_size, "ranks_per_node": self.ranks_per_node, "rate": rate}


def collective_forecasts(
    network: GrowingNetwork, networks: Networks, sizes: Sequence[int] | None = None
) -> list[CollectiveForecast]:
    """Predict every measured operation; a row that cannot be predicted has the reason.

    Args:
        network: as measured.
        networks: the requested networks.
        sizes: message sizes in bytes; None: up to three of the measured sizes.
    """
    rows = []
    for family, curve in network.curves.items():
        for (rate, ranks), size in itertools.product(networks, sizes or _some_sizes(curve)):
            columns = family._asdict() | networks.named(ranks, rate) | {"message_bytes": size}
            rows.append(_collective(family, curve, columns, rate, networks.ranks_per_node))
    return rows


def _collective(
    family: Family, curve: GrowingCurve, columns: Columns, rate: float | None, ranks_per_node: int
) -> CollectiveForecast:
    size, ranks = columns["message_bytes"], columns["world_size"]
    try:
        estimate = curve.estimate(size, ranks, rate, ranks_per_node=ranks_per_node)
    except InputError as error:
        return CollectiveForecast(**columns, status="unsupported", reason=Reason.of(error))
    if estimate.is_lower_bound and estimate.start_up > _MOST_UNKNOWN:
        subject = f"{family.backend} {family.operation}"
        reason = _unknown_start_up(subject, f"{subject} of {format_size(size)}")
        return CollectiveForecast(**columns, status="unsupported", reason=reason)
    together = ranks // ranks_per_node if family.pattern == "cross" else ranks  # ranks of a group
    busbw = OPERATIONS[family.operation].busbw_factor(together) * algbw_GBps(size, estimate.time_us)
    return CollectiveForecast(
        **columns,
        time_us=estimate.time_us,
        time_us_low=estimate.low_us,
        time_us_high=None if estimate.is_lower_bound else estimate.high_us,
        level=None if estimate.is_lower_bound else estimate.level,
        busbw_GBps=None if estimate.is_lower_bound else busbw,
        algorithm=estimate.algorithm,
        held_out_error=curve.held_out.error,
        held_out_over=curve.held_out.over,
    )


def _unknown_start_up(subject: str, prediction: str) -> Reason:
    return Reason(
        code="start_up_unmeasured", subject=subject, parameters={"prediction": prediction}
    )


def _some_sizes(curve: GrowingCurve) -> list[int]:
    """Return the smallest, the middle and the largest size that were measured on the most ranks."""
    sizes = list(curve.measured[-1].curve.sizes)
    return sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})


# ----------------------------------------------------------------------------------------- training


def training_forecasts(
    trained: TrainedWorkload,
    network: GrowingNetwork,
    networks: Networks,
    hooks: Iterable[str] | None = None,
) -> list[StepForecast]:
    """Predict a workload's training on each network.

    Returns:
        The step of every trained hook, or of ``hooks``, at its best bucket size.

    Raises:
        InputError: as `TrainedWorkload.model`.
    """
    oversubscription = trained.oversubscription
    model = model_on_own_cores(trained.model(network), oversubscription)
    caps = candidate_caps(trained.facts, most=_CAPS)
    held_out = trained.held_out(network)
    workload_columns = {
        **trained.identity_columns,
        "held_out_error": held_out.error,
        "held_out_over": held_out.over,
    }
    forecast_hooks = list(hooks or trained.hooks)
    steps = []
    for rate, ranks in networks:
        target = network.at(
            trained.backend, ranks, rate_bps=rate, ranks_per_node=networks.ranks_per_node
        )
        uncertain = UncertainSteps.on(model, target, held_out)
        columns = {**workload_columns, **networks.named(ranks, rate)}
        steps += [
            _step(
                uncertain,
                hook,
                caps,
                {**columns, "hook": hook, "ranks_a_core": oversubscription},
                is_lower_bound=target.is_lower_bound,
            )
            for hook in forecast_hooks
        ]
    return steps


def _step(
    steps: UncertainSteps, hook: str, caps: Sequence[str], columns: Columns, *, is_lower_bound: bool
) -> StepForecast:
    model = steps.likely
    try:
        best = best_buckets(model, hook, caps)
        default = model.predict(hook_case(model, hook, DEFAULT_CAP))
        interval, rests_on = (
            steps.interval_ms(best),
            _rests_on(steps, [best.case], is_lower_bound=is_lower_bound),
        )
    except InputError as error:
        return StepForecast(**columns, status="unsupported", reason=Reason.of(error))
    local_ms = local_step_ms(model)
    return StepForecast(
        **columns,
        **rests_on,
        bucket_cap_mb=best.case.bucket_cap_mb,
        step_ms=best.step_ms,
        step_ms_low=interval.low,
        step_ms_high=None if is_lower_bound else interval.high,
        overlapped_ms=best.overlapped_ms,
        serial_ms=best.serial_ms,
        exposed_comm_ms=best.exposed_comm_ms,
        default_step_ms=default.step_ms,
        local_step_ms=local_ms,
        scaling_efficiency=local_ms / best.step_ms,
    )


def _rests_on(
    steps: UncertainSteps, cases: Iterable[TrainingCase], *, is_lower_bound: bool
) -> dict[str, Any]:
    """Return the largest held-out error of the collectives that steps use, and the interval's
    level.
    """
    estimates = [steps.network.estimate(*message) for case in cases for message in steps.sent(case)]
    errors = [
        estimate.held_out_error for estimate in estimates if estimate.held_out_error is not None
    ]
    is_known = steps.held_out.error is not None and all(
        estimate.level is not None for estimate in estimates
    )
    return {
        "network_error": max(errors, default=None),
        "level": LEVEL if is_known and not is_lower_bound else None,
    }
