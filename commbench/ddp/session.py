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
from commbench.ddp.block import BlockContext, BlockSamples, Training
from commbench.ddp.devices import EARLY_STEPS, Device
from commbench.ddp.merging import merge
from commbench.ddp.plan.cases import CONFIRM, TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.terms import Terms, schedule, search_blocks, short_blocks
from commbench.ddp.workloads import load_workload
from commbench.engine.control import Control, gather_everywhere
from commbench.engine.energy import EnergyMeter
from commbench.engine.records import Status, without_result
from commbench.engine.timing.loops import Progress
from commbench.errors import InputError
from commbench.findings import Finding, UnsupportedError
from commbench.hooks import selectors
from commbench.hooks.catalogue import TopK
from commbench.hooks.own import load_file_hook
from commbench.hooks.registry import make_hook
from commbench.system.clock import machine_id
from commbench.system.host import usable_cpus
from commbench.system.user_files import callable_name

if TYPE_CHECKING:
    from commbench.tuner.screening import Search

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
            hook = TopK.read(density=case.density, options=case.options)
            if hook.compiles and not hook.runs_in_order:
                return selectors.fast_selection(device.torch_device)
    return None


@dataclass(kw_only=True)
class TrainingLaunch:
    """A launch that trains its configurations in interleaved blocks, on one rank."""

    cases: Sequence[TrainingCase]
    """The baseline first; the same on every rank."""
    terms: Terms
    """The conditions that all cases share."""
    launch: int
    """The launch's number; with the seed it determines order, weights and data."""
    control: Control
    device: Device
    progress: Progress
    """Counts steps."""
    meter: EnergyMeter = field(default_factory=EnergyMeter)
    """This rank's energy counters; by default energy is not measured."""
    on_begin: Callable[[int], None]
    """Called with the index of the case whose block begins."""
    on_record: Callable[[TrainingRecord], None]
    """Called with a case's record after its last block, on rank 0 only."""
    on_refusal: Callable[[Finding], None]
    """Called on a rank that cannot train a case, before it waits for the others."""
    is_out_of_time: Callable[[], bool]
    """Whether no further block may begin."""
    search: Search | None = None
    """Plans the rounds of a launch that searches, on rank 0; None: all blocks are planned."""

    def __post_init__(self) -> None:
        defaults = [case for case in self.cases if case.is_default]
        self.paces = [*defaults, *self.cases][0]
        """The case whose steps set the length of all blocks: DDP's default, if it is trained."""
        self.seed = self.terms.seed + self.launch
        machine = machine_id()
        gathered = gather_everywhere(self.control, (machine, usable_cpus()))
        cpus_here = [cpus for name, cpus in gathered if name == machine]
        self.ranks_here = len(cpus_here)
        fair_threads = len(set().union(*cpus_here)) // self.ranks_here
        self.threads = self.terms.threads or max(1, fair_threads)
        if not dist.is_initialized():  # else the caller has joined the default group and leaves it
            join_world(self.control)
        torch.set_num_threads(self.threads)
        gc.collect()
        gc.freeze()  # garbage collections between blocks then skip torch's own objects
        self.steps = self.terms.steps
        """Of a whole block; None: they are not fixed yet."""
        self.lengths: Sequence[int] = ()
        """Steps of each block; further blocks have as many as the last one. Empty: every block is a
        whole one."""
        self.is_keeping = False
        """Whether a training is kept between its blocks, instead of one for each block."""
        self._groups: dict[int, tuple[dist.ProcessGroup, dist.ProcessGroup]] = {}
        """For each number of ranks the group that trains, and one over Gloo for all other
        communication; may be the same."""
        self._built: dict[tuple[str, int, int], BlockContext] = {}
        """By workload, ranks and batch: what all blocks share."""
        self._blocks: dict[str, list[list[BlockSamples]]] = {}
        self._rounds: defaultdict[str, list[int]] = defaultdict(list)
        """In a search, the rounds of each case, by its key; on rank 0."""
        self._kept: dict[str, Training] = {}
        self._refused_hooks: dict[str, Finding] = {}
        """Why a rank cannot load a user's own hook, by its name; the same on all ranks."""

    def train(self) -> bool:
        """Train every configuration in its blocks; return False if time ran out before the last
        one.
        """
        with contextlib.closing(self):
            for case in self.cases:  # before any case timeout starts: a workload may read much data
                self._build(case)
            self._load_file_hooks()
            compile_hooks(self.cases, self.device.torch_device)
            if self.terms.search_s is not None:
                return self.train_search()
            self._divide_blocks()
            return self._train_blocks()

    def _train_blocks(self) -> bool:
        """Train the blocks as `commbench.ddp.plan.terms.schedule` orders them."""
        blocks = len(self.lengths) or self.terms.blocks
        order = schedule(self.cases, self.terms.seed, self.launch, blocks)
        blocks_left = Counter(order)
        for index in order:
            if not blocks_left[index]:
                continue  # the case has failed
            if self.is_out_of_time():
                return False
            self.on_begin(index)
            blocks_left[index] -= 1
            if not self.block(self.cases[index], last=not blocks_left[index]):
                blocks_left[index] = 0
        return True

    def train_search(self) -> bool:
        """Train in the rounds of ``search``, as rank 0 plans them.

        A case has its record when no further round holds it. If time runs out, what was measured is
        kept; but until the hooks have been compared, the first case has no record, so that the next
        invocation searches again.

        Returns:
            False if time ran out before the end.
        """
        search = self.search
        without_record: dict[int, TrainingCase] = {}
        room = self.prepare_search()
        while True:
            planned = []
            if search is not None:
                planned = search.plan_round(room)
            members = self.control.broadcast(planned)
            for index in [index for index in without_record if index not in members]:
                self.finish(without_record.pop(index))
            if not members:
                return True
            for index in members:
                if self.is_out_of_time():
                    has_compared = search is not None and search.has_compared
                    for open_index, case in without_record.items():
                        self.finish(case, is_kept=open_index > 0 or has_compared)
                    return False
                self.on_begin(index)
                if self._train_searched(index):
                    without_record[index] = self.cases[index]
                else:
                    without_record.pop(index, None)

    def _train_searched(self, index: int) -> bool:
        """Train a block of a search, and tell the search on rank 0; return False if the case
        failed.
        """
        search, case, started = self.search, self.cases[index], time.monotonic()
        is_trained = self.block(case, last=False)
        if search is not None and is_trained:
            self._rounds[case.key].append(search.number)
            search.add_block(index, self.median_ms(case), time.monotonic() - started)
        elif search is not None:
            search.leave_out(index)
        return is_trained

    # Preparation

    def _divide_blocks(self) -> None:
        """Divide the blocks of a confirmation into short ones of one training if the trainings of
        all cases fit into memory.
        """
        if self.cases[0].phase != CONFIRM or not self.steps:
            return
        if len(self.cases) > self._room():
            return
        early, settling = self.device.early_steps(self.steps), self.device.settling_steps
        lengths = short_blocks(self.terms.blocks * self.steps, early=early, settling=settling)
        if len(lengths) > self.terms.blocks:
            self.lengths, self.is_keeping = lengths, True

    def prepare_search(self) -> int:
        """Fix the blocks of a search; return the most cases that a round may have.

        Trainings are kept between rounds if those with the buckets of the first case fit into
        memory.
        """
        cases, steps, room = self.cases, self._fix_steps(), self._room()
        first = [case for case in cases if case.bucket_cap_mb == cases[0].bucket_cap_mb]
        self.is_keeping = len(first) <= room
        early, settling = self.device.early_steps(steps), self.device.settling_steps
        if not self.is_keeping:
            room, settling = len(cases), early
        self.lengths = search_blocks(steps, early=early, settling=settling, rounds=SEARCH_ROUNDS)
        return room

    def _room(self) -> int:
        """Return how many trainings fit into the memory of every rank, the largest model's each."""
        largest = 0
        for case in self.cases:
            size = 0
            for parameter in self._build(case).workload.model.parameters():
                size += parameter.numel() * parameter.element_size()
            largest = max(largest, size)
        sharing = self.device.ranks_per_gpu or self.ranks_here
        free_bytes = FREE_SHARE * self.device.free_bytes()
        room = int(free_bytes // (sharing * TRAINING_COPIES * max(1, largest)))
        return min(gather_everywhere(self.control, room))

    def _load_file_hooks(self) -> None:
        """Import the user's own hooks on all ranks, so that a rank without one refuses its case
        instead of hanging.
        """
        for text in self.terms.file_hooks:
            reason = None
            try:
                load_file_hook(text)
            except InputError as error:
                reason = Finding.of(error)
            refused = next(filter(None, gather_everywhere(self.control, reason)), None)
            if refused:
                self._refused_hooks[callable_name(text)] = refused

    def close(self) -> None:
        """Close the trainings whose last block was not made."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _build(self, case: TrainingCase) -> BlockContext:
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
            check_same_model(self.control, workload.model)
            if self.control.rank < case.world_size:
                for tensor in (*workload.model.parameters(), *workload.model.buffers()):
                    dist.broadcast(tensor.detach(), 0, group=group)
            meter = None
            if self.meter.covers(case.backend):
                meter = self.meter
            self._built[key] = BlockContext(
                progress=self.progress,
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

    # Blocks

    def block(self, case: TrainingCase, *, last: bool) -> bool:
        """Train a block; return False if the case has failed.

        An error that all ranks raise fails only this case; any other ends the launch.
        """
        steps = length = self._fix_steps()
        blocks = self._blocks.setdefault(case.key, [])
        if self.lengths:
            length = self.lengths[min(len(blocks), len(self.lengths) - 1)]
        deep = self.launch == 0 and last and case.phase != CONFIRM
        samples, refusal = self._try(case, steps, length, deep=deep, last=last)
        if refusal is not None:
            if case.key in self._kept:
                self._kept.pop(case.key).close()
            record = TrainingRecord(
                case=case, launch=self.launch, seed=self.seed, device=self.device.name
            )
            if self.control.rank == 0:
                self.on_record(without_result(record, *refusal))
            return False
        gathered = self.control.gather(samples) or []
        blocks.append([of_rank for of_rank in gathered if of_rank is not None])
        if last:
            self._hand_over(case)
        return True

    def median_ms(self, case: TrainingCase) -> float:
        """Return the median timed step of a case's latest block on the slowest rank; on rank 0."""
        ranks = self._blocks[case.key][-1]
        slowest = np.max([samples.times[:, -1] for samples in ranks], axis=0)
        return 1e3 * float(np.median(slowest[ranks[0].early_steps :]))

    def finish(self, case: TrainingCase, *, is_kept: bool = True) -> None:
        """End the training of a case after a block, and hand over its record if it is kept."""
        training = self._kept.pop(case.key, None)
        digest = None
        if training is not None:
            digest = training.digest()
            training.close()
        digests = self.control.gather(digest) or []
        if not is_kept:
            return
        for samples, rank_digest in zip(self._blocks[case.key][-1], digests, strict=False):
            if rank_digest is not None:
                samples.digest = rank_digest
        self._hand_over(case)

    def _fix_steps(self) -> int:
        """Return the steps of a whole block, which the first block of a launch fixes.

        A workload with a metric sets the number itself: the metric is defined after so many steps.
        Else a short trial finds how many steps fill a block.
        """
        if self.steps is not None:
            return self.steps
        case = self.paces
        workload = self._build(case).workload
        if workload.evaluate and workload.steps:
            self.steps = workload.steps
            return self.steps
        trial = EARLY_STEPS + TRIAL_STEPS
        samples, refusal = self._try(case, trial, trial, deep=False, last=True)
        rank_step_s = 0.0
        if samples is not None:
            rank_step_s = statistics.median(samples.times[samples.early_steps :, -1].tolist())
        step_s = max(gather_everywhere(self.control, rank_step_s))
        steps = FEWEST_STEPS
        if step_s and refusal is None:
            steps = int(self.terms.block_s / step_s)
        self.steps = EARLY_STEPS + min(MOST_STEPS, max(FEWEST_STEPS, steps))
        return self.steps

    def _try(
        self, case: TrainingCase, steps: int, length: int, *, deep: bool, last: bool
    ) -> tuple[BlockSamples | None, tuple[Status, Finding] | None]:
        """Return a block's samples (None on a rank that does not train), and the status and reason
        if a rank has refused.

        ``steps`` are those of a training, ``length`` those of this block.
        """
        samples: BlockSamples | None = None
        refusal: tuple[Status, Finding] | None = None
        if case.hook in self._refused_hooks:
            refusal = ("failed", self._refused_hooks[case.hook])
        elif self.control.rank < case.world_size:
            context = dataclasses.replace(
                self._build(case), steps=steps, deep=deep, is_alone=not self.is_keeping
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
        if refusal is not None:
            self.on_refusal(refusal[1])
        self.control.barrier(patient=True)  # ranks that do not train must not use a core
        refusals = gather_everywhere(self.control, refusal)
        return samples, next(filter(None, refusals), None)

    def _hand_over(self, case: TrainingCase) -> None:
        """Hand over the record of a case, on rank 0."""
        if self.control.rank > 0:
            return
        record = merge(
            case,
            self._blocks[case.key],
            self._build(case).workload,
            meter=self.meter,
            block_steps=self.steps,
            rounds=tuple(self._rounds[case.key]),
            launch=self.launch,
            seed=self.seed,
            threads_per_rank=self.threads,
            device=self.device.name,
        )
        self.on_record(record)


def check_same_model(control: Control, model: torch.nn.Module) -> None:
    """Check that all ranks have made the same model, or DDP would abort or wait for ever.

    Raises:
        InputError: a rank has other parameters or buffers than rank 0.
    """
    tensors = []
    for tensor in (*model.parameters(), *model.buffers()):
        tensors.append((tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad))
    gathered = gather_everywhere(control, tensors)
    for rank, of_rank in enumerate(gathered):
        if of_rank != gathered[0]:
            raise InputError(
                f"The workload made another model on rank {rank} than on rank 0: let all ranks make"
                " the same parameters and buffers; only their data may differ."
            )
