"""Workloads on images and vectors: a perceptron, residual networks and real handwritten digits.

The digits are the UCI set "Optical Recognition of Handwritten Digits" (CC BY 4.0): see
data/DIGITS.txt. torch is untyped here, so its classes count as Any.
"""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

from functools import partial
from importlib import resources

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from commbench.ddp.plan.workload import Workload
from commbench.ddp.workloads.sampling import (
    CLASSES,
    beside,
    classification_loss,
    evaluating,
    initial_weights,
    labelled_patterns,
    sharded,
)

MLP_BATCH = 32
MLP_WIDTH = 1024
MLP_LAYERS = 8
#: Small, so that one step takes about 0.1 s on one core.
RESNET_BATCH = 2
DIGITS_BATCH = 64
#: The first images of the file train, the others test.
TRAINING_IMAGES = 1437
PIXEL_MAXIMUM = 16.0


# ---------------------------------------------------------------------------------------------- mlp


def mlp(*, seed: int, rank: int, batch_size: int = MLP_BATCH) -> Workload:
    """Return this rank's workload: 8 layers of 1024 x 1024, 33.6 MB of gradients."""
    with initial_weights(seed):
        model = perceptron()
    return Workload(
        model=model,
        loss=classification_loss,
        batches=labelled_patterns((MLP_WIDTH,), batch_size, strength=0.2, seed=seed, rank=rank),
        batch_size=batch_size,
        steps=200,
    )


def perceptron() -> nn.Sequential:
    """Return the perceptron with He's initial weights, which preserve the scale of activations."""
    hidden = [
        layer for _ in range(MLP_LAYERS) for layer in (nn.Linear(MLP_WIDTH, MLP_WIDTH), nn.ReLU())
    ]
    model = nn.Sequential(*hidden, nn.Linear(MLP_WIDTH, CLASSES))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


# ----------------------------------------------------------------------------------------- resnet18


def resnet18(*, seed: int, rank: int, batch_size: int = RESNET_BATCH) -> Workload:
    """Return this rank's workload."""
    with initial_weights(seed):
        model = small_resnet()
    return Workload(
        model=model,
        loss=classification_loss,
        batches=labelled_patterns((3, 32, 32), batch_size, strength=1.0, seed=seed, rank=rank),
        batch_size=batch_size,
        optimizer=partial(torch.optim.SGD, lr=0.003, momentum=0.9),
        steps=60,
    )


def small_resnet() -> nn.Sequential:
    """Return ResNet-18 with the usual stem for 32x32 images: 3x3, without pooling."""
    blocks = [BasicBlock(64, 64, 1), BasicBlock(64, 64, 1)]
    for width in (128, 256, 512):
        blocks += [BasicBlock(width // 2, width, 2), BasicBlock(width, width, 1)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, CLASSES),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut: the block of ResNet-18 (He et al., 2015)."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = projection(channels_in, width, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, channels_in, h, w) to (batch, width, h / stride, w / stride)."""
        hidden = functional.relu(self.bn1(self.conv1(images)))
        return functional.relu(self.bn2(self.conv2(hidden)) + self.shortcut(images))


def projection(channels_in: int, channels_out: int, stride: int) -> nn.Module:
    """Return the shortcut layer that maps a block's input to the shape of its output."""
    if stride == 1 and channels_in == channels_out:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
    )


# ------------------------------------------------------------------------------------------- digits


def convolutional_network() -> nn.Sequential:
    """Return a network of 76 thousand parameters from (batch, 1, 8, 8) to 10 logits, without
    buffers.
    """
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


def digits(*, seed: int, rank: int, world_size: int, batch_size: int = DIGITS_BATCH) -> Workload:
    """Return this rank's workload."""
    images, labels = load_digits()
    train_images, train_labels = images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES]

    def evaluate(model: nn.Module) -> float:
        with evaluating(model):
            guesses = model(beside(model, images[TRAINING_IMAGES:])).argmax(dim=1)
        return float((guesses.cpu() == labels[TRAINING_IMAGES:]).double().mean())

    def pick(indices: Tensor) -> tuple[Tensor, Tensor]:
        return train_images[indices], train_labels[indices]

    with initial_weights(seed):
        model = convolutional_network()
    return Workload(
        model=model,
        loss=classification_loss,
        batches=sharded(TRAINING_IMAGES, batch_size, pick, seed=seed, rank=rank, ranks=world_size),
        batch_size=batch_size,
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        evaluate=evaluate,
        metric="accuracy",
        target=0.97,
        steps=300,
    )


def load_digits() -> tuple[Tensor, Tensor]:
    """Return images (1797, 1, 8, 8) with values from 0 to 1 and labels (1797,), in the file's
    order.
    """
    file = resources.files("commbench.ddp") / "data" / "digits.npz"
    with file.open("rb") as stream, np.load(stream) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    scaled = torch.from_numpy(images.astype(np.float32) / PIXEL_MAXIMUM)
    return scaled.unsqueeze(1), torch.from_numpy(labels.astype(np.int64))
