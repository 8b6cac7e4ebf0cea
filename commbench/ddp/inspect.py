"""Inspection of a workload: its parameters, and the order of their gradients in a few steps.

``python -m commbench.ddp.inspect JSON`` is the command by which a conductor inspects a workload
without importing torch itself; the JSON holds the arguments of `inspect_spec`. It prints one line
of JSON: ``{"ok": {...}}`` with the `WorkloadFacts`, or ``{"error": "a sentence"}``.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from commbench.ddp.checks import check_workload, endless
from commbench.ddp.devices import Device, Gpu, gpus_to_train_on
from commbench.ddp.models import default_optimizer, parameter_facts, trainable
from commbench.ddp.plan.workload import Workload, WorkloadFacts
from commbench.ddp.workloads import load_workload
from commbench.errors import InputError
from commbench.hooks import make_hook
from commbench.hooks.own import load_file_hook
from commbench.hooks.registry import find_file_hooks, is_file_hook, parse_hook, split_options
from commbench.schema import JsonObject
from commbench.system.user_files import failure

#: Steps that are made: at most, or after this time in seconds, but a few at least.
FEWEST_STEPS, MAXIMUM_STEPS = 2, 6
ENOUGH_S = 1.0


def inspect_workload(workload: Workload, device: Device | None = None) -> WorkloadFacts:
    """Check a workload by a few local steps of a copy of its model.

    Args:
        workload: the model is moved to the device.
        device: where the steps run; None: on this host's CPUs.

    Raises:
        InputError: the workload cannot be trained under DDP; the message states why and what to do.
    """
    device = device or Device()
    check_workload(workload)
    device.moved(workload.model)
    copied = dataclasses.replace(workload, model=copy.deepcopy(workload.model))
    with torch.random.fork_rng(devices=[]):
        ready, unused = _gradients(copied, device)
        if copied.evaluate is not None:
            value = float(copied.evaluate(copied.model))
            if not math.isfinite(value) or not copied.metric:
                raise InputError(
                    f"The workload's evaluate returned {value} for the metric {copied.metric!r}:"
                    " return a finite number and name it, as in metric='accuracy'."
                )
    parameters = parameter_facts(workload.model)
    names = [parameter.name for parameter in parameters]
    return WorkloadFacts(
        parameters=parameters,
        ready_order=tuple(map(names.index, (*unused, *ready))),
        batch_size=workload.batch_size,
        unused=unused,
    )


def _gradients(workload: Workload, device: Device) -> tuple[list[str], tuple[str, ...]]:
    """Make some steps.

    Return the names of the parameters that get a gradient in each, in the order of the first step,
    and the names of the others.
    """
    parameters = trainable(workload.model)
    ready: list[str] = []
    for name, parameter in parameters.items():
        note = functools.partial(_note_gradient, ready, name)
        parameter.register_post_accumulate_grad_hook(note)
    batches = map(device.moved, endless(workload.batches))
    make = workload.optimizer or default_optimizer
    optimizer = make(list(parameters.values()))
    steps: list[list[str]] = []
    started = time.perf_counter()
    while len(steps) < MAXIMUM_STEPS and (
        len(steps) < FEWEST_STEPS or time.perf_counter() - started < ENOUGH_S
    ):
        ready.clear()
        workload.loss(workload.model, next(batches)).backward()
        _check_gradients(parameters, ready)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps.append(ready.copy())
    in_all = set(parameters).intersection(*steps)
    in_order = [name for name in steps[0] if name in in_all]
    return in_order, tuple(name for name in parameters if name not in in_all)


def _note_gradient(ready: list[str], name: str, _: nn.Parameter) -> None:
    if name in ready:  # a graph may accumulate twice
        ready.remove(name)
    ready.append(name)


def _check_gradients(parameters: Mapping[str, nn.Parameter], ready: Sequence[str]) -> None:
    """Raise InputError if no parameter got a gradient, or one got a sparse gradient."""
    if not ready:
        raise InputError(
            "The workload's loss does not depend on the model that it is given by a way that has"
            " gradients: compute it from model(...), without detach() or no_grad()."
        )
    for name, parameter in parameters.items():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise InputError(
                f"The parameter {name} got a sparse gradient, which commbench does not exchange:"
                " make it dense."
            )


def main(arguments: str) -> int:
    """Print one line of JSON about a workload; return the exit code."""
    exit_code = 0
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a user's own file may print
            answer: JsonObject = {"ok": inspect_spec(**json.loads(arguments))}
    except InputError as error:
        answer = {"error": str(error)}
        exit_code = error.exit_code
    except Exception as error:  # noqa: BLE001 - of the user's own code
        answer = {"error": f"Trying out the workload failed ({failure(error)}): correct it."}
        exit_code = InputError.exit_code
    sys.stdout.write(json.dumps(answer) + "\n")
    return exit_code


def inspect_spec(
    spec: str | None = None,
    batch: int | None = None,
    hooks: Sequence[str] = (),
    gpu: int | None = None,
) -> JsonObject:
    """Return the `WorkloadFacts` of a workload as JSON, after trying the hooks; empty without one.

    Args:
        spec: the workload, as ``--workload`` names it; None: only the hooks are tried.
        batch: samples per rank and step; None: the workload's own.
        hooks: as ``--hook`` names them.
        gpu: number of this host's GPU, modulo their number; None: on CPUs.
    """
    device = Device()
    if gpu is not None:
        device = Gpu(gpu % len(gpus_to_train_on()))
    _try_hooks(hooks, device)
    if spec is None:
        return {}
    workload = load_workload(spec, seed=0, rank=0, world_size=1, batch_size=batch)
    return dataclasses.asdict(inspect_workload(workload, device))


def _try_hooks(hooks: Sequence[str], device: Device) -> None:
    """Make each hook, so that an unknown option raises an error before any measurement.

    Import a user's own hooks.

    A hook's code is compiled here, outside of any case timeout: on a busy machine it takes longer
    than a timeout.
    """
    for path in find_file_hooks(hooks):
        load_file_hook(path)
    for text in hooks:
        if is_file_hook(text):
            continue
        fields = parse_hook(text)
        options = split_options(fields["hook_options"])
        hook = make_hook(fields["hook"], density=fields["density"], options=options)
        if hook is not None:
            hook.prepare(device.torch_device)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # what a user's file leaves behind must neither print nor be waited for
