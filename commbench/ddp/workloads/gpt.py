"""The workload ``gpt``: a small decoder with a large embedding, 5.8 million parameters, on synthetic tokens."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from commbench.ddp.plan.workload import Workload
from commbench.ddp.workloads.architectures import Decoder
from commbench.ddp.workloads.sampling import (
    DATA,
    DISTINCT_BATCHES,
    STRUCTURE,
    cycled,
    generator,
    initial_weights,
    next_token_loss,
)

BATCH_SIZE = 4
VOCABULARY = 16384
LENGTH = 64
#: Share of tokens that follow from the one before; the others are drawn anew.
PREDICTABLE = 0.5


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimiser that is usual for transformers."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def workload(*, seed: int, rank: int, batch_size: int = BATCH_SIZE) -> Workload:
    """Return the workload as this rank sees it: 23 MB of gradients, 17 of them of the embedding.

    The embedding is tied to the output matrix, so its gradient is dense and comes last: nothing is left to hide its
    communication behind.
    """
    with initial_weights(seed):
        model = Decoder(vocabulary=VOCABULARY, positions=LENGTH, width=256, layers=2, heads=4)
    return Workload(
        model=model,
        loss=next_token_loss,
        batches=cycled(chains(batch_size, seed=seed, rank=rank)),
        batch_size=batch_size,
        optimizer=adam,
        steps=100,
    )


def chains(batch_size: int, *, seed: int, rank: int) -> list[Tensor]:
    """Return token numbers (batch_size, LENGTH + 1) of Markov chains with the same rule on all ranks.

    After token t comes follower[t] with probability PREDICTABLE, else one drawn by Zipf's law, as words are frequent.
    """
    shared, own = generator(seed, STRUCTURE), generator(seed, DATA, rank)
    follower = torch.randperm(VOCABULARY, generator=shared)
    frequency = 1.0 / torch.arange(1, VOCABULARY + 1)
    count = DISTINCT_BATCHES * batch_size
    drawn = torch.multinomial(frequency, count * (LENGTH + 1), replacement=True, generator=own).view(count, -1)
    follows = torch.rand(drawn.shape, generator=own) < PREDICTABLE
    for place in range(1, LENGTH + 1):
        drawn[:, place] = torch.where(follows[:, place], follower[drawn[:, place - 1]], drawn[:, place])
    return list(drawn.split(batch_size))
