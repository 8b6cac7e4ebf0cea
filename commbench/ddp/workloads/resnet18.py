"""The workload ``resnet18``: ResNet-18 for 32x32 images, 11.17 million parameters, on synthetic images."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from commbench.ddp.plan.workload import Workload
from commbench.ddp.workloads.architectures import BasicBlock, resnet
from commbench.ddp.workloads.sampling import CLASSES, classification_loss, initial_weights, labelled_patterns

#: So few that one step takes about 0.1 s on one core.
BATCH_SIZE = 2


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return SGD with a rate that suits batches this small."""
    return torch.optim.SGD(parameters, lr=0.003, momentum=0.9)


def workload(*, seed: int, rank: int, batch_size: int = BATCH_SIZE) -> Workload:
    """Return the workload as this rank sees it."""
    with initial_weights(seed):
        model = resnet(BasicBlock, (2, 2, 2, 2), CLASSES, small_images=True)
    return Workload(
        model=model,
        loss=classification_loss,
        batches=labelled_patterns((3, 32, 32), batch_size, strength=1.0, seed=seed, rank=rank),
        batch_size=batch_size,
        optimizer=sgd,
        steps=60,
    )
