"""Checks whether a user's own workload can be trained under DDP.

Each error states what to correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.models import trainable
from commbench.ddp.plan.workload import Workload
from commbench.errors import InputError


def check_workload(workload: Workload) -> None:
    """Check a workload without a training step.

    Raises:
        InputError: the model is inside DDP, a number is below 1, parameters are not floating point
            or on several devices, or the batches cannot be iterated repeatedly.
    """
    if isinstance(workload.model, DistributedDataParallel):
        raise InputError(
            "The workload's model is a DistributedDataParallel: give the torch.nn.Module inside,"
            " which commbench wraps itself."
        )
    for name in ("batch_size", "steps"):
        number = getattr(workload, name)
        is_left_out = number is None and name == "steps"
        if not is_left_out and (not isinstance(number, int) or number < 1):
            raise InputError(
                f"The workload's {name} is {number!r:.60}: give a whole number of 1 or more."
            )
    devices = {}
    for name, parameter in trainable(workload.model).items():
        devices[str(parameter.device)] = name
        if not parameter.is_floating_point():
            raise InputError(
                f"The parameter {name} came as {parameter.dtype}, not floating point: use a real"
                " float type."
            )
    if len(devices) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise InputError(
            f"The parameters are on several devices ({places}): move the model to one."
        )
    next(endless(workload.batches))


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches, starting over at the end.

    Raises:
        InputError: they cannot be iterated repeatedly, or there is none.
    """
    if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
        raise InputError(
            f"The workload's batches are of type {type(batches).__name__}, which cannot be"
            " iterated: give a list, a DataLoader or another object that yields batches."
        )
    iterator = iter(batches)
    if iterator is batches:
        raise InputError(
            f"The workload's batches are of type {type(batches).__name__}, which can be iterated"
            " only once: give a list, a DataLoader or another object that starts over."
        )
    while True:
        is_empty = True
        for batch in iterator:
            is_empty = False
            yield batch
        if is_empty:
            raise InputError(
                "The workload's batches are empty or do not start over at their end: give a list, a"
                " DataLoader or another object that can be iterated again."
            )
        iterator = iter(batches)
