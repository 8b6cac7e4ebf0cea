"""The workload ``digits``: a small convolutional network on real handwritten digits, trained to a stated accuracy.

The data is the UCI set "Optical Recognition of Handwritten Digits" (CC BY 4.0): see data/DIGITS.txt.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

import numpy as np
import torch
from torch import Tensor, nn

from commbench.ddp.plan.workload import Workload
from commbench.ddp.workloads.sampling import beside, classification_loss, evaluating, initial_weights, sharded

BATCH_SIZE = 64
#: The first images of the file train, the others test.
TRAINING_IMAGES = 1437
PIXEL_MAXIMUM = 16.0


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return SGD with a rate that suits this network."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def network() -> nn.Sequential:
    """Return a network of 76 thousand parameters from (batch, 1, 8, 8) to 10 logits, without buffers."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 56),
        nn.ReLU(),
        nn.Linear(56, 10),
    )


def workload(*, seed: int, rank: int, world_size: int, batch_size: int = BATCH_SIZE) -> Workload:
    """Return the workload as this rank sees it."""
    images, labels = load_digits()
    train_images, train_labels = images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES]

    def evaluate(model: nn.Module) -> float:
        with evaluating(model):
            guesses = model(beside(model, images[TRAINING_IMAGES:])).argmax(dim=1)
        return float((guesses.cpu() == labels[TRAINING_IMAGES:]).double().mean())

    def pick(indices: Tensor) -> tuple[Tensor, Tensor]:
        return train_images[indices], train_labels[indices]

    with initial_weights(seed):
        model = network()
    return Workload(
        model=model,
        loss=classification_loss,
        batches=sharded(TRAINING_IMAGES, batch_size, pick, seed=seed, rank=rank, ranks=world_size),
        batch_size=batch_size,
        optimizer=sgd,
        evaluate=evaluate,
        metric="accuracy",
        target=0.97,
        steps=300,
    )


def load_digits() -> tuple[Tensor, Tensor]:
    """Return images (1797, 1, 8, 8) with values from 0 to 1 and labels (1797,), in the file's order."""
    file = resources.files("commbench.ddp") / "data" / "digits.npz"
    with file.open("rb") as stream, np.load(stream) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    scaled = torch.from_numpy(images.astype(np.float32) / PIXEL_MAXIMUM)
    return scaled.unsqueeze(1), torch.from_numpy(labels.astype(np.int64))
