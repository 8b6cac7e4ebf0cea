"""Records the traces that come with commbench, on this machine: ``python
benchmarks/record_traces.py [NAME ...]``.

Each is a real model, trained with one thread on random data of the size stated in the file. Let
nothing else run beside it. The architectures' sources are in
commbench/ddp/workloads/architectures.py.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from commbench.ddp.recording import record
from commbench.ddp.traces import Trace
from commbench.ddp.workloads.language import Decoder, Encoder
from commbench.ddp.workloads.sampling import classification_loss, next_token_loss
from commbench.ddp.workloads.vision import Bottleneck, resnet

FOLDER = Path(__file__).parent.parent / "commbench" / "ddp" / "data" / "traces"
STEPS = 15


def resnet50() -> Trace:
    """ResNet-50 on images of ImageNet's size: 25,557,032 parameters in 161 tensors."""
    model = resnet(Bottleneck, (3, 4, 6, 3), 1000, small_images=False)
    images, labels = torch.randn(2, 3, 224, 224), torch.randint(1000, (2,))
    return trace_of(
        "resnet50", model, classification_loss, (images, labels), "2 images of 224 x 224 pixels"
    )


def bert_base() -> Trace:
    """BERT base, uncased, with its pooler: 109,482,240 parameters in 199 tensors."""
    model = Encoder(vocabulary=30522, positions=512, width=768, layers=12, heads=12)
    tokens, labels = torch.randint(30522, (1, 64)), torch.randint(2, (1,))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        # the first two of the pooled features serve as logits, so that no parameter is added
        return functional.cross_entropy(model(batch[0])[:, :2], batch[1])

    return trace_of("bert-base", model, loss, (tokens, labels), "1 sequence of 64 tokens")


def gpt2_small() -> Trace:
    """GPT-2 small with tied embeddings: 124,439,808 parameters in 148 tensors."""
    model = Decoder(vocabulary=50257, positions=1024, width=768, layers=12, heads=12)
    return trace_of(
        "gpt2-small",
        model,
        next_token_loss,
        torch.randint(50257, (1, 65)),
        "1 sequence of 64 tokens",
    )


class ManyTiny(nn.Module):
    """Two thousand vectors of 1 to 4096 elements, used one after the other: latency, not bandwidth,
    decides.
    """

    def __init__(self, tensors: int = 2000, longest: int = 4096) -> None:
        super().__init__()
        exponents = torch.rand(tensors, generator=torch.Generator().manual_seed(0))
        sizes = (longest + 1) ** exponents.double()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(int(size)) / size.sqrt()) for size in sizes
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (batch, 4096) to (batch,)."""
        state = inputs[:, 0]
        for weight in self.weights:
            state = torch.tanh(state + inputs[:, : weight.numel()] @ weight)
        return state


def many_tiny() -> Trace:
    """The list of tiny tensors."""

    def loss(model: nn.Module, inputs: Tensor) -> Tensor:
        return model(inputs).square().mean()

    return trace_of(
        "many-tiny", ManyTiny(), loss, torch.randn(16, 4096), "16 vectors of 4096 elements"
    )


def trace_of(
    name: str,
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batch: Any,  # noqa: ANN401 - a batch is whatever the loss understands
    size: str,
) -> Trace:
    """Record one model on one batch, and note the batch's size in words."""
    trace = record(model, loss, [batch], steps=STEPS, name=name)
    return dataclasses.replace(trace, recorded={**trace.recorded, "batch": size})


TRACES = {
    "resnet50": resnet50,
    "bert-base": bert_base,
    "gpt2-small": gpt2_small,
    "many-tiny": many_tiny,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for chosen in sys.argv[1:] or TRACES:
        trace = TRACES[chosen]()
        trace.save(FOLDER / f"{chosen}.json")
        elements = sum(parameter.numel for parameter in trace.parameters)
        print(
            f"{chosen}: {elements:,} parameters in {len(trace.parameters)} tensors,"
            f" {trace.backward_ms:.1f} ms"
        )
