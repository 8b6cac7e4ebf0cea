"""Finds out whether a workload can be trained under DDP, and what its parameters and its local step are like.

``python -m commbench.ddp.inspect SPEC [--batch N] [--gpu K]`` prints that as one line of JSON, for a conductor that
does not import torch itself: ``{"ok": {...}}`` with the `WorkloadFacts`, or ``{"error": "a sentence"}``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.workload import ParameterFacts, Workload, WorkloadFacts
from commbench.errors import InputError
from commbench.hooks.registry import parse_hook

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from commbench.ddp.devices import Device
    from commbench.ddp.local_step import LocalStep

#: Timed steps end after so many, or once they have taken so long.
MAXIMUM_STEPS = 5
ENOUGH_S = 1.0
#: So many names stand in a sentence.
NAMED = 3
#: An error of a person's own code is quoted up to this length.
QUOTED = 300


def inspect(workload: Workload, device: Device | None = None) -> WorkloadFacts:
    """Check a workload, do a few local steps of it, and leave the model with the weights that it had.

    Args:
        workload: the model is moved to the device.
        device: where to make the steps; None: on this host's CPUs.

    Raises:
        InputError: if it cannot be trained under DDP; the sentence says why and what to do.
    """
    import torch

    from commbench.ddp.devices import Device
    from commbench.ddp.local_step import median_step

    device = device or Device()
    check_workload(workload)
    device.moved(workload.model)
    before = {name: value.detach().clone() for name, value in workload.model.state_dict().items()}
    try:
        with torch.random.fork_rng(devices=[]):
            step = median_step(_local_steps(workload, device))
            _check_evaluation(workload)
    finally:
        workload.model.load_state_dict(before)
        workload.model.zero_grad(set_to_none=True)
    return _facts(workload, step)


def _local_steps(workload: Workload, device: Device) -> list[LocalStep]:
    """Return timed steps; one before them, in which memory is allocated, is checked and not timed."""
    from commbench.ddp.local_step import local_step, trainable

    batches = map(device.moved, endless(workload.batches))
    optimizer = make_optimizer(workload, list(trainable(workload.model).values()))
    checked_step(workload.model, workload.loss, next(batches), optimizer)
    steps: list[LocalStep] = []
    begun = time.perf_counter()
    while len(steps) < MAXIMUM_STEPS and (not steps or time.perf_counter() - begun < ENOUGH_S):
        with _blamed("A training step"):
            steps.append(local_step(workload.model, workload.loss, next(batches), optimizer))
    return steps


def _check_evaluation(workload: Workload) -> None:
    if workload.evaluate is None:
        return
    with _blamed("The workload's evaluate"):
        value = float(workload.evaluate(workload.model))
    if not math.isfinite(value) or not workload.metric:
        raise InputError(
            f"The workload's evaluate returned {value} for the metric {workload.metric!r}: return a finite number and"
            " name it, as in metric='accuracy'."
        )


def _facts(workload: Workload, step: LocalStep) -> WorkloadFacts:
    from commbench.ddp.block import takes_lists
    from commbench.ddp.local_step import trainable

    parameters = trainable(workload.model)
    indices = {name: index for index, name in enumerate(parameters)}
    return WorkloadFacts(
        parameters=tuple(
            ParameterFacts(
                name=name,
                numel=parameter.numel(),
                itemsize=parameter.element_size(),
                dtype=str(parameter.dtype).removeprefix("torch."),
                ready_ms=step.ready_ms[name],
                shape=tuple(parameter.shape),
            )
            for name, parameter in parameters.items()
        ),
        ready_order=tuple(indices[name] for name in step.ready_ms),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in workload.model.buffers()),
        batch_size=workload.batch_size,
        forward_ms=step.forward_ms,
        backward_ms=step.backward_ms,
        optimizer_ms=step.optimizer_ms,
        metric=workload.metric,
        target=workload.target,
        steps=workload.steps,
        takes_lists=takes_lists(),
    )


def check_workload(workload: Workload) -> None:
    """Check what can be seen without a training step.

    Raises:
        InputError: if the model is none, has no parameter to train or parameters that DDP cannot reduce together, a
            function cannot be called, or the batches cannot be iterated again and again.
    """
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(workload.model, nn.Module) or isinstance(workload.model, DistributedDataParallel):
        raise InputError(
            f"The workload's model is of type {type(workload.model).__name__}: it must be a torch.nn.Module, without"
            " the DDP that commbench puts around it."
        )
    for name in ("loss", "optimizer", "evaluate"):
        function = getattr(workload, name)
        if not callable(function) and (name == "loss" or function is not None):
            raise InputError(f"The workload's {name} is {function!r:.60}, which cannot be called: give a function.")
    for name in ("batch_size", "steps"):
        number = getattr(workload, name)
        if (not isinstance(number, int) or number < 1) and (name == "batch_size" or number is not None):
            raise InputError(f"The workload's {name} is {number!r:.60}: give a whole number of 1 or more.")
    check_parameters(workload.model)
    first_batch(workload.batches)


def check_parameters(model: nn.Module) -> None:
    """Check that DDP can reduce a model's parameters together.

    Raises:
        InputError: there are none to train, or some are lazy, not floating point or on several devices.
    """
    from torch.nn.parameter import is_lazy

    from commbench.ddp.local_step import trainable

    parameters = trainable(model)
    if not parameters:
        raise InputError(
            "The model has no trainable parameters, so there is nothing to communicate: leave requires_grad"
            " on for some."
        )
    if lazy := [name for name, parameter in parameters.items() if is_lazy(parameter)]:
        raise InputError(f"{named(lazy)} came without initial values: call the model once on a batch first.")
    if odd := [name for name, parameter in parameters.items() if not parameter.is_floating_point()]:
        raise InputError(f"{named(odd)} came as {parameters[odd[0]].dtype}, not floating point: use a real float type.")
    devices = {str(parameter.device): name for name, parameter in parameters.items()}
    if len(devices) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise InputError(f"The parameters are on several devices ({places}): move the model to one.")


def first_batch(batches: Iterable[Any]) -> Any:  # noqa: ANN401 - a batch is whatever the loss understands
    """Return the first batch of what can be iterated again and again.

    Raises:
        InputError: if it cannot be, or holds no batch.
    """
    try:
        iterator = iter(batches)
    except TypeError as error:
        raise InputError(
            f"The workload's batches are of type {type(batches).__name__}, which cannot be iterated: give a list or a"
            " DataLoader."
        ) from error
    if iterator is batches:
        raise InputError(
            f"The workload's batches are a {type(batches).__name__}, which can be iterated only once: give a list, a"
            " DataLoader or another object that starts over."
        )
    for batch in iterator:
        return batch
    raise InputError("The workload's batches are empty: give at least one.")


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches, starting over at the end."""
    while True:
        yield from batches


def make_optimizer(workload: Workload, parameters: Sequence[Any]) -> Optimizer:
    """Return the workload's optimiser of these parameters, or the default one.

    Raises:
        InputError: if what it makes is no optimiser.
    """
    from torch.optim import Optimizer

    from commbench.ddp.local_step import default_optimizer

    make = workload.optimizer or default_optimizer
    with _blamed("The workload's optimizer"):
        optimizer = make(parameters)
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            f"The workload's optimizer returned a value of type {type(optimizer).__name__}: it must take parameters and"
            " return a torch.optim.Optimizer."
        )
    return optimizer


def checked_step(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batch: Any,  # noqa: ANN401 - a batch is whatever the loss understands
    optimizer: Optimizer,
) -> None:
    """Do one local training step and check that DDP could do it too.

    Raises:
        InputError: if the step fails, the loss is no scalar with gradients, or a gradient is absent or sparse.
    """
    from commbench.ddp.local_step import trainable

    optimizer.zero_grad(set_to_none=True)
    with _blamed("The loss of the first batch"):
        value = loss(model, batch)
    _check_loss(value)
    with _blamed("The first backward pass"):
        value.backward()
    parameters = trainable(model)
    if unused := [name for name, parameter in parameters.items() if parameter.grad is None]:
        raise InputError(
            f"{named(unused)} got no gradient in a backward pass, and DDP would wait for it forever: use all in the"
            " loss, or set requires_grad to False."
        )
    if sparse := [name for name, parameter in parameters.items() if parameter.grad.is_sparse]:
        raise InputError(f"{named(sparse)} got a sparse gradient, which commbench does not exchange: make it dense.")
    with _blamed("The first step of the optimizer"):
        optimizer.step()


@contextlib.contextmanager
def _blamed(what: str) -> Iterator[None]:
    """Turn what a person's own code raises into a sentence about it."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{what} failed ({failure(error)}): correct the workload.") from error


def _check_loss(value: Any) -> None:  # noqa: ANN401 - whatever a person's loss returned
    from torch import Tensor

    if not isinstance(value, Tensor) or value.numel() != 1:
        found = (
            f"a tensor of shape {tuple(value.shape)}"
            if isinstance(value, Tensor)
            else f"a value of type {type(value).__name__}"
        )
        raise InputError(f"The workload's loss returned {found}: it must return one number as a tensor.")
    if not value.requires_grad:
        raise InputError(
            "The workload's loss does not depend on the model by a way that has gradients: compute it from model(...),"
            " without detach() or no_grad()."
        )


def named(names: Sequence[str]) -> str:
    """Return 'The parameter a' or 'The parameters a, b, c and 4 more'."""
    listed = ", ".join(names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"The parameter{'s' if len(names) > 1 else ''} {listed}{more}"


def failure(error: BaseException) -> str:
    """Describe an error of a person's own code on one line: its type, its text and where it was raised."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":").removesuffix(".")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and not _is_ours(frame.filename)]
    where = f", {Path(own[-1].filename).name} line {own[-1].lineno}" if own else ""
    return f"{text[:QUOTED]}{where}"


def _is_ours(file: str) -> bool:
    return Path(file).is_relative_to(Path(__file__).parent.parent) or file.startswith("<")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line of JSON about a workload; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m commbench.ddp.inspect", description="Inspect a workload.")
    parser.add_argument("spec", help="a workload's name, trace:NAME, or file.py:callable")
    parser.add_argument("--batch", type=int, help="samples per rank and step (default: the workload's own)")
    parser.add_argument("--hook", action="append", default=[], help="a hook to make, as NAME:DENSITY:KEY=VALUE")
    parser.add_argument("--seed", type=int, default=0, help="of initial weights and data")
    parser.add_argument("--gpu", type=int, help="of this host's GPUs the one of this number, in turn (default: none)")
    options = parser.parse_args(arguments)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a person's own file may print
            facts = _inspect_spec(options.spec, options.batch, options.seed, options.hook, options.gpu)
    except InputError as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        return error.exit_code
    sys.stdout.write(json.dumps({"ok": facts.to_json()}) + "\n")
    return 0


def _inspect_spec(spec: str, batch: int | None, seed: int, hooks: Sequence[str], gpu: int | None) -> WorkloadFacts:
    if importlib.util.find_spec("torch") is None:
        raise InputError("Training needs PyTorch, which is not installed: pip install 'commbench[torch]'.")
    from commbench.ddp.devices import Device, Gpu, gpus_to_train_on
    from commbench.ddp.workloads import load_workload

    device = Device() if gpu is None else Gpu(gpu % len(gpus_to_train_on()))
    _try_hooks(hooks, device)
    workload = load_workload(spec, seed=seed, rank=0, world_size=1, batch_size=batch)
    try:
        return inspect(workload, device)
    except InputError as error:
        if gpu is None:
            raise
        raise InputError(
            f"{error} Its model and batches were on a GPU, where all it makes must be; --backend gloo trains on CPUs."
        ) from error


def _try_hooks(hooks: Sequence[str], device: Device) -> None:
    """Make each hook, so that an option that it does not have is found before anything is measured.

    What a hook compiles is compiled here, where no case's timeout runs: on a busy machine it takes longer than that.
    """
    from commbench.ddp.session import compile_hooks
    from commbench.hooks import make_hook

    cases = [TrainingCase(workload="", world_size=1, batch_per_rank=1, **parse_hook(text)) for text in hooks]
    for each in cases:
        make_hook(each.hook, density=each.density, options=each.options)
    compile_hooks(cases, device.torch_device)


if __name__ == "__main__":
    sys.exit(main())
