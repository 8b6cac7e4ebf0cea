"""Merge the samples of all ranks and blocks of a configuration into one `TrainingRecord`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from commbench import stats
from commbench.ddp.block import NOT_FINITE, BlockSamples
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import Bucket, TrainingRecord
from commbench.ddp.plan.workload import Workload
from commbench.engine.energy import EnergyMeter
from commbench.engine.gpu_clocks import joined_clocks
from commbench.engine.records import without_result
from commbench.findings import Finding
from commbench.hooks.message import FLOAT32_BYTES, ring_bytes
from commbench.stats import Floats

#: In blocks of at least this number of steps, the end of the warm-up is detected.
LONG_BLOCK = 40
#: The column of the whole step in `BlockSamples.times`.
_STEP = 3


def merge(
    case: TrainingCase,
    blocks: Sequence[Sequence[BlockSamples]],
    workload: Workload,
    *,
    meter: EnergyMeter | None = None,
    **fields: Any,
) -> TrainingRecord:
    """Return the record of a configuration in a launch.

    Args:
        case: the configuration.
        blocks: for each block the samples of every training rank, by rank.
        workload: the workload that was trained.
        meter: the energy counters of this rank; None: energy was not measured.
        fields: further fields of the record.
    """
    slowest = [np.max([rank.times for rank in ranks], axis=0) for ranks in blocks]
    early = [
        _early(times[:, _STEP], ranks[0].early_steps)
        for times, ranks in zip(slowest, blocks, strict=True)
    ]
    timed = [times[count:] for times, count in zip(slowest, early, strict=True)]
    timed_steps = np.concatenate(timed)
    forward, backward, optimizer, _ = (1e3 * np.median(timed_steps, axis=0)).tolist()
    longest = max(blocks, key=lambda ranks: len(ranks[0].losses) or len(ranks[0].metrics))
    all_ranks = [rank for ranks in blocks for rank in ranks]
    clocks = joined_clocks(rank.clocks for rank in all_ranks)
    parameters = sum(p.numel() for p in workload.model.parameters() if p.requires_grad)
    ranks_agree = parameters_finite = dense_bytes = None
    if case.uses_ddp:
        parameters_finite = all(rank.digest != NOT_FINITE for rank in all_ranks)
        ranks_agree = all(len({rank.digest for rank in ranks}) == 1 for ranks in blocks)
        if ranks_agree and not parameters_finite:
            ranks_agree = None  # such parameters have no checksum
        dense_bytes = ring_bytes(FLOAT32_BYTES * parameters, case.world_size)
    sent = [rank.sent_bytes for rank in all_ranks if rank.sent_bytes is not None]
    errors = [rank.grad_rel_error for rank in all_ranks if rank.grad_rel_error is not None]
    optional = _bucket_times(blocks)
    if meter is not None:
        joules = [rank.energy_J for rank in all_ranks]  # of all blocks: one may be too short
        steps = sum(len(ranks[0].times) - ranks[0].early_steps for ranks in blocks)
        duration_s = sum(ranks[0].metered_s for ranks in blocks)
        optional |= meter.energy_each(joules, steps, duration_s)
    if longest[0].metrics:
        optional |= {
            "metrics": longest[0].metrics,
            "metric_name": workload.metric,
            "target": workload.target,
        }
    if errors:
        optional["grad_rel_error"] = errors[0]
    if sent:
        optional["sent_bytes"] = float(np.mean(sent))
    flags = []
    if clocks and clocks.slowed_by:
        flags.append("throttled")
    record = TrainingRecord(
        case=case,
        step_ms=(1e3 * timed_steps[:, _STEP]).round(6).tolist(),
        block_lengths=[len(times) for times in timed],
        total_steps=sum(map(len, slowest)),
        discarded=max(early),
        parameters=parameters,
        forward_ms=forward,
        backward_ms=backward,
        optimizer_ms=optimizer,
        bucket_bytes=blocks[-1][0].bucket_bytes,
        expected_bytes=blocks[-1][0].expected_bytes,
        dense_bytes=dense_bytes,
        losses=np.mean([rank.losses for rank in longest], axis=0).tolist(),
        ranks_agree=ranks_agree,
        parameters_finite=parameters_finite,
        skipped_steps=sum(ranks[0].skipped for ranks in blocks),
        peak_memory_bytes=max(rank.peak_memory_bytes or 0 for rank in all_ranks) or None,
        clocks=clocks,
        flags=flags,
        measuring_s=sum(ranks[0].seconds for ranks in blocks),
        **optional,
        **fields,
    )
    if ranks_agree is False:
        return without_result(record, "wrong", Finding(code="parameters_differ"))
    return record


def _early(times: Floats, least: int) -> int:
    """Return the untimed steps at the beginning of a block: at least ``least``, at most half of a
    long block.
    """
    early = min(least, len(times) - 1)
    if len(times) >= LONG_BLOCK:
        warmup_steps = stats.warmup_count(times.tolist())
        half = len(times) // 2
        if warmup_steps is None:
            warmup_steps = half
        early = max(least, min(half, warmup_steps))
    return min(early, len(times) - 1)


def _bucket_times(blocks: Sequence[Sequence[BlockSamples]]) -> dict[str, Any]:
    """Return the medians over all timed steps with the usual buckets."""
    steps = []
    for ranks in blocks:
        for stamps in zip(*(rank.watched for rank in ranks), strict=False):
            if len({len(of_rank) for of_rank in stamps}) == 1 and len(stamps[0]):
                steps.append(np.stack(stamps))
    if not steps:
        return {}
    usual_shape = Counter(step.shape for step in steps).most_common(1)[0][0]
    usual = np.stack([step for step in steps if step.shape == usual_shape])
    rank = blocks[-1][0]
    return bucket_medians(usual, list(zip(rank.bucket_bytes, rank.bucket_tensors, strict=True)))


def bucket_medians(stamps: Floats, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the buckets of a step and their sums over a step, medians over steps, as fields of a
    `TrainingRecord`.

    Args:
        stamps: see `commbench.ddp.step_times.bucket_stamps`, shape (steps, ranks, buckets,
            STAMPS).
        sizes: bytes and number of tensors of each bucket.
    """
    count = stamps.shape[2]
    ready, start, done, encode, decode = np.moveaxis(stamps, -1, 0)
    arrived = done - decode  # decompression follows
    duration = arrived - start
    shortest = duration.min(axis=1)
    skew_wait = (duration - shortest[:, None]).mean(axis=1)
    compress = (encode + decode).mean(axis=1)
    times = {
        "ready_ms": ready.max(axis=1),
        "start_ms": start.max(axis=1),
        "done_ms": done.max(axis=1),
        "comm_ms": shortest,
        "skew_wait_ms": skew_wait,
        "compress_ms": compress,
    }
    buckets = []
    for number, (size, tensors) in enumerate(sizes[:count]):
        medians = {name: _median_ms(of_steps[:, number]) for name, of_steps in times.items()}
        buckets.append(Bucket(size_bytes=size, parameters=tensors, **medians))
    busy = _busy(start, arrived)
    fastest = busy.min(axis=1)
    return {
        "buckets": buckets,
        "comm_ms": _median_ms(fastest),
        "skew_wait_ms": _median_ms((busy - fastest[:, None]).mean(axis=1)),
        "compress_ms": _median_ms(compress.sum(axis=1)),
        "encode_ms": _median_ms(encode.sum(axis=2).mean(axis=1)),
    }


def _busy(starts: Floats, ends: Floats) -> Floats:
    """Return the length of the union of intervals along the last axis."""
    order = np.argsort(starts)
    starts = np.take_along_axis(starts, order, -1)
    ends = np.maximum.accumulate(np.take_along_axis(ends, order, -1), axis=-1)
    covered = np.roll(ends, 1, axis=-1)
    covered[..., 0] = -np.inf
    busy: Floats = np.maximum(0, ends - np.maximum(starts, covered)).sum(axis=-1)
    return busy


def _median_ms(nanoseconds: Floats) -> float:
    return round(float(np.median(nanoseconds)) / 1e6, 6)
