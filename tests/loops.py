"""A small model and many training loops, for tests of recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from commbench.ddp.recording import FEWEST, SKIPPED

STEPS = SKIPPED + FEWEST + 1

Loop = Callable[[Any, torch.optim.Optimizer], None]


def make_model() -> nn.Sequential:
    """Return a model of three layers, the same each time."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)
    )


def data(step: int) -> torch.Tensor:
    """Return the inputs of a step, shape (4, 6)."""
    return torch.randn((4, 6), generator=torch.Generator().manual_seed(step))


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """Return a scalar that depends on all of an output."""
    return (output - 0.2).square().sum()


# Loops of all kinds


def plain(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Train as in a tutorial."""
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model(data(step))).backward()
        optimizer.step()


def zero_late(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Zero gradients between loss and backward pass, and keep their memory."""
    for step in range(STEPS):
        loss = loss_of(model(data(step)))
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()


def accumulate(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Run three backward passes per step."""
    for step in range(STEPS):
        for micro in range(3):
            (loss_of(model(data(3 * step + micro))) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()


def mixed(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Use autocast and a gradient scaler."""
    scaler = torch.amp.GradScaler("cpu")
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model(data(step)).float())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def twice(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Run one backward pass through two forward passes."""
    for step in range(STEPS):
        optimizer.zero_grad()
        first, second = model(data(step)), model(data(step + 100))
        (loss_of(first) + (first * second).sum()).backward()
        optimizer.step()


def separately(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Run two forward passes, then the backward pass of each."""
    for step in range(STEPS):
        optimizer.zero_grad()
        first, second = loss_of(model(data(step))), loss_of(model(data(step + 100)))
        first.backward()
        second.backward()
        optimizer.step()


def closure(model: Any, _optimizer: torch.optim.Optimizer) -> None:
    """Let the optimiser call a closure for gradients."""
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

    def evaluate(step: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(data(step)))
        loss.backward()
        return loss

    for step in range(STEPS):
        optimizer.step(lambda step=step: evaluate(step))


def by_hand(model: Any, _optimizer: torch.optim.Optimizer) -> None:
    """Update without an optimiser."""
    for step in range(STEPS):
        loss_of(model(data(step))).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.01 * parameter.grad)
                parameter.grad = None


def evaluating(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Evaluate between steps with and without gradients, and train another model."""
    other = nn.Linear(6, 1)
    others = torch.optim.SGD(other.parameters(), lr=0.1)
    for step in range(STEPS):
        plain_step(model, optimizer, data(step))
        with torch.no_grad():
            model(data(7))
        model(data(8))
        plain_step(other, others, data(9))


def fused(model: Any, _optimizer: torch.optim.Optimizer) -> None:
    """Update each parameter when its gradient is ready."""
    own = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def update(parameter: nn.Parameter) -> None:
        own[parameter].step()
        own[parameter].zero_grad()

    handles = [
        parameter.register_post_accumulate_grad_hook(update) for parameter in model.parameters()
    ]
    for step in range(STEPS):
        loss_of(model(data(step))).backward()
    for handle in handles:
        handle.remove()


def several_optimizers(model: Any, _optimizer: torch.optim.Optimizer) -> None:
    """Use one optimiser for weights and one for biases."""
    groups = [
        [p for name, p in model.named_parameters() if kind in name] for kind in ("weight", "bias")
    ]
    both = [torch.optim.Adam(groups[0], lr=0.01), torch.optim.SGD(groups[1], lr=0.01)]
    for step in range(STEPS):
        loss_of(model(data(step))).backward()
        for one in both:
            one.step()
            one.zero_grad()


def penalised(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Compute the gradient of the output first, and penalise it."""
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = data(step).requires_grad_()
        output = model(inputs)
        (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
        (loss_of(output) + slope.square().sum()).backward()
        optimizer.step()


def plain_step(model: Any, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """Run one step."""
    optimizer.zero_grad()
    loss_of(model(inputs)).backward()
    optimizer.step()


#: Each with the backward passes in a step and the samples in a pass.
LOOPS: list[tuple[Loop, int, int]] = [
    (plain, 1, 4),
    (zero_late, 1, 4),
    (accumulate, 3, 4),
    (mixed, 1, 4),
    (twice, 1, 8),
    (separately, 2, 4),
    (closure, 2, 4),
    (by_hand, 1, 4),
    (evaluating, 1, 4),
    (fused, 1, 4),
    (several_optimizers, 1, 4),
    (penalised, 1, 4),
]
