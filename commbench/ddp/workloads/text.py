"""The workload ``text``: a small decoder over bytes of real English text, Python's own documentation."""

from __future__ import annotations

import importlib
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from commbench.ddp.plan.workload import Workload
from commbench.ddp.workloads.architectures import Decoder
from commbench.ddp.workloads.gpt import adam
from commbench.ddp.workloads.sampling import (
    DATA,
    Batches,
    beside,
    evaluating,
    generator,
    initial_weights,
    next_token_loss,
)
from commbench.errors import InputError

BATCH_SIZE = 16
LENGTH = 64
#: The last part of the text is held out; so many windows of it, evenly spaced, are evaluated.
HELD_OUT = 0.1
WINDOWS = 128


def workload(*, seed: int, rank: int, batch_size: int = BATCH_SIZE) -> Workload:
    """Return the workload as this rank sees it: 0.6 million parameters, ranks draw different windows of the text.

    Raises:
        InputError: if this Python comes without its documentation.
    """
    text = documentation()
    train = text[: int(len(text) * (1 - HELD_OUT))]
    held_out = windows(text[len(train) :], torch.linspace(0, len(text) - len(train) - LENGTH - 1, WINDOWS).long())

    def make(number: int) -> Tensor:
        starts = torch.randint(len(train) - LENGTH, (batch_size,), generator=generator(seed, DATA, rank, number))
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
        optimizer=adam,
        evaluate=evaluate,
        metric="nats_per_byte",
        steps=200,
    )


def windows(text: Tensor, starts: Tensor) -> Tensor:
    """Return the LENGTH + 1 bytes from each start, as numbers (starts, LENGTH + 1)."""
    return text[starts[:, None] + torch.arange(LENGTH + 1)].long()


@cache
def documentation() -> Tensor:
    """Return the bytes of Python's language reference as pydoc has it; it differs a little between versions.

    Raises:
        InputError: if this Python comes without it.
    """
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise InputError(
            "The workload 'text' trains on Python's own documentation and this Python lacks it (the module"
            " pydoc_data.topics): install the full standard library or choose another workload."
        ) from error
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    return torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy())
