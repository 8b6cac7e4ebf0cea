"""Training steps on larger networks: the model of a step with another network, and the best buckets there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from commbench.errors import InputError
from commbench.prediction.exchange import HookCost
from commbench.prediction.network import Network
from commbench.prediction.steps import StepModel, StepPrediction
from commbench.training.cases import TrainingCase, parse_hook

#: Adding one received value takes about so many times as long as zeroing one element of the bucket it is added to:
#: 16 to 30 on one core for densities of 0.001 to 0.1 of 25 MiB, since values lie scattered.
ADDING_OVER_ZEROING = 20.0
_TOP_K = "topk"


def on_network(model: StepModel, network: Network) -> StepModel:
    """The model of the same step on another network; what a hook decodes grows with the ranks that it is from."""
    ranks = model.network.world_size, network.world_size
    costs = {}
    for name, cost in model.hooks.items():
        hook = parse_hook(name)
        grown = _decoding(hook["density"], ranks[1]) / _decoding(hook["density"], ranks[0])
        costs[name] = _decoded(cost, grown) if hook["hook"] == _TOP_K else cost
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
            "Whether top-k pays is not predicted, since no top-k was trained: train some, e.g. with --hook "
            "none,topk:0.01."
        )
    nearest, hook = min(known, key=lambda each: (bool(each[1]["hook_options"]), _distance(each[1], density)))
    name = hook_case(model, nearest, "default", density=density).hook_name
    ranks = model.network.world_size
    cost = _decoded(model.hooks[nearest], _decoding(density, ranks) / _decoding(hook["density"], ranks))
    maps: dict[str, Any] = {
        field: {**getattr(model, field), name: getattr(model, field)[nearest]}
        for field in ("overlap", "slowdown", "rest_ms")
        if nearest in getattr(model, field)
    }
    return dataclasses.replace(model, hooks={**model.hooks, name: cost}, **maps), name


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


def _decoding(density: float | None, ranks: int) -> float:
    """What decoding an element takes, over zeroing it: k values of each rank are added."""
    return 1.0 + ADDING_OVER_ZEROING * ranks * (density or 0.0)


def _decoded(cost: HookCost, factor: float) -> HookCost:
    return dataclasses.replace(cost, decode_ms_per_element=factor * cost.decode_ms_per_element)
