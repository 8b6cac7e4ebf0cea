"""Run on Gloo ranks: what must hold for hooks with a memory, each as a number or a truth that the test judges."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from gloo import (
    EQUAL,
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
    run_checks,
    train_step,
)
from hooks_train import train_all
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commbench.errors import InputError
from commbench.hooks import Hook, PowerSGD, RandomK, TopK
from commbench.hooks.feedback import FeedbackHook
from commbench.hooks.message import kept_elements

COMPRESSING: dict[str, Any] = {
    "topk": lambda: TopK(density=0.05),
    "topk parameter fp16": lambda: TopK(density=0.05, scope="parameter", values="float16", dense_vectors=True),
    "topk momentum": lambda: TopK(density=0.05, momentum=0.9),
    "randomk": lambda: RandomK(density=0.05, seed=3),
    "powersgd": lambda: PowerSGD(rank=2, start=1),
}


def sgd(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    """Return an optimiser without memory."""
    return torch.optim.SGD(model.parameters(), lr=lr)


def memory_of(hook: Hook) -> torch.Tensor:
    """Return all that a hook remembers, by kind and name."""
    memory = hook.state_dict()["memory"]
    return flat(memory[kind][name] for kind in sorted(memory) for name in sorted(memory[kind]))


def close(*hooks: Hook) -> None:
    """Give back the thread that hooks may have."""
    for hook in hooks:
        hook.close()


def density_one(hook: Hook) -> dict[str, Any]:
    """Send everything by a sparse hook, and compare with the mean and, in float32, its bits with the sum by rank."""
    hook.register(model := make_ddp())
    errors, same = [], True
    for step in range(5):
        data = batch(dist.get_rank(), step)
        own = local_gradients(model, data)
        model.zero_grad()
        loss_of(model, data).backward()
        errors.append(distance(gradients(model), mean(own)))
        by_rank = [each / dist.get_world_size() for each in everywhere(own)]
        same &= torch.equal(gradients(model), sum(by_rank[1:], by_rank[0]))
    return {"error": max(errors), "bits": same, "residual": float(memory_of(hook).norm())}


def telescope(steps: int = 20) -> float:
    """Sum what this rank's own messages say it sent: with the last residual it must be the sum of its gradients."""
    hook = TopK(density=0.02).register(model := make_ddp())
    sent = {name: torch.zeros_like(each) for name, each in model.module.named_parameters()}
    summed = {name: torch.zeros_like(each) for name, each in model.module.named_parameters()}
    for step in range(steps):
        data = batch(dist.get_rank(), step)
        named = dict(model.module.named_parameters())
        own = torch.autograd.grad(loss_of(model.module, data), list(named.values()))
        for name, gradient in zip(named, own, strict=True):
            summed[name] += gradient
        model.zero_grad()
        loss_of(model, data).backward()
        for layout, channel in hook._channels.items():
            dense = torch.zeros(layout.numel)
            channel.selectors[0].add(channel.gathered[dist.get_rank()], dense)
            for span in layout.spans:
                sent[span.name] += span.view(dense) * dist.get_world_size()
    left = hook.state_dict()["memory"]["residual"]
    found = flat(sent[name].detach() + left[name] for name in sent)
    return max(everywhere(distance(found, flat(summed.values()))))


def resume(name: str) -> dict[str, bool]:
    """Train 8 steps in one go, and again with a checkpoint after 4 that another model and hook take up."""
    # Unused parameters are looked for so that the buckets are the same from the first step on.
    options = {"find_unused_parameters": True}
    hook = COMPRESSING[name]().register(model := make_ddp(**options))
    whole, rank = sgd(model), dist.get_rank()
    for step in range(8):
        if step == 4:
            weights = {key: value.clone() for key, value in model.module.state_dict().items()}
            state = hook.state_dict()
        train_step(model, whole, batch(rank, step))
    again = make_ddp(**options)
    again.module.load_state_dict(weights)
    fresh = COMPRESSING[name]()
    fresh.load_state_dict(state)
    fresh.register(again)
    for step in range(4, 8):
        train_step(again, sgd(again), batch(rank, step))
    same = torch.equal(flat(model.module.parameters()), flat(again.module.parameters()))
    forgetful = make_ddp(**options)
    forgetful.module.load_state_dict(weights)
    new = COMPRESSING[name]().register(forgetful)
    for step in range(4, 8):
        train_step(forgetful, sgd(forgetful), batch(rank, step))
    other = torch.equal(flat(model.module.parameters()), flat(forgetful.module.parameters()))
    close(hook, fresh, new)
    return {
        "parameters": all(everywhere(same)),
        "memory": all(everywhere(torch.equal(memory_of(hook), memory_of(fresh)))),
        "without the state": any(everywhere(other)),
    }


def scaled(name: str) -> dict[str, Any]:
    """Train with a GradScaler, which must change no bit, then plant an infinity in one bucket of the last rank."""
    plain = COMPRESSING[name]().register(reference := make_ddp())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    hook = COMPRESSING[name]().register(model := make_ddp(), scaler=scaler)
    optimizers = sgd(reference), sgd(model)
    rank, size = dist.get_rank(), dist.get_world_size()

    def step(number: int) -> None:
        optimizers[1].zero_grad()
        scaler.scale(loss_of(model, batch(rank, number))).backward()
        scaler.step(optimizers[1])
        scaler.update()

    for number in range(4):
        train_step(reference, optimizers[0], batch(rank, number))
        step(number)
    found: dict[str, Any] = {
        "same memory": torch.equal(memory_of(plain), memory_of(hook)),
        "same parameters": torch.equal(flat(reference.module.parameters()), flat(model.module.parameters())),
    }
    memory, parameters = memory_of(hook), flat(model.module.parameters()).clone()
    first = next(model.module.parameters())
    handle = first.register_hook(lambda g: g.index_fill(0, torch.tensor([1]), torch.inf) if rank == size - 1 else g)
    step(4)
    handle.remove()
    found |= {
        "memory kept": torch.equal(memory, memory_of(hook)),
        "parameters kept": torch.equal(parameters, flat(model.module.parameters())),
        "scale": scaler.get_scale(),
        "discarded": hook.discarded_steps,
    }
    for number in range(5, 8):
        step(number)
    found |= {
        "goes on": not torch.equal(memory, memory_of(hook)) and bool(memory_of(hook).isfinite().all()),
        "agree": agree(flat(model.module.parameters())),
        "discarded later": hook.discarded_steps,
    }
    close(plain, hook)
    return {key: everywhere(value)[-1] if key == "discarded" else _all(value) for key, value in found.items()}


def _all(value: Any) -> Any:
    """Return the value all ranks have, or their list."""
    values = everywhere(value)
    return values[0] if len(set(values)) == 1 else values


def low_rank() -> dict[str, float]:
    """Send the same gradients again and again in two columns, and once in as many as the matrices have."""
    data = batch(dist.get_rank(), 0)
    full = PowerSGD(rank=EQUAL * 2, min_compression_rate=0.01, start=0).register(model := make_ddp())
    wanted = mean(local_gradients(model, data))
    loss_of(model, data).backward()
    found = {"full": distance(gradients(model), wanted), "left": float(memory_of(full).norm() / wanted.norm())}
    hook = PowerSGD(rank=2, start=1, feedback=False).register(model := make_ddp())
    matrix = wanted[: EQUAL * EQUAL].view(EQUAL, EQUAL)
    values = torch.linalg.svdvals(matrix)
    found["best"] = float(values[2:].norm())
    for name in ("everything", "first", *["later"] * 25):
        model.zero_grad()
        loss_of(model, data).backward()
        found[name] = float((next(model.module.parameters()).grad - matrix).norm())
    close(full, hook)
    return found


def infinite(name: str) -> dict[str, bool]:
    """Plant an infinity on the last rank with no scaler: all ranks must see it, and its memory must stay clean."""
    hook = COMPRESSING[name]().register(model := make_ddp())
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for step in range(3):
        loss_of(model, batch(rank, step)).backward()
    memory = hook.state_dict()["memory"]
    first = next(model.module.parameters())
    handle = first.register_hook(lambda g: g.index_fill(0, torch.tensor([1]), torch.inf) if rank == last else g)
    model.zero_grad()
    loss_of(model, batch(rank, 3)).backward()
    handle.remove()
    kept = [torch.equal(memory[kind]["0.weight"], hook.state_dict()["memory"][kind]["0.weight"]) for kind in memory]
    clean = bool(memory_of(hook).isfinite().all())
    seen = not first.grad.isfinite().all()
    model.zero_grad()
    loss_of(model, batch(rank, 4)).backward()
    close(hook)
    return {
        "seen by all": all(everywhere(seen)),
        "kept": everywhere(all(kept))[last],
        "clean": all(everywhere(clean)),
        "goes on": bool(gradients(model).isfinite().all()),
    }


def convolutions() -> nn.Module:
    """Return a model whose weights do not lie in memory in the order of their dimensions."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 12, 3), nn.Tanh(), nn.Conv2d(12, 12, 3), nn.Tanh(), nn.Conv2d(12, 4, 3)]
    model: nn.Module = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    assert not model[0].weight.is_contiguous()
    return model


def follow(hook: FeedbackHook, model: DistributedDataParallel, shape: tuple[int, ...]) -> float:
    """Train for some steps and return the largest difference of a gradient from what the memories say was sent."""
    hook.register(model)
    parameters, errors = dict(model.module.named_parameters()), []
    optimizer = sgd(model)

    def residual() -> torch.Tensor:
        left = hook.state_dict()["memory"]["residual"]
        return flat(left.get(name, torch.zeros_like(each)) for name, each in parameters.items())

    for step in range(5):
        data = torch.randn(shape, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        own = flat(torch.autograd.grad(model.module(data).square().sum(), list(parameters.values())))
        before = residual()
        optimizer.zero_grad()
        model(data).square().sum().backward()
        errors.append(distance(gradients(model), mean(own + before - residual())))
        optimizer.step()
    hook.close()
    return max(everywhere(max(errors)))


def shapes_and_options() -> dict[str, float]:
    """Follow hooks over other memory layouts and under DDP's own options."""
    found = {}
    for name, make in (("topk", lambda: TopK(density=0.05)), ("powersgd", lambda: PowerSGD(start=1))):
        image = (2, 3, 12, 12)
        found[f"{name} channels_last"] = follow(make(), DistributedDataParallel(convolutions()), image)
        small = DistributedDataParallel(convolutions(), bucket_cap_mb=0.001)
        found[f"{name} channels_last in small buckets"] = follow(make(), small, image)
        for option in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters"):
            found[f"{name} {option}"] = follow(make(), make_ddp(**{option: True}), (8, EQUAL))
    return found


def teach(hook: Hook | None, steps: int = 150) -> float:
    """Learn a teacher's answers and return the mean loss of the last 20 steps over all ranks."""
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
    """Check what is sent where nothing is kept: the largest of each bucket; elements times n/k."""
    data, found = batch(dist.get_rank(), 0), {}
    for name, hook in {
        "topk": TopK(density=0.1, feedback=False),
        "randomk": RandomK(density=0.1, feedback=False),
    }.items():
        hook.register(model := make_ddp())
        own = local_gradients(model, data)
        loss_of(model, data).backward()
        got, total = gradients(model), mean(own)
        if name == "topk":
            threshold = own.abs().sort(descending=True).values[kept_elements(own.numel(), 0.1) - 1]
            wanted = mean(torch.where(own.abs() >= threshold, own, 0.0))
        else:
            wanted = torch.where(got != 0, total * own.numel() / kept_elements(own.numel(), 0.1), 0.0)
        found[name] = {"error": distance(got, wanted), "sent": int((got != 0).sum()), "of": got.numel()}
        found[name]["kept"] = len(hook.state_dict()["memory"])
    return found


def compression_gradients() -> dict[str, Any]:
    """Follow Deep Gradient Compression by hand on one bucket: clipping, momentum, masking, warm-up, learning rate."""
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
        v = (v * 2 if step == 6 else v) + u
        chosen = v.abs().topk(kept_elements(200, hook.current_density)).indices
        sent = torch.zeros(200).index_copy(0, chosen, v[chosen])
        u[chosen], v[chosen] = 0.0, 0.0
        errors.append(distance(parameter.grad.reshape(-1), mean(sent)))
        counts.append(len(chosen))
        optimizer.param_groups[0]["lr"] = 0.05 if step == 5 else optimizer.param_groups[0]["lr"]
    memory = hook.state_dict()["memory"]
    errors += [
        distance(memory["residual"]["weight"].reshape(-1), v),
        distance(memory["momentum"]["weight"].reshape(-1), u),
    ]
    return {"error": max(everywhere(max(errors))), "counts": counts}


def two_models() -> dict[str, Any]:
    """Train two models in turn, whose hooks share a thread, while the model's group is busy; close one, then both."""
    models, hooks = [make_ddp(), make_ddp()], [PowerSGD(start=0), PowerSGD(start=0)]
    for hook, model in zip(hooks, models, strict=True):
        hook.register(model)
    for step in range(5):
        pending = [dist.all_reduce(torch.ones(EQUAL), async_op=True) for _ in range(step)]
        for model in models:
            train_step(model, sgd(model), batch(dist.get_rank(), step))
        for work in pending:
            work.wait()
    found: dict[str, Any] = {"shared": hooks[0]._lane is hooks[1]._lane, "alive": []}
    try:
        for hook, model in zip(hooks, models, strict=True):
            hook.close()
            hook.close()
            found["alive"].append(hook._lane._thread.is_alive())
            train_step(model, sgd(model), batch(dist.get_rank(), 9))
    except InputError as error:
        found["refusal"] = str(error)
    train_step(models[1], sgd(models[1]), batch(dist.get_rank(), 9))
    hooks[1].close()
    found["alive"].append(hooks[1]._lane._thread.is_alive())
    third = PowerSGD(start=0).register(model := make_ddp())
    train_step(model, sgd(model), batch(dist.get_rank(), 9))
    third.close()
    return found | {"agree": agree(flat(models[1].module.parameters())), "agree later": agree(gradients(model))}


CHECKS = {
    "density_one": lambda: {
        "topk": density_one(TopK(density=1.0)),
        "topk exact": density_one(TopK(density=1.0, selection="exact")),
        "topk parameter": density_one(TopK(density=1.0, scope="parameter")),
        "topk whole": density_one(TopK(dense_below=10**6)),
        "randomk": density_one(RandomK(density=1.0)),
    },
    "telescope": telescope,
    "resume": lambda *names: {name: resume(name) for name in names},
    "scaled": lambda *names: {name: scaled(name) for name in names},
    "infinite": lambda *names: {name: infinite(name) for name in names},
    "low_rank": low_rank,
    "shapes_and_options": shapes_and_options,
    "feedback": feedback,
    "without_feedback": without_feedback,
    "compression_gradients": compression_gradients,
    "two_models": two_models,
    "train": train_all,
}

if __name__ == "__main__":
    run_checks(CHECKS, sys.argv[1:])
