"""Predictions of collectives and training steps on larger networks."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from commbench.analysis.prediction.calibration import settings_of
from commbench.analysis.prediction.closed_forms import ALGORITHMS, GROWING_PATTERNS, MeasuredCurve
from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.growth import Estimate, GrowingCurve, HeldOut
from commbench.analysis.prediction.links import WITHIN_HOST, Link, link_of
from commbench.analysis.prediction.network import CurveKey, Network, NetworkModel
from commbench.analysis.prediction.steps import HookCost, StepModel, StepPrediction
from commbench.collectives.backends import backend_of_any_tool
from commbench.collectives.operations import OPERATIONS
from commbench.ddp.plan.cases import SWEEP, TrainingCase, baseline_of, hook_position
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.engine.records import Record
from commbench.errors import InputError, UnpredictedError, noting
from commbench.hooks.registry import gathered_density, parse_hook
from commbench.results.info import RunInfo


class Family(NamedTuple):
    """The operation, backend, data type and pattern that curves on several numbers of ranks
    share.
    """

    operation: str
    backend: str
    dtype: str
    pattern: str

    def __str__(self) -> str:
        pattern = "" if self.pattern == "flat" else f", pattern {self.pattern}"
        return f"{self.backend} {self.operation} of {self.dtype}{pattern}"


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """The curves of a run, and the facts about its network."""

    model: NetworkModel
    records: Sequence[Record]
    """Records of collectives; they name the transports."""
    info: RunInfo
    """Contents of ``run.json``."""

    @property
    def ranks_per_node(self) -> int:
        """The most ranks on one host."""
        return int(self.info.get("ranks_per_node") or 1)

    def transport(self, key: CurveKey) -> str:
        """Return the transport of a curve's messages."""
        curve_key = key.operation, key.backend, key.pattern
        records = (
            r
            for r in self.records
            if (r.case.operation, r.case.backend, r.case.pattern) == curve_key
        )
        return next((r.transport for r in records if r.status == "ok"), "")

    def spans_hosts(self, key: CurveKey) -> bool:
        """Return whether a curve's ranks were on several hosts.

        A part of the ranks may fit into one host.
        """
        return self.info.get("nodes", 1) == 1 or key.world_size > self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class GrowingNetwork:
    """All curves of one or more runs on the same kind of hosts, for predictions on other
    networks.
    """

    curves: Mapping[Family, GrowingCurve]
    unknown: Mapping[Family, str] = field(default_factory=dict)
    """One sentence for each family that cannot be predicted."""
    ranks_per_node: int = 1
    """Of the runs across hosts; of runs on one host, the largest."""

    @classmethod
    def fit(cls, runs: Iterable[MeasuredRun]) -> GrowingNetwork:
        """Fit the cost per hop of every operation, over all runs and numbers of ranks.

        Raises:
            InputError: the runs differ in libraries or in ranks on a host.
        """
        runs = list(runs)
        _check_conditions(runs)
        ranks_per_node = _ranks_per_node(runs)
        across: dict[Family, list[MeasuredCurve]] = {}
        inner: dict[Family, Curve] = {}
        within: dict[Family, list[MeasuredCurve]] = {}
        for run in runs:
            for key, curve in run.model.curves.items():
                family = Family(key.operation, key.backend, key.dtype, key.pattern)
                if key.pattern == "node":
                    inner[family] = curve
                elif key.pattern in GROWING_PATTERNS and key.operation in ALGORITHMS:
                    link = (
                        link_of(run.info, run.transport(key))
                        if run.spans_hosts(key)
                        else WITHIN_HOST
                    )
                    measured_curve = MeasuredCurve(
                        curve=curve, world_size=key.world_size, link=link
                    )
                    (within if link.is_within_host else across).setdefault(family, []).append(
                        measured_curve
                    )
        curves: dict[Family, GrowingCurve] = {}
        unknown: dict[Family, str] = {}
        for family in sorted(across | within):
            with noting(functools.partial(unknown.__setitem__, family)):
                measured = across.get(family) or within[family]
                curves[family] = GrowingCurve(
                    operation=family.operation,
                    backend=family.backend,
                    pattern=family.pattern,
                    measured=measured,
                    ranks_per_node=ranks_per_node,
                    inner=inner.get(family._replace(pattern="node")),
                    within=(
                        within.get(family, [])
                        if family in across and family.pattern == "flat"
                        else []
                    ),
                )
        return cls(curves=curves, unknown=unknown, ranks_per_node=ranks_per_node)

    def at(
        self,
        backend: str,
        world_size: int,
        *,
        pattern: str = "flat",
        rate_bps: float | None = None,
        ranks_per_node: int | None = None,
        has_shared_cores: bool = False,
    ) -> LargerNetwork:
        """Return the network of one backend on ``world_size`` ranks.

        Arguments as for `GrowingCurve.estimate`.

        With ``ranks_per_node``, predictions check the hosts first (`GrowingCurve.check_hosts`).

        Raises:
            InputError: no curve of that backend and pattern was measured.
        """
        curves = {
            (family.operation, family.dtype): curve
            for family, curve in self.curves.items()
            if (family.backend, family.pattern) == (backend, pattern)
        }
        if not curves:
            raise InputError(
                f"No curve of {backend} was measured, so larger numbers of ranks cannot be"
                f" predicted; measure some first: commbench run --backend {backend} -c"
                " all_reduce,all_gather --sizes 64K:64M:4."
            )
        return LargerNetwork(
            curves=curves,
            backend=backend,
            world_size=world_size,
            servers=backend_of_any_tool(backend).collectives_at_once,
            rate_bps=rate_bps,
            ranks_per_node=ranks_per_node,
            has_shared_cores=has_shared_cores,
        )


@dataclass(frozen=True, kw_only=True)
class LargerNetwork:
    """A `commbench.analysis.prediction.network.Network` with other numbers of ranks or link
    rates.
    """

    curves: Mapping[tuple[str, str], GrowingCurve]
    """By operation and data type; all of one backend and pattern."""
    backend: str
    world_size: int
    servers: int
    rate_bps: float | None = None
    """None: as measured."""
    ranks_per_node: int | None = None
    """None: not checked."""
    has_shared_cores: bool = False
    """As for `GrowingCurve.estimate`."""
    _times_us: dict[tuple[str, str, float], float] = field(
        default_factory=dict, repr=False, compare=False
    )
    _estimates: dict[tuple[str, str, float], Estimate] = field(
        default_factory=dict, repr=False, compare=False
    )

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:
        """Return the predicted time of one operation alone, in microseconds.

        Raises:
            InputError: the operation was not measured, or its algorithm is too uncertain.
        """
        key = operation, dtype, message_bytes
        if key not in self._times_us:
            curve, location = self.curve(operation, dtype), self._location
            self._times_us[key] = curve.time_us(
                message_bytes, self.world_size, self.rate_bps, **location
            )
        return self._times_us[key]

    def estimate(self, operation: str, dtype: str, message_bytes: float) -> Estimate:
        """Return the predicted time with its interval.

        Raises:
            InputError: as `time_us`.
        """
        key = operation, dtype, message_bytes
        if key not in self._estimates:
            curve, location = self.curve(operation, dtype), self._location
            self._estimates[key] = curve.estimate(
                message_bytes, self.world_size, self.rate_bps, **location
            )
        return self._estimates[key]

    @property
    def is_lower_bound(self) -> bool:
        """Return whether its times are lower bounds; see `Estimate`."""
        place = self.world_size, self.rate_bps, self.ranks_per_node
        return any(curve.has_unknown_start_up(*place) for curve in self.curves.values())

    @property
    def _location(self) -> dict[str, Any]:
        return {"ranks_per_node": self.ranks_per_node, "has_shared_cores": self.has_shared_cores}

    def curve(self, operation: str, dtype: str) -> GrowingCurve:
        """Return the curve of an operation and data type.

        An operation without reduction falls back to another data type.

        Raises:
            InputError: there is no curve; the message names the command that measures it.
        """
        if (operation, dtype) in self.curves:
            return self.curves[operation, dtype]
        others = [curve for (name, _), curve in sorted(self.curves.items()) if name == operation]
        if others and not OPERATIONS[operation].reduces:
            return others[0]
        subject = f"{self.backend} {operation}"
        raise UnpredictedError(
            "operation_unmeasured", subject, dtype=dtype, backend=self.backend, operation=operation
        )


def _ranks_per_node(runs: Sequence[MeasuredRun]) -> int:
    """Return the ranks per host of the runs across hosts, which agree.

    Else the most on one host.
    """
    return max(
        (((run.info.get("nodes") or 1) > 1, run.ranks_per_node) for run in runs), default=(False, 1)
    )[1]


def _check_conditions(runs: Sequence[MeasuredRun]) -> None:
    """Check that the runs agree in libraries and ranks per host."""
    libraries: dict[str, str] = {}
    ranks_per_node: set[int] = set()
    for run in runs:
        for backend, library in (run.info.get("libraries") or {}).items():
            if libraries.setdefault(backend, library) != library:
                raise _mixed_conditions_error(f"libraries ({libraries[backend]} and {library})")
        ranks_per_node |= {run.ranks_per_node} if (run.info.get("nodes") or 1) > 1 else set()
    if len(ranks_per_node) > 1:
        raise _mixed_conditions_error(
            f"numbers of ranks on a host ({' and '.join(map(str, sorted(ranks_per_node)))})"
        )


def _mixed_conditions_error(conditions: str) -> InputError:
    return InputError(
        f"The runs have different {conditions}, which do not mix; predict from runs that were"
        " measured alike."
    )


#: Time to add one received value, relative to zeroing one element of the bucket. Measured: 16 to 30
#: on one core, for densities of 0.001 to 0.1 of 25 MiB; the values are scattered in memory.
ADDING_OVER_ZEROING = 20.0
#: The most settings that are held out, one at a time, to measure the prediction error.
_MOST_LEFT_OUT = 8


@dataclass(frozen=True, kw_only=True)
class TrainedWorkload:
    """The training records of one workload, from which the model of its step is calibrated."""

    facts: WorkloadFacts
    records: Sequence[TrainingRecord]
    """All of one workload, backend, number of ranks, batch and precision."""
    run: str = ""
    """Name of the run with the records."""
    ranks_per_node: int | None = None
    """Ranks on each host of the training; ranks on one host use no link. None: as measured."""
    rate_bps: float | None = None
    """Link rate of the training in bits per second; None: as in the network's measurement."""
    shared_cores: int | None = None
    """Cores that all emulated hosts shared; None: every host had its own."""

    @property
    def backend(self) -> str:
        """The backend that exchanged the gradients."""
        return self.records[0].case.carrier

    @property
    def world_size(self) -> int:
        """The ranks of the training."""
        return self.records[0].case.world_size

    @property
    def identity_columns(self) -> dict[str, Any]:
        """The columns that identify the workload."""
        case = self.records[0].case
        names = ("workload", "backend", "batch_per_rank", "precision")
        trained_on = f"{case.world_size} ranks" + (f" in {self.run}" if self.run else "")
        return {**{name: getattr(case, name) for name in names}, "trained_on": trained_on}

    @property
    def hooks(self) -> list[str]:
        """Names of the trained hooks, in the registry's order, the densest first."""
        cases = {
            r.case.hook_name: r.case for r in self.records if r.case.uses_ddp and r.status == "ok"
        }
        return sorted(
            cases,
            key=lambda name: (hook_position(cases[name].hook), -(cases[name].density or 0.0), name),
        )

    @property
    def oversubscription(self) -> float:
        """The factor by which computing took longer because ranks of other hosts used the same
        cores.
        """
        return float(Link(shared_cores=self.shared_cores).oversubscription(self.world_size))

    def model(self, network: GrowingNetwork) -> StepModel:
        """Return the calibrated model of the step on the network of the training.

        Raises:
            InputError: the network was not measured, or not within a host although the training
                was, or a setting that the
            model needs was not trained.
        """
        location: dict[str, Any] = {
            "rate_bps": self.rate_bps,
            "ranks_per_node": self.ranks_per_node,
        }
        network_as_trained = network.at(
            self.backend, self.world_size, **location, has_shared_cores=True
        )
        return StepModel.calibrate(self.facts, network_as_trained, self.records)

    def held_out(self, network: GrowingNetwork) -> HeldOut:
        """Return the prediction error of steps, with one setting at a time held out of the
        calibration.

        Raises:
            InputError: as `model`.
        """
        settings = [setting for setting in settings_of(self.records) if setting.case.uses_ddp]
        cases = [setting.case for setting in settings]
        baselines = [
            dataclasses.replace(baseline_of(cases), precision=case.precision) for case in cases[:1]
        ]
        errors = []
        for left_out in [setting for setting in settings if setting.case not in baselines][
            :_MOST_LEFT_OUT
        ]:
            calibration = [
                r for r in self.records if dataclasses.replace(r.case, phase=SWEEP) != left_out.case
            ]
            model = dataclasses.replace(self, records=calibration).model(network)
            if left_out.case.hook_name in model.hooks:
                errors.append(abs(model.predict(left_out.case).step_ms / left_out.step_ms - 1))
        over = (
            f"settings on {self.world_size} ranks, each predicted from the others; more ranks were"
            " not trained"
        )
        return HeldOut(error=statistics.median(errors) if errors else None, over=over)


def model_on_own_cores(model: StepModel, oversubscription: float) -> StepModel:
    """Return the model of the same step if every host has its own cores: computing is faster by
    ``oversubscription``.

    The part of the step that neither computing nor communication explains stays. What DDP adds to
    the forward pass stays too if DDP broadcasts buffers there.
    """
    names = ["forward_ms", "backward_ms", "optimizer_ms", "other_ms", "copy_ms_per_byte"]
    names += [] if model.facts.buffer_bytes else ["ddp_forward_ms"]
    computing = {name: getattr(model, name) / oversubscription for name in names}
    return dataclasses.replace(
        model,
        hooks={name: cost.faster(oversubscription) for name, cost in model.hooks.items()},
        **computing,
    )


def model_on_network(model: StepModel, network: Network) -> StepModel:
    """Return the model of the same step on another network.

    Gathered top-k decodes more on more ranks.
    """
    ranks = model.network.world_size, network.world_size
    costs = dict(model.hooks)
    for name, cost in model.hooks.items():
        density = gathered_density(name)
        if density is not None:
            costs[name] = _with_decoding_load(cost, [density * count for count in ranks])
    return dataclasses.replace(model, network=network, hooks=costs)


def hook_case(model: StepModel, hook: str, cap: str) -> TrainingCase:
    """Return the case of a hook and a bucket size on the model's network."""
    return dataclasses.replace(
        model.reference,
        **parse_hook(hook),
        bucket_cap_mb=cap,
        world_size=model.network.world_size,
    )


def best_buckets(model: StepModel, hook: str, caps: Sequence[str]) -> StepPrediction:
    """Return the prediction for the bucket size with the shortest step.

    Raises:
        InputError: the hook was not measured, or the network lacks a collective that it uses.
    """
    return min(
        (model.predict(hook_case(model, hook, cap)) for cap in caps), key=lambda step: step.step_ms
    )


def local_step_ms(model: StepModel) -> float:
    """Return the time of the step without DDP, in milliseconds."""
    passes = model.reference.accumulation * (model.forward_ms + model.backward_ms)
    return passes + model.optimizer_ms + model.other_ms


def _with_decoding_load(cost: HookCost, loads: Sequence[float]) -> HookCost:
    """Return the cost for another number of added values.

    ``loads`` are the values per element from all ranks, before and now.
    """
    before, now = (1.0 + ADDING_OVER_ZEROING * load for load in loads)
    return dataclasses.replace(
        cost, decode_ms_per_element=now / before * cost.decode_ms_per_element
    )
