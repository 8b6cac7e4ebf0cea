"""Run on Gloo ranks: train tuned, watched or alone, and compare the final states."""

import contextlib
import dataclasses
import functools
import io
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from gloo import each_of, everywhere, run_checks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import commbench
from commbench.analysis.watched import find_straggler, parts_of
from commbench.live.adopt import adopt
from commbench.live.options import LiveOptions
from commbench.live.switching import live_switches, own_hooks
from commbench.results import load_run

#: Optimiser steps of a training, those after which tuning ends, and those that are watched.
STEPS, TUNED, WATCHED = 180, 160, 80
WIDTH, BATCH = 96, 8


class Net(nn.Module):
    """A model with buffers; ``spare`` layers are unused in every other step."""

    def __init__(self, *, has_spare: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential()
        for _ in range(5):
            self.body.extend([nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU()])
        self.head = nn.Linear(WIDTH, 10)
        self.spare = nn.Linear(WIDTH, 10) if has_spare else None
        self.calls = 0

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        self.calls += self.training
        hidden = self.body(data)
        if self.spare is not None and self.calls % 2:
            return self.spare(hidden)
        return self.head(hidden)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to write a training loop."""

    ddp: tuple[tuple[str, Any], ...] = ()
    """Arguments of DistributedDataParallel."""
    accumulation: int = 1
    has_spare: bool = False
    has_hook: bool = False
    zeroes_late: bool = False
    """Gradients are zeroed between the forward and the backward pass."""
    keeps_tensors: bool = False
    """Gradients are set to 0, not to None."""
    evaluates: bool = False
    late_s: float = 0.0
    """Seconds for which rank 1 waits for its data in each step."""
    killed_at: int | None = None
    """The step at which rank 1 is killed."""


VIEWS = ("gradient_as_bucket_view", True)
WAYS = {
    "plain": Way(),
    "accumulation_views_evaluation": Way(
        accumulation=3, zeroes_late=True, ddp=(VIEWS,), evaluates=True
    ),
    "unused_views_own_hook": Way(
        has_spare=True, ddp=(VIEWS, ("find_unused_parameters", True)), has_hook=True
    ),
    "zeroed_late_own_size": Way(
        zeroes_late=True, keeps_tensors=True, ddp=(("bucket_cap_mb", 0.05),)
    ),
    "late": Way(late_s=0.02),
    "killed": Way(killed_at=40),
}


def make(way: Way) -> DistributedDataParallel:
    """Return the model of a training loop inside DDP."""
    model = DistributedDataParallel(Net(has_spare=way.has_spare), **dict(way.ddp))
    if way.has_hook:
        model.register_comm_hook(None, fp16_compress_hook)
    return model


def train(model: DistributedDataParallel, way: Way, steps: int = STEPS) -> list[torch.Tensor]:
    """Train and return the final parameters and buffers."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(steps):
        if dist.get_rank() and step == way.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(way.late_s * dist.get_rank())
        for micro in range(way.accumulation):
            is_last = micro == way.accumulation - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                data = torch.randn(BATCH, WIDTH, generator=generator)
                loss = model(data).square().mean() / way.accumulation
                if way.zeroes_late and not micro:
                    optimizer.zero_grad(set_to_none=not way.keeps_tensors)
                loss.backward()
        optimizer.step()
        loss.detach().zero_()  # a script may use its memory again
        if not way.zeroes_late:
            optimizer.zero_grad(set_to_none=not way.keeps_tensors)
        if way.evaluates and step % 10 == 0:
            model.eval()
            with torch.no_grad():
                model(data)
            model.train()
    return [tensor.clone() for tensor in model.module.state_dict().values()]


@functools.cache
def train_alone(way: Way) -> list[torch.Tensor]:
    """Return the end of a training without commbench."""
    return train(make(way), way)


def compare(name: str) -> dict[str, Any]:
    """Train with and without tuning.

    Return whether the final states are equal, and what was tried.
    """
    way = WAYS[name]
    without = train_alone(way)
    model, out = make(way), directory(name)
    tuning = commbench.autotune(model, out=out, steps=TUNED, workload=name)
    tuned = train(model, way)
    is_same = all(torch.equal(first, second) for first, second in zip(without, tuned, strict=True))
    return {
        "same": all(everywhere(is_same)),
        "done": all(everywhere(tuning.done)),
        "verdicts": everywhere(tuning.recommendation.verdict if tuning.recommendation else None),
        "hooks_left": everywhere(len({"join_hook", "_pre_forward"} & vars(model).keys())),
        **tried(out),
    }


def watch(name: str) -> dict[str, Any]:
    """Train with and without being watched; return whether both end alike, and what was seen."""
    way = WAYS[name]
    without = train_alone(dataclasses.replace(way, late_s=0.0))
    model, out = make(way), directory(f"watched-{name}")
    adopt(model, watching(out, name))
    messages = io.StringIO()
    with mock.patch.object(sys, "__stderr__", messages):
        watched = train(model, way)
    hooks = [parameter._post_accumulate_grad_hooks for parameter in model.parameters()]
    added = {"join_hook", "_sync_buffers", "_pre_forward"}
    is_left = any(hooks) or not added.isdisjoint(vars(model))
    is_same = all(torch.equal(*pair) for pair in zip(without, watched, strict=True))
    found = {
        "same": all(everywhere(is_same)),
        "left": any(everywhere(is_left or torch.autograd.backward.__module__ != "torch.autograd")),
        "hooks": everywhere([function.__name__ for function, _ in own_hooks(model)]),
        "messages": messages.getvalue(),
    }
    if dist.get_rank():
        return found
    (record,) = load_run(out).training_records[-1:]
    return {
        **found,
        "steps": len(record.step_ms),
        "parts": {part.name: part.share for part in parts_of(record)},
        "buckets": [bucket.size_bytes for bucket in record.buckets] == [*record.bucket_bytes],
        "straggler": find_straggler(record.computing_ms),
    }


def watching(out: Path, name: str) -> LiveOptions:
    """Return the options of a training that is watched."""
    return LiveOptions(out=str(out), workload=name, mode="watch", steps=WATCHED)


def killed(how: str) -> None:
    """Train until a rank is killed; ``how`` is ``watched`` or ``alone``."""
    model = make(WAYS["killed"])
    if how == "watched":
        adopt(model, watching(directory("killed"), "killed"))
    train(model, WAYS["killed"])


def tried(out: Path) -> dict[str, Any]:
    """Return what a run directory records of the tuning, on rank 0."""
    if dist.get_rank():
        return {}
    run = load_run(out)
    cases = [record.case for record in run.training_records]
    settings = {
        (case.bucket_cap_mb, case.bucket_view, case.batched_grad_copy, case.hook) for case in cases
    }
    first = cases[0]
    switches = [
        switch
        for switch in live_switches()
        if {getattr(case, switch.name) for case in cases} == {False, True}
    ]
    statuses = {(record.case.hook, record.status, record.reason) for record in run.training_records}
    return {
        "statuses": sorted(statuses),
        "settings": len(settings),
        "switches": [switch.name for switch in switches],
        "accumulation": first.accumulation,
        "batch": first.batch_per_rank,
        "least_loss": min(loss.loss for loss in run.losses),
    }


def directory(name: str) -> Path:
    """Return a new run directory, used by rank 0 only."""
    return Path(os.environ["STORE"]).with_name(f"run-{name}")


def norm_of_difference(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """Return the sum of the norms of the differences of floating-point tensors."""
    pairs = zip(tensors, others, strict=True)
    return sum(float((one - other).norm()) for one, other in pairs if one.is_floating_point())


def compressed() -> dict[str, Any]:
    """Return the distance of a training with hooks from one without, relative to the distance from
    the start.
    """
    way = Way()
    start = [tensor.clone() for tensor in make(way).module.state_dict().values()]
    without = train(make(way), way, 2 * STEPS)
    model, out = make(way), directory("compressed")
    own = [
        f"{Path(__file__).with_name('file_hooks.py')}:{name}"
        for name in ("make_pair", "make_nothing")
    ]
    allow = ("none", "fp16", "topk:0.5", *own)
    commbench.autotune(model, out=out, steps=2 * TUNED, allow=allow, workload="compressed")
    tuned = train(model, way, 2 * STEPS)
    apart = norm_of_difference(without, tuned) / norm_of_difference(without, start)
    return {"apart": apart, **tried(out)}


def in_turn() -> dict[str, Any]:
    """Return the outcome of adopting two models trained one after the other, and two trained
    alternately.
    """
    results = {}
    for name, turns in (("sequential", [0] * 15 + [1] * 120), ("alternating", [0, 1] * 200)):
        options = LiveOptions(out=str(directory(name)), workload=name, steps=40)
        models = [make(Way()), make(Way())]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
        for model in models:
            adopt(model, options)
        messages = io.StringIO()
        with mock.patch.object(sys, "__stderr__", messages):
            for number in turns:
                optimizers[number].zero_grad()
                models[number](torch.ones(BATCH, WIDTH)).square().mean().backward()
                optimizers[number].step()
        results[name] = {
            "messages": messages.getvalue().splitlines(),
            "left": sum("_pre_forward" in vars(model) for model in models),
        }
    return results


def twice() -> dict[str, Any]:
    """Ask for two tunings of a model; return whether they are one, and the lines about it."""
    model, messages = make(Way()), io.StringIO()
    first = commbench.autotune(model, out=directory("twice"), workload="twice")
    with mock.patch.object(sys, "__stderr__", messages):
        second = commbench.autotune(model, out=directory("again"), workload="twice")
    found = len(messages.getvalue().splitlines())
    train(model, Way(), steps=20)
    return {"same": first._director is second._director, "messages": found}


def refused() -> dict[str, Any]:
    """Return the message for each training that is not tuned."""
    linear = DistributedDataParallel(nn.Linear(WIDTH, 10))
    models = {
        "subclass": type("Mine", (DistributedDataParallel,), {})(Net()),
        "own_state": hooked(object()),
        "compiled": torch.compile(linear, backend="eager"),
        "unwritable": make(Way()),
    }
    results = {}
    for name, model in models.items():
        out = "/proc/nowhere/run" if name == "unwritable" else directory(name)
        messages = io.StringIO()
        with mock.patch.object(sys, "__stderr__", messages):
            commbench.autotune(getattr(model, "_orig_mod", model), out=out, workload=name)
            train(model, Way(), steps=20)
        results[name] = messages.getvalue()
    return results


def hooked(state: object) -> DistributedDataParallel:
    """Return a model with a stateful communication hook of the script."""
    model = make(Way())
    model.register_comm_hook(state, lambda _, bucket: fp16_compress_hook(None, bucket))
    return model


CHECKS = {
    "compare": functools.partial(each_of, compare),
    "watch": functools.partial(each_of, watch),
    "killed": killed,
    "compressed": compressed,
    "in_turn": in_turn,
    "refused": refused,
    "twice": twice,
}

if __name__ == "__main__":
    run_checks(CHECKS, sys.argv[1:])
