"""Run on Gloo ranks: local SGD beside a reference that steps alone and averages in double
precision.
"""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo import agree, batch, distance, flat, make_ddp, make_model, mean, run_checks, train_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commbench.errors import InputError
from commbench.hooks import LocalSGD, local_sgd

#: In this step, an exchange of every period below, the hook that is to be caught exchanges nothing.
PLANTED, STEPS, LR = 6, 13, 0.01


class Dropping(LocalSGD):
    """Drops one exchange."""

    def exchange(self) -> None:
        """Exchange, except after the planted step."""
        if self._steps != PLANTED:
            super().exchange()


class Forgetful(LocalSGD):
    """Forgets the outer momentum."""

    def exchange(self) -> None:
        """Exchange with a momentum of zero."""
        for outer in self._outer_steps:
            outer._state["momentum"].zero_()
        super().exchange()


HOOKS: dict[str, Callable[[], LocalSGD]] = {
    "average 1": lambda: LocalSGD(period=1),
    "average 3": lambda: LocalSGD(period=3),
    "nesterov 1": lambda: LocalSGD(period=1, outer="nesterov"),
    "nesterov 3": lambda: LocalSGD(period=3, outer="nesterov"),
    "nesterov 2, other rates": lambda: LocalSGD(
        period=2, outer="nesterov", outer_lr=0.5, outer_momentum=0.3
    ),
    "average 3, start 2": lambda: LocalSGD(period=3, start=2),
    "average 3, in parts": lambda: LocalSGD(period=3),
    "nesterov 3, in parts": lambda: LocalSGD(period=3, outer="nesterov"),
    "dropping": lambda: Dropping(period=3),
    "forgetful": lambda: Forgetful(period=3, outer="nesterov"),
}
#: Learning rate and momentum of the outer step.
OUTER = {"nesterov 2, other rates": (0.5, 0.3)}


def sgd(model: nn.Module, momentum: float = 0.0) -> torch.optim.Optimizer:
    """Return SGD."""
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)


class Reference:
    """A model of this rank alone, averaged by other code than the hook's: in double precision, by
    torch's SGD.
    """

    def __init__(self, name: str, period: int, start: int) -> None:
        self.model = make_model()
        self.optimizer = sgd(self.model, momentum=0.9)
        self.start = start
        self.period, self.is_average = period, not name.startswith(("nesterov", "forgetful"))
        self.outer = flat(self.model.parameters()).double()
        lr, momentum = OUTER.get(name, (0.7, 0.9))
        self.outer_optimizer = torch.optim.SGD(
            [self.outer], lr=lr, momentum=momentum, nesterov=True
        )

    def step(self, number: int) -> None:
        """Make a step, and average after the last of a period."""
        train_step(self.model, self.optimizer, batch(dist.get_rank(), number))
        if number > self.start and number % self.period:
            return
        averaged = mean(flat(self.model.parameters()))
        if not self.is_average:
            self.outer.grad = self.outer - averaged
            self.outer_optimizer.step()
            averaged = self.outer.detach()
        with torch.no_grad():
            nn.utils.vector_to_parameters(averaged.float(), self.model.parameters())


def compare(name: str) -> dict[str, Any]:
    """Train with a hook.

    List the steps, from 1, in which parameters differ from the reference or agree over ranks.
    """
    local_sgd.PART_BYTES = 5000 if name.endswith("in parts") else 2**20
    hook = HOOKS[name]()
    model = make_ddp()
    hook.register(model, optimizer=(optimizer := sgd(model, momentum=0.9)))
    reference, wrong, equal = Reference(name, hook.period, hook.start), [], []
    for number in range(1, STEPS + 1):
        train_step(model, optimizer, batch(dist.get_rank(), number))
        reference.step(number)
        expected = flat(reference.model.parameters())
        error = torch.tensor(distance(flat(model.module.parameters()), expected))
        dist.all_reduce(error, op=dist.ReduceOp.MAX)
        wrong += [number] if not error < 1e-5 else []
        equal += [number] if agree(flat(model.module.parameters())) else []
    hook.close()
    return {
        "wrong": wrong,
        "equal": equal,
        "parts": len(hook._parts),
        "buckets": model._get_ddp_logging_data().get("num_buckets_reduced", 0),
    }


def as_ddp() -> float:
    """Return the distance of the parameters after steps of plain SGD under DDP, and under local SGD
    of period 1.
    """
    ddp, own = make_ddp(), make_ddp()
    optimizers = sgd(ddp), sgd(own)
    LocalSGD(period=1).register(own, optimizer=optimizers[1])
    for number in range(STEPS):
        for model, optimizer in zip((ddp, own), optimizers, strict=True):
            train_step(model, optimizer, batch(dist.get_rank(), number))
    return distance(flat(own.module.parameters()), flat(ddp.module.parameters()))


class Normalised(nn.Module):
    """A model with buffers of two types."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(24, 8), nn.BatchNorm1d(8))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return normalised outputs."""
        return self.layers(data)


def buffers(is_broadcast: str) -> dict[str, Any]:
    """Return in which of four steps, at period 2, ranks hold the same buffers, and rank 0's own are
    unchanged.
    """
    model, alone = (
        DistributedDataParallel(Normalised(), broadcast_buffers=is_broadcast == "yes"),
        Normalised(),
    )
    optimizer, optimizer_alone = sgd(model), sgd(alone)
    LocalSGD(period=2).register(model, optimizer=optimizer)
    equal, unchanged = [], []
    for number in range(4):
        train_step(model, optimizer, batch(dist.get_rank(), number))
        if number < 2:  # afterwards the parameters of both differ
            train_step(alone, optimizer_alone, batch(dist.get_rank(), number))
            unchanged.append(torch.equal(flat(model.module.buffers()), flat(alone.buffers())))
        equal.append(agree(flat(model.module.buffers())))
    return {"equal": equal, "unchanged on rank 0": unchanged}


def resume(outer: str) -> float:
    """Return the distance of a training from one that was continued from a checkpoint within a
    period.
    """
    trainings = []
    for _ in range(2):
        model = make_ddp()
        optimizer = sgd(model, momentum=0.9)
        trainings.append(
            (model, optimizer, LocalSGD(period=3, outer=outer).register(model, optimizer=optimizer))
        )
    (model, optimizer, hook), (second_model, second_optimizer, second_hook) = trainings
    for number in range(5):
        train_step(model, optimizer, batch(dist.get_rank(), number))
    second_model.load_state_dict(model.state_dict())
    second_optimizer.load_state_dict(
        copy.deepcopy(optimizer.state_dict())
    )  # torch would share the momentum
    second_hook.load_state_dict(hook.state_dict())
    for number in range(5, STEPS):
        train_step(model, optimizer, batch(dist.get_rank(), number))
        train_step(second_model, second_optimizer, batch(dist.get_rank(), number))
    return distance(flat(second_model.module.parameters()), flat(model.module.parameters()))


def unused() -> dict[str, Any]:
    """Train a layer that rank 1 alone uses, which torch cannot average.

    Return whether ranks agree, and its change.
    """
    torch.manual_seed(0)
    inner = nn.ModuleList([nn.Linear(24, 4), nn.Linear(24, 4)])
    model = DistributedDataParallel(_Either(inner), find_unused_parameters=True)
    before = flat(inner[1].parameters())
    optimizer = sgd(model)
    LocalSGD(period=2).register(model, optimizer=optimizer)
    for number in range(4):
        train_step(model, optimizer, batch(dist.get_rank(), number))
    return {
        "agree": agree(flat(inner.parameters())),
        "moved": float((flat(inner[1].parameters()) - before).norm()),
    }


class _Either(nn.Module):
    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result = self.layers[0](data)
        return result + self.layers[1](data) if dist.get_rank() == 1 else result


def foreign_sync() -> dict[str, bool]:
    """Return whether gradients stay on their rank where other code switches DDP's exchange on."""
    model = make_ddp()
    optimizer = sgd(model)
    LocalSGD(period=2).register(model, optimizer=optimizer)
    model.require_backward_grad_sync = True
    equal = []
    for number in range(4):
        train_step(model, optimizer, batch(dist.get_rank(), number))
        equal.append(agree(flat(model.module.parameters())))
    return {"equal": equal}


def pasted(file: str) -> list[bool]:
    """Run pasted lines around a user's model and optimiser, then train.

    Return in which steps ranks agree.
    """
    names: dict[str, Any] = {"model": make_model()}
    names["optimizer"] = sgd(names["model"])
    exec(Path(file).read_text(), names)  # noqa: S102 - what a user does
    equal = []
    for number in range(4):
        train_step(names["model"], names["optimizer"], batch(dist.get_rank(), number))
        equal.append(agree(flat(names["model"].module.parameters())))
    return equal


def sentence_of(ddp_model: DistributedDataParallel, **options: Any) -> str:
    """Return the sentence of a refused registration."""
    try:
        LocalSGD().register(ddp_model, **options)
    except InputError as error:
        return str(error)
    return ""


def refused() -> dict[str, str]:
    """Return the sentences of refused registrations."""
    model = make_ddp()
    return {
        "no optimizer": sentence_of(model),
        "no optimizer but": sentence_of(model, optimizer=model),
        "scaler": sentence_of(model, optimizer=sgd(model), scaler=torch.amp.GradScaler("cpu")),
        "static graph": sentence_of(make_ddp(static_graph=True), optimizer=sgd(model)),
    }


CHECKS = {
    "compare": lambda: {name: compare(name) for name in HOOKS},
    "as_ddp": as_ddp,
    "buffers": lambda: {choice: buffers(choice) for choice in ("yes", "no")},
    "resume": lambda: {outer: resume(outer) for outer in ("average", "nesterov")},
    "unused": unused,
    "foreign_sync": foreign_sync,
    "pasted": pasted,
    "refused": refused,
}

if __name__ == "__main__":
    run_checks(CHECKS, sys.argv[1:])
