"""The rows of ``commbench predict``: collectives and training steps, with their intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from commbench.analysis.prediction.fits import log_half_width
from commbench.analysis.prediction.law import (
    KEPT_STEP_ERROR,
    OVER_KEPT_RUNS,
    Family,
    ForecastNetwork,
    Place,
)
from commbench.analysis.prediction.replay import TrainedWorkload
from commbench.collectives.operations import OPERATIONS
from commbench.errors import InputError
from commbench.findings import Finding
from commbench.schema import JsonObject
from commbench.stats import DEFAULT_LEVEL
from commbench.units import algbw_GBps, format_link_rate

PREDICTED = "predicted"


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
    message_bytes: int = 0
    world_size: int = 0
    ranks_per_node: int = 1
    rate: str = _column("of every host's link; empty: as measured", "")
    time_us: float | None = None
    time_us_low: float | None = _column("interval")
    time_us_high: float | None = None
    level: float | None = _column("of the interval; empty: its error is of other runs")
    busbw_GBps: float | None = None  # noqa: N815 - a unit
    held_out_error: float | None = _column("median absolute relative error of such predictions")
    held_out_over: str = ""
    status: str = "ok"
    reason: Finding | None = field(
        default=None, metadata={"about": "one sentence where nothing is predicted"}
    )

    @property
    def subject(self) -> str:
        """The predicted operation, in words."""
        return f"{self.backend} {self.operation}"


@dataclass(frozen=True, kw_only=True)
class StepForecast:
    """A training step with one hook at the best of its bucket sizes on one network.

    None is an empty cell.
    """

    kind: str = PREDICTED
    about: str = "step"
    workload: str = ""
    backend: str = ""
    batch_per_rank: int = 0
    precision: str = ""
    trained_on: str = _column("ranks and run", "")
    hook: str = ""
    world_size: int = 0
    ranks_per_node: int = 1
    rate: str = ""
    bucket_cap_mb: str = _column("the best of those trained", "")
    step_ms: float | None = None
    step_ms_low: float | None = _column("interval; empty: of one launch, as measured")
    step_ms_high: float | None = None
    level: float | None = _column("as of a collective")
    exposed_comm_ms: float | None = None
    local_step_ms: float | None = _column("the step without DDP, as measured")
    scaling_efficiency: float | None = _column("local_step_ms over step_ms")
    held_out_error: float | None = _column("median absolute relative error of such predictions")
    held_out_over: str = ""
    status: str = "ok"
    reason: Finding | None = None

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

    def __iter__(self) -> Iterator[Place]:
        """Iterate over rates and, for each, numbers of ranks."""
        for rate_bps, world_size in itertools.product(self.rates_bps, self.world_sizes):
            yield Place(
                world_size=world_size, ranks_per_node=self.ranks_per_node, rate_bps=rate_bps
            )


def _named(place: Place) -> dict[str, Any]:
    """Return the columns that name a network."""
    rate = "" if place.rate_bps is None else format_link_rate(place.rate_bps)
    return {
        "world_size": place.world_size,
        "ranks_per_node": place.ranks_per_node,
        "rate": rate,
    }


def collective_forecasts(
    network: ForecastNetwork, networks: Networks, sizes: Sequence[int] | None = None
) -> list[CollectiveForecast]:
    """Predict every measured operation; a row that cannot be predicted has the reason.

    Args:
        network: as measured.
        networks: the requested networks.
        sizes: message sizes in bytes; None: up to three of the measured sizes.
    """
    rows = []
    for family, curves in network.curves.items():
        measured = curves[-1].curve.sizes
        usual = sorted({measured[0], measured[len(measured) // 2], measured[-1]})
        for place, size in itertools.product(networks, sizes or usual):
            rows.append(_collective(network, family, place, size))
    return rows


def _collective(
    network: ForecastNetwork, family: Family, place: Place, size: int
) -> CollectiveForecast:
    columns = family._asdict() | _named(place) | {"message_bytes": size}
    try:
        estimate = network.estimate(family, size, place)
    except InputError as error:
        return CollectiveForecast(**columns, status="unsupported", reason=Finding.of(error))
    factor = OPERATIONS[family.operation].busbw_factor(place.world_size)
    return CollectiveForecast(
        **columns,
        time_us=estimate.time_us,
        time_us_low=estimate.low_us,
        time_us_high=estimate.high_us,
        level=estimate.level,
        busbw_GBps=factor * algbw_GBps(size, estimate.time_us),
        held_out_error=estimate.held_out_error,
        held_out_over=estimate.held_out_over,
    )


def step_forecasts(
    trained: TrainedWorkload,
    network: ForecastNetwork,
    networks: Networks,
    hooks: Iterable[str] | None = None,
) -> list[StepForecast]:
    """Predict the step of every trained hook, or of ``hooks``, on each network."""
    trained_hooks = dict.fromkeys(case.hook_name for case in trained.settings)
    rows = []
    for place, hook in itertools.product(networks, list(hooks or trained_hooks)):
        rows.append(_step(trained, network, hook, place))
    return rows


def _step(
    trained: TrainedWorkload, network: ForecastNetwork, hook: str, place: Place
) -> StepForecast:
    columns = trained.identity_columns | _named(place) | {"hook": hook}
    try:
        replay = trained.replay(network, hook, place)
    except InputError as error:
        return StepForecast(**columns, status="unsupported", reason=Finding.of(error))
    step_ms, local_ms = replay.step_ms, trained.local_step_ms
    low = high = 0.0
    if replay.interval:
        low = math.log(step_ms / replay.interval.low)
        high = math.log(replay.interval.high / step_ms)
        columns["level"] = DEFAULT_LEVEL
    doublings = trained.place.doublings(place)
    if doublings or place.is_within_host != trained.place.is_within_host:
        of_law = log_half_width(KEPT_STEP_ERROR, max(1.0, doublings))
        low, high = math.hypot(low, of_law), math.hypot(high, of_law)
        columns["level"] = None
        columns |= {"held_out_error": KEPT_STEP_ERROR, "held_out_over": OVER_KEPT_RUNS}
    return StepForecast(
        **columns,
        bucket_cap_mb=replay.case.bucket_cap_mb,
        step_ms=step_ms,
        step_ms_low=step_ms * math.exp(-low) if low or high else None,
        step_ms_high=step_ms * math.exp(high) if low or high else None,
        exposed_comm_ms=replay.exposed_comm_ms,
        local_step_ms=local_ms,
        scaling_efficiency=local_ms / step_ms if local_ms else None,
    )
