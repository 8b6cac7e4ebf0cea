"""Training of one launch's configurations in interleaved blocks: a rank's part of ``commbench
train``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
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
    search_blocks,
    short_blocks,
)
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.workloads import load_workload
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.energy import RunMeter
from commbench.engine.records import Status, without_result
from commbench.engine.timing.loops import Progress
from commbench.errors import InputError
from commbench.findings import Finding, UnsupportedError
from commbench.hooks import selectors
from commbench.hooks.catalogue import TopK
from commbench.hooks.own import check_file_hook
from commbench.hooks.registry import make_hook, read_hook
from commbench.system.clock import clock_domain
from commbench.system.host import usable_cpus
from commbench.system.user_files import callable_name

if TYPE_CHECKING:
    from commbench.tuner.search import Search

#: Timed steps of the trial that sets the number of steps of all blocks, and the bounds of that
#: number.
TRIAL_STEPS = 2
FEWEST_STEPS, MOST_STEPS = 3, 2000
#: Rounds of a search that have the timed steps of a whole block.
SEARCH_ROUNDS = 3
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
    search: Search | None = None
    """Plans the rounds of a launch that searches, on rank 0; None: all blocks are planned."""


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
    defaults = [case for case in cases if case.is_default]
    session = _Session(
        terms=terms,
        launch=launch,
        rank=rank,
        hand_over=duty.finish,
        paces=[*defaults, *cases][0],
    )
    with contextlib.closing(session):
        for case in cases:  # before any case timeout starts: a user's workload may read much data
            session.build(case)
        session.load_file_hooks()
        if terms.search_s is not None:
            compile_hooks(cases, rank.device.torch_device)
            return train_search(cases, session, duty)
        session.divide_blocks(cases)
        blocks = len(session.lengths) or terms.blocks
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
        if not session.block(cases[index], last=not blocks_left[index]):
            blocks_left[index] = 0
    return True


def train_search(cases: Sequence[TrainingCase], session: _Session, duty: Duty) -> bool:
    """Train in the rounds of `Duty.search`, as rank 0 plans them.

    A case has its record when no further round holds it. If time runs out, what was measured is
    kept; but until the hooks have been compared, the first case has no record, so that the next
    invocation searches again.

    Returns:
        False if time ran out before the end.
    """
    search = duty.search
    without_record: dict[int, TrainingCase] = {}
    room = session.prepare_search(cases)
    while True:
        planned: list[int] = []
        if search is not None:
            planned = search.plan_round(room)
        members = session.control.broadcast(planned)
        for index in [index for index in without_record if index not in members]:
            session.finish(without_record.pop(index))
        if not members:
            return True
        for index in members:
            if duty.is_out_of_time():
                has_compared = search is not None and search.has_compared
                for open_index, case in without_record.items():
                    session.finish(case, is_kept=open_index > 0 or has_compared)
                return False
            duty.begin(index)
            if _train_searched(index, cases[index], session, search):
                without_record[index] = cases[index]
            else:
                without_record.pop(index, None)


def _train_searched(
    index: int, case: TrainingCase, session: _Session, search: Search | None
) -> bool:
    """Train a block of a search, and tell the search on rank 0; return False if the case failed."""
    started = time.monotonic()
    is_trained = session.block(case, last=False)
    if search is not None and is_trained:
        session.rounds[case.key].append(search.number)
        search.add_block(index, session.median_ms(case), time.monotonic() - started)
    elif search is not None:
        search.leave_out(index)
    return is_trained


def compile_hooks(cases: Collection[TrainingCase], device: torch.device) -> None:
    """Compile the hooks of the cases for a device; this may take longer than a case timeout.

    Raises:
        InputError: it cannot be compiled for the device.
    """
    for case in cases:
        if not case.is_predicted:
            continue
        try:
            hook = make_hook(case.hook, density=case.density, options=case.options)
        except InputError:  # the case fails by itself
            continue
        if hook is not None:
            hook.prepare(device)


def fast_selection(cases: Collection[TrainingCase], device: Device) -> str | None:
    """Return the package behind ``selection=fast``, see `commbench.hooks.selectors`.

    None if no case selects elements by it.
    """
    for case in cases:
        if case.hook == TopK.name:
            hook = read_hook(case.hook, density=case.density, options=case.options)
            if hook.compiles and not hook.runs_in_order:
                return selectors.fast_selection(device.torch_device)
    return None


@dataclass(kw_only=True)
class _Session:
    """The state that the blocks of a launch share."""

    terms: Terms
    """The conditions that all cases share."""
    launch: int
    """The launch's number."""
    rank: TrainingRank
    """The resources of this rank."""
    hand_over: Callable[[TrainingRecord], None]
    """Takes each case's record, on rank 0."""
    paces: TrainingCase
    """The case whose steps set the length of all blocks: DDP's default, if it is trained."""
    lengths: Sequence[int] = ()
    """Steps of each block; empty: of a whole block. The last one is that of all later ones."""
    is_keeping: bool = False
    """Whether a training is kept between its blocks, instead of one for each block."""
    rounds: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """In a search, the rounds of each case, by its key; on rank 0."""

    def __post_init__(self) -> None:
        self.control = self.rank.control
        self.device = self.rank.device
        self.seed = self.terms.seed + self.launch
        self.threads = self.terms.threads or _fair_threads(self.control)
        if not dist.is_initialized():  # else the caller has joined the default group and leaves it
            join_world(self.control)
        torch.set_num_threads(self.threads)
        gc.collect()
        gc.freeze()  # garbage collections between blocks then skip torch's own objects
        self.steps = self.terms.steps
        self._groups: dict[int, tuple[dist.ProcessGroup, dist.ProcessGroup]] = {}
        """For each number of ranks the group that trains, and one over Gloo for all other
        communication; may be the same."""
        self._built: dict[tuple[str, int, int], BlockContext] = {}
        """By workload, ranks and batch: what all blocks share."""
        self._blocks: dict[str, list[list[BlockSamples]]] = {}
        self._kept: dict[str, Training] = {}
        self._refused_hooks: dict[str, Finding] = {}
        """Why a rank cannot load a user's own hook, by its name; the same on all ranks."""

    def divide_blocks(self, cases: Sequence[TrainingCase]) -> None:
        """Divide the blocks into short ones if so planned and if the trainings of all cases fit
        into memory.
        """
        if not (self.terms.divides_blocks and self.steps):
            return
        if len(cases) > self._room(cases):
            return
        early, settling = early_steps_of(self.device, self.steps), self.device.settling_steps
        lengths = short_blocks(
            self.terms.blocks * self.steps,
            early=early,
            settling=settling,
            fewest_timed=FEWEST_TIMED,
        )
        if len(lengths) > self.terms.blocks:
            self.lengths, self.is_keeping = lengths, True

    def prepare_search(self, cases: Sequence[TrainingCase]) -> int:
        """Fix the blocks of a search; return the most cases that a round may have.

        Trainings are kept between rounds if those with the buckets of the first case fit into
        memory.
        """
        steps = self._fix_steps(self.paces)
        room = self._room(cases)
        first = [case for case in cases if case.bucket_cap_mb == cases[0].bucket_cap_mb]
        self.is_keeping = len(first) <= room
        early, settling = early_steps_of(self.device, steps), self.device.settling_steps
        if not self.is_keeping:
            room, settling = len(cases), early
        self.lengths = search_blocks(steps, early=early, settling=settling, rounds=SEARCH_ROUNDS)
        return room

    def _room(self, cases: Sequence[TrainingCase]) -> int:
        """Return how many trainings fit into the memory of every rank, the largest model's each."""
        largest = 0
        for case in cases:
            size = 0
            for parameter in self.build(case).workload.model.parameters():
                size += parameter.numel() * parameter.element_size()
            largest = max(largest, size)
        sharing = self.device.ranks_per_gpu or len(_cpus_here(self.control))
        free_bytes = FREE_SHARE * self.device.free_bytes()
        room = int(free_bytes // (sharing * TRAINING_COPIES * max(1, largest)))
        return min(gather_everywhere(self.control, room))

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

    def block(self, case: TrainingCase, *, last: bool) -> bool:
        """Train a block; return False if the case has failed.

        An error that all ranks raise fails only this case; any other ends the launch.
        """
        built = self.build(case)
        steps = self._fix_steps(case)
        blocks = self._blocks.setdefault(case.key, [])
        deep = self.launch == 0 and last and case.phase != CONFIRM
        length = steps
        if self.lengths:
            length = self.lengths[min(len(blocks), len(self.lengths) - 1)]
        samples, refusal = self._try(case, built, steps, length, deep=deep, last=last)
        first_refusal = next(
            (r for r in gather_everywhere(self.control, refusal) if r is not None), None
        )
        gathered = self.control.gather(samples)
        if first_refusal:
            if case.key in self._kept:
                self._kept.pop(case.key).close()
            if gathered is not None:
                record = TrainingRecord(
                    case=case, launch=self.launch, seed=self.seed, device=self.device.name
                )
                self.hand_over(without_result(record, *first_refusal))
            return False
        if gathered is None:
            blocks.append([])
            return True
        blocks.append([rank_samples for rank_samples in gathered if rank_samples is not None])
        if last:
            self.hand_over(self._record(case, built, blocks))
        return True

    def median_ms(self, case: TrainingCase) -> float:
        """Return the median timed step of a case's latest block on the slowest rank; on rank 0."""
        ranks = self._blocks[case.key][-1]
        slowest = np.max([samples.times[:, -1] for samples in ranks], axis=0)
        return 1e3 * float(np.median(slowest[ranks[0].early_steps :]))

    def finish(self, case: TrainingCase, *, is_kept: bool = True) -> None:
        """End the training of a case after a block, and hand over its record if it is kept."""
        blocks = self._blocks[case.key]
        training = self._kept.pop(case.key, None)
        digest = None
        if training is not None:
            digest = training.digest()
            training.close()
        digests = self.control.gather(digest)
        if digests is None or not is_kept:
            return
        for samples, rank_digest in zip(blocks[-1], digests, strict=False):
            if rank_digest is not None:
                samples.digest = rank_digest
        self.hand_over(self._record(case, self.build(case), blocks))

    def _fix_steps(self, case: TrainingCase) -> int:
        """Return the steps of a whole block, which the first block of a launch fixes."""
        if self.steps is None:
            workload = self.build(case).workload
            if workload.evaluate:  # the metric is defined after the workload's own number of steps
                self.steps = workload.steps
            self.steps = self.steps or self._find_steps(self.paces, self.build(self.paces))
        return self.steps or EARLY_STEPS + FEWEST_STEPS

    def _try(
        self,
        case: TrainingCase,
        built: BlockContext,
        steps: int,
        length: int,
        *,
        deep: bool,
        last: bool,
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
            context = dataclasses.replace(
                built, steps=steps, deep=deep, is_alone=not self.is_keeping
            )
            is_kept = self.is_keeping and not last
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
        self, case: TrainingCase, built: BlockContext, blocks: Sequence[Sequence[BlockSamples]]
    ) -> TrainingRecord:
        block_steps = 0
        if self.lengths and self.steps:
            block_steps = self.steps
        return merge(
            case,
            blocks,
            built.workload,
            meter=self.rank.meter,
            block_steps=block_steps,
            rounds=tuple(self.rounds[case.key]),
            launch=self.launch,
            seed=self.seed,
            threads_per_rank=self.threads,
            device=self.device.name,
        )

    def build(self, case: TrainingCase) -> BlockContext:
        """Return what all blocks of the case's workload share, built once per launch, with rank 0's
        weights on all ranks, as under DDP.
        """
        key = (case.workload, case.world_size, case.batch_per_rank)
        if key not in self._built:
            group, control_group = self._groups_of(case.world_size)
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
                    dist.broadcast(tensor.detach(), 0, group=group)
            meter = None
            if self.rank.meter.covers(case.backend):
                meter = self.rank.meter.own
            self._built[key] = BlockContext(
                progress=self.rank.progress,
                group=group,
                control_group=control_group,
                workload=workload,
                seed=self.seed,
                device=self.device,
                meter=meter,
                file_hooks=self.terms.file_hooks,
            )
        return self._built[key]

    def _groups_of(self, ranks: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Return process groups of the first ``ranks`` ranks."""
        if ranks not in self._groups:
            backends = dict.fromkeys((self.device.backend, "gloo"))
            with unpinned():
                new_groups = [
                    dist.new_group(list(range(ranks)), timeout=TIMEOUT, backend=backend)
                    for backend in backends
                ]
            self._groups[ranks] = new_groups[0], new_groups[-1]
        return self._groups[ranks]

    def _find_steps(self, case: TrainingCase, built: BlockContext) -> int | None:
        """Return the number of steps of a case that fill a block, from a short trial.

        None if the trial fails.
        """
        trial = EARLY_STEPS + TRIAL_STEPS
        samples, refusal = self._try(case, built, trial, trial, deep=False, last=True)
        if any(gather_everywhere(self.control, refusal)):
            return None
        rank_step_s = 0.0
        if samples is not None:
            rank_step_s = statistics.median(samples.times[samples.early_steps :, -1].tolist())
        step_s = max(gather_everywhere(self.control, rank_step_s))
        steps = FEWEST_STEPS
        if step_s:
            steps = int(self.terms.block_s / step_s)
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
