"""Records the traces that come with commbench, on this machine: ``python
benchmarks/evidence/record_traces.py [NAME ...]``.

Each is a real model, trained with one thread on random data of the size stated in the file. Let
nothing else run beside it. `record` makes the trace of any model.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from commbench.ddp.models import batch_length, default_optimizer, trainable
from commbench.ddp.traces import Trace, TracedParameter
from commbench.ddp.workloads.language import Decoder
from commbench.ddp.workloads.sampling import next_token_loss
from commbench.hooks.step_clock import Mark, clock_of, elapsed_ms
from commbench.system.host import cpu_model

FOLDER = Path(__file__).parents[2] / "commbench" / "ddp" / "data" / "traces"
STEPS = 15
#: 0.1 us: below the precision of the recorded times, and short in the file.
DECIMALS = 4
TIMES = ("forward_ms", "backward_ms", "optimizer_ms")


# Recording


@dataclass(frozen=True, kw_only=True)
class LocalStep:
    """Times of one step in milliseconds."""

    forward_ms: float
    """Includes the loss."""
    backward_ms: float
    optimizer_ms: float
    ready_ms: dict[str, float]
    """Time from the start of the backward pass until each gradient was ready, in order; without
    unused parameters."""


def local_step(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batch: Any,
    optimizer: torch.optim.Optimizer,
) -> LocalStep:
    """Set gradients to None, then make one forward pass, backward pass and optimiser step.

    Return their times.

    Raises:
        Exception: the model, the loss or the optimiser raised it.
    """
    optimizer.zero_grad(set_to_none=True)
    clock = clock_of(model)
    ready: dict[str, Mark] = {}

    def timing(name: str) -> Callable[[nn.Parameter], None]:
        return lambda _: ready.__setitem__(name, clock())

    with contextlib.ExitStack() as stack:
        for name, parameter in trainable(model).items():
            handle = parameter.register_post_accumulate_grad_hook(timing(name))
            stack.callback(handle.remove)
        start = clock()
        value = loss(model, batch)
        forward = clock()
        value.backward()
        backward = clock()
    optimizer.step()
    stepped = clock()
    return LocalStep(
        forward_ms=elapsed_ms(start, forward),
        backward_ms=elapsed_ms(forward, backward),
        optimizer_ms=elapsed_ms(backward, stepped),
        ready_ms={name: elapsed_ms(forward, mark) for name, mark in ready.items()},
    )


def record(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batch: Any,
    *,
    name: str,
    size: str = "",
    steps: int = STEPS,
) -> Trace:
    """Train a model for ``2 + steps`` steps and return the medians of the last ``steps``.

    ``size`` says in words how large the batch is.

    The optimiser is that of a workload without its own. The model is changed.
    """
    optimizer = default_optimizer(trainable(model).values())
    made = [local_step(model, loss, batch, optimizer) for _ in range(2 + steps)][2:]
    medians = {name: statistics.median(getattr(step, name) for step in made) for name in TIMES}
    parameters = []
    for parameter_name, parameter in trainable(model).items():
        ready_ms = statistics.median(step.ready_ms[parameter_name] for step in made)
        traced = TracedParameter(
            name=parameter_name,
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),  # type: ignore[arg-type]
            ready_ms=min(ready_ms, medians["backward_ms"]),
        )
        parameters.append(traced)
    recorded = {
        "how": f"median of {steps} training steps, each gradient timed when it was accumulated",
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "batch": size,
    }
    return Trace(
        name=name,
        device="cpu",
        batch=batch_length(batch),
        **medians,
        parameters=tuple(parameters),
        recorded=recorded,
    )


def save(trace: Trace, path: Path) -> None:
    """Write the file, one parameter per line."""
    header = dataclasses.asdict(trace)
    lines = []
    for parameter in header.pop("parameters"):
        parameter["ready_ms"] = round(parameter["ready_ms"], DECIMALS)
        lines.append(json.dumps(parameter))
    for name in TIMES:
        header[name] = round(header[name], DECIMALS)
    body = ",\n".join(lines)
    path.write_text(f'{json.dumps(header)[:-1]},\n"parameters": [\n{body}\n]}}\n', encoding="utf-8")


# Models


def resnet50() -> Trace:
    """ResNet-50 on images of ImageNet's size: 25,557,032 parameters in 161 tensors."""
    from transformers import ResNetConfig, ResNetForImageClassification

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images).logits, labels)

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    batch = torch.randn(2, 3, 224, 224), torch.randint(1000, (2,))
    return record(model, loss, batch, name="resnet50", size="2 images of 224 x 224 pixels")


def bert_base() -> Trace:
    """BERT base, uncased, with its pooler: 109,482,240 parameters in 199 tensors."""
    from transformers import BertConfig, BertModel

    tokens, labels = torch.randint(30522, (1, 64)), torch.randint(2, (1,))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        # the first two of the pooled features serve as logits, so that no parameter is added
        return functional.cross_entropy(model(batch[0]).pooler_output[:, :2], batch[1])

    model = BertModel(BertConfig())
    return record(model, loss, (tokens, labels), name="bert-base", size="1 sequence of 64 tokens")


def gpt2_small() -> Trace:
    """GPT-2 small with tied embeddings: 124,439,808 parameters in 148 tensors."""
    model = Decoder(vocabulary=50257, positions=1024, width=768, layers=12, heads=12)
    tokens = torch.randint(50257, (1, 65))
    size = "1 sequence of 64 tokens"
    return record(model, next_token_loss, tokens, name="gpt2-small", size=size)


class ManyTiny(nn.Module):
    """Two thousand vectors of 1 to 4096 elements, used one after the other: latency, not bandwidth,
    decides.
    """

    def __init__(self) -> None:
        super().__init__()
        exponents = torch.rand(2000, generator=torch.Generator().manual_seed(0))
        sizes = 4097 ** exponents.double()
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

    data = torch.randn(16, 4096)
    return record(ManyTiny(), loss, data, name="many-tiny", size="16 vectors of 4096 elements")


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
        save(trace, FOLDER / f"{chosen}.json")
        elements = sum(parameter.numel for parameter in trace.parameters)
        print(
            f"{chosen}: {elements:,} parameters in {len(trace.parameters)} tensors,"
            f" {trace.backward_ms:.1f} ms"
        )
