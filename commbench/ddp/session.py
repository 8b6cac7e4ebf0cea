"""Training of one launch's configurations in interleaved blocks: a rank's part of ``commbench
train``.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from commbench.backends.torch_control import TIMEOUT, join_world, unpinned
from commbench.ddp.block import EARLY_STEPS, BlockContext, BlockSamples, Training, early_steps_of
from commbench.ddp.devices import Device
from commbench.ddp.merging import merge
from commbench.ddp.plan.cases import (
    CONFIRM,
    FEWEST_TIMED,
    Terms,
    TrainingCase,
    schedule,
    short_blocks,
)
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import Workload
from commbench.ddp.workloads import load_workload
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.energy import RunMeter
from commbench.engine.records import Status, without_result
from commbench.engine.timing.loops import Progress
from commbench.errors import InputError
from commbench.findings import Finding, UnsupportedError
from commbench.hooks import selectors
from commbench.hooks.catalogue import TopK
from commbench.hooks.options import HookSpec
from commbench.hooks.own import check_file_hook
from commbench.hooks.registry import make_hook, read_hook
from commbench.system.clock import clock_domain
from commbench.system.host import usable_cpus
from commbench.system.user_files import callable_name

#: Timed steps of the trial that sets the number of steps of all blocks, and the bounds of that
#: number.
TRIAL_STEPS = 2
FEWEST_STEPS, MOST_STEPS = 3, 2000
#: Memory of a training in copies of its parameters: weights, gradients, buckets, two of the
#: optimiser, one of a hook.
TRAINING_COPIES = 6
#: The share of the free memory that trainings may take which are kept between their blocks.
FREE_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class TrainingRank:
    """The resources of a training rank."""

    control: Control
    device: Device
    progress: Progress
    """Counts steps."""
    meter: RunMeter = field(default_factory=RunMeter)
    """This rank's energy counters; by default energy is not measured."""


@dataclass(frozen=True, kw_only=True)
class Duty:
    """The callbacks of a launch that trains."""

    begin: Callable[[int], None]
    """Called with the index of the case whose block begins."""
    finish: Callable[[TrainingRecord], None]
    """Called with a case's record after its last block, on rank 0 only."""
    is_out_of_time: Callable[[], bool]
    """Whether no further block may begin."""


def train_launch(
    cases: Sequence[TrainingCase], terms: Terms, rank: TrainingRank, duty: Duty, *, launch: int
) -> bool:
    """Train every configuration in its blocks, as `commbench.ddp.plan.cases.schedule` orders them.

    Args:
        cases: the baseline first; the same on every rank, as are all arguments.
        terms: the conditions that all cases share.
        rank: the resources of this rank.
        duty: the callbacks for blocks and records.
        launch: the launch's number; with the seed it determines order, weights and data.

    Returns:
        False if time ran out before the last block.
    """
    session = _Session(terms, launch, rank, paces=_find_baseline(cases))
    with contextlib.closing(session):
        for case in cases:  # before any case timeout starts: a user's workload may read much data
            session.build(case)
        session.load_file_hooks()
        session.divide_blocks(cases)
        blocks = len(session.short_blocks) or terms.blocks
        order = schedule(cases, terms.seed, launch, blocks, watches_drift=terms.watches_drift)
        compile_hooks(cases, rank.device.torch_device)
        return _train_blocks(cases, order, session, duty)


def _train_blocks(
    cases: Sequence[TrainingCase], order: Sequence[int], session: _Session, duty: Duty
) -> bool:
    """Train the blocks in that order of cases; return False if time ran out before the last one."""
    blocks_left = Counter(order)
    for index in order:
        if not blocks_left[index]:
            continue  # the case has failed
        if duty.is_out_of_time():
            return False
        duty.begin(index)
        blocks_left[index] -= 1
        outcome = session.block(cases[index], last=not blocks_left[index])
        if outcome.is_last:
            blocks_left[index] = 0
        if outcome.record is not None:
            duty.finish(outcome.record)
    return True


def compile_hooks(cases: Collection[TrainingCase], device: torch.device) -> None:
    """Compile the hooks of the cases for a device; this may take longer than a case timeout.

    Raises:
        InputError: it cannot be compiled for the device.
    """
    for case in cases:
        if case.is_predicted and _declared(case).compiles:
            hook = make_hook(case.hook, density=case.density, options=case.options)
            assert hook is not None  # noqa: S101 - `none` compiles nothing
            hook.prepare(device)


def fast_selection(cases: Collection[TrainingCase], device: Device) -> str | None:
    """Return the package behind ``selection=fast``, see `commbench.hooks.selectors`.

    None if no case selects elements by it.
    """
    for case in cases:
        if case.hook == TopK.name:
            hook = _declared(case)
            if hook.compiles and not hook.runs_in_order:
                return selectors.fast_selection(device.torch_device)
    return None


def _declared(case: TrainingCase) -> HookSpec:
    return read_hook(case.hook, density=case.density, options=case.options)


def _find_baseline(cases: Sequence[TrainingCase]) -> TrainingCase:
    """Return the configuration whose steps set the length of all blocks: DDP's default, if it is
    trained.
    """
    plain = (case for case in cases if case.is_default)
    return next(plain, cases[0])


@dataclass(frozen=True, kw_only=True)
class _Groups:
    """Two process groups of the same ranks: one for training, and one over Gloo for all other
    communication.
    """

    training: dist.ProcessGroup
    control_group: dist.ProcessGroup


@dataclass(frozen=True, kw_only=True)
class _Built:
    """A workload with its initial weights, equal on all training ranks, and the groups of these
    ranks.
    """

    workload: Workload
    groups: _Groups


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """The result of a block; only rank 0 has a ``record``."""

    is_last: bool
    """Whether no further block of the case follows."""
    record: TrainingRecord | None = None


class _Session:
    """The state that the blocks of a launch share."""

    def __init__(
        self, terms: Terms, launch: int, rank: TrainingRank, *, paces: TrainingCase
    ) -> None:
        self.paces = paces
        self.meter = rank.meter
        self.terms = terms
        self.launch = launch
        self.seed = terms.seed + launch
        self.control = rank.control
        self.device = rank.device
        self.progress = rank.progress
        self.threads = terms.threads or _fair_threads(rank.control)
        if not dist.is_initialized():  # else the caller has joined the default group and leaves it
            join_world(rank.control)
        torch.set_num_threads(self.threads)
        gc.collect()
        gc.freeze()  # garbage collections between blocks then skip torch's own objects
        self.steps = terms.steps
        self._groups: dict[int, _Groups] = {}
        self._built: dict[tuple[str, int, int], _Built] = {}
        self._blocks: dict[str, list[list[BlockSamples]]] = {}
        self.short_blocks: Sequence[int] = ()
        """Steps of each block of a training that is kept between its blocks; empty: each block
        is a training."""
        self._kept: dict[str, Training] = {}
        self._refused_hooks: dict[str, Finding] = {}
        """Why a rank cannot load a user's own hook, by its name; the same on all ranks."""

    def divide_blocks(self, cases: Sequence[TrainingCase]) -> None:
        """Divide the blocks into short ones if so planned and if the trainings of all cases fit
        into memory.
        """
        if not (self.terms.divides_blocks and self.steps):
            return
        parameters = sum(
            p.numel() * p.element_size()
            for case in cases
            for p in self.build(case).workload.model.parameters()
        )
        sharing = self.device.ranks_per_gpu or len(_cpus_here(self.control))
        has_room = sharing * TRAINING_COPIES * parameters <= FREE_SHARE * self.device.free_bytes()
        if all(gather_everywhere(self.control, has_room)):
            early, settling = early_steps_of(self.device, self.steps), self.device.settling_steps
            lengths = short_blocks(
                self.terms.blocks * self.steps,
                early=early,
                settling=settling,
                fewest_timed=FEWEST_TIMED,
            )
            self.short_blocks = lengths if len(lengths) > self.terms.blocks else ()

    def load_file_hooks(self) -> None:
        """Import the user's own hooks on all ranks, so that a rank without one refuses its case
        instead of hanging.
        """
        for text in self.terms.file_hooks:
            reason = None
            try:
                check_file_hook(text)
            except InputError as error:
                reason = Finding.of(error)
            refused = next(filter(None, gather_everywhere(self.control, reason)), None)
            if refused:
                self._refused_hooks[callable_name(text)] = refused

    def close(self) -> None:
        """Close the trainings whose last block was not made."""
        while self._kept:
            self._kept.popitem()[1].close()

    def block(self, case: TrainingCase, *, last: bool) -> _Outcome:
        """Train a block.

        An error that all ranks raise fails only this case; any other ends the launch.
        """
        built = self.build(case)
        if self.steps is None:
            workload_steps = (
                built.workload.steps if built.workload.evaluate else None
            )  # the metric is defined after the workload's own number of steps
            self.steps = workload_steps or self._find_steps(self.paces, self.build(self.paces))
        steps = self.steps or EARLY_STEPS + FEWEST_STEPS
        blocks = self._blocks.setdefault(case.key, [])
        deep = self.launch == 0 and last and case.phase != CONFIRM
        length = self.short_blocks[len(blocks)] if self.short_blocks else steps
        samples, refusal = self._try(case, built, steps, length, deep=deep, last=last)
        first_refusal = next(
            (r for r in gather_everywhere(self.control, refusal) if r is not None), None
        )
        gathered = self.control.gather(samples)
        if first_refusal:
            if case.key in self._kept:
                self._kept.pop(case.key).close()
            record = TrainingRecord(
                case=case, launch=self.launch, seed=self.seed, device=self.device.name
            )
            return _Outcome(
                is_last=True,
                record=without_result(record, *first_refusal) if gathered is not None else None,
            )
        if gathered is None:
            blocks.append([])
            return _Outcome(is_last=last)
        blocks.append([rank_samples for rank_samples in gathered if rank_samples is not None])
        return _Outcome(is_last=last, record=self._record(case, built, blocks) if last else None)

    def _try(
        self, case: TrainingCase, built: _Built, steps: int, length: int, *, deep: bool, last: bool
    ) -> tuple[BlockSamples | None, tuple[Status, Finding] | None]:
        """Return a block's samples (None on a rank that does not train), or the status and reason
        of a refusal.

        ``steps`` are those of a training, ``length`` those of this block.
        """
        samples: BlockSamples | None = None
        refusal: tuple[Status, Finding] | None = None
        if case.hook in self._refused_hooks:
            refusal = ("failed", self._refused_hooks[case.hook])
        elif self.control.rank < case.world_size:
            context = BlockContext(
                progress=self.progress,
                group=built.groups.training,
                control_group=built.groups.control_group,
                workload=built.workload,
                seed=self.seed,
                steps=steps,
                deep=deep,
                device=self.device,
                meter=self.meter.own if self.meter.covers(case.backend) else None,
                file_hooks=self.terms.file_hooks,
                is_alone=not self.short_blocks,
            )
            is_kept = bool(self.short_blocks) and not last
            training = self._kept.pop(case.key, None)
            try:
                training = training or Training(case, context)
                samples = training.run_block(length, is_last=not is_kept)
            except UnsupportedError as error:
                refusal = ("unsupported", error.reason)
            except InputError as error:
                refusal = ("failed", Finding.of(error))
            finally:
                if training and is_kept and samples:
                    self._kept[case.key] = training
                elif training:
                    training.close()
        self.control.barrier(patient=True)  # ranks that do not train must not use a core
        return samples, refusal

    def _record(
        self, case: TrainingCase, built: _Built, blocks: Sequence[Sequence[BlockSamples]]
    ) -> TrainingRecord:
        return merge(
            case,
            blocks,
            built.workload,
            meter=self.meter,
            block_steps=self.steps or 0 if self.short_blocks else 0,
            launch=self.launch,
            seed=self.seed,
            threads_per_rank=self.threads,
            device=self.device.name,
        )

    def build(self, case: TrainingCase) -> _Built:
        """Return the case's workload, built once per launch, with rank 0's weights on all ranks, as
        under DDP.
        """
        key = (case.workload, case.world_size, case.batch_per_rank)
        if key not in self._built:
            groups = self._groups_of(case.world_size)
            rank = min(self.control.rank, case.world_size - 1)
            torch.manual_seed(self.seed)
            workload = load_workload(
                case.workload,
                seed=self.seed,
                rank=rank,
                world_size=case.world_size,
                batch_size=case.batch_per_rank,
            )
            self.device.moved(workload.model)
            if self.control.rank < case.world_size:
                for tensor in (*workload.model.parameters(), *workload.model.buffers()):
                    dist.broadcast(tensor.detach(), 0, group=groups.training)
            self._built[key] = _Built(workload=workload, groups=groups)
        return self._built[key]

    def _groups_of(self, ranks: int) -> _Groups:
        """Return process groups of the first ``ranks`` ranks."""
        if ranks not in self._groups:
            backends = dict.fromkeys((self.device.backend, "gloo"))
            with unpinned():
                new_groups = [
                    dist.new_group(list(range(ranks)), timeout=TIMEOUT, backend=backend)
                    for backend in backends
                ]
            self._groups[ranks] = _Groups(training=new_groups[0], control_group=new_groups[-1])
        return self._groups[ranks]

    def _find_steps(self, case: TrainingCase, built: _Built) -> int | None:
        """Return the number of steps of a case that fill a block, from a short trial.

        None if the trial fails.
        """
        trial = EARLY_STEPS + TRIAL_STEPS
        samples, refusal = self._try(case, built, trial, trial, deep=False, last=True)
        if any(gather_everywhere(self.control, refusal)):
            return None
        rank_step_s = (
            statistics.median(samples.times[samples.early_steps :, -1].tolist()) if samples else 0.0
        )
        step_s = max(gather_everywhere(self.control, rank_step_s))
        steps = int(self.terms.block_s / step_s) if step_s else FEWEST_STEPS
        return EARLY_STEPS + min(MOST_STEPS, max(FEWEST_STEPS, steps))


def _fair_threads(control: Control) -> int:
    """Return this machine's usable CPUs divided by its ranks."""
    cpus_here = _cpus_here(control)
    return max(1, len(set().union(*cpus_here)) // len(cpus_here))


def _cpus_here(control: Control) -> list[Collection[int]]:
    """Return the usable CPUs of each rank on this machine."""
    machine = clock_domain().partition("/")[0]
    gathered = gather_everywhere(control, (machine, usable_cpus()))
    return [cpus for name, cpus in gathered if name == machine]
