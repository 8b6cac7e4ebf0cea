"""A user's own workload: a function in a Python file that returns a `Workload`, or (model, loss,
batches).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from commbench.ddp.checks import check_workload, endless
from commbench.ddp.models import batch_length
from commbench.ddp.plan.workload import Workload
from commbench.errors import InputError
from commbench.system.user_files import failure, load_callable


def workload(spec: str, requested: dict[str, int | None]) -> Workload:
    """Return the workload of ``file.py:callable``, called with those of the requested arguments
    that it accepts.

    Raises:
        InputError: the file or the function is missing or fails, or it returns no valid workload,
            or one of another batch size.
    """
    function = load_callable(spec, "workload")
    try:
        arguments = accepted_arguments(function, requested)
        returned = function(**arguments)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{spec} failed ({failure(error)}): correct it.") from error
    workload_made = _as_workload(spec, returned, arguments.get("batch_size"))
    check_workload(workload_made)
    if requested["batch_size"] not in {None, workload_made.batch_size}:
        raise InputError(
            f"A batch of {requested['batch_size']} was asked for and {spec} makes batches of"
            f" {workload_made.batch_size}: let it take batch_size, and make as many."
        )
    return workload_made


def accepted_arguments(
    function: Callable[..., Any], requested: dict[str, int | None]
) -> dict[str, int]:
    """Return the requested arguments that a function accepts, without those that are None."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {
        parameter.name
        for parameter in parameters
        if parameter.kind is not parameter.POSITIONAL_ONLY
    }
    return {
        name: value
        for name, value in requested.items()
        if value is not None and (takes_all or name in names)
    }


def _as_workload(spec: str, returned: Any, batch_size: int | None) -> Workload:
    if isinstance(returned, Workload):
        return returned
    if not isinstance(returned, tuple) or len(returned) != 3:  # model, loss, batches
        raise InputError(
            f"{spec} returned a value of type {type(returned).__name__}: return a Workload or"
            " (model, loss, batches)."
        )
    model, loss, batches = returned
    if batch_size is None:
        batch_size = batch_length(next(endless(batches)))
    return Workload(model=model, loss=loss, batches=batches, batch_size=batch_size)
