"""Helpers of the workloads: random numbers by seed, batches that start over, losses and
evaluation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

#: Streams of random numbers: one that all ranks share, and one for each rank.
STRUCTURE, DATA, GRADIENTS = range(3)
#: Number of synthetic batches; they are made once and repeated.
DISTINCT_BATCHES = 64
CLASSES = 10


def generator(*words: int) -> torch.Generator:
    """Return a generator seeded by several numbers, such as seed, stream and rank."""
    state = np.random.SeedSequence([word % 2**64 for word in words]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) >> 1)


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Seed torch's generator inside the block, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class Batches:
    """Endless batches: number ``i`` is ``make(i)``; every iteration begins with number 0."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return map(self.make, itertools.count())


def sharded(
    samples: int,
    batch_size: int,
    pick: Callable[[Tensor], Any],
    *,
    seed: int,
    rank: int,
    ranks: int,
) -> Batches:
    """Return the batches of one rank's share of a data set, which is shuffled in every epoch.

    Every rank has the same number of whole batches in an epoch; left-over samples are unused in
    that epoch. ``pick`` turns the indices of a batch into the batch.
    """
    per_epoch = max(1, samples // (batch_size * ranks))

    def make(number: int) -> Any:
        epoch, position = divmod(number, per_epoch)
        order = torch.randperm(samples, generator=generator(seed, DATA, epoch))
        first = (position * ranks + rank) * batch_size
        return pick(order[torch.arange(first, first + batch_size) % samples])

    return Batches(make)


def classification_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross-entropy of inputs and labels, in nats per sample."""
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels)


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the cross-entropy of each token given all earlier ones, in nats per token.

    ``tokens`` (batch, length).
    """
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation without gradients inside, and back afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def beside(model: nn.Module, data: Tensor) -> Tensor:
    """Move data to the model's device and return it."""
    return data.to(next(model.parameters()).device)


def labelled_patterns(
    shape: Sequence[int], batch_size: int, *, strength: float, seed: int, rank: int
) -> list[tuple[Tensor, Tensor]]:
    """Return batches of (inputs, labels): inputs are the pattern of one of 10 classes, equal on all
    ranks, plus noise.

    Inputs are (batch_size, *shape). The noise is Gaussian with deviation 1, the patterns with
    deviation ``strength``.
    """
    patterns = strength * torch.randn(CLASSES, *shape, generator=generator(seed, STRUCTURE))
    data_rng = generator(seed, DATA, rank)
    batches = []
    for _ in range(DISTINCT_BATCHES):
        labels = torch.randint(CLASSES, (batch_size,), generator=data_rng)
        noise = torch.randn(batch_size, *shape, generator=data_rng)
        batches.append((patterns[labels] + noise, labels))
    return batches
