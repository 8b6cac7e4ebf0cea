"""The rows of ``commbench predict``: collectives and training steps, with their intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

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
from commbench.units import algbw_GBps, counted, format_link_rate

PREDICTED = "predicted"


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
    rate: str = ""
    """Of every host's link; empty: as measured."""
    time_us: float | None = None
    time_us_low: float | None = None
    time_us_high: float | None = None
    level: float | None = None
    """Of the interval; None: its error is of other runs."""
    busbw_GBps: float | None = None
    held_out_error: float | None = None
    """Median absolute relative error of such predictions."""
    held_out_over: str = ""
    status: str = "ok"
    reason: Finding | None = None
    """Why nothing is predicted."""

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
    trained_on: str = ""
    """Ranks and run."""
    hook: str = ""
    world_size: int = 0
    ranks_per_node: int = 1
    rate: str = ""
    bucket_cap_mb: str = ""
    """The best of those trained."""
    step_ms: float | None = None
    step_ms_low: float | None = None
    """None: of one launch, as measured."""
    step_ms_high: float | None = None
    level: float | None = None
    exposed_comm_ms: float | None = None
    local_step_ms: float | None = None
    """The step without DDP, as measured."""
    scaling_efficiency: float | None = None
    """``local_step_ms`` over ``step_ms``."""
    held_out_error: float | None = None
    held_out_over: str = ""
    status: str = "ok"
    reason: Finding | None = None

    @property
    def subject(self) -> str:
        """The predicted hook."""
        return self.hook


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


def _named(place: Place) -> dict[str, Any]:
    """Return the columns that name a network."""
    rate = "" if place.rate_bps is None else format_link_rate(place.rate_bps)
    return {
        "world_size": place.world_size,
        "ranks_per_node": place.ranks_per_node,
        "rate": rate,
    }


def collective_forecasts(
    network: ForecastNetwork, places: Sequence[Place], sizes: Sequence[int] | None = None
) -> list[CollectiveForecast]:
    """Predict every measured operation; a row that cannot be predicted has the reason.

    Args:
        network: as measured.
        places: the requested networks.
        sizes: message sizes in bytes; None: up to three of the measured sizes.
    """
    rows = []
    for family, curves in network.curves.items():
        measured = curves[-1].curve.sizes
        usual = sorted({measured[0], measured[len(measured) // 2], measured[-1]})
        for place, size in itertools.product(places, sizes or usual):
            rows.append(collective_forecast(network, family, place, size))
    return rows


def collective_forecast(
    network: ForecastNetwork, family: Family, place: Place, size: int
) -> CollectiveForecast:
    """Predict one operation; its interval is of launches, of sizes beyond the measured, and of the
    law.
    """
    columns = family._asdict() | _named(place) | {"message_bytes": size}
    try:
        nearest = network.nearest(family, place)
    except InputError as refusal:
        return CollectiveForecast(**columns, status="unsupported", reason=Finding.of(refusal))
    time_us, curve = nearest.time_us(size, place), nearest.curve
    low = high = curve.half_width_beyond_sizes(size)
    if interval := curve.interval_us(size):
        low, high = interval.logs(curve.time_us(size))
    columns |= {"level": DEFAULT_LEVEL, "held_out_error": curve.held_out_error}
    columns["held_out_over"] = "over the message sizes of these runs"
    if not nearest.is_at(place):
        error, columns["held_out_over"] = network.held_out(family.backend)
        columns["held_out_error"] = error
        is_bound = nearest.link.is_within_host != place.is_within_host
        if is_bound or family.backend not in network.own_errors:
            columns["level"] = None
        low, high = _widened(low, high, error, nearest.place.doublings(place))
    factor = OPERATIONS[family.operation].busbw_factor(place.world_size)
    return CollectiveForecast(
        **columns,
        time_us=time_us,
        time_us_low=time_us * math.exp(-low),
        time_us_high=time_us * math.exp(high),
        busbw_GBps=factor * algbw_GBps(size, time_us),
    )


def _widened(low: float, high: float, error: float, doublings: float) -> tuple[float, float]:
    """Return the widths of an interval, in logarithms, with the law's error over a distance."""
    of_law = log_half_width(error, max(1.0, doublings))
    return math.hypot(low, of_law), math.hypot(high, of_law)


def step_forecasts(
    trained: TrainedWorkload,
    network: ForecastNetwork,
    places: Iterable[Place],
    hooks: Iterable[str] | None = None,
) -> list[StepForecast]:
    """Predict the step of every trained hook, or of ``hooks``, on each network."""
    trained_hooks = dict.fromkeys(case.hook_name for case in trained.settings)
    rows = []
    for place, hook in itertools.product(places, list(hooks or trained_hooks)):
        rows.append(_step(trained, network, hook, place))
    return rows


def _step(
    trained: TrainedWorkload, network: ForecastNetwork, hook: str, place: Place
) -> StepForecast:
    case = trained.records[0].case
    names = ("workload", "backend", "batch_per_rank", "precision")
    columns = _named(place) | {name: getattr(case, name) for name in names}
    columns |= {"hook": hook, "trained_on": counted(case.world_size, "rank")}
    if trained.run:
        columns["trained_on"] += f" in {trained.run}"
    try:
        replay = trained.replay(network, hook, place)
    except InputError as error:
        return StepForecast(**columns, status="unsupported", reason=Finding.of(error))
    step_ms, local_ms = replay.step_ms, trained.local_step_ms
    low = high = 0.0
    if replay.interval:
        low, high = replay.interval.logs(step_ms)
        columns["level"] = DEFAULT_LEVEL
    doublings = trained.place.doublings(place)
    if doublings or place.is_within_host != trained.place.is_within_host:
        low, high = _widened(low, high, KEPT_STEP_ERROR, doublings)
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
