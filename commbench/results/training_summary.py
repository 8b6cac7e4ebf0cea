"""The summary of training: records of several launches become the rows of ``ddp.csv`` and
``buckets.csv``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from commbench import stats
from commbench.ddp.plan.cases import (
    CALIBRATE,
    COMPILE_MODES,
    PRECISIONS,
    SWITCHES,
    TrainingCase,
    baseline_of,
    hook_position,
)
from commbench.ddp.plan.records import Bucket, BucketRow, TrainingRecord, TrainingRow
from commbench.engine.flags import add_flag, join_flags, raised_flags
from commbench.engine.records import SCHEMA
from commbench.hooks.registry import FP16
from commbench.results.info import RunInfo, ranks_per_gpu
from commbench.results.summary import condition_flags, is_wide, joined_texts, launch_flags, metered
from commbench.results.trained import (
    EqualLosses,
    Group,
    Trained,
    baseline_case,
    block_medians_ms,
    equal_losses,
    groups_of,
    median,
    median_known,
    paired_sample_ms,
    speedup_of,
    time_to_target_s,
    trained,
)
from commbench.stats import MARGIN

MB = 1e6
#: Share by which sent bytes may differ from theory, and bytes of headers that each bucket may add.
TRAFFIC_SHARE, TRAFFIC_HEADERS = 0.05, 4096
#: Share by which the baseline's blocks in a launch may differ.
DRIFT = 0.1
#: Columns that are medians over launches of the field with the same name.
_PARTS = (
    "forward_ms",
    "backward_ms",
    "optimizer_ms",
    "comm_ms",
    "exposed_comm_ms",
    "skew_wait_ms",
    "compress_ms",
    "grad_rel_error",
)
#: Launches with fewer timed steps are flagged.
FEWEST_STEPS = 3

# ------------------------------------------------------------------------------------------ ddp.csv


def training_rows(records: Iterable[TrainingRecord], info: RunInfo) -> list[TrainingRow]:
    """Return one row per configuration of the sweep, in the order of `keyed_training_rows`."""
    return list(keyed_training_rows(records, info).values())


def keyed_training_rows(
    records: Iterable[TrainingRecord], info: RunInfo
) -> dict[TrainingCase, TrainingRow]:
    """Return one row per configuration of the sweep, the baseline first in its group, then ordered
    by its settings.

    Args:
        records: as ``samples.jsonl`` holds them; the last one of a case and launch counts. Those of
            the phase ``confirm`` are not looked at, those of ``calibrate`` only where nothing was
            swept, and those without DDP give ``local_step_ms``.
        info: as ``run.json`` holds it; read are ``run_id``, ``nodes``, ``ranks_per_node``,
            ``ranks_per_gpu``, ``seed``, ``relative_half_width`` (the budget's target),
            ``oversubscribed``, ``emulated`` (also inside ``environment``), ``baseline``,
            ``layouts`` (for a case's key the bytes of its buckets by DDP's rule), and
            ``same_layout``: for the key of each case that was not measured the key of the one that
            was measured for it. Each is optional.
    """
    by_key = swept(records)
    stand_ins = _stand_ins(info)
    groups = groups_of(by_key)
    baselines = {group: _baseline(members, by_key, info) for group, members in groups.items()}
    verdicts = _verdicts(groups, baselines)
    rows: dict[TrainingCase, TrainingRow] = {}
    for group, members in groups.items():
        losses = equal_losses(members)
        fp16 = _fp16(members, stand_ins, by_key)
        group_flags = {"drift"} if _drifted(baselines[group]) else set()
        for trained_case in members:
            row = _row(trained_case, by_key.get(trained_case.case.local().key), losses, info)
            row = _with_comparison(row, trained_case, baselines[group], verdicts)
            row = _with_fp16(row, trained_case, fp16)
            rows[trained_case.case] = dataclasses.replace(
                row, flags=join_flags(_flags(trained_case, row, group_flags, info))
            )
    rows |= {case: _copied(rows[other], case) for case, other in stand_ins.items() if other in rows}
    first = {trained_case.case for trained_case in baselines.values() if trained_case}
    return {case: rows[case] for case in sorted(rows, key=lambda case: _order(case, first, info))}


def training_energy_kinds(
    records: Iterable[TrainingRecord], info: RunInfo
) -> dict[TrainingCase, str]:
    """Return the ``energy_of`` of each configuration with an energy, the step without DDP
    included.
    """
    metered_by_case = {
        trained_case.case: metered(trained_case.timed.values())
        for trained_case in swept(records).values()
    }
    kinds = {
        case: energy_of
        for case, (joules, energy_of) in metered_by_case.items()
        if joules is not None
    }
    return kinds | {
        case: kinds[other] for case, other in _stand_ins(info).items() if other in kinds
    }


def swept(records: Iterable[TrainingRecord]) -> dict[str, Trained]:
    """Return the configurations of the sweep, or those of the calibration if a tuning made no
    sweep.
    """
    records = list(records)
    return trained(records) or trained(records, CALIBRATE)


def _stand_ins(info: RunInfo) -> dict[TrainingCase, TrainingCase]:
    """Return the measured case of each case that was not measured because its buckets are the
    same.
    """
    same = info.get("same_layout") or {}
    return {TrainingCase.from_key(key): TrainingCase.from_key(other) for key, other in same.items()}


def _baseline(
    members: Sequence[Trained], by_key: Mapping[str, Trained], info: RunInfo
) -> Trained | None:
    """Return the baseline of a group; None if it was not trained."""
    group = members[0].case.group
    cases = [trained_case.case for trained_case in members]
    cases += [case for case in _stand_ins(info) if case.group == group]
    return by_key.get(baseline_case(cases, info).key)


def _verdicts(
    groups: Mapping[Group, Sequence[Trained]], baselines: Mapping[Group, Trained | None]
) -> dict[str, str]:
    """Return the verdict on each configuration against its baseline, with the whole run as one
    family.
    """
    pairs = {}
    for group, members in groups.items():
        base = baselines[group]
        for trained_case in members:
            if base is None or trained_case is base or not (trained_case.is_ok and base.is_ok):
                continue
            own, theirs = paired_sample_ms(trained_case, base)
            pairs[trained_case.case.key] = (theirs, own)
    comparisons = stats.compare_family(list(pairs.values()), margin=MARGIN, paired=True)
    return {
        key: str(comparison.verdict) for key, comparison in zip(pairs, comparisons, strict=True)
    }


def _with_comparison(
    row: TrainingRow, trained_case: Trained, baseline: Trained | None, verdicts: Mapping[str, str]
) -> TrainingRow:
    """Fill the columns that compare a configuration with its baseline."""
    if baseline is None or not (trained_case.is_ok and baseline.is_ok):
        return row
    if trained_case is baseline:
        return dataclasses.replace(row, speedup=1.0)
    speedup = speedup_of(trained_case, baseline)
    interval = speedup.interval if speedup else None
    return dataclasses.replace(
        row,
        speedup=speedup.ratio if speedup else None,
        speedup_ci_low=interval.low if interval else None,
        speedup_ci_high=interval.high if interval else None,
        verdict=_supported(verdicts[trained_case.case.key], interval),
    )


def _fp16(
    members: Sequence[Trained],
    stand_ins: Mapping[TrainingCase, TrainingCase],
    by_key: Mapping[str, Trained],
) -> Trained | None:
    """Return the setting of a group that sends FP16 in DDP's default buckets.

    None if it was not trained.
    """
    case = dataclasses.replace(
        baseline_of([trained_case.case for trained_case in members]), hook=FP16
    )
    return by_key.get(stand_ins.get(case, case).key)


def _with_fp16(row: TrainingRow, trained_case: Trained, fp16: Trained | None) -> TrainingRow:
    """Fill the columns that compare a configuration with FP16 in default buckets."""
    if fp16 is None or not (trained_case.is_ok and fp16.is_ok):
        return row
    if trained_case is fp16:
        return dataclasses.replace(row, speedup_fp16=1.0)
    speedup = speedup_of(trained_case, fp16)
    interval = speedup.interval if speedup else None
    return dataclasses.replace(
        row,
        speedup_fp16=speedup.ratio if speedup else None,
        speedup_fp16_ci_low=interval.low if interval else None,
        speedup_fp16_ci_high=interval.high if interval else None,
    )


def _supported(verdict: str, interval: stats.Interval | None) -> str:
    """Return the verdict if the row's own interval supports it, else inconclusive."""
    if interval is None:
        return str(stats.Verdict.INCONCLUSIVE)
    shortest, longest = (
        1 / interval.high,
        1 / interval.low,
    )  # of the time, as a share of the baseline's
    borne_out = {
        "faster": longest < 1 - MARGIN,
        "slower": shortest > 1 + MARGIN,
        "same": shortest >= 1 - MARGIN and longest <= 1 + MARGIN,
    }
    return verdict if borne_out.get(verdict, True) else str(stats.Verdict.INCONCLUSIVE)


def _row(
    trained_case: Trained,
    local: Trained | None,
    losses: Mapping[tuple[str, int], EqualLosses],
    info: RunInfo,
) -> TrainingRow:
    timed = list(trained_case.timed.values())
    row = _with_conditions(_requested(trained_case.case, info), timed or trained_case.records)
    if timed:
        row = _with_steps(row, trained_case)
    row = _with_learning(_with_parts(row, timed), trained_case, losses)
    return dataclasses.replace(
        _with_local_step(row, trained_case, local), **vars(trained_case.outcome)
    )


def _requested(case: TrainingCase, info: RunInfo) -> TrainingRow:
    """Return a row with the columns of the requested configuration and of the run."""
    requested = dataclasses.asdict(case)
    del requested["phase"]
    return TrainingRow(
        schema=info.get("schema", SCHEMA),
        run_id=str(info.get("run_id", "")),
        nodes=info.get("nodes"),
        ranks_per_node=info.get("ranks_per_node"),
        ranks_per_gpu=ranks_per_gpu(case.backend, info),
        seed=info.get("seed"),
        **requested,
    )


def _with_conditions(row: TrainingRow, records: Sequence[TrainingRecord]) -> TrainingRow:
    """Fill the columns about how it was trained.

    Devices that differ between launches are all named.
    """
    last = records[-1]
    return dataclasses.replace(
        row,
        device=joined_texts(record.device for record in records),
        parameters=last.parameters or None,
        threads_per_rank=last.threads_per_rank,
        bucket_count=len(last.bucket_bytes) or None,
        bucket_mb="+".join(_digits(size / MB) for size in last.bucket_bytes),
        metric_name=last.metric_name,
    )


def _with_steps(row: TrainingRow, trained_case: Trained) -> TrainingRow:
    """Fill the columns made of whole steps."""
    timed, medians = list(trained_case.timed.values()), list(trained_case.steps_ms.values())
    step_ms = median(medians)
    interval = (
        stats.median_interval(timed[0].step_ms) if len(timed) == 1 else trained_case.step_interval
    )
    return dataclasses.replace(
        row,
        launches=len(timed),
        blocks=int(median([len(record.block_lengths) for record in timed])) or None,
        steps=sum(len(record.step_ms) for record in timed),
        step_ms=step_ms,
        step_ms_ci_low=interval.low if interval else None,
        step_ms_ci_high=interval.high if interval else None,
        step_ms_p95=median([float(np.percentile(record.step_ms, 95)) for record in timed]),
        samples_per_s=1e3 * trained_case.case.samples_per_step / step_ms if step_ms else None,
    )


def _with_parts(row: TrainingRow, timed: Sequence[TrainingRecord]) -> TrainingRow:
    """Fill the columns made of one number a launch."""
    medians: dict[str, Any] = {
        name: median_known(getattr(record, name) for record in timed) for name in _PARTS
    }
    agree = [record.ranks_agree for record in timed if record.ranks_agree is not None]
    memory = [record.peak_memory_bytes for record in timed if record.peak_memory_bytes is not None]
    return dataclasses.replace(
        row,
        **medians,
        sent_MB_per_step=_scaled(median_known(record.sent_bytes for record in timed)),
        dense_MB_per_step=_scaled(median_known(record.dense_bytes for record in timed)),
        energy_J=metered(timed)[0],
        ranks_agree=all(agree) if agree else None,
        skipped_steps=sum(record.skipped_steps for record in timed) if timed else None,
        peak_memory_MB=max(memory) / MB if memory else None,
    )


def _with_local_step(row: TrainingRow, trained_case: Trained, local: Trained | None) -> TrainingRow:
    """Fill the columns that compare a configuration with the step without DDP, in launches that
    have both.
    """
    launches = trained_case.timed.keys() & local.timed.keys() if local else set()
    if local is None or not launches or not row.step_ms:
        return row
    local_ms = median([local.steps_ms[launch] for launch in launches])
    exposed = [_exposed(trained_case.timed[launch], local.timed[launch]) for launch in launches]
    return dataclasses.replace(
        row,
        local_step_ms=local_ms,
        scaling_efficiency=local_ms / row.step_ms,
        exposed_comm_ms=median_known(exposed),
    )


def _exposed(record: TrainingRecord, local: TrainingRecord) -> float | None:
    """Return the time by which communication lengthens the backward pass."""
    if record.backward_ms is None or local.backward_ms is None:
        return None
    return max(0.0, record.backward_ms - local.backward_ms - (record.encode_ms or 0.0))


def _copied(row: TrainingRow, case: TrainingCase) -> TrainingRow:
    """Return the row of a case that was not measured because another has the same buckets."""
    is_baseline = row.speedup is not None and not row.verdict
    return dataclasses.replace(
        row,
        bucket_cap_mb=case.bucket_cap_mb,
        verdict=str(stats.Verdict.SAME) if is_baseline else row.verdict,
        flags=add_flag(row.flags, "same_layout"),
    )


def _order(case: TrainingCase, baselines: set[TrainingCase], info: RunInfo) -> tuple[Any, ...]:
    *group, env = case.group
    envs = list(info.get("env") or ())
    return (
        *group,
        envs.index(env) if env in envs else 0,
        case not in baselines,
        case.accumulation,
        *(getattr(case, switch.name) != switch.default for switch in SWITCHES),
        ("", *COMPILE_MODES).index(case.compile) if case.compile in COMPILE_MODES else 0,
        PRECISIONS.index(case.precision) if case.precision in PRECISIONS else len(PRECISIONS),
        hook_position(case.hook),
        case.hook,
        -(case.density or 0.0),
        case.hook_options,
        case.caps_mb,
    )


def _with_learning(
    row: TrainingRow, trained_case: Trained, losses: Mapping[tuple[str, int], EqualLosses]
) -> TrainingRow:
    """Fill the columns about loss and metric, medians over launches."""
    equal = [
        losses[trained_case.case.key, launch]
        for launch in trained_case.timed
        if (trained_case.case.key, launch) in losses
    ]
    return dataclasses.replace(
        row,
        loss_first=median_known(
            record.losses[0] for record in trained_case.timed.values() if len(record.losses)
        ),
        loss_equal_steps=median_known(loss.steps for loss in equal),
        loss_equal_time=median_known(loss.time for loss in equal),
        metric=median_known(
            record.metrics[-1][1] for record in trained_case.timed.values() if len(record.metrics)
        ),
        time_to_target_s=time_to_target_s(trained_case),
    )


# -------------------------------------------------------------------------------------------- flags


def _flags(
    trained_case: Trained, row: TrainingRow, group_flags: set[str], info: RunInfo
) -> set[str]:
    """Return the flags of a row: those of its records, of its group's baseline, and those judged
    over all launches.
    """
    timed = list(trained_case.timed.values())
    if not timed:
        return set()
    raised = {flag for record in timed for flag in record.flags}
    judged = {
        "ci_wide": is_wide(row.step_ms, row.step_ms_ci_low, row.step_ms_ci_high, info),
        "bimodal": (2 * sum(stats.is_bimodal(record.step_ms) for record in timed) >= len(timed)),
        "unsteady": (
            2 * sum(not stats.is_steady(record.step_ms) for record in timed) >= len(timed)
        ),
        "oversubscribed": bool(info.get("oversubscribed")),
        "traffic": _is_odd(timed),
        "layout": _has_other_layout(trained_case, info),
        "ranks_differ": row.ranks_agree is False,
        "short": any(len(record.step_ms) < FEWEST_STEPS for record in timed),
    }
    conditions = condition_flags(row.backend, info) | launch_flags(
        list(trained_case.steps_ms.values())
    )
    return raised | set(raised_flags(judged)) | conditions | group_flags


def _has_other_layout(trained_case: Trained, info: RunInfo) -> bool:
    """Return whether DDP made other buckets than ``info["layouts"]`` foresees for the
    configuration.
    """
    predicted = (info.get("layouts") or {}).get(trained_case.case.key)
    return predicted is not None and any(
        list(record.bucket_bytes) != predicted for record in trained_case.timed.values()
    )


def _is_odd(timed: Sequence[TrainingRecord]) -> bool:
    """Return whether the bytes really sent differ from theory by more than headers explain."""
    sent = median_known(record.sent_bytes for record in timed)
    expected = median_known(record.expected_bytes for record in timed)
    if sent is None or expected is None:
        return False
    headers = TRAFFIC_HEADERS * max(1, len(timed[-1].bucket_bytes))
    return abs(sent - expected) > TRAFFIC_SHARE * expected + headers


def _drifted(baseline: Trained | None) -> bool:
    """Return whether the baseline's blocks differ in at least half of its launches."""
    timed = list(baseline.timed.values()) if baseline else []
    return bool(timed) and 2 * sum(map(_blocks_differ, timed)) >= len(timed)


def _blocks_differ(record: TrainingRecord) -> bool:
    medians = block_medians_ms(record)
    return len(medians) > 1 and max(medians) > (1 + DRIFT) * min(medians)


# -------------------------------------------------------------------------------------- buckets.csv


def bucket_rows(records: Iterable[TrainingRecord], info: RunInfo) -> list[BucketRow]:
    """Return one row per bucket of each configuration of the sweep that was measured, ordered as
    `training_rows`.

    Launches in which the buckets were others than in most are left out.
    """
    by_key = swept(records)
    baselines = (_baseline(members, by_key, info) for members in groups_of(by_key).values())
    first = {trained_case.case for trained_case in baselines if trained_case}
    ddp = sorted(
        (trained_case for trained_case in by_key.values() if trained_case.case.uses_ddp),
        key=lambda trained_case: _order(trained_case.case, first, info),
    )
    return [row for trained_case in ddp for row in _bucket_rows_of(trained_case, info)]


def _bucket_rows_of(trained_case: Trained, info: RunInfo) -> list[BucketRow]:
    schema, run_id = info.get("schema", SCHEMA), str(info.get("run_id", ""))
    shared = {f.name for f in dataclasses.fields(BucketRow)}
    requested = {
        name: value
        for name, value in dataclasses.asdict(trained_case.case).items()
        if name in shared
    }
    launches = [record.buckets for record in trained_case.timed.values() if len(record.buckets)]
    sizes = Counter(tuple(bucket.size_bytes for bucket in buckets) for buckets in launches)
    usual = sizes.most_common(1)[0][0] if sizes else ()
    alike = [
        buckets for buckets in launches if tuple(bucket.size_bytes for bucket in buckets) == usual
    ]
    return [
        BucketRow(
            schema=schema, run_id=run_id, **requested, bucket=number, **_bucket_medians(of_bucket)
        )
        for number, of_bucket in enumerate(zip(*alike, strict=True))
    ]


def _bucket_medians(launches: Sequence[Bucket]) -> dict[str, Any]:
    times = ("ready_ms", "start_ms", "done_ms", "comm_ms", "skew_wait_ms", "compress_ms")
    medians = {name: median([getattr(bucket, name) for bucket in launches]) for name in times}
    return {"size_bytes": launches[0].size_bytes, "parameters": launches[0].parameters, **medians}


def _scaled(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else size_bytes / MB


def _digits(value: float) -> str:
    """Three significant digits without an exponent."""
    return np.format_float_positional(value, precision=3, fractional=False, trim="-")
