"""The `TrainingRecord` of one configuration in one launch, and the rows of ``ddp.csv`` and
``buckets.csv``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from commbench.ddp.plan.cases import TrainingCase
from commbench.engine.flags import check_flags
from commbench.engine.records import Clocks, Status, TableRow, column, no_column
from commbench.errors import InputError
from commbench.schema import Diverging, JsonMapping, JsonObject, read_as


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One bucket of a configuration in one launch.

    Medians over timed steps, milliseconds since the backward began.
    """

    size_bytes: int
    """Bytes of the parameters in it."""
    parameters: int
    """Number of tensors."""
    ready_ms: float
    """Time at which all its gradients are ready, on the slowest rank."""
    start_ms: float
    """Start of its communication on the slowest rank: after compressing, and after earlier
    buckets."""
    done_ms: float
    """Time at which its result is ready, on the slowest rank."""
    comm_ms: float
    """Time from start to done without decompressing, on the fastest rank, which does not wait
    for others."""
    skew_wait_ms: float
    """Time in communication beyond ``comm_ms``, in which a rank waits for slower ranks; mean
    over ranks."""
    compress_ms: float = 0.0
    """Compressing and decompressing; mean over ranks."""


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """One configuration in one launch.

    Times are milliseconds of one optimiser step, lists run over timed steps.
    """

    kind: ClassVar = "training"
    """The ``kind`` of its lines in ``samples.jsonl``."""

    case: TrainingCase
    """What was trained."""
    launch: int
    """Number of the launch, from 0."""
    status: Status = "ok"
    """Whether there is a result."""
    reason: str = ""
    """Why there is no result, in one sentence."""
    reason_code: str = ""
    """As in `commbench.engine.records.Record`."""

    seed: int = 0
    """Seed of initial weights and data; the same for all configurations of a launch."""
    threads_per_rank: int = 1
    """Compute threads of a rank."""
    device: str = "cpu"
    """``cpu`` or the GPU's name."""
    parameters: int = 0
    """Number of trainable elements of the model."""
    step_ms: Sequence[float] = ()
    """Duration of each timed step on the slowest rank, block by block.

    If ranks exchange once in several steps, each step has the mean of the steps from one exchange
    to the next, so that it includes its share of the exchange.
    """
    block_lengths: Sequence[int] = ()
    """Timed steps of each block; their sum is the length of ``step_ms``."""
    block_at: Sequence[int] = ()
    """In a live tuning, the number of the training's optimiser step at which each block began;
    else empty."""
    rounds: Sequence[int] = ()
    """In a search, the round of each block: blocks of one round are compared; empty: each is in
    the round of its position."""
    block: int = 0
    """In a live run, the number of the block of this case in its launch, from 1, if the record
    holds one block; 0: it holds the whole launch."""
    block_steps: int = 0
    """Steps of each block, early ones included; if blocks were divided into short ones, of each
    before that."""
    total_steps: int = 0
    """Steps of all blocks, early ones included; 0 in older files."""
    discarded: int = 0
    """Untimed steps at the beginning of a block, the most, in which buckets are rebuilt and
    times settle."""
    forward_ms: float | None = None
    """Median over steps on the slowest rank; also for ``backward_ms`` and ``optimizer_ms``."""
    backward_ms: float | None = None
    """Backward pass, communication included."""
    optimizer_ms: float | None = None
    """Optimiser."""
    comm_ms: float | None = None
    """Time with a bucket in flight, on the rank where this is shortest."""
    exposed_comm_ms: float | None = None
    """In a watched training: from the last local gradient to the end of the backward pass; None
    elsewhere. There this and the other parts of a step are means over steps, each step on the
    rank that waits least for others. A step lasts from the end of an exchange of gradients to
    the end of the next one."""
    broadcast_ms: float | None = None
    """In a watched training: the broadcast of buffers that DDP makes before a forward pass."""
    computing_ms: Sequence[Sequence[float]] = ()
    """In a watched training, by group of ten steps and rank: the median step without broadcasts
    and exchange."""
    skew_wait_ms: float | None = None
    """Time with a bucket in flight beyond ``comm_ms``; mean over ranks."""
    compress_ms: float | None = None
    """Compressing and decompressing; mean over ranks."""
    encode_ms: float | None = None
    """The part of ``compress_ms`` that delays the backward pass."""
    bucket_bytes: Sequence[int] = ()
    """Sizes of the rebuilt buckets, from DDP's log."""
    buckets: Sequence[Bucket] = ()
    """Times of the buckets; for hook none, from extra steps with the pass-through hook after the
    timed steps."""
    sent_bytes: float | None = None
    """Bytes that a rank sent in a step, measured; mean over ranks."""
    expected_bytes: float | None = None
    """Bytes that a rank sends in a step in theory."""
    dense_bytes: float | None = None
    """Bytes that a rank sends in a ring all-reduce of the gradients in float32: 2 (p-1)/p 4n."""
    losses: Sequence[Diverging] = ()
    """Training loss of the first ``block_steps`` steps, mean over ranks; empty if the workload
    has none."""
    metric_name: str = ""
    """Metric that the workload evaluates; empty: none."""
    metrics: Sequence[tuple[int, Diverging]] = ()
    """(steps, value) pairs of the same steps, on held-out data."""
    target: Diverging | None = None
    """The value of the metric at which the model counts as trained."""
    grad_rel_error: Diverging | None = None
    """Norm of (gradient after the hook - mean over ranks) over the norm of the mean, at the last
    step. None also if no gradients are exchanged."""
    ranks_agree: bool | None = None
    """Whether all ranks hold bit-identical parameters after the last exchange of every training.
    None also if no difference is seen, but some parameters are not finite."""
    parameters_finite: bool | None = None
    """Whether all trainable parameters are finite after the last exchange of every training."""
    skipped_steps: int = 0
    """Steps that the gradient scaler skipped, in all blocks."""
    peak_memory_bytes: int | None = None
    """Largest memory of a rank: of its process, on a GPU of torch's allocations there."""
    energy_J: float | None = None
    """Energy of one step on all hosts; None if it was not measured."""
    energy_of: str = ""
    """See `commbench.engine.records.Record.energy_of`."""
    clocks: Clocks | None = None
    """Clocks of the ranks' GPUs, around the timed steps of every block."""
    flags: Sequence[str] = ()
    """Names of flags."""
    measuring_s: float = 0.0
    """Wall time of steps, discarded ones included."""
    other_s: float = 0.0
    """Wall time of everything else."""

    @property
    def is_divided(self) -> bool:
        """Whether the blocks were divided into short ones of one training."""
        return 0 < self.total_steps < self.block_steps * len(self.block_lengths)

    def to_json(self) -> JsonObject:
        """Return the record as a line of ``samples.jsonl``."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    def extended(self, later: TrainingRecord) -> TrainingRecord:
        """Return the record of a live launch with one more block.

        Means of the parts of a step are over the steps of all blocks. What a block did not measure
        is that of the blocks before.

        Raises:
            InputError: as of `checked`.
        """
        changes: dict[str, Any] = {"measuring_s": self.measuring_s + later.measuring_s}
        for name in _OF_BLOCKS:
            changes[name] = (*getattr(self, name), *getattr(later, name))
        for name in _MEANS:
            before, mean = getattr(self, name), getattr(later, name)
            if mean is not None and before is not None:
                summed = before * len(self.step_ms) + mean * len(later.step_ms)
                changes[name] = summed / len(changes["step_ms"])
        for name in _LATEST:
            changes[name] = getattr(later, name) or getattr(self, name)
        return dataclasses.replace(self, **changes).checked()

    def checked(self) -> TrainingRecord:
        """Return the record if its blocks fit each other.

        Raises:
            InputError: the steps do not make the blocks, or a field has not a value for each.
        """
        lengths = self.block_lengths
        if lengths and (0 in lengths or sum(lengths) != len(self.step_ms)):
            raise InputError("block_lengths: the blocks differ from step_ms in length")
        for name in ("block_at", "rounds"):
            if len(getattr(self, name)) not in {0, len(lengths)}:
                raise InputError(f"{name}: it differs from block_lengths in length")
        return self

    @classmethod
    def from_json(cls, data: JsonMapping) -> TrainingRecord:
        """Return a record from its JSON; ignore fields that this version does not know.

        Raises:
            InputError: a required field is missing or has another type, or as of `checked`.
        """
        record = read_as(cls, data)
        record.case.checked()
        check_flags(record.flags)
        return record.checked()


#: Fields of a `TrainingRecord` that a further block of a live run appends to, those that are means
#: over steps, and those that the last block which measured them decides.
_OF_BLOCKS = ("step_ms", "block_lengths", "block_at", "rounds", "computing_ms")
_MEANS = ("broadcast_ms", "forward_ms", "backward_ms", "exposed_comm_ms", "optimizer_ms")
_LATEST = ("bucket_bytes", "buckets", "comm_ms", "skew_wait_ms", "compress_ms", "encode_ms")


@dataclass(frozen=True, kw_only=True)
class TrainingRow(TableRow):
    """One line of ``ddp.csv``: a configuration summarised over launches."""

    like = "collectives.csv"

    workload: str = column("name of the workload", "")
    parameters: int | None = column("trainable elements of the model")
    backend: str = ""
    device: str = column("cpu, or the GPU's name", "")
    world_size: int | None = None
    nodes: int | None = column("hosts of the launch")
    ranks_per_node: int | None = column("most ranks on one host")
    ranks_per_gpu: int | None = column("most ranks on one physical GPU")
    threads_per_rank: int | None = column("compute threads of a rank")
    seed: int | None = column("seed of the run; launch i trains with seed + i")
    precision: str = column("fp32, amp-bf16 or amp-fp16", "")
    hook: str = column("DDP communication hook", "")
    density: float | None = column("share of the gradient's elements that is sent")
    hook_options: str = column("further options of the hook, key=value;...", "")
    bucket_cap_mb: str = column("default (1 MiB, then 25), MiB, or a list 1+5+25", "")
    bucket_count: int | None = column("buckets after DDP has rebuilt them", heading="count")
    bucket_mb: str = column(
        "sizes of the buckets in MB (1e6 bytes), in the order of sending, a+b+c", ""
    )
    bucket_view: bool | None = column("DDP's gradient_as_bucket_view")
    static_graph: bool | None = column("DDP's static_graph")
    unused_parameters: bool | None = column("DDP's find_unused_parameters")
    broadcast_buffers: bool | None = column(
        "DDP's forward_sync_buffers, or broadcast_buffers before torch 2.13"
    )
    batched_grad_copy: bool | None = column("DDP's batched_grad_copy")
    compile: str = column("optimize_ddp of torch.compile; empty without torch.compile", "")
    accumulation: int | None = column("backward passes per optimiser step")
    batch_per_rank: int | None = column("samples per rank of one backward pass")
    env: str = ""
    launches: int | None = column("launches behind the row")
    blocks: int | None = column("blocks of consecutive steps in a launch, median over launches")
    steps: int | None = column("timed steps, all launches together")
    step_ms: float | None = column("median over launches of the median step of the slowest rank")
    step_ms_ci_low: float | None = column("95 % interval over launches, low end")
    step_ms_ci_high: float | None = column("95 % interval over launches, high end")
    step_ms_p95: float | None = column("median over launches of the launch's p95")
    samples_per_s: float | None = column("samples of all ranks per second")
    local_step_ms: float | None = column("the step without DDP, same launches")
    scaling_efficiency: float | None = column("local_step_ms over step_ms", heading="efficiency")
    forward_ms: float | None = column("forward pass")
    backward_ms: float | None = column("backward pass, communication included")
    optimizer_ms: float | None = column("optimiser")
    comm_ms: float | None = column("time with a bucket in flight, on the rank with the shortest")
    exposed_comm_ms: float | None = column(
        "communication that the step waits for: backward pass beyond the backward without DDP and"
        " beyond compressing; in a watched training: from the last local gradient to the end of the"
        " backward pass",
        heading="exposed",
    )
    skew_wait_ms: float | None = column(
        "waiting for slower ranks inside communication, mean over ranks"
    )
    compress_ms: float | None = column("compressing and decompressing, mean over ranks")
    sent_MB_per_step: float | None = column(
        "sent by a rank, measured, MB = 1e6 bytes; empty over NCCL, where it cannot be counted",
        heading="sent",
    )
    dense_MB_per_step: float | None = column(
        "sent by a rank in a ring all-reduce in float32: 2 (p-1)/p 4n"
    )
    speedup: float | None = column("time per sample of (fp32, none, default) over the row's")
    speedup_ci_low: float | None = column("95 % interval over launches, low end")
    speedup_ci_high: float | None = column("95 % interval over launches, high end")
    speedup_fp16: float | None = column(
        "time per sample of (fp32, fp16, default) over the row's; empty where that was not measured"
    )
    speedup_fp16_ci_low: float | None = column("95 % interval over launches, low end")
    speedup_fp16_ci_high: float | None = column("95 % interval over launches, high end")
    verdict: str = column(
        "faster, slower, same (within 2 %) or inconclusive, as compare judges", ""
    )
    loss_first: float | None = column("training loss of the first step")
    loss_equal_steps: float | None = column(
        "training loss after the same number of steps", heading="loss after equal steps"
    )
    loss_equal_time: float | None = column(
        "training loss when the fastest configuration has finished", heading="loss after equal time"
    )
    metric_name: str = column("metric that the workload evaluates on held-out data", "")
    metric: float | None = column("metric after the last step, median over launches")
    time_to_target_s: float | None = column(
        "steps until the metric meets the workload's target, times step_ms", heading="to target"
    )
    grad_rel_error: float | None = column(
        "relative error of the gradient against the mean over ranks, last step; empty if no"
        " gradients are exchanged"
    )
    ranks_agree: bool | None = column(
        "whether all ranks hold bit-identical parameters after the last exchange"
    )
    skipped_steps: int | None = column("steps that the gradient scaler skipped, all launches")
    peak_memory_MB: float | None = column(
        "largest resident memory of a rank's process in a block; on a GPU the most that torch had"
        " allocated there",
        heading="memory",
    )
    energy_J: float | None = column(
        "energy of one step; energy_of in samples.jsonl names the meters"
    )
    energy_of: str = no_column()
    status: str = column("ok, unsupported, failed, hung or wrong", "ok")
    reason: str = column("one sentence where status is not ok", "")
    reason_code: str = no_column()
    flags: str = column("warnings about the row, separated by ;", "")


@dataclass(frozen=True, kw_only=True)
class BucketRow(TableRow):
    """One line of ``buckets.csv``: a bucket of a configuration, medians over launches."""

    like = "ddp.csv"

    workload: str = ""
    world_size: int | None = None
    batch_per_rank: int | None = None
    precision: str = ""
    hook: str = ""
    density: float | None = None
    hook_options: str = ""
    bucket_cap_mb: str = ""
    bucket_view: bool | None = None
    static_graph: bool | None = None
    unused_parameters: bool | None = None
    broadcast_buffers: bool | None = None
    batched_grad_copy: bool | None = None
    compile: str = ""
    accumulation: int | None = None
    env: str = ""
    bucket: int | None = column("number in the order of sending")
    size_bytes: int | None = column("bytes of its parameters")
    parameters: int | None = column("tensors in it")
    ready_ms: float | None = column(
        "all gradients ready on the slowest rank, since the backward pass began"
    )
    start_ms: float | None = column("communication begins on the slowest rank")
    done_ms: float | None = column("result ready on the slowest rank")
    comm_ms: float | None = column(
        "start to done without decompressing, on the rank with the shortest"
    )
    skew_wait_ms: float | None = column(
        "time that a rank needs beyond comm_ms, waiting for slower ranks; mean over ranks"
    )
    compress_ms: float | None = column("compressing and decompressing, mean over ranks")
