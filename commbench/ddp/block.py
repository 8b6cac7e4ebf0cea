"""One block on one rank: a configuration trained for some steps from the launch's initial weights, and watched."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import itertools
import random
import time
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.devices import Device
from commbench.ddp.local_step import default_optimizer
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.workload import Workload
from commbench.ddp.step_times import StepLog, StepMarks
from commbench.engine.energy import EnergyMeter, Readings
from commbench.engine.gpu_clocks import Reading
from commbench.engine.timing.loops import Progress
from commbench.errors import InputError, UnsupportedError
from commbench.hooks import BucketMarks, BucketTimes, Hook, PassThrough, make_hook
from commbench.hooks.message import FLOAT32_BYTES, ring_bytes
from commbench.hooks.step_clock import Mark
from commbench.system.process import without_collector

#: At least so many steps are not timed: DDP makes one bucket in the first, rebuilds the buckets before the second, and
#: PowerSGD compresses from the third on.
EARLY_STEPS = 3
#: Steps after the timed ones in which a configuration without hook is watched through the pass-through hook.
WATCHED_STEPS = 3
#: How often a workload's metric is taken in a block.
EVALUATIONS = 15
MIB = 2**20

_AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


@dataclass(kw_only=True)
class BlockSamples:
    """What one rank saw in a block. Times are seconds, arrays run over all steps, early ones included."""

    times: NDArray[np.float64]
    """Shape (steps, 4): forward, backward, optimiser, whole step."""
    losses: list[float]
    """Of every step; empty where the workload has no loss that means anything."""
    metrics: list[tuple[int, float]]
    watched: list[list[BucketTimes]]
    """Per step the buckets, instants since its last backward pass began; empty without DDP."""
    sent_bytes: float | None
    """Per step after the early ones."""
    expected_bytes: float | None
    """What the hook says that it sends per step, broadcast buffers included."""
    bucket_bytes: list[int]
    bucket_tensors: list[int]
    """Number of parameters in each bucket."""
    digest: int
    """Of the parameters after the last step."""
    skipped: int
    grad_rel_error: float | None
    peak_memory_bytes: int | None
    parameters: int
    early_steps: int = EARLY_STEPS
    """How many at the beginning are not timed."""
    energy_J: float | None = None  # noqa: N815 - a unit
    """What this machine used in the steps after the early ones; 0 where another rank reads, None where none does."""
    metered_s: float = 0.0
    """How long those lasted, whatever is done between them included."""
    clocks: tuple[Reading, Reading] | None = None
    """This rank's GPU before and after those; None without one, or where NVML knows nothing of it."""
    seconds: float = 0.0
    """Wall time of all steps."""


@dataclass(kw_only=True)
class Rig:
    """Where a block runs: the ranks, the workload with its initial weights, and how many steps are made."""

    progress: Progress
    group: dist.ProcessGroup
    """The ranks that train."""
    meeting: dist.ProcessGroup
    """The same ranks over Gloo, for what is no part of the training; may be the same group."""
    workload: Workload
    """Its model holds the initial weights, where the device computes, and is never trained itself."""
    seed: int
    steps: int
    deep: bool
    """Whether to spend extra passes on the gradient's error and on watching a configuration without hook."""
    device: Device = field(default_factory=Device)
    meter: EnergyMeter | None = None
    """What this rank reads of the energy; None where none is counted."""

    @property
    def early_steps(self) -> int:
        """Steps that are not timed: also those in which DDP waits for the device, in short blocks half of the steps."""
        return max(EARLY_STEPS, min(self.device.settling_steps, self.steps // 2))

    def barrier(self) -> None:
        """Wait, without taking a core from anybody, until all ranks that train have come, and their devices."""
        self.device.wait()
        dist.barrier(self.meeting)


def run_block(case: TrainingCase, rig: Rig) -> BlockSamples:
    """Train ``case`` for ``rig.steps`` steps, all ranks of the group together.

    Raises:
        UnsupportedError: this torch cannot do what the case asks for.
        InputError: the hook returned something that DDP cannot use, on every rank alike.
    """
    _start_afresh(rig)
    training = _Training(case, rig)
    try:
        with without_collector():
            return training.run()
    except Exception as error:
        failure = training.hook.failure if training.hook else None
        if isinstance(failure, InputError) and failure is not error:
            raise failure from error  # DDP only says that a callback failed
        raise
    finally:
        training.close()


def _start_afresh(rig: Rig) -> None:
    """Blocks of one launch see the same random numbers, and none the memory of the one before."""
    gc.collect()
    rig.device.reset_peak_memory()
    seed = rig.seed * 1009 + rig.group.rank()
    torch.manual_seed(seed)
    random.seed(seed)  # a person's own data may draw from any of them
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the one that others' code draws from


class _Training:
    """A model under one configuration, with its optimiser, scaler and hook."""

    def __init__(self, case: TrainingCase, rig: Rig) -> None:
        self.case = case
        self.rig = rig
        self.inner = copy.deepcopy(rig.workload.model)
        self.inner.train()
        make = rig.workload.optimizer or default_optimizer
        self.optimizer = make(self.inner.parameters())
        self.scaler = torch.amp.GradScaler(rig.device.torch_device.type, enabled=case.precision == "amp-fp16")
        self.autocast = _AUTOCAST.get(case.precision)
        self.model: Any = _wrap(self.inner, case, rig) if case.uses_ddp else self.inner
        self.buckets: list[BucketMarks] = []
        self.hook = self._hook()
        self.batches = _cycle(rig.workload.batches)
        self.log = StepLog(in_turn=rig.device.carries_in_turn)
        self.one = torch.ones((), device=rig.device.torch_device)
        self.skipped = torch.zeros((), device=rig.device.torch_device)

    def _hook(self) -> Hook | None:
        if not self.case.uses_ddp:
            return None
        hook = make_hook(self.case.hook, density=self.case.density, options=self.case.options)
        return self._register(hook) if hook else None

    def _register(self, hook: Hook) -> Hook:
        hook.register(self.model, scaler=self.scaler if self.scaler.is_enabled() else None)
        hook.observer, hook.clock = self.buckets.append, self.rig.device.clock
        return hook

    def close(self) -> None:
        """Let go of the model: DDP's C++ part holds the hook, and a cycle through it would never be collected."""
        if self.hook is not None:
            self.hook.observer = None
            self.hook.close()

    def run(self) -> BlockSamples:
        """All steps of the block, timed and looked at; then what costs extra passes."""
        rig, case = self.rig, self.case
        losses: list[torch.Tensor] = []
        metrics: list[tuple[int, float]] = []
        every = max(1, rig.steps // EVALUATIONS)
        begun, sent_before = time.monotonic(), None
        meter, metered_from = rig.meter or EnergyMeter(), begun
        energy_before: Readings = {}
        clock_before: Reading | None = None
        rig.barrier()
        for step in range(rig.steps):
            if step == rig.early_steps:
                rig.device.wait()
                clock_before, sent_before = rig.device.read_clock(), self._sent()  # which ends with a barrier
                energy_before, metered_from = meter.read(), time.monotonic()
            losses.append(self._step())
            if (step + 1) % every == 0 or step + 1 == rig.steps:
                metrics += self._evaluate(step + 1)
        rig.device.wait()
        seconds = time.monotonic() - begun
        energy, metered_s = meter.joules_since(energy_before), time.monotonic() - metered_from
        clock_after = rig.device.read_clock()
        self.log.finish()
        sent = _difference(sent_before, self._sent(), rig.steps - rig.early_steps)
        digest = _digest(self.inner) if case.uses_ddp else 0
        # Before further passes, which are no part of the training.
        times, watched = np.array(self.log.seconds), self.log.buckets
        skipped, peak = int(self.skipped), rig.device.peak_memory_bytes()
        error = self._gradient_error() if rig.deep and case.uses_ddp else None
        if rig.deep and case.uses_ddp and self.hook is None:
            watched = self._watch()
        return BlockSamples(
            times=times,
            losses=[float(loss) for loss in losses] if case.uses_ddp and rig.workload.steps else [],
            metrics=metrics,
            watched=watched,
            sent_bytes=sent,
            expected_bytes=self._expected_bytes(),
            bucket_bytes=_integers(self._logged("bucket_sizes")),
            bucket_tensors=[len(indices) for indices in self._bucket_parameters()],
            digest=digest,
            skipped=skipped,
            grad_rel_error=error,
            peak_memory_bytes=peak,
            parameters=sum(p.numel() for p in self.inner.parameters() if p.requires_grad),
            early_steps=rig.early_steps,
            energy_J=energy if rig.meter else None,
            metered_s=metered_s,
            clocks=(clock_before, clock_after) if clock_before and clock_after else None,
            seconds=seconds,
        )

    # One step

    def _step(self) -> torch.Tensor:
        """One optimiser step, which goes to the log; its loss. Nothing in it waits for a GPU."""
        progress, device = self.rig.progress, self.rig.device
        clock = device.clock
        progress.counters[0] += 1
        accumulation = self.case.accumulation
        passes: list[tuple[Mark, Mark, Mark]] = []
        total = torch.zeros(())
        begun = clock()
        for micro in range(accumulation):
            with self._exchanging(last=micro == accumulation - 1):
                batch = device.moved(next(self.batches))
                start = clock()
                loss = self._loss(batch)
                between = clock()
                progress.counters[0] += 1  # a rank that never comes to the exchange is then seen to be behind
                self.scaler.scale(loss / accumulation).backward()
                passes.append((start, between, clock()))
            total = total + loss.detach() / accumulation
        updating = clock()
        self._optimise()
        ended = clock()
        buckets = self.buckets.copy()
        self.buckets.clear()
        self.log.add(StepMarks(begun=begun, passes=passes, updating=updating, ended=ended, buckets=buckets))
        progress.counters[1] += 1
        return total

    def _exchanging(self, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients are exchanged in the last backward pass of a step; the forward pass must be inside, too."""
        return contextlib.nullcontext() if last or not self.case.uses_ddp else self.model.no_sync()

    def _loss(self, batch: Any) -> torch.Tensor:  # noqa: ANN401 - the workload's own type
        kind = self.rig.device.torch_device.type
        with torch.autocast(kind, dtype=self.autocast, enabled=self.autocast is not None):
            return self.rig.workload.loss(self.model, batch)

    def _optimise(self) -> None:
        scale = self.scaler.scale(self.one)  # asking for the number would wait for a GPU
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler.is_enabled():
            self.skipped += self.scaler.scale(self.one) < scale

    # What is looked at

    def _evaluate(self, steps: int) -> list[tuple[int, float]]:
        """The workload's metric on every rank, so that none waits for another in the next step."""
        evaluate = self.rig.workload.evaluate
        if evaluate is None or not self.case.uses_ddp:
            return []
        value = float(evaluate(self.inner))
        self.inner.train()
        self.rig.barrier()
        return [(steps, value)]

    def _sent(self) -> int | None:
        """Bytes sent by this process while no rank sends."""
        if not self.case.uses_ddp:
            return None
        self.rig.barrier()
        sent = self.rig.device.sent_bytes()
        self.rig.barrier()
        return sent

    def _expected_bytes(self) -> float | None:
        """What a rank sends in a step by theory: the hook's bytes, and its share of broadcasting the buffers.

        None without DDP, and before it has rebuilt its buckets.
        """
        contents = self._bucket_parameters()
        if not contents:
            return None
        ranks = self.rig.group.size()
        hook = self.hook if self.case.hook != "none" else None
        trained = [p for p in self.inner.parameters() if p.requires_grad]
        sent = 0.0
        for indices in contents:
            shapes = [tuple(trained[i].shape) for i in indices]
            elements = sum(trained[i].numel() for i in indices)
            dense = ring_bytes(FLOAT32_BYTES * elements, ranks)
            sent += hook.wire_bytes(elements, ranks, shapes=shapes) if hook else dense
        buffers = sum(b.numel() * b.element_size() for b in self.inner.buffers())
        return float(sent + buffers * (ranks - 1) / ranks)

    def _bucket_parameters(self) -> list[list[int]]:
        """The parameters in each bucket, by their number among those that are trained."""
        logged = self._logged("per_bucket_param_indices")
        return [_integers(bucket.replace(" ", ",")) for bucket in logged.split(", ")] if logged else []

    def _logged(self, name: str) -> str:
        """What DDP states about its rebuilt buckets, in the order of sending; nothing without DDP."""
        if not self.case.uses_ddp:
            return ""
        return str(self.model._get_ddp_logging_data().get(f"rebuilt_{name}", ""))  # noqa: SLF001 - the only way

    def _watch(self) -> list[list[BucketTimes]]:
        """A few further steps with the pass-through hook, which DDP accepts also after a backward pass."""
        self.hook = self._register(PassThrough())
        self.log = StepLog(in_turn=self.rig.device.carries_in_turn)
        for _ in range(self.rig.early_steps + WATCHED_STEPS):  # the early ones are left out later, as in a block
            self._step()
        self.log.finish()
        return self.log.buckets

    def _gradient_error(self) -> float | None:
        """How far the exchanged gradient is from the mean over ranks, on one batch; None where either is not finite."""
        device = self.rig.device
        batch, state = device.moved(next(self.batches)), device.random_state()
        with self.model.no_sync():
            self.scaler.scale(self._loss(batch)).backward()
        mean = self._flat_gradient()
        dist.all_reduce(mean, group=self.rig.group)
        mean /= self.rig.group.size()
        self.optimizer.zero_grad(set_to_none=True)
        device.set_random_state(state)
        self.scaler.scale(self._loss(batch)).backward()
        error = float((self._flat_gradient() - mean).norm() / mean.norm())
        self.optimizer.zero_grad(set_to_none=True)
        self.buckets.clear()
        return error if np.isfinite(error) else None

    def _flat_gradient(self) -> torch.Tensor:
        gradients = [p.grad for p in self.inner.parameters() if p.grad is not None]
        return torch.cat([gradient.detach().reshape(-1).float() for gradient in gradients])


def takes_lists() -> bool:
    """Whether DDP of this torch takes a list of bucket sizes."""
    return "bucket_cap_mb_list" in _ddp_options()


def _ddp_options() -> Collection[str]:
    return inspect.signature(DistributedDataParallel.__init__).parameters


def _wrap(model: torch.nn.Module, case: TrainingCase, rig: Rig) -> DistributedDataParallel:
    """DDP as the case asks for it. Initial weights are equal already, so they are not broadcast again."""
    if case.static_graph and case.accumulation > 1:  # an internal assertion of DDP's reducer fails
        raise UnsupportedError(
            f"DDP of torch {torch.__version__} fails in its first step where a static graph accumulates; "
            "leave out one of the two"
        )
    options: dict[str, Any] = {"init_sync": False} if "init_sync" in _ddp_options() else {}
    caps = case.caps_mb
    if len(caps) == 1:
        options["bucket_cap_mb"] = caps[0]
    elif caps:
        if not takes_lists():
            raise UnsupportedError(
                f"torch {torch.__version__} has no bucket_cap_mb_list; give one bucket size, or a newer torch"
            )
        options["bucket_cap_mb_list"] = list(caps)
    return DistributedDataParallel(
        model,
        device_ids=rig.device.numbers,
        process_group=rig.group,
        gradient_as_bucket_view=case.bucket_view,
        static_graph=case.static_graph,
        **options,
    )


def _cycle(batches: Any) -> Iterator[Any]:  # noqa: ANN401 - any iterable that starts over
    return itertools.chain.from_iterable(itertools.repeat(batches))


def _digest(model: torch.nn.Module) -> int:
    """A checksum of all parameters: equal on two ranks only if they agree bit by bit (but for one case in 2^32)."""
    value = 0
    for parameter in model.parameters():
        data = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        value = zlib.crc32(data, value)
    return value


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]


def _difference(before: int | None, after: int | None, steps: int) -> float | None:
    return None if before is None or after is None or steps < 1 else (after - before) / steps


def timed_events(samples: BlockSamples) -> list[list[BucketTimes]]:
    """The buckets of every step after the early ones, in the order of sending."""
    return [sorted(events, key=lambda event: event.index) for events in samples.watched[samples.early_steps :]]
