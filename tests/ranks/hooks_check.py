"""Run on Gloo ranks: checks of hooks with memory.

Each returns numbers or booleans that the test judges.
"""

import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from gloo import (
    EQUAL,
    agree,
    backward,
    batch,
    distance,
    each_of,
    everywhere,
    flat,
    gradients,
    local_gradients,
    loss_of,
    make_ddp,
    mean,
    run_checks,
    train_step,
)
from hooks_train import HOOKS, make, residual_of, train_all
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commbench.errors import InputError
from commbench.hooks import Hook, PowerSGD, TopK
from commbench.hooks.feedback import FeedbackHook
from commbench.hooks.message import kept_elements

COMPRESSING = {**HOOKS, "topk momentum": "topk:0.05:momentum=0.9"}
#: Hooks whose first two steps send everything.
DENSE_FIRST = {
    "topk": "topk:0.05:start=2",
    "topk aligned": "topk:0.05:exchange=aligned:chunk=16:start=2",
    "powersgd": "powersgd:2:start=2",
    "int8": "int8:block=64:start=2",
}
#: Hooks that send everything by a density.
DENSE = {
    "topk": "topk:1",
    "topk exact": "topk:1:selection=exact",
    "topk parameter": "topk:1:scope=parameter",
    "topk whole": "topk:0.01:dense_below=1000000",
    "topk aligned": "topk:1:exchange=aligned:chunk=50",
}
#: Elements of the first tensor that hooks treat as a whole; all of them unless given.
TOGETHER = {"int8": 48}


def sgd(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    """Return plain SGD, which keeps no state."""
    return torch.optim.SGD(model.parameters(), lr=lr)


def memory_of(hook: Hook) -> torch.Tensor:
    """Return the whole memory of a hook, sorted by type and name."""
    memory = hook.state_dict()["memory"]
    return flat(memory[kind][name] for kind in sorted(memory) for name in sorted(memory[kind]))


def close(*hooks: Hook) -> None:
    """Close the hooks, which may own a thread."""
    for hook in hooks:
        hook.close()


def density_one(name: str) -> dict[str, Any]:
    """Send every element by a sparse hook.

    Compare with the mean and bit by bit with the sum in rank order.
    """
    hook = make(DENSE[name]).register(model := make_ddp())
    errors, same = [], True
    for step in range(5):
        data = batch(dist.get_rank(), step)
        own = local_gradients(model, data)
        backward(model, data)
        errors.append(distance(gradients(model), mean(own)))
        by_rank = [each / dist.get_world_size() for each in everywhere(own)]
        same &= torch.equal(gradients(model), sum(by_rank[1:], by_rank[0]))
    close(hook)
    return {"error": max(errors), "bits": same, "residual": float(memory_of(hook).norm())}


def dense_start(name: str) -> list[float]:
    """Return the relative distance of each of four steps from the mean gradient."""
    hook = make(DENSE_FIRST[name]).register(model := make_ddp())
    errors = []
    for step in range(4):
        data = batch(dist.get_rank(), step)
        expected = mean(local_gradients(model, data))
        backward(model, data)
        errors.append(distance(gradients(model), expected))
    close(hook)
    return errors


def resume(name: str) -> dict[str, bool]:
    """Train 8 steps, and again from a checkpoint after 4 with another model and hook."""
    # Unused parameters are looked for so that the buckets are the same from the first step on.
    options = {"find_unused_parameters": True}
    hook = make(COMPRESSING[name]).register(model := make_ddp(**options))
    whole, rank = sgd(model), dist.get_rank()
    for step in range(8):
        if step == 4:
            weights = {key: value.clone() for key, value in model.module.state_dict().items()}
            state = hook.state_dict()
        train_step(model, whole, batch(rank, step))
    again = make_ddp(**options)
    again.module.load_state_dict(weights)
    fresh = make(COMPRESSING[name])
    fresh.load_state_dict(state)
    fresh.register(again)
    for step in range(4, 8):
        take_step(again, step)
    same = torch.equal(flat(model.module.parameters()), flat(again.module.parameters()))
    close(hook, fresh)
    return {
        "parameters": all(everywhere(same)),
        "memory": all(everywhere(torch.equal(memory_of(hook), memory_of(fresh)))),
    }


def poison_last(gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient, with one infinite row on the last rank."""
    if dist.get_rank() < dist.get_world_size() - 1:
        return gradient
    return gradient.index_fill(0, torch.tensor([1]), torch.inf)


def scaled(name: str) -> dict[str, Any]:
    """Train with a GradScaler, which must not change a bit.

    Then put an infinity into one bucket of the last rank.
    """
    plain = make(COMPRESSING[name]).register(reference := make_ddp())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    hook = make(COMPRESSING[name]).register(model := make_ddp(), scaler=scaler)
    optimizer, own = sgd(reference), sgd(model)
    rank = dist.get_rank()

    def step(number: int) -> None:
        own.zero_grad()
        scaler.scale(loss_of(model, batch(rank, number))).backward()
        scaler.step(own)
        scaler.update()

    for number in range(4):
        train_step(reference, optimizer, batch(rank, number))
        step(number)
    results = {
        "same memory": torch.equal(memory_of(plain), memory_of(hook)),
        "same parameters": torch.equal(
            flat(reference.module.parameters()), flat(model.module.parameters())
        ),
    }
    memory, parameters = memory_of(hook), flat(model.module.parameters()).clone()
    first = next(model.module.parameters())
    handle = first.register_hook(poison_last)
    step(4)
    handle.remove()
    results["memory kept"] = torch.equal(memory, memory_of(hook))
    results["parameters kept"] = torch.equal(parameters, flat(model.module.parameters()))
    results["scale"] = scaler.get_scale()
    for number in range(5, 8):
        step(number)
    is_finite = bool(memory_of(hook).isfinite().all())
    results["goes on"] = is_finite and not torch.equal(memory, memory_of(hook))
    results["agree"] = agree(flat(model.module.parameters()))
    close(plain, hook)
    return {key: _all(value) for key, value in results.items()}


def _all(value: Any) -> Any:
    """Return the common value of all ranks, or their list."""
    values = everywhere(value)
    return values[0] if len(set(values)) == 1 else values


def low_rank() -> dict[str, float]:
    """Send the same gradients repeatedly by PowerSGD at rank 2, and once at full rank."""
    data = batch(dist.get_rank(), 0)
    full = PowerSGD(rank=EQUAL * 2, min_compression_rate=0.01, start=0).register(
        model := make_ddp()
    )
    expected = mean(local_gradients(model, data))
    loss_of(model, data).backward()
    results = {
        "full": distance(gradients(model), expected),
        "left": float(memory_of(full).norm() / expected.norm()),
    }
    hook = PowerSGD(rank=2, start=1, feedback=False).register(model := make_ddp())
    matrix = expected[: EQUAL * EQUAL].view(EQUAL, EQUAL)
    values = torch.linalg.svdvals(matrix)
    results["best"] = float(values[2:].norm())
    for name in ("everything", "first", *["later"] * 25):
        backward(model, data)
        results[name] = float((next(model.module.parameters()).grad - matrix).norm())
    close(full, hook)
    return results


def infinite(name: str) -> dict[str, bool]:
    """Put an infinity on the last rank without a scaler: all ranks must receive it, and memory must
    stay finite.

    Memory must also stay as it was, for `TOGETHER` elements that include the infinity.
    """
    hook = make(COMPRESSING[name]).register(model := make_ddp())
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for step in range(3):
        loss_of(model, batch(rank, step)).backward()
    memory = hook.state_dict()["memory"]
    first = next(model.module.parameters())
    handle = first.register_hook(poison_last)
    backward(model, batch(rank, 3))
    handle.remove()
    after = hook.state_dict()["memory"]
    together = slice(TOGETHER.get(name))
    kept_flat = [
        (flat([each[kind]["0.weight"]])[together] for each in (memory, after)) for kind in memory
    ]
    is_kept = [torch.equal(*pair) for pair in kept_flat]
    clean = bool(memory_of(hook).isfinite().all())
    is_infinite = not first.grad.isfinite().all()
    backward(model, batch(rank, 4))
    close(hook)
    return {
        "seen by all": all(everywhere(is_infinite)),
        "kept": everywhere(all(is_kept))[last],
        "clean": all(everywhere(clean)),
        "goes on": bool(gradients(model).isfinite().all()),
    }


def convolutions() -> nn.Module:
    """Return a model whose weights are in channels-last memory format."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 12, 3), nn.Tanh(), nn.Conv2d(12, 12, 3), nn.Tanh(), nn.Conv2d(12, 4, 3)]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    assert not model[0].weight.is_contiguous()
    return model


def follow(hook: FeedbackHook, model: DistributedDataParallel, shape: tuple[int, ...]) -> float:
    """Train 5 steps.

    Return the largest difference of a gradient from what the memories imply was sent.
    """
    hook.register(model)
    parameters, errors = list(model.module.parameters()), []
    optimizer = sgd(model)
    for step in range(5):
        data = torch.randn(
            shape, generator=torch.Generator().manual_seed(100 * step + dist.get_rank())
        )
        own = flat(torch.autograd.grad(model.module(data).square().sum(), parameters))
        before = residual_of(hook, model)
        optimizer.zero_grad()
        model(data).square().sum().backward()
        errors.append(distance(gradients(model), mean(own + before - residual_of(hook, model))))
        optimizer.step()
    hook.close()
    return max(everywhere(max(errors)))


def shapes_and_options() -> dict[str, float]:
    """Run `follow` with other memory layouts and DDP options."""
    errors = {}
    for name in ("topk", "powersgd", "int8", "topk aligned"):
        text = HOOKS[name]
        image = (2, 3, 12, 12)
        errors[f"{name} channels_last"] = follow(
            make(text), DistributedDataParallel(convolutions()), image
        )
        small = DistributedDataParallel(convolutions(), bucket_cap_mb=0.001)
        errors[f"{name} channels_last in small buckets"] = follow(make(text), small, image)
        for option in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters"):
            errors[f"{name} {option}"] = follow(make(text), make_ddp(**{option: True}), (8, EQUAL))
    return errors


def teach(hook: Hook | None, steps: int = 150) -> float:
    """Train on a teacher's outputs and return the mean loss of the last 20 steps over all ranks."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16)))
    if hook is not None:
        hook.register(model)
    teacher = torch.randn((32, 16), generator=torch.Generator().manual_seed(5))
    data = torch.Generator().manual_seed(dist.get_rank())
    optimizer, losses = sgd(model, lr=0.05), []
    for _ in range(steps):
        inputs = torch.randn((32, 32), generator=data)
        optimizer.zero_grad()
        loss = (model(inputs) - torch.tanh(inputs @ teacher)).square().mean()
        (16 * loss).backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(everywhere(sum(losses[-20:]) / 20)) / dist.get_world_size()


def feedback() -> dict[str, float]:
    """Return the losses without compression, and at 1 % with and without error feedback."""
    with_feedback, without = TopK(density=0.01), TopK(density=0.01, feedback=False)
    return {"dense": teach(None), "with": teach(with_feedback), "without": teach(without)}


def without_feedback() -> dict[str, Any]:
    """Check that the largest elements of a bucket are sent without error feedback."""
    data, hook = batch(dist.get_rank(), 0), TopK(density=0.1, feedback=False)
    hook.register(model := make_ddp())
    own = local_gradients(model, data)
    loss_of(model, data).backward()
    received = gradients(model)
    threshold = own.abs().sort(descending=True).values[kept_elements(own.numel(), 0.1) - 1]
    expected = mean(torch.where(own.abs() >= threshold, own, 0.0))
    return {
        "error": distance(received, expected),
        "sent": int((received != 0).sum()),
        "kept": float(memory_of(hook).norm()),
    }


def compression_gradients() -> dict[str, Any]:
    """Reproduce Deep Gradient Compression on one bucket: clipping, momentum, masking, warm-up,
    learning rate.
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(20, 10, bias=False))
    optimizer = sgd(model, lr=0.1)
    hook = TopK(density=0.05, momentum=0.5, clip=1.0, warmup=(0.5, 0.1), warmup_steps=4)
    hook.register(model, optimizer=optimizer)
    rank, size, parameter = dist.get_rank(), dist.get_world_size(), model.module.weight
    u, v = torch.zeros(200), torch.zeros(200)
    errors, counts = [], []
    for step in range(7):
        inputs = torch.randn((4, 20), generator=torch.Generator().manual_seed(100 * step + rank))
        (own,) = torch.autograd.grad(model.module(inputs).square().sum(), [parameter])
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        gradient = own.reshape(-1) * min(1.0, 1.0 / size**0.5 / float(own.norm()))
        u = 0.5 * u + gradient
        if step == 6:
            v = v * 2
        v = v + u
        chosen = v.abs().topk(kept_elements(200, hook.current_density)).indices
        sent = torch.zeros(200).index_copy(0, chosen, v[chosen])
        u[chosen], v[chosen] = 0.0, 0.0
        errors.append(distance(parameter.grad.reshape(-1), mean(sent)))
        counts.append(len(chosen))
        if step == 5:
            optimizer.param_groups[0]["lr"] = 0.05
    memory = hook.state_dict()["memory"]
    for kind, expected in ("residual", v), ("momentum", u):
        errors.append(distance(memory[kind]["weight"].reshape(-1), expected))
    return {"error": max(everywhere(max(errors))), "counts": counts}


def chosen_chunks() -> dict[str, Any]:
    """Exchange one bucket of 100 elements in chunks of 8.

    Return the chunks with sums, and the largest error.
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(10, 10, bias=False))
    hook = TopK(density=0.25, exchange="aligned", chunk=8).register(model)
    data = torch.randn((4, 10), generator=torch.Generator().manual_seed(dist.get_rank()))
    own = flat(
        torch.autograd.grad(model.module(data).square().sum(), list(model.module.parameters()))
    )
    model(data).square().sum().backward()
    padded = nn.functional.pad(own, (0, 4)).view(13, 8)
    norms = sum(everywhere(padded.norm(dim=1)))
    chosen = sorted(norms.topk(4).indices.tolist())
    expected = torch.zeros(13, 8).double()
    expected[chosen] = mean(padded)[chosen]
    hook.close()
    received = gradients(model)
    sent = [any(values) for values in nn.functional.pad(received, (0, 4)).view(13, 8).tolist()]
    return {
        "chunks": everywhere([number for number, is_sent in enumerate(sent) if is_sent]),
        "expected": chosen,
        "error": distance(received, expected.view(-1)[:100]),
    }


def take_step(model: DistributedDataParallel, step: int) -> None:
    """Train one step on this rank's batch."""
    train_step(model, sgd(model), batch(dist.get_rank(), step))


def two_models() -> dict[str, Any]:
    """Train two models whose hooks share a thread, with other collectives pending.

    Close one hook, then the other.
    """
    models, hooks = [make_ddp(), make_ddp()], [PowerSGD(start=0), PowerSGD(start=0)]
    for hook, model in zip(hooks, models, strict=True):
        hook.register(model)
    for step in range(5):
        pending = [dist.all_reduce(torch.ones(EQUAL), async_op=True) for _ in range(step)]
        for model in models:
            take_step(model, step)
        for work in pending:
            work.wait()
    results = {"shared": hooks[0]._lane is hooks[1]._lane, "alive": []}
    try:
        for hook, model in zip(hooks, models, strict=True):
            hook.close()
            hook.close()
            results["alive"].append(hook._lane._thread.is_alive())
            take_step(model, 9)
    except InputError as error:
        results["refusal"] = str(error)
    take_step(models[1], 9)
    hooks[1].close()
    results["alive"].append(hooks[1]._lane._thread.is_alive())
    third = PowerSGD(start=0).register(model := make_ddp())
    take_step(model, 9)
    third.close()
    return results | {
        "agree": agree(flat(models[1].module.parameters())),
        "agree later": agree(gradients(model)),
    }


CHECKS = {
    "density_one": partial(each_of, density_one, *DENSE),
    "dense_start": partial(each_of, dense_start, *DENSE_FIRST),
    "resume": partial(each_of, resume),
    "scaled": partial(each_of, scaled),
    "infinite": partial(each_of, infinite),
    "low_rank": low_rank,
    "shapes_and_options": shapes_and_options,
    "feedback": feedback,
    "without_feedback": without_feedback,
    "compression_gradients": compression_gradients,
    "two_models": two_models,
    "chosen_chunks": chosen_chunks,
    "train": train_all,
}

if __name__ == "__main__":
    run_checks(CHECKS, sys.argv[1:])
