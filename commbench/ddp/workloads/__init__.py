"""The workloads by name: synthetic ones, real data, traces of real models, and a person's own file."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from commbench.ddp.plan.workload import Workload
from commbench.ddp.traces import SHIPPED
from commbench.errors import InputError

#: Each is a module of this package with a function ``workload``.
WORKLOADS = ("digits", "gpt", "mlp", "resnet18", "text")
TRACE = "trace:"


def load_workload(spec: str, *, seed: int, rank: int, world_size: int, batch_size: int | None = None) -> Workload:
    """Return the workload that ``spec`` names, as one rank sees it; the same arguments give the same workload.

    ``spec`` is one of `WORKLOADS`, ``trace:NAME`` or ``trace:FILE``, or ``file.py:callable`` for a person's own model.
    ``batch_size`` is in samples per rank; None is the workload's own choice.

    Raises:
        InputError: if there is no such workload, or a person's own is not sound.
    """
    if batch_size is not None and batch_size < 1:
        raise InputError(f"A batch of {batch_size} samples was asked for: give 1 or more.")
    given = {"seed": seed, "rank": rank, "world_size": world_size, "batch_size": batch_size}
    if spec.startswith(TRACE):
        from commbench.ddp.workloads import replay

        return replay.workload(spec.removeprefix(TRACE), seed=seed, rank=rank, batch_size=batch_size)
    if spec in WORKLOADS:
        function = importlib.import_module(f"{__name__}.{spec}").workload
        made: Workload = function(**understood(function, given))
        return made
    if spec.endswith(".py") or spec.rpartition(":")[0].endswith(".py"):
        from commbench.ddp.workloads import own

        return own.workload(spec, given)
    raise InputError(
        f"There is no workload {spec!r}: choose one of {', '.join(WORKLOADS)}, a trace such as"
        f" {', '.join(TRACE + name for name in SHIPPED)}, or your own as file.py:callable."
    )


def understood(function: Callable[..., Any], given: dict[str, int | None]) -> dict[str, int]:
    """Return those of the given arguments that a function names, without the ones that are None."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return {name: value for name, value in given.items() if value is not None and (takes_all or name in names)}
