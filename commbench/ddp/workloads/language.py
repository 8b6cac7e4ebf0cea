"""Workloads on tokens: decoders over synthetic tokens and over real English text.

torch is untyped here, so its classes
count as Any.
"""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import importlib
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from commbench.ddp.plan.workload import Workload
from commbench.ddp.workloads.sampling import (
    DATA,
    DISTINCT_BATCHES,
    STRUCTURE,
    Batches,
    beside,
    evaluating,
    generator,
    initial_weights,
    next_token_loss,
)

ADAM = partial(torch.optim.AdamW, lr=1e-3)
GPT_BATCH = 4
VOCABULARY = 16384
LENGTH = 64
#: Share of tokens that the previous token determines; the others are random.
PREDICTABLE = 0.5
TEXT_BATCH = 16
#: The last part of the text is held out; evenly spaced windows of it are evaluated.
HELD_OUT = 0.1
WINDOWS = 128


# ---------------------------------------------------------------------------------------------- gpt


def gpt(*, seed: int, rank: int, batch_size: int = GPT_BATCH) -> Workload:
    """Return this rank's workload: 23 MB of gradients, of which the embedding has 17 MB.

    The embedding is tied to the output matrix, so its gradient is dense and comes last: no
    computation overlaps with its communication.
    """
    with initial_weights(seed):
        model = Decoder(vocabulary=VOCABULARY, positions=LENGTH, width=256, layers=2, heads=4)
    return Workload(
        model=model,
        loss=next_token_loss,
        batches=chains(batch_size, seed=seed, rank=rank),
        batch_size=batch_size,
        optimizer=ADAM,
        steps=100,
    )


def chains(batch_size: int, *, seed: int, rank: int) -> list[Tensor]:
    """Return token numbers (batch_size, LENGTH + 1) of Markov chains with the same rule on all
    ranks.

    Token t is followed by follower[t] with probability PREDICTABLE, else by a token drawn by Zipf's
    law.
    """
    rule_rng, data_rng = generator(seed, STRUCTURE), generator(seed, DATA, rank)
    follower = torch.randperm(VOCABULARY, generator=rule_rng)
    frequency = 1.0 / torch.arange(1, VOCABULARY + 1)
    count = DISTINCT_BATCHES * batch_size
    tokens = torch.multinomial(
        frequency, count * (LENGTH + 1), replacement=True, generator=data_rng
    ).view(count, -1)
    follows = torch.rand(tokens.shape, generator=data_rng) < PREDICTABLE
    for place in range(1, LENGTH + 1):
        tokens[:, place] = torch.where(
            follows[:, place], follower[tokens[:, place - 1]], tokens[:, place]
        )
    return list(tokens.split(batch_size))


# --------------------------------------------------------------------------------------------- text


def text(*, seed: int, rank: int, batch_size: int = TEXT_BATCH) -> Workload:
    """Return this rank's workload: 0.6 million parameters, and random windows of the text."""
    corpus = documentation()
    train = corpus[: int(len(corpus) * (1 - HELD_OUT))]
    held_out = windows(
        corpus[len(train) :],
        torch.linspace(0, len(corpus) - len(train) - LENGTH - 1, WINDOWS).long(),
    )

    def make(number: int) -> Tensor:
        starts = torch.randint(
            len(train) - LENGTH, (batch_size,), generator=generator(seed, DATA, rank, number)
        )
        return windows(train, starts)

    def evaluate(model: nn.Module) -> float:
        with evaluating(model):
            return float(next_token_loss(model, beside(model, held_out)))

    with initial_weights(seed):
        model = Decoder(vocabulary=256, positions=LENGTH, width=128, layers=3, heads=4)
    return Workload(
        model=model,
        loss=next_token_loss,
        batches=Batches(make),
        batch_size=batch_size,
        optimizer=ADAM,
        evaluate=evaluate,
        metric="nats_per_byte",
        steps=200,
    )


def windows(text: Tensor, starts: Tensor) -> Tensor:
    """Return the LENGTH + 1 bytes from each start, as numbers (starts, LENGTH + 1)."""
    return text[starts[:, None] + torch.arange(LENGTH + 1)].long()


@cache
def documentation() -> Tensor:
    """Return the bytes of Python's language reference in pydoc.

    It differs slightly between versions.
    """
    topics = importlib.import_module("pydoc_data.topics").topics
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    return torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy())


# ------------------------------------------------------------------------------------- transformers


class Decoder(nn.Module):
    """GPT-2's decoder (Radford et al., 2019): learned positions, norms first, output matrix tied to
    the embedding.
    """

    def __init__(
        self, *, vocabulary: int, positions: int, width: int, layers: int, heads: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                heads,
                4 * width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.apply(initialise)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token numbers (batch, positions) to logits (batch, positions, vocabulary)."""
        length = tokens.shape[1]
        hidden = self.tokens(tokens) + self.positions.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return functional.linear(self.norm(hidden), self.tokens.weight)


def initialise(module: nn.Module) -> None:
    """Draw matrices from a normal distribution with deviation 0.02 and zero biases, as GPT-2
    does.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.MultiheadAttention):
        nn.init.normal_(module.in_proj_weight, std=0.02)
