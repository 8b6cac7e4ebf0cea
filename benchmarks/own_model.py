"""A person's own model as a workload: ``commbench train --workload
benchmarks/own_model.py:workload``.

The function takes what it needs of ``seed``, ``rank``, ``world_size`` and ``batch_size`` and
returns the bare model, its loss and the batches of this rank; commbench puts DDP around the model.
In place of the tuple, a `commbench.Workload` can say more: the optimiser, how to evaluate, how many
steps.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


def workload(
    seed: int, rank: int, world_size: int, batch_size: int = 64
) -> tuple[nn.Module, object, object]:
    """Fit a small network to the sine function."""
    torch.manual_seed(seed)  # all ranks begin with the same weights
    hidden = [
        layer
        for inputs in (1, 256)
        for layer in (nn.Linear(inputs, 256), nn.BatchNorm1d(256), nn.Tanh())
    ]
    model = nn.Sequential(*hidden, nn.Linear(256, 1))

    inputs = torch.linspace(-3.0, 3.0, 4096)[
        rank::world_size, None
    ]  # every rank has its own share of the data
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    batches = [(part, torch.sin(part)) for part in inputs[order].split(batch_size)]

    return model, loss, batches


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean squared error; ``model`` is the network inside DDP."""
    inputs, targets = batch
    return functional.mse_loss(model(inputs), targets)
