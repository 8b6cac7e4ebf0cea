"""Inspection of a workload: its parameters, and the times of a few steps without DDP."""

from __future__ import annotations

import time

import torch

from commbench.ddp.checks import (
    check_evaluation,
    check_workload,
    checked_step,
    endless,
    make_optimizer,
    naming_errors,
)
from commbench.ddp.devices import Device
from commbench.ddp.local_step import LocalStep, local_step, median_step, parameter_facts, trainable
from commbench.ddp.plan.workload import Workload, WorkloadFacts

#: Timed steps end after this number, or after this time in seconds.
MAXIMUM_STEPS = 5
ENOUGH_S = 1.0


def inspect_workload(workload: Workload, device: Device | None = None) -> WorkloadFacts:
    """Check a workload and measure a few local steps; the model keeps its weights.

    Args:
        workload: the model is moved to the device.
        device: where the steps run; None: on this host's CPUs.

    Raises:
        InputError: the workload cannot be trained under DDP; the message states why and what to do.
    """
    device = device or Device()
    check_workload(workload)
    device.moved(workload.model)
    weights = {name: value.detach().clone() for name, value in workload.model.state_dict().items()}
    try:
        with torch.random.fork_rng(devices=[]):
            step = median_step(_local_steps(workload, device))
            check_evaluation(workload)
    finally:
        workload.model.load_state_dict(weights)
        workload.model.zero_grad(set_to_none=True)
    return _facts(workload, step)


def _local_steps(workload: Workload, device: Device) -> list[LocalStep]:
    """Return timed steps; a first step, which allocates memory, is checked and not timed."""
    batches = map(device.moved, endless(workload.batches))
    optimizer = make_optimizer(workload, list(trainable(workload.model).values()))
    checked_step(workload.model, workload.loss, next(batches), optimizer)
    steps: list[LocalStep] = []
    started = time.perf_counter()
    while len(steps) < MAXIMUM_STEPS and (not steps or time.perf_counter() - started < ENOUGH_S):
        with naming_errors("A training step"):
            steps.append(local_step(workload.model, workload.loss, next(batches), optimizer))
    return steps


def _facts(workload: Workload, step: LocalStep) -> WorkloadFacts:
    parameters = parameter_facts(workload.model, step.ready_ms)
    names = [parameter.name for parameter in parameters]
    unused = tuple(name for name in names if name not in step.ready_ms)
    return WorkloadFacts(
        parameters=parameters,
        ready_order=tuple(map(names.index, (*unused, *step.ready_ms))),
        buffer_bytes=sum(
            buffer.numel() * buffer.element_size() for buffer in workload.model.buffers()
        ),
        batch_size=workload.batch_size,
        forward_ms=step.forward_ms,
        backward_ms=step.backward_ms,
        optimizer_ms=step.optimizer_ms,
        metric=workload.metric,
        target=workload.target,
        steps=workload.steps,
        unused=unused,
    )
