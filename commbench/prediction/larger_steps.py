"""Training steps on larger networks: the model of a step with another network, and the best buckets there."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from commbench.errors import InputError
from commbench.prediction.calibration import settings_of
from commbench.prediction.exchange import HookCost
from commbench.prediction.growing import HeldOut
from commbench.prediction.larger import GrowingNetwork
from commbench.prediction.links import Link
from commbench.prediction.network import Network
from commbench.prediction.steps import StepModel, StepPrediction
from commbench.training.cases import HOOKS, SWEEP, TrainingCase, baseline_of, parse_hook
from commbench.training.records import TrainingRecord
from commbench.training.workload import WorkloadFacts

#: Adding one received value takes about so many times as long as zeroing one element of the bucket it is added to:
#: 16 to 30 on one core for densities of 0.001 to 0.1 of 25 MiB, since values lie scattered.
ADDING_OVER_ZEROING = 20.0
_TOP_K = "topk"
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
        return sorted(cases, key=lambda name: (HOOKS.index(cases[name].hook), -(cases[name].density or 0.0), name))

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
        hook = parse_hook(name)
        if hook["hook"] == _TOP_K:
            loads = [hook["density"] * count for count in ranks]
            costs[name] = _decoded(cost, loads)
    return dataclasses.replace(model, network=network, hooks=costs)


def with_density(model: StepModel, density: float) -> tuple[StepModel, str]:
    """The model with top-k of a density that was not measured, and the name of that hook.

    Selecting takes what it takes at the nearest density that was measured, and so does the overlap.

    Raises:
        InputError: no top-k was measured.
    """
    known = [(name, hook) for name in model.hooks if (hook := parse_hook(name))["hook"] == _TOP_K]
    if not known:
        raise InputError(
            "Whether top-k pays is not predicted, since no top-k was trained or no all_gather measured, which it uses: "
            "train with --hook none,topk:0.01, and measure with commbench run -c all_gather."
        )
    nearest, hook = min(known, key=lambda each: (bool(each[1]["hook_options"]), _distance(each[1], density)))
    name = hook_case(model, nearest, "default", density=density).hook_name
    loads = [hook["density"] * model.network.world_size, density * model.network.world_size]
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


def _distance(hook: dict[str, Any], density: float) -> float:
    return abs(math.log(hook["density"] / density))


def _decoded(cost: HookCost, loads: Sequence[float]) -> HookCost:
    """The cost where other values are added: ``loads`` are those of all ranks for an element, before and now."""
    before, now = (1.0 + ADDING_OVER_ZEROING * load for load in loads)
    return dataclasses.replace(cost, decode_ms_per_element=now / before * cost.decode_ms_per_element)
