"""Run on Gloo ranks: train with every hook and compare each step with the ranks' own gradients."""

from typing import Any

import torch
import torch.distributed as dist
from gloo import (
    agree,
    batch,
    distance,
    everywhere,
    flat,
    gradients,
    local_gradients,
    loss_of,
    make_ddp,
    mean,
)
from torch.nn.parallel import DistributedDataParallel

from commbench.hooks import Guard, Hook, Int8, make_hook
from commbench.hooks.base import Stopwatch
from commbench.hooks.registry import parse_hook, split_options

#: In this step the hooks that are to be caught take the wrong gradients.
PLANTED = 7


def corrupt(_: object, bucket: dist.GradBucket) -> torch.futures.Future:
    """Average, but overwrite one element of one bucket in one step."""
    corrupt.calls = getattr(corrupt, "calls", 0) + 1
    future = dist.all_reduce(
        bucket.buffer().div_(dist.get_world_size()), async_op=True
    ).get_future()
    if bucket.is_last():
        corrupt.step = getattr(corrupt, "step", -1) + 1
        if corrupt.step == PLANTED:
            return future.then(lambda done: done.value()[0].index_fill_(0, torch.tensor([3]), 1e3))
    return future


class ForgetfulInt8(Int8):
    """Drops the rounding errors of sums."""

    def _reduce(self, channel: Any, residual: Any, *arguments: Any) -> Any:
        return super()._reduce(channel, torch.zeros_like(residual), *arguments)


#: Hooks as on the command line.
HOOKS = {
    "passthrough": "passthrough",
    "fp16": "fp16",
    "bf16": "bf16",
    "topk": "topk:0.05",
    "topk exact": "topk:0.05:selection=exact",
    "topk parameter fp16": "topk:0.05:scope=parameter:values=float16:dense_vectors=true",
    "topk dense_below": "topk:0.05:dense_below=600",
    "powersgd": "powersgd:2:start=1",
    "powersgd fp16": "powersgd:2:start=1:values=float16",
    "powersgd bf16": "powersgd:2:start=1:values=bfloat16",
    "int8": "int8:block=64",
    "int8 one block": "int8:block=1000000",
    "topk aligned": "topk:0.05:exchange=aligned:chunk=16",
    "topk aligned exact": "topk:0.05:exchange=aligned:chunk=16:selection=exact",
}


def make(text: str) -> Any:
    """Return the hook that a text names as on the command line."""
    fields = parse_hook(text)
    options = split_options(fields["hook_options"])
    return make_hook(fields["hook"], density=fields["density"], options=options)


#: Enough for these: one is to be caught early, the others differ from another in little.
AT_MOST = dict.fromkeys(
    (
        *("corrupt", "forgetful int8"),
        *("topk exact", "topk dense_below", "int8 one block", "topk aligned exact"),
    ),
    10,
)
#: Relative to the largest element; what a type of two bytes rounds.
TOLERANCES = {"fp16": 2e-3, "bf16": 2e-2, "powersgd fp16": 2e-3, "powersgd bf16": 2e-2}


def residual_of(hook: Hook, model: DistributedDataParallel) -> torch.Tensor:
    """Return the hook's residual in registration order, zeros where there is none."""
    residuals = hook.state_dict().get("memory", {}).get("residual", {})
    return flat(
        residuals.get(name, torch.zeros_like(each))
        for name, each in model.module.named_parameters()
    )


def train(hook: Any, name: str, steps: int) -> dict[str, Any]:
    """Train.

    List the steps whose gradients differ from the mean of what the ranks sent of gradient plus
    residual.
    """
    marked = []
    per_step = []
    hook.register(model := make_ddp())
    hook.observer = marked.append
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    wrong, after = [], residual_of(hook, model)
    for step in range(steps):
        data = batch(dist.get_rank(), step)
        total = local_gradients(model, data) + after
        optimizer.zero_grad()
        loss_of(model, data).backward()
        after = residual_of(hook, model)
        if not distance(gradients(model), mean(total - after)) <= TOLERANCES.get(name, 1e-5):
            wrong.append(step)
        optimizer.step()
        per_step.append(marked.copy())
        marked.clear()
    hook.close()
    return {
        "wrong": sorted(set().union(*everywhere(wrong))),
        "agree": agree(flat(model.module.parameters())),
        "residual": float(after.norm()),
        "buckets": sorted(watch.bucket.numel for watch in per_step[-1]),
        "flaws": flaws(per_step),
    }


def flaws(per_step: list[list[Stopwatch]]) -> list[str]:
    """Return the rules that the bucket times violate."""
    violations = set()
    for step, watches in enumerate(per_step):
        indices = sorted(watch.bucket.index for watch in watches)
        if indices != list(range(len(per_step[1]) if step else 1)):
            violations.add("a bucket was left out or told twice")
        for watch in watches:
            ready, start, done, encode, decode = watch.stamps(0)
            if not ready + encode <= done:
                violations.add("encoding outlasts the bucket")
            if not ready < start < done:
                violations.add("instants out of order")
            if not 0 < decode <= done - start:
                violations.add("decoding outlasts the exchange")
    return sorted(violations)


def train_all(steps: str) -> dict[str, Any]:
    """Train with every hook for the given number of steps; return the results by hook."""
    hooks = {"corrupt": Guard(corrupt), "forgetful int8": ForgetfulInt8(block=64)}
    for name, text in HOOKS.items():
        hooks[name] = make(text)
    results = {}
    for name, hook in hooks.items():
        results[name] = train(hook, name, min(int(steps), AT_MOST.get(name, int(steps))))
    return results
