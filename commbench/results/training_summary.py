"""The summary of training: records of several launches become the rows of ``ddp.csv`` and
``buckets.csv``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from commbench import stats
from commbench.ddp.plan.cases import (
    COMPILE_MODES,
    PRECISIONS,
    SWITCHES,
    TrainingCase,
    baseline_of,
    hook_position,
)
from commbench.ddp.plan.records import Bucket, BucketRow, TrainingRecord, TrainingRow
from commbench.engine.flags import join_flags, raised_flags, split_flags
from commbench.engine.records import copied, interval_columns
from commbench.hooks.catalogue import FP16
from commbench.results.info import RunInfo
from commbench.results.summary import (
    are_most,
    condition_flags,
    is_wide,
    joined_texts,
    launch_flags,
    metered,
    requested,
    run_columns,
)
from commbench.results.tables import Columns, rows_by
from commbench.results.trained import (
    Group,
    Losses,
    Trained,
    baseline_case,
    block_medians_ms,
    equal_losses,
    groups_of,
    median_known,
    paired_sample_ms,
    speedup_of,
    time_to_target_s,
    trained,
)
from commbench.stats import MARGIN, median

MB = 1e6
#: Share by which sent bytes may differ from theory, and bytes of headers that each bucket may add.
TRAFFIC_SHARE, TRAFFIC_HEADERS = 0.05, 4096
#: Share by which the baseline's blocks in a launch may differ.
DRIFT = 0.1
#: Columns that ``run.json`` states.
_OF_RUN = ("nodes", "ranks_per_node", "seed")
#: Columns that are medians over launches of the field with the same name.
_MEDIANS = (
    "forward_ms",
    "backward_ms",
    "optimizer_ms",
    "comm_ms",
    "exposed_comm_ms",
    "skew_wait_ms",
    "compress_ms",
    "grad_rel_error",
)
#: Columns in MB that are medians over launches of a field in bytes.
_MEDIANS_MB = {"sent_MB_per_step": "sent_bytes", "dense_MB_per_step": "dense_bytes"}
#: Columns of ``buckets.csv`` that are medians over launches.
_BUCKET_MEDIANS = ("ready_ms", "start_ms", "done_ms", "comm_ms", "skew_wait_ms", "compress_ms")
#: Launches with fewer timed steps are flagged.
FEWEST_STEPS = 3

# ------------------------------------------------------------------------------------------ ddp.csv


def keyed_training_rows(
    records: Iterable[TrainingRecord], info: RunInfo
) -> dict[TrainingCase, TrainingRow]:
    """Return one row per configuration of the sweep, the baseline first in its group, then ordered
    by its settings.

    Args:
        records: as ``samples.jsonl`` holds them; the last one of a case and launch counts. Those of
            the phase ``confirm`` are not looked at, and those without DDP give
            ``local_step_ms``.
        info: as ``run.json`` holds it; read are ``run_id``, ``nodes``, ``ranks_per_node``,
            ``ranks_per_gpu``, ``seed``, ``relative_half_width`` (the budget's target),
            ``oversubscribed``, ``emulated`` (also inside ``environment``), ``baseline``,
            ``layouts`` (for a case's key the bytes of its buckets by DDP's rule), and
            ``same_layout``: for the key of each case that was not measured the key of the one that
            was measured for it. Each is optional.
    """
    sweep = _Sweep(records, info)
    verdicts = sweep.verdicts()
    rows = {}
    for group, members in sweep.groups.items():
        baseline, fp16 = sweep.baselines[group], sweep.fp16_of(members)
        losses = equal_losses(members)
        for each in members:
            columns = _measured(each, losses, info)
            local = sweep.by_key.get(each.case.local().key)
            columns |= _beside_local(each, local, columns.get("step_ms"))
            columns |= _compared("speedup", each, baseline)
            columns |= _compared("speedup_fp16", each, fp16)
            if each.case.key in verdicts:
                columns["verdict"] = _supported(verdicts[each.case.key], columns)
            row = TrainingRow(**columns)
            flags = _flags(each, row, baseline, info)
            rows[each.case] = dataclasses.replace(row, flags=join_flags(flags))
    for case, measured in sweep.stand_ins.items():
        if measured in rows:
            rows[case] = _copied(rows[measured], case)
    return {case: rows[case] for case in sorted(rows, key=sweep.order_of)}


class _Sweep:
    """The configurations of a sweep, and those that they are compared with."""

    def __init__(self, records: Iterable[TrainingRecord], info: RunInfo) -> None:
        self._info = info
        self.by_key = trained(records)
        self.groups = groups_of(self.by_key)
        """The configurations with DDP that are alternatives to each other."""
        self.stand_ins: dict[TrainingCase, TrainingCase] = {}
        """The measured case of each that was not measured because its buckets are the same."""
        for key, other in info.get("same_layout", {}).items():
            self.stand_ins[TrainingCase.from_key(key)] = TrainingCase.from_key(other)
        self.baselines: dict[Group, Trained | None] = {}
        """Of each group; None if it was not trained."""
        for group, members in self.groups.items():
            cases = [each.case for each in members]
            cases += [case for case in self.stand_ins if case.group == group]
            self.baselines[group] = self.by_key.get(baseline_case(cases, info).key)

    def fp16_of(self, members: Sequence[Trained]) -> Trained | None:
        """Return the setting of a group that sends FP16 in DDP's default buckets.

        None if it was not trained.
        """
        baseline = baseline_of([each.case for each in members])
        case = dataclasses.replace(baseline, hook=FP16.name)
        return self.by_key.get(self.stand_ins.get(case, case).key)

    def verdicts(self) -> dict[str, str]:
        """Return the verdict on each configuration against its baseline, with the whole run as one
        family.
        """
        pairs = {}
        for group, members in self.groups.items():
            base = self.baselines[group]
            for each in members:
                if base is not None and each is not base and each.is_ok and base.is_ok:
                    own, theirs = paired_sample_ms(each, base)
                    pairs[each.case.key] = (theirs, own)
        comparisons = stats.compare_family(list(pairs.values()), margin=MARGIN, paired=True)
        return {
            key: str(comparison.verdict) for key, comparison in zip(pairs, comparisons, strict=True)
        }

    def order_of(self, case: TrainingCase) -> tuple[Any, ...]:
        """Return the sort key of a row."""
        *group, env = case.group
        base = self.baselines.get(case.group)
        return (
            *group,
            _position(env, self._info.get("env", ()), 0),
            base is None or case != base.case,
            case.accumulation,
            *(getattr(case, switch.name) != switch.default for switch in SWITCHES),
            _position(case.compile, ("", *COMPILE_MODES), 0),
            _position(case.precision, PRECISIONS, len(PRECISIONS)),
            hook_position(case.hook),
            case.hook,
            -(case.density or 0.0),
            case.hook_options,
            case.caps_mb,
        )


def _position(name: str, names: Iterable[str], otherwise: int) -> int:
    """Return the place of a name among names, or another number for a name that is not there."""
    return {each: place for place, each in enumerate(names)}.get(name, otherwise)


def _compared(name: str, trained_case: Trained, base: Trained | None) -> Columns:
    """Return the columns of a speedup over ``base``; none if either has no result."""
    if base is None or not (trained_case.is_ok and base.is_ok):
        return {}
    if trained_case is base:
        return {name: 1.0}
    speedup = speedup_of(trained_case, base)
    if speedup is None:
        return {}
    return {name: speedup.ratio, **interval_columns(name, speedup.interval)}


def _supported(verdict: str, columns: Mapping[str, Any]) -> str:
    """Return the verdict if the row's own interval supports it, else inconclusive."""
    supported = stats.Verdict.INCONCLUSIVE
    if "speedup_ci_low" in columns:  # times are its inverse, as a share of the baseline's
        supported = stats.verdict_of(1 / columns["speedup_ci_high"], 1 / columns["speedup_ci_low"])
    if verdict == supported:
        return verdict
    return str(stats.Verdict.INCONCLUSIVE)


def _measured(trained_case: Trained, losses: Losses, info: RunInfo) -> Columns:
    """Return the columns of a configuration by itself; devices that differ are all named."""
    timed = list(trained_case.timed.values())
    records = timed or trained_case.records
    last = records[-1]
    columns = requested(TrainingRow, trained_case.case, info, _OF_RUN)
    columns |= {
        "device": joined_texts(records, "device"),
        "parameters": last.parameters or None,
        "threads_per_rank": last.threads_per_rank,
        "bucket_count": len(last.bucket_bytes) or None,
        "bucket_mb": "+".join(_digits(size / MB) for size in last.bucket_bytes),
        "metric_name": last.metric_name,
        **trained_case.outcome,
    }
    if timed:
        columns |= _steps(trained_case) | _parts(timed)
        key = trained_case.case.key
        equal = [losses[key, each.launch] for each in timed if (key, each.launch) in losses]
        first = [each.losses[0] for each in timed if len(each.losses)]
        metrics = [each.metrics[-1][1] for each in timed if len(each.metrics)]
        columns |= {
            "loss_first": median_known(first),
            "loss_equal_steps": median_known(loss.steps for loss in equal),
            "loss_equal_time": median_known(loss.time for loss in equal),
            "metric": median_known(metrics),
            "time_to_target_s": time_to_target_s(trained_case),
        }
    return columns


def _steps(trained_case: Trained) -> Columns:
    """Return the columns made of whole steps."""
    timed = list(trained_case.timed.values())
    steps_ms = list(trained_case.steps_ms.values())
    step_ms = median(steps_ms)
    interval = stats.launch_interval(steps_ms)
    if len(timed) == 1:
        interval = stats.median_interval(timed[0].step_ms)
    columns = {
        "launches": len(timed),
        "blocks": int(median([len(record.block_lengths) for record in timed])) or None,
        "steps": sum(len(record.step_ms) for record in timed),
        "step_ms": step_ms,
        "step_ms_p95": median([float(np.percentile(record.step_ms, 95)) for record in timed]),
        **interval_columns("step_ms", interval),
    }
    if step_ms:
        columns["samples_per_s"] = 1e3 * trained_case.case.samples_per_step / step_ms
    return columns


def _parts(timed: Sequence[TrainingRecord]) -> Columns:
    """Return the columns made of one number a launch."""
    columns = metered(timed)
    for name in _MEDIANS:
        columns[name] = median_known(getattr(record, name) for record in timed)
    for name, field in _MEDIANS_MB.items():
        size_bytes = median_known(getattr(record, field) for record in timed)
        if size_bytes is not None:
            columns[name] = size_bytes / MB
    columns["skipped_steps"] = sum(record.skipped_steps for record in timed)
    agree = [record.ranks_agree for record in timed if record.ranks_agree is not None]
    if agree:
        columns["ranks_agree"] = all(agree)
    memory = [record.peak_memory_bytes for record in timed if record.peak_memory_bytes is not None]
    if memory:
        columns["peak_memory_MB"] = max(memory) / MB
    return columns


def _beside_local(trained_case: Trained, local: Trained | None, step_ms: float | None) -> Columns:
    """Return the columns that compare a configuration with the step without DDP, in launches that
    have both.
    """
    if local is None:
        return {}
    timed = trained_case.timed
    launches = timed.keys() & local.timed.keys()
    if not launches or not step_ms:
        return {}
    local_ms = median([local.steps_ms[launch] for launch in launches])
    exposed = []
    for launch in launches:
        own, alone = timed[launch], local.timed[launch]
        if own.backward_ms is not None and alone.backward_ms is not None:
            longer_ms = own.backward_ms - alone.backward_ms - (own.encode_ms or 0.0)
            exposed.append(max(0.0, longer_ms))  # communication lengthens the backward pass
    return {
        "local_step_ms": local_ms,
        "scaling_efficiency": local_ms / step_ms,
        "exposed_comm_ms": median_known(exposed),
    }


def _copied(row: TrainingRow, case: TrainingCase) -> TrainingRow:
    """Return the row of a case that was not measured because another has the same buckets."""
    verdict = row.verdict
    if row.speedup is not None and not verdict:  # the baseline
        verdict = str(stats.Verdict.SAME)
    flags = join_flags([*split_flags(row.flags), "same_layout"])
    return dataclasses.replace(row, bucket_cap_mb=case.bucket_cap_mb, verdict=verdict, flags=flags)


# -------------------------------------------------------------------------------------------- flags


def _flags(
    trained_case: Trained, row: TrainingRow, baseline: Trained | None, info: RunInfo
) -> set[str]:
    """Return the flags of a row: those of its records, and those judged over all launches."""
    timed = list(trained_case.timed.values())
    if not timed:
        return set()
    base: list[TrainingRecord] = []
    if baseline is not None:
        base += baseline.timed.values()
    layout = info.get("layouts", {}).get(trained_case.case.key)
    judged = {
        "ci_wide": is_wide(row, "step_ms", info),
        "bimodal": are_most(stats.is_bimodal(record.step_ms) for record in timed),
        "unsteady": are_most(not stats.is_steady(record.step_ms) for record in timed),
        "traffic": _is_odd(timed),
        "layout": layout is not None
        and any(list(record.bucket_bytes) != layout for record in timed),
        "ranks_differ": row.ranks_agree is False,
        "short": any(len(record.step_ms) < FEWEST_STEPS for record in timed),
        "drift": len(base) > 0 and are_most(map(_blocks_differ, base)),
    }
    return flags_of(trained_case, info) | set(raised_flags(judged))


def flags_of(trained_case: Trained, info: RunInfo) -> set[str]:
    """Return the flags of the records, of how launches differ, and of the run's conditions."""
    flags = condition_flags(trained_case.case.backend, info)
    flags |= launch_flags(list(trained_case.steps_ms.values()))
    if info.get("oversubscribed"):
        flags.add("oversubscribed")
    for record in trained_case.timed.values():
        flags.update(record.flags)
    return flags


def _is_odd(timed: Sequence[TrainingRecord]) -> bool:
    """Return whether the bytes really sent differ from theory by more than headers explain."""
    sent = median_known(record.sent_bytes for record in timed)
    expected = median_known(record.expected_bytes for record in timed)
    if sent is None or expected is None:
        return False
    headers = TRAFFIC_HEADERS * max(1, len(timed[-1].bucket_bytes))
    return abs(sent - expected) > TRAFFIC_SHARE * expected + headers


def _blocks_differ(record: TrainingRecord) -> bool:
    """Return whether the machine has drifted."""
    medians = block_medians_ms(record)
    return len(medians) > 1 and max(medians) > (1 + DRIFT) * min(medians)


# -------------------------------------------------------------------------------------- buckets.csv


def bucket_rows(records: Iterable[TrainingRecord], info: RunInfo) -> list[BucketRow]:
    """Return one row per bucket of each configuration of the sweep that was measured, ordered as
    `keyed_training_rows`.

    Launches in which the buckets were others than in most are left out.
    """
    sweep = _Sweep(records, info)
    ddp = {each.case: each for each in sweep.by_key.values() if each.case.uses_ddp}
    rows = []
    for case in sorted(ddp, key=sweep.order_of):
        shared = copied(BucketRow, case) | run_columns(info)
        for number, of_bucket in enumerate(zip(*_usual_buckets(ddp[case]), strict=True)):
            columns = copied(BucketRow, of_bucket[0]) | shared
            for name in _BUCKET_MEDIANS:
                columns[name] = median([getattr(bucket, name) for bucket in of_bucket])
            rows.append(BucketRow(**columns, bucket=number))
    return rows


def _usual_buckets(trained_case: Trained) -> list[Sequence[Bucket]]:
    """Return the buckets of each launch that has the same sizes as most launches."""
    timed = [record.buckets for record in trained_case.timed.values() if len(record.buckets)]
    by_sizes = rows_by(timed, lambda buckets: tuple(bucket.size_bytes for bucket in buckets))
    return max(by_sizes.values(), key=len, default=[])


def _digits(value: float) -> str:
    """Three significant digits without an exponent."""
    return np.format_float_positional(value, precision=3, fractional=False, trim="-")
