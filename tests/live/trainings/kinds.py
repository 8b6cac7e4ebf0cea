"""Trainings of kinds that profilers and wrappers have broken: ``kinds.py NAME``."""

import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from common import RANKS, STEPS, WIDTH, batches, begin, network, report, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


def plain(rank: int) -> list[nn.Module]:
    """Train as the documentation of torch does."""
    ddp = DistributedDataParallel(network())
    train(ddp, rank)
    return [ddp]


def thawed(rank: int) -> list[nn.Module]:
    """Freeze a backbone behind the construction of DDP, and thaw it later."""
    model = network()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    backbone = list(model[:-1].parameters())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step, x in enumerate(batches(rank)):
        for parameter in backbone:
            parameter.requires_grad_(step >= STEPS // 2)
        ddp(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [ddp]


def preview(rank: int) -> list[nn.Module]:
    """Call the model once more on rank 0 alone, with gradients, before another collective."""
    ddp = DistributedDataParallel(network())

    def look(step: int) -> None:
        if rank == 0 and step % 10 == 3:
            ddp(torch.ones(2, WIDTH))
        dist.all_reduce(torch.ones(1))

    train(ddp, rank, between=look)
    return [ddp]


def lonely_evaluation(rank: int) -> list[nn.Module]:
    """Evaluate and save on rank 0 alone every tenth step."""
    ddp = DistributedDataParallel(network())

    def evaluate(step: int) -> None:
        if rank == 0 and step % 10 == 9:
            with torch.no_grad():
                ddp.module(torch.ones(2, WIDTH))
            time.sleep(0.05)

    train(ddp, rank, between=evaluate)
    return [ddp]


def nested(rank: int) -> list[nn.Module]:
    """Give the model a nested tensor."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return self.body(torch.nested.to_padded_tensor(data, 0.0)).mean()

    ddp = DistributedDataParallel(Padded())
    as_nested = torch.nested.nested_tensor
    train(ddp, rank, loss=lambda m, x: m(as_nested([x[:3], x[3:]])))
    return [ddp]


def sparse(rank: int) -> list[nn.Module]:
    """Train an embedding with sparse gradients."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(50, WIDTH, sparse=True)
            self.body = network()

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return self.body(self.words(data))

    ddp = DistributedDataParallel(Words())
    train(ddp, rank, loss=lambda m, x: m((x[:, 0].abs() * 10).long() % 50).square().mean())
    return [ddp]


def adversaries(rank: int) -> list[nn.Module]:
    """Train two models in turn, and freeze one while the other trains."""
    maker, judge = DistributedDataParallel(network(WIDTH)), DistributedDataParallel(network(1))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (maker, judge)]
    for x in batches(rank):
        judge.requires_grad_(requires_grad=True)
        (judge(x).mean() - judge(maker(x).detach()).mean()).backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        judge.requires_grad_(requires_grad=False)
        judge.module(maker(x)).mean().backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
    judge.requires_grad_(requires_grad=True)
    return [maker, judge]


def folds(rank: int) -> list[nn.Module]:
    """Train three models in one process, with a new process group each.

    One is destroyed between blocks, the others while ranks agree and shortly after.
    """
    models = []
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)
    for fold, steps in enumerate((70, 12, 17)):
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(str(fold), store), rank=rank, world_size=RANKS
        )
        models.append(DistributedDataParallel(network()))
        train(models[-1], rank, steps=steps)
    return models


def by_hand(rank: int) -> list[nn.Module]:
    """Update the parameters without an optimiser of torch."""
    ddp = DistributedDataParallel(network())
    for x in batches(rank):
        ddp(x).square().mean().backward()
        with torch.no_grad():
            for parameter in ddp.parameters():
                parameter.sub_(0.05 * parameter.grad)
                parameter.grad = None
    return [ddp]


def reentrant(rank: int) -> list[nn.Module]:
    """Call ``backward()`` inside ``backward()``, by reentrant checkpoints."""
    model = network()

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            data = data.requires_grad_()
            data = checkpoint(self.body[:6], data, use_reentrant=True)
            return self.body[6:](data)

    ddp = DistributedDataParallel(Checkpointed(), static_graph=True)
    train(ddp, rank)
    return [ddp]


def sharpness(rank: int) -> list[nn.Module]:
    """Make two synchronised passes a step, as sharpness-aware minimisation does."""
    ddp = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for x in batches(rank):
        ddp(x).square().mean().backward()
        shifts = []
        with torch.no_grad():
            for parameter in ddp.parameters():
                shifts.append(0.01 * parameter.grad)
                parameter.add_(shifts[-1])
                parameter.grad = None
        ddp(x).square().mean().backward()
        with torch.no_grad():
            for parameter, shift in zip(ddp.parameters(), shifts, strict=True):
                parameter.sub_(shift)
        optimizer.step()
        optimizer.zero_grad()
    return [ddp]


def complex_numbers(rank: int) -> list[nn.Module]:
    """Train complex parameters."""
    model = nn.Sequential(
        *(nn.Linear(WIDTH, WIDTH, dtype=torch.complex64) for _ in range(4)),
    )
    ddp = DistributedDataParallel(model)
    train(ddp, rank, loss=lambda m, x: m(x.to(torch.complex64)).abs().mean())
    return [ddp]


def accumulated(rank: int) -> list[nn.Module]:
    """Accumulate gradients over four batches, three of them without synchronisation."""
    ddp = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step, x in enumerate(batches(rank, 4 * STEPS)):
        if step % 4 < 3:
            with ddp.no_sync():
                ddp(x).square().mean().backward()
            continue
        ddp(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [ddp]


def uneven(rank: int) -> list[nn.Module]:
    """Train more batches on rank 1, by join(), behind an epoch without it."""
    ddp = DistributedDataParallel(network())
    train(ddp, rank)
    with ddp.join():
        train(ddp, rank, steps=40 + 10 * rank)
    return [ddp]


def static(rank: int) -> list[nn.Module]:
    """Train with a static graph."""
    ddp = DistributedDataParallel(network(), static_graph=True)
    train(ddp, rank)
    return [ddp]


def unused(rank: int) -> list[nn.Module]:
    """Leave out another layer on each rank and step."""
    model = network()

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model
            self.calls = 0

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            for number, layer in enumerate(self.body):
                if number != 2 * ((self.calls + rank) % 6):
                    data = layer(data)
            return data

    ddp = DistributedDataParallel(Dropped(), find_unused_parameters=True)
    train(ddp, rank)
    return [ddp]


def few(rank: int) -> list[nn.Module]:
    """Make too few steps to tune."""
    ddp = DistributedDataParallel(network())
    train(ddp, rank, steps=6)
    return [ddp]


def shared_group(rank: int) -> list[nn.Module]:
    """Exchange objects of the script's own between steps, after random pauses."""
    ddp = DistributedDataParallel(network())

    def talk(step: int) -> None:
        time.sleep((step * 7 + rank * 3) % 5 / 1000)
        box = [None] * dist.get_world_size()
        dist.all_gather_object(box, step)

    train(ddp, rank, between=talk)
    return [ddp]


KINDS: dict[str, Callable[[int], list[nn.Module]]] = {
    each.__name__: each
    for each in (
        plain, thawed, preview, lonely_evaluation, nested, sparse, adversaries, folds, by_hand,
        reentrant, sharpness, complex_numbers, accumulated, uneven, static, unused, few,
        shared_group,
    )
}  # fmt: skip

if __name__ == "__main__":
    report(*KINDS[sys.argv[1]](begin()))
