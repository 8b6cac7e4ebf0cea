"""What the small trainings of this folder share: ranks, data, and a digest of the end."""

import atexit
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 160
RANKS = int(os.environ["WORLD_SIZE"])
WIDTH = 64


def begin() -> int:
    """Join the other ranks; return this one's number.

    In a second attempt torch would find addresses of the first one in the store of torchrun.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0":
        dist.init_process_group("gloo")
    else:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.PrefixStore(attempt, dist.TCPStore(address, port, is_master=False))
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    return dist.get_rank()


def network(outputs: int = 10) -> nn.Sequential:
    """Return layers that make several buckets at small bucket sizes."""
    layers = []
    for _ in range(6):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, outputs))


class Parts(nn.Module):
    """A model whose forward pass is a function of the model and the data."""

    def __init__(self, function: Callable[[Any, torch.Tensor], Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, data: torch.Tensor) -> Any:
        """Return what the function makes of the data."""
        return self.function(self, data)


def backward(ddp: Callable[[torch.Tensor], torch.Tensor], data: torch.Tensor) -> None:
    """Run a forward and a backward pass of the usual loss."""
    ddp(data).square().mean().backward()


def batches(rank: int, steps: int = STEPS) -> Iterator[torch.Tensor]:
    """Yield the data of one rank."""
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        yield torch.randn(8, WIDTH, generator=generator)


def report(*models: nn.Module) -> None:
    """Print every rank's digest of the parameters, and leave."""
    digest = hashlib.sha256()
    for model in models:
        for parameter in model.parameters():
            digest.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    digests = [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest.hexdigest()[:16])
    if dist.get_rank() == 0:
        sys.stdout.write(" ".join(digests) + "\n")
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    atexit._run_exitfuncs()
    os._exit(0)  # torch sometimes aborts in the interpreter's shutdown


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimiser of the trainable parameters."""
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)


def update(optimizer: torch.optim.Optimizer) -> None:
    """Make an optimiser step, and release the gradients."""
    optimizer.step()
    optimizer.zero_grad()


def train(
    ddp: nn.Module,
    rank: int,
    *,
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda m, x: m(x).square().mean(),
    between: Callable[[int], None] = lambda _: None,
    steps: int = STEPS,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[nn.Module]:
    """Train, by SGD unless told otherwise; ``between`` is called before each step.

    Return what was trained.
    """
    if optimizer is None:
        optimizer = sgd(ddp)
    for step, x in enumerate(batches(rank, steps)):
        between(step)
        loss(ddp, x).backward()
        update(optimizer)
    return [ddp]
