"""Training of a configuration on one rank, from the launch's initial weights, in one block of steps
or several.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import os
import random
import shutil
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.buckets import bucket_bytes, bucket_parameters
from commbench.ddp.checks import endless
from commbench.ddp.devices import Device
from commbench.ddp.models import default_optimizer, trainable
from commbench.ddp.plan.arguments import ddp_arguments, known_name
from commbench.ddp.plan.cases import COMPILE_MODES, TrainingCase
from commbench.ddp.plan.workload import Workload
from commbench.ddp.step_times import StepLog, StepMarks
from commbench.engine.energy import EnergyMeter, Readings
from commbench.engine.gpu_clocks import Reading, clocks_between
from commbench.engine.records import Clocks
from commbench.engine.timing.loops import Progress
from commbench.errors import InputError
from commbench.findings import UnsupportedError
from commbench.hooks import Hook, PassThrough, make_hook
from commbench.hooks.base import Stopwatch
from commbench.hooks.feedback import is_finite
from commbench.hooks.message import ring_bytes
from commbench.hooks.registry import hook_source
from commbench.stats import Floats
from commbench.system.process import without_collector

#: Steps after the timed ones in which the pass-through hook times the buckets of a configuration
#: without hook.
WATCHED_STEPS = 3
#: Evaluations of a workload's metric in a block.
EVALUATIONS = 15
#: Bytes by which DDP tells other ranks whether a parameter was used.
_USE_BYTES = 4

#: DDP's first bucket, in MiB: `ddp_optimizer` needs the others to be as large.
_LEAST_OPTIMIZED_MB = 1.0
#: Compiled graphs of one function: trainings in one process share the functions.
_MOST_COMPILED = 64

#: Digest where trainable parameters are not finite.
NOT_FINITE = -1

_AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


@dataclass(kw_only=True)
class BlockSamples:
    """The measurements of one rank in a block.

    Times are in seconds; arrays cover all steps, early ones included.
    """

    times: Floats
    """Shape (steps, 4): forward, backward, optimiser, whole step."""
    metrics: list[tuple[int, float]]
    """Of each of the first `BlockContext.steps` steps made so far."""
    watched: list[Floats]
    """The buckets of each timed step since its last backward pass began, see
    `commbench.ddp.step_times.bucket_stamps`; without DDP there are none."""
    early_steps: int
    """Steps at the beginning that are not timed."""
    skipped: int
    metered_s: float
    """Duration of the timed steps, including the work between them."""
    seconds: float
    """Wall time of all steps."""
    expected_bytes: float | None = None
    """By theory, per step, broadcast buffers included."""
    sent_bytes: float | None = None
    """Per step after the early ones."""
    losses: list[float] = field(default_factory=list)
    """Of the same steps as ``metrics``; empty if the workload's loss has no meaning."""
    bucket_bytes: list[int] = field(default_factory=list)
    bucket_tensors: list[int] = field(default_factory=list)
    """Number of parameters in each bucket."""
    digest: int = 0
    """Checksum of the parameters at the end, or `NOT_FINITE`; 0 before the last block of a
    training."""
    grad_rel_error: float | None = None
    peak_memory_bytes: int | None = None
    energy_J: float | None = None
    """Energy of this machine in the timed steps; 0 if another rank reads the counter, None if no
    rank does."""
    clocks: Clocks | None = None
    """Clocks of this rank's GPU before and after the timed steps; None without a GPU, or if NVML
    cannot read it."""


@dataclass(frozen=True, kw_only=True)
class BlockContext:
    """The conditions of a training: ranks, device, the workload with its initial weights, and the
    number of steps.
    """

    progress: Progress
    group: dist.ProcessGroup
    """The ranks that train."""
    control_group: dist.ProcessGroup
    """The same ranks over Gloo, for everything but the training; may be the same group."""
    workload: Workload
    """Its model holds the initial weights on the device; blocks train copies."""
    seed: int
    steps: int = 0
    """Steps of a whole training; more may be made, without losses and metrics."""
    deep: bool = False
    """Whether to make extra passes for the gradient's error, and for bucket times without a
    hook."""
    device: Device = field(default_factory=Device)
    meter: EnergyMeter | None = None
    """This rank's energy counters; None if energy is not measured."""
    file_hooks: tuple[str, ...] = ()
    """See `commbench.hooks.registry.find_file_hooks`."""
    is_alone: bool = True
    """Whether no other training is kept in memory meanwhile."""

    def barrier(self) -> None:
        """Wait, without using a core, until all training ranks and their devices have arrived."""
        self.device.wait()
        dist.barrier(self.control_group)


def _reset_process(context: BlockContext) -> None:
    """Reset random generators, garbage and the memory peak, so that all blocks of a launch start
    alike.
    """
    gc.collect()
    context.device.reset_peak_memory()
    seed = context.seed * 1009 + context.group.rank()
    torch.manual_seed(seed)
    random.seed(seed)  # a person's own data may draw from any generator
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator is what other code uses


class Training:
    """A model under one configuration, with its optimiser, scaler and hook.

    All ranks of the group make it together.

    Raises:
        UnsupportedError: this torch lacks something that the case needs.
    """

    def __init__(self, case: TrainingCase, context: BlockContext) -> None:
        _reset_process(context)
        self.case = case
        self.context = context
        self.inner = copy.deepcopy(context.workload.model)
        self.inner.train()
        make = context.workload.optimizer or default_optimizer
        self.optimizer = make(self.inner.parameters())
        self.scaler = torch.amp.GradScaler(
            context.device.torch_device.type, enabled=case.precision == "amp-fp16"
        )
        self.autocast = _AUTOCAST.get(case.precision)
        if case.compile:
            _check_compile(case, context.device)
        self._choose_compile_mode()
        self.model: Any = self.inner
        if case.uses_ddp:
            self.model = _wrap(self.inner, case, context)
        self.called: Any = self.model
        """Computes the forward pass: the model, compiled if the case says so."""
        if case.compile:
            self.called = torch.compile(self.model)
        self.buckets: list[Stopwatch] = []
        self.hook: Hook | None = None
        if case.uses_ddp:
            source = hook_source(case.hook, context.file_hooks)
            self.hook = make_hook(source, density=case.density, options=case.options)
        if self.hook is not None:
            self._register(self.hook)
        self.batches = endless(context.workload.batches)
        self.log = StepLog(is_serial=context.device.is_serial)
        self.one = torch.ones((), device=context.device.torch_device)
        self.skipped = torch.zeros((), device=context.device.torch_device)
        self.made = 0
        """Steps so far, but for the extra passes."""
        self.losses: list[torch.Tensor] = []
        self.metrics: list[tuple[int, float]] = []
        self._random_state = context.device.random_state()

    def _register(self, hook: Hook) -> None:
        scaler = None
        if self.scaler.is_enabled():
            scaler = self.scaler
        hook.register(self.model, scaler=scaler, optimizer=self.optimizer)
        hook.observer, hook.clock = self.buckets.append, self.context.device.clock

    def _choose_compile_mode(self) -> None:
        """Set how torch.compile splits graphs, which DDP reads, too.

        Compiled code of other trainings stays.
        """
        if self.case.uses_ddp:
            # Torch documents this name.
            config = torch._dynamo.config  # noqa: SLF001
            config.optimize_ddp = self.case.compile or COMPILE_MODES[0]
            torch._dynamo.config.recompile_limit = _MOST_COMPILED  # noqa: SLF001 - as above

    def _pass_backward(self, loss: torch.Tensor) -> None:
        """Make a backward pass; the Python reducer needs compiled autograd."""
        with contextlib.ExitStack() as stack:
            if self.case.compile == "python_reducer":
                # Compiled autograd has no public name.
                enabled = torch._dynamo.compiled_autograd._enable(torch.compile)  # noqa: SLF001
                stack.enter_context(enabled)
            self.scaler.scale(loss).backward()

    def digest(self) -> int:
        """Return a checksum of all parameters: ranks that differ have equal checksums with
        probability 2^-32. `NOT_FINITE` if a trainable one is not finite.
        """
        value = 0
        for parameter in self.inner.parameters():
            if parameter.requires_grad and not is_finite(parameter.detach()):
                return NOT_FINITE
            data = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            value = zlib.crc32(data, value)
        return value

    def close(self) -> None:
        """Break the cycle of model, hook and this object: DDP's C++ part holds the hook, so it is
        never collected.
        """
        if self.hook is not None:
            self.hook.observer = None
            self.hook.close()

    def run_block(self, steps: int, *, is_last: bool = True) -> BlockSamples:
        """Make and time the next steps; after the last block the extra passes.

        Other trainings may run in between.

        Raises:
            InputError: the hook returned something that DDP cannot use, on all ranks.
        """
        self.context.device.set_random_state(self._random_state)
        self._choose_compile_mode()
        try:
            with without_collector():
                return self._run_block(steps, is_last=is_last)
        except Exception as error:
            failure = getattr(self.hook, "failure", None)
            if isinstance(failure, InputError) and failure is not error:
                raise failure from error  # DDP only says that a callback failed
            raise
        finally:
            self._random_state = self.context.device.random_state()

    def _run_block(self, steps: int, *, is_last: bool) -> BlockSamples:
        context, case, device = self.context, self.case, self.context.device
        early_steps = device.early_steps(context.steps)
        if self.made:
            early_steps = device.settling_steps
        meter = context.meter or EnergyMeter()
        energy_before: Readings = {}
        clock_before: Reading | None = None
        sent_before: int | None = None
        skipped_before = int(self.skipped)
        self.log = StepLog(is_serial=device.is_serial)
        started = metered_from = time.monotonic()
        context.barrier()
        for step in range(steps):
            if step == early_steps:
                device.wait()
                clock_before = device.read_clock()
                sent_before = self._sent()  # ends with a barrier
                energy_before = meter.read()
                metered_from = time.monotonic()
            self._note(self._step())
        device.wait()
        seconds = time.monotonic() - started
        energy = meter.joules_since(energy_before)
        metered_s = time.monotonic() - metered_from
        clock_after = device.read_clock()
        self.log.finish()
        sent_after = self._sent()
        samples = BlockSamples(
            times=np.array(self.log.seconds),
            metrics=list(self.metrics),
            watched=self.log.buckets[early_steps:],
            skipped=int(self.skipped) - skipped_before,
            early_steps=early_steps,
            metered_s=metered_s,
            seconds=seconds,
        )
        if context.meter:
            samples.energy_J = energy
        if clock_before and clock_after:
            samples.clocks = clocks_between(clock_before, clock_after)
        if context.is_alone:
            samples.peak_memory_bytes = device.peak_memory_bytes()
        if sent_before is not None and sent_after is not None and steps > early_steps:
            samples.sent_bytes = (sent_after - sent_before) / (steps - early_steps)
        if case.uses_ddp:
            self._describe_exchange(samples, is_last=is_last)
        return samples

    def _describe_exchange(self, samples: BlockSamples, *, is_last: bool) -> None:
        """Add what the gradients and their buckets say of a block.

        The extra passes are no part of the training, whose other samples were read before.
        """
        context = self.context
        if context.workload.steps:
            samples.losses = [float(loss) for loss in self.losses]
        if is_last:
            samples.digest = self.digest()
        if context.deep:
            samples.grad_rel_error = self._gradient_error()
            if self.hook is None and self.case.compile != "python_reducer":
                samples.watched = self._watch()[samples.early_steps :]
        if self.case.compile == "python_reducer":
            return  # it makes no buckets
        contents = bucket_parameters(self.model, self.case)
        if contents:
            samples.bucket_bytes = bucket_bytes(self.model)
            samples.bucket_tensors = [len(indices) for indices in contents]
            samples.expected_bytes = self._expected_bytes(contents)

    def _note(self, loss: torch.Tensor) -> None:
        """Count a step; keep its loss and the metric after it as long as the whole training
        lasts.
        """
        self.made += 1
        whole = self.context.steps
        if self.made > whole:
            return
        self.losses.append(loss)
        every, evaluate = max(1, whole // EVALUATIONS), self.context.workload.evaluate
        is_due = self.made % every == 0 or self.made == whole
        if is_due and evaluate is not None and self.case.uses_ddp:
            # every rank computes it, so that none waits for another in the next step
            self.metrics.append((self.made, float(evaluate(self.inner))))
            self.inner.train()
            self.context.barrier()

    # One step

    def _step(self) -> torch.Tensor:
        """Make one optimiser step and log its marks; return its loss.

        Nothing here waits for a GPU.
        """
        progress, device = self.context.progress, self.context.device
        clock = device.clock
        progress.counters[0] += 1
        accumulation = self.case.accumulation
        passes = []
        total = torch.zeros(())
        begun = clock()
        for micro in range(accumulation):
            with contextlib.ExitStack() as stack:
                if micro < accumulation - 1 and self.case.uses_ddp:
                    # only the last pass exchanges, forward included
                    stack.enter_context(self.model.no_sync())
                batch = device.moved(next(self.batches))
                start = clock()
                loss = self._loss(batch)
                between = clock()
                progress.counters[0] += 1  # a rank that never reaches the exchange is behind
                self._pass_backward(loss / accumulation)
                passes.append((start, between, clock()))
            total = total + loss.detach() / accumulation
        updating = clock()
        self._optimise()
        ended = clock()
        buckets = self.buckets.copy()
        self.buckets.clear()
        self.log.add(
            StepMarks(begun=begun, passes=passes, updating=updating, ended=ended, buckets=buckets)
        )
        progress.counters[1] += 1
        return total

    def _loss(self, batch: Any) -> torch.Tensor:
        kind = self.context.device.torch_device.type
        with torch.autocast(kind, dtype=self.autocast, enabled=self.autocast is not None):
            return self.context.workload.loss(self.called, batch)

    def _optimise(self) -> None:
        scale = self.scaler.scale(self.one)  # reading the number would wait for a GPU
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler.is_enabled():
            self.skipped += self.scaler.scale(self.one) < scale

    # Measurements besides time

    def _sent(self) -> int | None:
        """Return the bytes that this process has sent, read while no rank sends."""
        if not self.case.uses_ddp:
            return None
        self.context.barrier()
        sent_bytes = self.context.device.sent_bytes()
        self.context.barrier()
        return sent_bytes

    def _expected_bytes(self, contents: Sequence[Sequence[int]]) -> float | None:
        """Return the bytes that a rank sends in a step by theory: the hook's, and its share of
        broadcasting buffers.

        A search for unused parameters adds an all-reduce of an integer for each parameter. None for
        a user's own hook.

        Args:
            contents: the indices of each bucket's parameters.
        """
        if self.case.is_file_hook:
            return None
        trained = list(trainable(self.inner).values())
        ranks, hook = self.context.group.size(), self.hook or PassThrough()
        step_bytes = 0.0
        for indices in contents:
            shapes = [tuple(trained[i].shape) for i in indices]
            step_bytes += hook.wire_bytes(shapes, ranks)
        if self.case.keeps_first_buckets:
            step_bytes += ring_bytes(_USE_BYTES * len(trained), ranks)
        if self.case.broadcast_buffers:
            buffers = sum(buffer.numel() * buffer.element_size() for buffer in self.inner.buffers())
            step_bytes += buffers * (ranks - 1) / ranks
        return float(step_bytes)

    def _watch(self) -> list[Floats]:
        """Return the bucket times of more steps with the pass-through hook, which DDP accepts at
        any time.
        """
        self.hook = PassThrough()
        self._register(self.hook)
        self.log = StepLog(is_serial=self.context.device.is_serial)
        early_steps = self.context.device.early_steps(self.context.steps)
        for _ in range(early_steps + WATCHED_STEPS):
            self._step()
        self.log.finish()
        return self.log.buckets

    def _gradient_error(self) -> float | None:
        """Return the relative error of the exchanged gradient against the mean over ranks.

        None if not finite.
        """
        device = self.context.device
        batch, state = device.moved(next(self.batches)), device.random_state()
        with self.model.no_sync():
            self._pass_backward(self._loss(batch))
        mean = self._flat_gradient()
        dist.all_reduce(mean, group=self.context.group)
        mean /= self.context.group.size()
        # DDP counts a parameter of the pass above as used, and needs a gradient of it below
        self.optimizer.zero_grad(set_to_none=False)
        device.set_random_state(state)
        self._pass_backward(self._loss(batch))
        error = float((self._flat_gradient() - mean).norm() / mean.norm())
        self.optimizer.zero_grad(set_to_none=True)
        self.buckets.clear()
        if not np.isfinite(error):
            return None
        return error

    def _flat_gradient(self) -> torch.Tensor:
        """Return all gradients as one vector of the same length on every rank: zeros for unused
        parameters.
        """
        flat = []
        for parameter in trainable(self.inner).values():
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            flat.append(gradient.detach().reshape(-1).float())
        return torch.cat(flat)


def _wrap(
    model: torch.nn.Module, case: TrainingCase, context: BlockContext
) -> DistributedDataParallel:
    """Wrap the model in DDP as the case says.

    Initial weights are equal already, so they are not broadcast again.
    """
    if case.static_graph and case.accumulation > 1:  # an internal assertion of DDP's reducer fails
        raise UnsupportedError("static_graph_accumulates", version=torch.__version__)
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    arguments = {}
    if "init_sync" in known:
        arguments["init_sync"] = False
    for argument, value in ddp_arguments(case).items():
        name = known_name(argument, known)
        if name not in known:
            raise UnsupportedError("ddp_argument_missing", argument=name, version=torch.__version__)
        arguments[name] = value
    return DistributedDataParallel(
        model, device_ids=context.device.numbers, process_group=context.group, **arguments
    )


def _check_compile(case: TrainingCase, device: Device) -> None:
    """Check that torch.compile can be applied, before DDP is made.

    Raises:
        UnsupportedError: it cannot.
    """
    if device.torch_device.type == "cpu" and not (os.environ.get("CXX") or shutil.which("g++")):
        raise UnsupportedError("compiler_missing")
    if case.compile == "python_reducer" and case.uses_ddp and not case.is_plain:
        raise UnsupportedError("python_reducer_hook", hook=case.hook_name)
    if case.compile == "ddp_optimizer" and any(cap < _LEAST_OPTIMIZED_MB for cap in case.caps_mb):
        raise UnsupportedError("ddp_optimizer_small_bucket")
