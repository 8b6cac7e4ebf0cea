"""Tiny workloads for tests of training: valid ones, one with a single overflow, and ones that
fail.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from commbench.ddp.plan.workload import Workload

INPUTS, OUTPUTS, BATCHES = 64, 10, 4
#: A loss times this has gradients beyond float16.
TOO_MUCH = 1e8
#: Set to anything, it makes the harmful workloads do harm.
HARM = "COMMBENCH_TEST_HARM"


def model(seed: int) -> nn.Module:
    """Return a model of 81 710 parameters in 6 tensors."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(INPUTS, 300), nn.ReLU(), nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, OUTPUTS)
    )


def batches(seed: int, rank: int, batch_size: int) -> list[Any]:
    """Return samples with the outputs of a linear teacher."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    teacher = torch.randn((INPUTS, OUTPUTS), generator=torch.Generator().manual_seed(7)) / 8
    inputs = torch.randn((BATCHES, batch_size, INPUTS), generator=generator)
    return [(each, each @ teacher, 1.0) for each in inputs]


def squared(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean squared error times the batch's factor."""
    inputs, answers, factor = batch
    return (model(inputs).float() - answers).square().mean() * factor


def make(
    loss: Callable[[nn.Module, Any], Tensor], seed: int, rank: int, batch_size: int, **more: Any
) -> Workload:
    """Return a workload with the given loss."""
    data = batches(seed, rank, batch_size)
    fields = {
        "batches": data,
        "steps": 6,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.05),
        **more,
    }
    return Workload(model=model(seed), loss=loss, batch_size=batch_size, **fields)


def tiny(seed: int = 0, rank: int = 0, batch_size: int = 8) -> Workload:
    """Return a valid workload."""
    return make(squared, seed, rank, batch_size)


def moving(seed: int = 0, rank: int = 0, batch_size: int = 8) -> Workload:
    """Return a valid workload, and change the working directory."""
    os.chdir("/")
    return tiny(seed, rank, batch_size)


def scored(seed: int = 0, rank: int = 0, batch_size: int = 8) -> Workload:
    """Return a workload with a metric: the loss on held-out data."""
    held_out = batches(seed, 99, 64)[0]

    def evaluate(model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            return float(squared(model, held_out))

    return make(squared, seed, rank, batch_size, evaluate=evaluate, metric="error", target=0.0)


def overflowing(seed: int = 0, rank: int = 0, batch_size: int = 8) -> Workload:
    """Return a workload whose third batch overflows float16 on rank 1 only."""
    data = batches(seed, rank, batch_size)
    data[2] = (*data[2][:2], TOO_MUCH if rank == 1 else 1.0)
    return make(squared, seed, rank, batch_size, batches=[*data, *batches(seed, rank, batch_size)])


def batch_norm(seed: int = 0, rank: int = 0, batch_size: int = 8) -> Workload:
    """Return a workload with buffers, which DDP broadcasts."""
    made = make(squared, seed, rank, batch_size)
    layers = nn.Sequential(made.model[0], nn.BatchNorm1d(300), *made.model[1:])
    return Workload(
        model=layers, loss=made.loss, batches=made.batches, batch_size=batch_size, steps=6
    )


class PartlyUsed(nn.Module):
    """The model, with a layer that is never used and one that is used if ``uses_more``."""

    def __init__(self, used: nn.Module, *, uses_more: bool) -> None:
        super().__init__()
        self.used, self.more, self.idle = used, nn.Linear(OUTPUTS, OUTPUTS), nn.Linear(20, 30)
        self.uses_more = uses_more

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs."""
        outputs = self.used(inputs)
        return outputs + 0.1 * self.more(outputs) if self.uses_more else outputs


def partly_used(seed: int = 0, rank: int = 0, batch_size: int = 8) -> Workload:
    """Return a workload whose model has a layer that no rank uses, and one that only even ranks
    use.
    """
    made = make(squared, seed, rank, batch_size)
    model = PartlyUsed(made.model, uses_more=rank % 2 == 0)
    return Workload(model=model, loss=squared, batches=made.batches, batch_size=batch_size, steps=6)


class TakesTurns(nn.Module):
    """The model, with a layer that every other forward pass uses."""

    def __init__(self, used: nn.Module) -> None:
        super().__init__()
        self.used, self.more, self.passes = used, nn.Linear(OUTPUTS, OUTPUTS), 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs."""
        self.passes += 1
        outputs = self.used(inputs)
        if self.passes % 2 == 0:
            outputs = outputs + 0.1 * self.more(outputs)
        return outputs


def takes_turns(seed: int = 0, rank: int = 0, batch_size: int = 8) -> Workload:
    """Return a workload whose model has a layer that every other pass uses."""
    made = make(squared, seed, rank, batch_size)
    return Workload(
        model=TakesTurns(made.model),
        loss=squared,
        batches=made.batches,
        batch_size=batch_size,
        steps=6,
    )


def hook_of(model: nn.Module) -> str:
    """Return the hook name of a DDP model without our prefix, or an empty text."""
    hooks = getattr(model, "_comm_hooks", None)
    return str(hooks[0][0].__name__).removeprefix("commbench_") if hooks else ""


def harmful(seed: int = 0, rank: int = 0, batch_size: int = 8) -> Workload:
    """Return a workload that kills rank 1 under bf16, blocks it under fp16, and raises on all ranks
    under int8.
    """

    def loss(model: nn.Module, batch: Any) -> Tensor:
        hook = hook_of(model) if HARM in os.environ else ""
        if hook == "bf16" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if hook == "fp16" and rank == 1:
            time.sleep(600)
        if hook == "int8":
            raise ValueError("no such luck")
        return squared(model, batch)

    return make(loss, seed, rank, batch_size)
