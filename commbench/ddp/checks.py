"""Checks whether a user's own workload can be trained under DDP.

Each error states what to correct.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from commbench.ddp.models import default_optimizer, trainable
from commbench.ddp.plan.workload import Workload, named
from commbench.errors import InputError
from commbench.system.user_files import failure

_NO_GRADIENT = (
    "The workload's loss does not depend on the model that it is given by a way that has gradients:"
    " compute it from model(...), without detach() or no_grad()."
)


def check_workload(workload: Workload) -> None:
    """Check a workload without a training step.

    Raises:
        InputError: the model is no module, has no trainable parameter or parameters that DDP cannot
            reduce together, a function cannot be called, or the batches cannot be iterated
            repeatedly.
    """
    if not isinstance(workload.model, nn.Module) or isinstance(
        workload.model, DistributedDataParallel
    ):
        raise InputError(
            f"The workload's model is of type {type(workload.model).__name__}: it must be a"
            " torch.nn.Module, without the DDP that commbench puts around it."
        )
    for name in ("loss", "optimizer", "evaluate"):
        function = getattr(workload, name)
        is_left_out = function is None and name != "loss"
        if not callable(function) and not is_left_out:
            raise InputError(
                f"The workload's {name} is {function!r:.60}, which cannot be called: give a"
                " function."
            )
    for name in ("batch_size", "steps"):
        number = getattr(workload, name)
        is_left_out = number is None and name == "steps"
        if not is_left_out and (not isinstance(number, int) or number < 1):
            raise InputError(
                f"The workload's {name} is {number!r:.60}: give a whole number of 1 or more."
            )
    check_parameters(workload.model)
    first_batch(workload.batches)


def check_parameters(model: nn.Module) -> None:
    """Check that DDP can reduce a model's parameters together.

    Raises:
        InputError: no parameter is trainable, or some are lazy, not floating point or on several
            devices.
    """
    parameters = trainable(model)
    if not parameters:
        raise InputError(
            "The model has no trainable parameters, so there is nothing to communicate: leave"
            " requires_grad on for some."
        )
    lazy = [name for name, parameter in parameters.items() if is_lazy(parameter)]
    if lazy:
        raise InputError(
            f"{named(lazy)} came without initial values: call the model once on a batch first."
        )
    for name, parameter in parameters.items():
        if not parameter.is_floating_point():
            raise InputError(
                f"The parameter {name} came as {parameter.dtype}, not floating point: use a real"
                " float type."
            )
    devices = {str(parameter.device): name for name, parameter in parameters.items()}
    if len(devices) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise InputError(
            f"The parameters are on several devices ({places}): move the model to one."
        )


def first_batch(
    batches: Iterable[Any],
) -> Any:
    """Return the first batch.

    Raises:
        InputError: ``batches`` cannot be iterated repeatedly, or holds no batch.
    """
    try:
        iterator = iter(batches)
    except TypeError as error:
        raise InputError(
            f"The workload's batches are of type {type(batches).__name__}, which cannot be"
            " iterated: give a list or a DataLoader."
        ) from error
    if iterator is batches:
        raise InputError(
            f"The workload's batches are a {type(batches).__name__}, which can be iterated only"
            " once: give a list, a DataLoader or another object that starts over."
        )
    for batch in iterator:
        return batch
    raise InputError("The workload's batches are empty: give at least one.")


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches, starting over at the end.

    Raises:
        InputError: there is none to start over with.
    """
    while True:
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
        if is_empty:
            raise InputError(
                "The workload's batches do not start over at their end: give a list, a DataLoader"
                " or another object that can be iterated again."
            )


def make_optimizer(workload: Workload, parameters: Sequence[Any]) -> Optimizer:
    """Return the workload's optimiser of these parameters, or the default one.

    Raises:
        InputError: the workload did not return an optimiser.
    """
    make = workload.optimizer or default_optimizer
    with naming_errors("The workload's optimizer"):
        optimizer = make(parameters)
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            f"The workload's optimizer returned a value of type {type(optimizer).__name__}: it must"
            " take parameters and return a torch.optim.Optimizer."
        )
    return optimizer


def checked_step(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batch: Any,
    optimizer: Optimizer,
) -> list[str]:
    """Make one local training step, check that DDP can make it, and return the names of the
    parameters that got a gradient, in that order.

    Raises:
        InputError: the step fails, the loss is not a scalar with gradients, or a gradient is
            sparse.
    """
    optimizer.zero_grad(set_to_none=True)
    ready: list[str] = []
    with contextlib.ExitStack() as stack:
        for name, parameter in trainable(model).items():
            note = functools.partial(_note_gradient, ready, name)
            handle = parameter.register_post_accumulate_grad_hook(note)
            stack.callback(handle.remove)
        with naming_errors("The loss of a batch"):
            value = loss(model, batch)
        _check_loss(value)
        with naming_errors("The backward pass"):
            value.backward()
    if not ready:
        raise InputError(_NO_GRADIENT)
    for name, parameter in trainable(model).items():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise InputError(
                f"The parameter {name} got a sparse gradient, which commbench does not exchange:"
                " make it dense."
            )
    with naming_errors("The step of the optimizer"):
        optimizer.step()
    return ready


def _note_gradient(ready: list[str], name: str, _: nn.Parameter) -> None:
    if name in ready:  # a graph may accumulate twice
        ready.remove(name)
    ready.append(name)


@contextlib.contextmanager
def naming_errors(what: str) -> Iterator[None]:
    """Turn an error of a user's own code into InputError with one sentence."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{what} failed ({failure(error)}): correct the workload.") from error


def _check_loss(value: Any) -> None:
    if not isinstance(value, Tensor):
        returned = f"a value of type {type(value).__name__}"
    elif value.numel() != 1:
        returned = f"a tensor of shape {tuple(value.shape)}"
    elif value.requires_grad:
        return
    else:
        raise InputError(_NO_GRADIENT)
    raise InputError(
        f"The workload's loss returned {returned}: it must return one number as a tensor."
    )


def check_evaluation(workload: Workload) -> None:
    """Check the value that the workload's ``evaluate`` returns.

    Raises:
        InputError: it fails, the value is not finite, or the metric has no name.
    """
    if workload.evaluate is None:
        return
    with naming_errors("The workload's evaluate"):
        value = float(workload.evaluate(workload.model))
    if not math.isfinite(value) or not workload.metric:
        raise InputError(
            f"The workload's evaluate returned {value} for the metric {workload.metric!r}: return a"
            " finite number and name it, as in metric='accuracy'."
        )
