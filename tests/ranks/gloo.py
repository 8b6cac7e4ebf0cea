"""Shared by scripts on Gloo ranks: joining, small models, local gradients, and reporting results to
the test.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from reporting import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

#: Equal layers, so that buckets can be taken for each other, then unequal ones, and vectors.
EQUAL, LAYERS = 24, ((24, 40), (40, 40), (40, 9))
#: Small enough that most layers have a bucket of their own.
CAP_MB = 0.002


def join() -> tuple[int, int]:
    """Join the ranks that share the file named in STORE; return this rank and their number."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(os.environ["STORE"], size), rank=rank, world_size=size
    )
    return rank, size


def make_model(seed: int = 0) -> nn.Module:
    """Return a model of six equal layers without bias, then unequal ones with bias."""
    torch.manual_seed(seed)
    layers = []
    for _ in range(6):
        layers += [nn.Linear(EQUAL, EQUAL, bias=False), nn.Tanh()]
    for inputs, outputs in LAYERS:
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers)


def make_ddp(**options: Any) -> DistributedDataParallel:
    """Return the model inside DDP with many small buckets."""
    return DistributedDataParallel(make_model(), **{"bucket_cap_mb": CAP_MB, **options})


def batch(rank: int, step: int) -> torch.Tensor:
    """Return the data of one rank in one step, shape (8, EQUAL)."""
    return torch.randn((8, EQUAL), generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
    """Return a scalar that depends on every parameter."""
    return (model(data) - 0.3).square().sum()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> float:
    """Take one step and return its loss."""
    optimizer.zero_grad()
    loss = loss_of(model, data)
    loss.backward()
    optimizer.step()
    return loss.item()


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return all elements concatenated."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def local_gradients(model: DistributedDataParallel, data: torch.Tensor) -> torch.Tensor:
    """Return this rank's gradients before averaging, in registration order."""
    parameters = list(model.module.parameters())
    return flat(torch.autograd.grad(loss_of(model.module, data), parameters))


def gradients(model: DistributedDataParallel) -> torch.Tensor:
    """Return the gradients after DDP's exchange, in registration order."""
    return flat(parameter.grad for parameter in model.module.parameters())


def mean(tensor: torch.Tensor) -> torch.Tensor:
    """Return the mean over the ranks in double precision."""
    total = tensor.double()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def everywhere(value: object) -> list[Any]:
    """Return the values of all ranks."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference relative to the largest expected element."""
    return float((actual.double() - expected.double()).abs().max() / expected.double().abs().max())


def agree(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is bit-identical on all ranks."""
    return len(set(everywhere(tensor.numpy().tobytes()))) == 1


def report_and_exit(results: object) -> None:
    """Print the results on rank 0 as one line of JSON, and exit without the interpreter's
    shutdown.
    """
    if dist.get_rank() == 0:
        report(results)
    dist.barrier()
    os._exit(0)


def each_of(check: Callable[[str], Any], *names: str) -> dict[str, Any]:
    """Return the result of a check for each name."""
    return {name: check(name) for name in names}


def backward(model: DistributedDataParallel, data: torch.Tensor) -> None:
    """Run one backward pass from gradients of zero."""
    model.zero_grad()
    loss_of(model, data).backward()


def run_checks(checks: dict[str, Callable[..., Any]], names: list[str]) -> None:
    """Join, run the named checks and print their results.

    A name may carry arguments: ``resume:topk:powersgd``.
    """
    join()
    results = {}
    for text in names:
        name, *arguments = text.split(":")
        results[name] = checks[name](*arguments)
    report_and_exit(results)
