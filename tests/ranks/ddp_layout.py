"""Run as one Gloo rank: print as JSON how DDP buckets each model of the JSON argument, by bucket
size, also static.
"""

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from gloo import join, report_and_exit
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.buckets import bucket_bytes, bucket_parameters
from commbench.ddp.models import parameter_facts, trainable
from commbench.ddp.plan.arguments import ddp_arguments
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.workloads import load_workload


def layers(*widths: int) -> Callable[[], tuple[Any, Any]]:
    """Return a function that makes a chain of linear layers and its input."""

    def make() -> tuple[Any, Any]:
        return nn.Sequential(
            *(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        ), torch.randn(2, widths[0])

    return make


def mixed_dtypes() -> tuple[Any, Any]:
    """Return a model of four alternating data types, and its input."""
    dtypes = (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float32,
        torch.float16,
        torch.float64,
        torch.float32,
    )

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(90, 90).to(dtype) for dtype in dtypes)

        def forward(self, hidden: Any) -> Any:
            for layer in self.layers:
                hidden = layer(hidden.to(layer.weight.dtype))
            return hidden.float()

    return Mixed(), torch.randn(2, 90)


def out_of_order() -> tuple[Any, Any]:
    """Return a model whose layers run in another order than registered, one frozen and one used
    twice.
    """

    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(130, 130) for _ in range(8))
            self.layers[3].requires_grad_(requires_grad=False)

        def forward(self, hidden: Any) -> Any:
            for index in (2, 0, 7, 3, 5, 1, 6, 2, 4):
                hidden = self.layers[index](hidden)
            return hidden

    return Shuffled(), torch.randn(2, 130)


def convolutions() -> tuple[Any, Any]:
    """Return convolutions with batch norm, whose parameters alternate between large and small, and
    an input.
    """
    blocks = [
        nn.Sequential(nn.Conv2d(n, 2 * n, 3), nn.BatchNorm2d(2 * n), nn.ReLU())
        for n in (3, 6, 12, 24)
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.LazyLinear(1000)), torch.randn(2, 3, 12, 12)


MODELS = {
    "tiny": layers(3, 1),
    "wide": layers(100, 1500, 1500, 10),
    "deep": layers(*[64] * 30),
    "huge": layers(64, *[1300] * 5, 64),
    "mixed_dtypes": mixed_dtypes,
    "out_of_order": out_of_order,
    "convolutions": convolutions,
}
Loss = Callable[[Any], Any]


def model_and_loss(name: str) -> tuple[Any, Loss]:
    """Return a model, and the function that computes its loss."""
    if name in MODELS:
        model, inputs = MODELS[name]()
        model(inputs)  # lazy layers get their shape
        return model, lambda called: called(inputs).sum()
    batch_size = None if name.startswith("trace:") else 2  # a trace has that of its recording
    workload = load_workload(name, seed=0, rank=0, world_size=1, batch_size=batch_size)
    batch = next(iter(workload.batches))
    return workload.model, lambda called: workload.loss(called, batch)


def observe(model: Any, loss: Loss) -> dict[str, Any]:
    """Return the parameters of a model and the order in which their gradients become ready, without
    DDP.
    """
    order = []
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: order.append(index))
        for index, parameter in enumerate(trainable(model).values())
    ]
    loss(model).backward()
    for handle in handles:
        handle.remove()
    parameters = [dataclasses.asdict(fact) for fact in parameter_facts(model)]
    return {"parameters": parameters, "ready_order": order}


def ask_ddp(model: Any, loss: Loss, cap: str, *, static: bool) -> dict[str, list[Any]]:
    """Return the bucket sizes and parameter indices that DDP logs."""
    case = TrainingCase(
        workload="", world_size=1, batch_per_rank=1, bucket_cap_mb=cap, static_graph=static
    )
    ddp = DistributedDataParallel(model, **ddp_arguments(case))
    for _ in range(
        4 if static else 3
    ):  # it rebuilds in the second forward pass, or the third, and logs in the next
        loss(ddp).backward()
    return {"sizes": bucket_bytes(ddp), "indices": bucket_parameters(ddp, case)}


if __name__ == "__main__":
    torch.manual_seed(0)
    join()
    seen = {}
    for name, (caps, static_caps) in json.loads(sys.argv[1]).items():
        model, loss = model_and_loss(name)
        seen[name] = observe(model, loss) | {
            "ddp": {cap: ask_ddp(model, loss, cap, static=False) for cap in caps},
            "static": {cap: ask_ddp(model, loss, cap, static=True) for cap in static_caps},
        }
    report_and_exit(seen)
