"""Predictions of collectives and training steps on larger networks."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from commbench.analysis.prediction.calibration import settings_of
from commbench.analysis.prediction.closed_forms import ALGORITHMS
from commbench.analysis.prediction.curves import Curve
from commbench.analysis.prediction.growth import Estimate, GrowingCurve, HeldOut
from commbench.analysis.prediction.hops import GROWING_PATTERNS, MeasuredCurve
from commbench.analysis.prediction.links import WITHIN_HOST, Link, link_of
from commbench.analysis.prediction.messages import HookCost
from commbench.analysis.prediction.network import SERVERS, CurveKey, Network, NetworkModel
from commbench.analysis.prediction.reasons import UnpredictedError
from commbench.analysis.prediction.steps import StepModel, StepPrediction
from commbench.collectives.operations import OPERATIONS
from commbench.ddp.plan.cases import SWEEP, TrainingCase, baseline_of, hook_position
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.engine.records import Record
from commbench.errors import InputError, noting
from commbench.hooks.registry import TOP_K, parse_hook
from commbench.results.info import RunInfo


class Family(NamedTuple):
    """What curves on several numbers of ranks have in common."""

    operation: str
    backend: str
    dtype: str
    pattern: str

    def __str__(self) -> str:
        """Name it for people."""
        pattern = "" if self.pattern == "flat" else f", pattern {self.pattern}"
        return f"{self.backend} {self.operation} of {self.dtype}{pattern}"


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """What of a run tells about its network."""

    model: NetworkModel
    """Its curves."""
    records: Sequence[Record]
    """Of collectives: what carried them."""
    info: RunInfo
    """As ``run.json`` holds it."""

    @property
    def ranks_per_node(self) -> int:
        """Most ranks on one host."""
        return int(self.info.get("ranks_per_node") or 1)

    def transport(self, key: CurveKey) -> str:
        """What carried a curve's messages."""
        wanted = key.operation, key.backend, key.pattern
        found = (r for r in self.records if (r.case.operation, r.case.backend, r.case.pattern) == wanted)
        return next((r.transport for r in found if r.status == "ok"), "")

    def spans_hosts(self, key: CurveKey) -> bool:
        """Whether a curve is of as many hosts as its ranks can be on: part of the ranks may fit into one."""
        return self.info.get("nodes", 1) == 1 or key.world_size > self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class GrowingNetwork:
    """All operations of one or more runs of the same kind of hosts, to be predicted elsewhere."""

    curves: Mapping[Family, GrowingCurve]
    unknown: Mapping[Family, str] = field(default_factory=dict)
    """Why others cannot be predicted, a sentence each."""
    ranks_per_node: int = 1
    """Of the runs across hosts; of runs on one host alone the most."""

    @classmethod
    def fit(cls, runs: Iterable[MeasuredRun]) -> GrowingNetwork:
        """Fit what every operation's hop costs, over all runs and numbers of ranks.

        Raises:
            InputError: the runs are of different libraries or numbers of ranks on a host, which do not mix.
        """
        runs = list(runs)
        _check_alike(runs)
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
                    link = link_of(run.info, run.transport(key)) if run.spans_hosts(key) else WITHIN_HOST
                    one = MeasuredCurve(curve=curve, world_size=key.world_size, link=link)
                    (within if link.is_within_host else across).setdefault(family, []).append(one)
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
                    within=within.get(family, []) if family in across and family.pattern == "flat" else [],
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
        crowded: bool = False,
    ) -> LargerNetwork:
        """The network of one backend on so many ranks; arguments as for `GrowingCurve.estimate`.

        With ``ranks_per_node`` it refuses what cannot be predicted for hosts of so many (`GrowingCurve.check_hosts`).

        Raises:
            InputError: nothing of that backend was measured.
        """
        curves = {
            (family.operation, family.dtype): curve
            for family, curve in self.curves.items()
            if (family.backend, family.pattern) == (backend, pattern)
        }
        if not curves:
            raise InputError(
                f"No curve of {backend} was measured, from which larger numbers of ranks could be predicted; measure "
                f"some first: commbench run --backend {backend} -c all_reduce,all_gather --sizes 64K:64M:4."
            )
        return LargerNetwork(
            curves=curves,
            backend=backend,
            world_size=world_size,
            servers=SERVERS.get(backend, 1),
            rate_bps=rate_bps,
            ranks_per_node=ranks_per_node,
            crowded=crowded,
        )


@dataclass(frozen=True, kw_only=True)
class LargerNetwork:
    """A `commbench.analysis.prediction.network.Network` of other numbers of ranks or rates of the links."""

    curves: Mapping[tuple[str, str], GrowingCurve]
    """By operation and data type, all of one backend and pattern."""
    backend: str
    world_size: int
    servers: int
    rate_bps: float | None = None
    """None: as measured."""
    ranks_per_node: int | None = None
    """None: unchecked."""
    crowded: bool = False
    """As for `GrowingCurve.estimate`."""
    _known: dict[tuple[str, str, float], float] = field(default_factory=dict, repr=False, compare=False)
    _estimates: dict[tuple[str, str, float], Estimate] = field(default_factory=dict, repr=False, compare=False)

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:
        """How long one operation alone is predicted to take, in microseconds.

        Raises:
            InputError: nothing is known about that operation, or its algorithm is too uncertain.
        """
        key = operation, dtype, message_bytes
        if key not in self._known:
            curve, place = self.curve(operation, dtype), self._place
            self._known[key] = curve.time_us(message_bytes, self.world_size, self.rate_bps, **place)
        return self._known[key]

    def estimate(self, operation: str, dtype: str, message_bytes: float) -> Estimate:
        """The same with its interval.

        Raises:
            InputError: as `time_us`.
        """
        key = operation, dtype, message_bytes
        if key not in self._estimates:
            curve, place = self.curve(operation, dtype), self._place
            self._estimates[key] = curve.estimate(message_bytes, self.world_size, self.rate_bps, **place)
        return self._estimates[key]

    @property
    def is_least(self) -> bool:
        """Whether its times are the least that is possible; see `Estimate`."""
        place = self.world_size, self.rate_bps, self.ranks_per_node
        return any(curve.starts_are_unknown(*place) for curve in self.curves.values())

    @property
    def _place(self) -> dict[str, Any]:
        return {"ranks_per_node": self.ranks_per_node, "crowded": self.crowded}

    def curve(self, operation: str, dtype: str) -> GrowingCurve:
        """What the prediction of an operation rests on; that of another data type where it only moves data.

        Raises:
            InputError: there is nothing; the sentence names the command that measures it.
        """
        if (operation, dtype) in self.curves:
            return self.curves[operation, dtype]
        others = [curve for (name, _), curve in sorted(self.curves.items()) if name == operation]
        if others and not OPERATIONS[operation].reduces:
            return others[0]
        subject = f"{self.backend} {operation}"
        raise UnpredictedError("operation_unmeasured", subject, dtype=dtype, backend=self.backend, operation=operation)


def _ranks_per_node(runs: Sequence[MeasuredRun]) -> int:
    """Of the runs across hosts, which agree; else most on the one host."""
    return max((((run.info.get("nodes") or 1) > 1, run.ranks_per_node) for run in runs), default=(False, 1))[1]


def _check_alike(runs: Sequence[MeasuredRun]) -> None:
    """Unlike conditions do not mix."""
    libraries: dict[str, str] = {}
    ranks_per_node: set[int] = set()
    for run in runs:
        for backend, library in (run.info.get("libraries") or {}).items():
            if libraries.setdefault(backend, library) != library:
                raise _unlike(f"libraries ({libraries[backend]} and {library})")
        ranks_per_node |= {run.ranks_per_node} if (run.info.get("nodes") or 1) > 1 else set()
    if len(ranks_per_node) > 1:
        raise _unlike(f"numbers of ranks on a host ({' and '.join(map(str, sorted(ranks_per_node)))})")


def _unlike(what: str) -> InputError:
    return InputError(f"The runs have different {what}, which do not mix; predict from runs that were measured alike.")


#: Adding one received value takes about so many times as long as zeroing one element of the bucket it is added to:
#: 16 to 30 on one core for densities of 0.001 to 0.1 of 25 MiB, since values lie scattered.
ADDING_OVER_ZEROING = 20.0
#: Settings at most that are left out in turn to see how far off predictions are.
_MOST_LEFT_OUT = 8


@dataclass(frozen=True, kw_only=True)
class TrainedWorkload:
    """One workload as it was trained: what the model of its step is made of."""

    facts: WorkloadFacts
    records: Sequence[TrainingRecord]
    """Of one workload, backend, number of ranks, batch and precision."""
    run: str = ""
    """Name of the run that holds them."""
    ranks_per_node: int | None = None
    """Of the hosts that it was trained on; ranks that fit on one met no link. None: as many as were measured."""
    rate_bps: float | None = None
    """Of the links that it was trained over, in bits per second; None: those of the network's measurement."""
    shared_cores: int | None = None
    """Cores that all its hosts shared, because they were emulated; None: every host had its own."""

    @property
    def backend(self) -> str:
        """What exchanged its gradients."""
        return self.records[0].case.carrier

    @property
    def world_size(self) -> int:
        """The ranks on which it was trained."""
        return self.records[0].case.world_size

    @property
    def named(self) -> dict[str, Any]:
        """The columns that name it."""
        case = self.records[0].case
        names = ("workload", "backend", "batch_per_rank", "precision")
        trained_on = f"{case.world_size} ranks" + (f" in {self.run}" if self.run else "")
        return {**{name: getattr(case, name) for name in names}, "trained_on": trained_on}

    @property
    def hooks(self) -> list[str]:
        """The hooks that were trained, by name: as they are listed, the densest first."""
        cases = {r.case.hook_name: r.case for r in self.records if r.case.uses_ddp and r.status == "ok"}
        return sorted(cases, key=lambda name: (hook_position(cases[name].hook), -(cases[name].density or 0.0), name))

    @property
    def crowding(self) -> float:
        """How many times as long computing took because ranks of other hosts wanted the same cores."""
        return float(Link(shared_cores=self.shared_cores).crowding(self.world_size))

    def model(self, network: GrowingNetwork) -> StepModel:
        """Its step as it was measured, on the network where it was.

        Raises:
            InputError: the network was not measured, not within a host where that is where it was trained, or something
                that the model needs was not trained.
        """
        place: dict[str, Any] = {"rate_bps": self.rate_bps, "ranks_per_node": self.ranks_per_node}
        there = network.at(self.backend, self.world_size, **place, crowded=True)
        return StepModel.calibrate(self.facts, there, self.records)

    def held_out(self, network: GrowingNetwork) -> HeldOut:
        """How far off its steps are where one setting at a time is left out of what the model is made from.

        Raises:
            InputError: as `model`.
        """
        settings = [setting for setting in settings_of(self.records) if setting.case.uses_ddp]
        cases = [setting.case for setting in settings]
        baselines = [dataclasses.replace(baseline_of(cases), precision=case.precision) for case in cases[:1]]
        errors = []
        for left_out in [setting for setting in settings if setting.case not in baselines][:_MOST_LEFT_OUT]:
            kept = [r for r in self.records if dataclasses.replace(r.case, phase=SWEEP) != left_out.case]
            model = dataclasses.replace(self, records=kept).model(network)
            if left_out.case.hook_name in model.hooks:
                errors.append(abs(model.predict(left_out.case).step_ms / left_out.step_ms - 1))
        over = f"settings on {self.world_size} ranks, each predicted from the others; more ranks were not trained"
        return HeldOut(error=statistics.median(errors) if errors else None, over=over)


def on_own_cores(model: StepModel, crowding: float) -> StepModel:
    """The model of a step whose computing took ``crowding`` times as long as it does where hosts have their own cores.

    What of a step neither computing nor communication explains stays, and so does what DDP adds to the forward pass
    where it broadcasts buffers there.
    """
    names = ["forward_ms", "backward_ms", "optimizer_ms", "other_ms", "copy_ms_per_byte"]
    names += [] if model.facts.buffer_bytes else ["ddp_forward_ms"]
    freed = {name: getattr(model, name) / crowding for name in names}
    return dataclasses.replace(
        model, hooks={name: cost.faster(crowding) for name, cost in model.hooks.items()}, **freed
    )


def on_network(model: StepModel, network: Network) -> StepModel:
    """The model of the same step on another network; what a hook decodes grows with the ranks that it is from."""
    ranks = model.network.world_size, network.world_size
    costs = dict(model.hooks)
    for name, cost in model.hooks.items():
        density = _top_k_density(name)
        if density is not None:
            costs[name] = _decoded(cost, [density * count for count in ranks])
    return dataclasses.replace(model, network=network, hooks=costs)


def with_density(model: StepModel, density: float) -> tuple[StepModel, str]:
    """The model with top-k of a density that was not measured, and the name of that hook.

    Selecting takes what it takes at the nearest density that was measured, and so does the overlap.

    Raises:
        InputError: no top-k was measured.
    """
    measured = {name: each for name in model.hooks if (each := _top_k_density(name)) is not None}
    if not measured:
        raise UnpredictedError("top_k_unmeasured")
    nearest = min(
        measured, key=lambda name: (bool(parse_hook(name)["hook_options"]), abs(math.log(measured[name] / density)))
    )
    name = hook_case(model, nearest, "default", density=density).hook_name
    loads = [measured[nearest] * model.network.world_size, density * model.network.world_size]
    same: dict[str, Any] = {
        field: {**getattr(model, field), name: getattr(model, field)[nearest]}
        for field in ("overlap", "rest_ms")
        if nearest in getattr(model, field)
    }
    hooks = {**model.hooks, name: _decoded(model.hooks[nearest], loads)}
    return dataclasses.replace(model, hooks=hooks, **same), name


def hook_case(model: StepModel, hook: str, cap: str, *, density: float | None = None) -> TrainingCase:
    """The setting of a hook and a bucket size on the model's network; ``density`` in place of the hook's own."""
    fields = parse_hook(hook)
    if density is not None:
        fields["density"] = float(f"{density:.3g}")
    return dataclasses.replace(model.reference, **fields, bucket_cap_mb=cap, world_size=model.network.world_size)


def best_buckets(model: StepModel, hook: str, caps: Sequence[str]) -> StepPrediction:
    """The prediction of the bucket size with the shortest step.

    Raises:
        InputError: the hook was not measured, or nothing is known of what it sends on the network.
    """
    return min((model.predict(hook_case(model, hook, cap)) for cap in caps), key=lambda step: step.step_ms)


def local_step_ms(model: StepModel) -> float:
    """The step without DDP, in milliseconds."""
    passes = model.reference.accumulation * (model.forward_ms + model.backward_ms)
    return passes + model.optimizer_ms + model.other_ms


def _top_k_density(hook_name: str) -> float | None:
    """Return the density of a top-k hook; None for other hooks."""
    hook = parse_hook(hook_name)
    return hook["density"] if hook["hook"] == TOP_K else None


def _decoded(cost: HookCost, loads: Sequence[float]) -> HookCost:
    """The cost where other values are added: ``loads`` are those of all ranks for an element, before and now."""
    before, now = (1.0 + ADDING_OVER_ZEROING * load for load in loads)
    return dataclasses.replace(cost, decode_ms_per_element=now / before * cost.decode_ms_per_element)
