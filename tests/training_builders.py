"""Training configurations and records built by hand, for tests of everything that reads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builders import make_info

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import Bucket, TrainingRecord, TrainingRow
from commbench.engine.records import Record
from commbench.hooks.registry import parse_hook
from commbench.results import Run
from commbench.results.recommendation import Recommendation
from commbench.results.training_summary import keyed_training_rows


def make_training_case(hook: str = "none", cap: str = "default", **changes: Any) -> TrainingCase:
    """Return a configuration on 2 ranks with 32 samples each; ``hook`` as on the command line."""
    chosen = (
        {"hook": "local", "density": None, "hook_options": ""}
        if hook == "local"
        else parse_hook(hook)
    )
    fields = {"workload": "mlp", "world_size": 2, "batch_per_rank": 32, "bucket_cap_mb": cap}
    return TrainingCase(**{**fields, **chosen, **changes})


def make_bucket(size_bytes: int = 4_000_000, *, done_ms: float = 9.0, **changes: Any) -> Bucket:
    """Return a bucket of two tensors that takes 4 ms."""
    times = {
        "ready_ms": done_ms - 5,
        "start_ms": done_ms - 4,
        "done_ms": done_ms,
        "comm_ms": 4.0,
        "skew_wait_ms": 0.5,
    }
    return Bucket(**{"size_bytes": size_bytes, "parameters": 2, **times, **changes})


def make_training_record(
    case: TrainingCase | None = None, *, launch: int = 0, step_ms: float = 20.0, **changes: Any
) -> TrainingRecord:
    """Return a record of one block of 20 steps within 1 % of ``step_ms``.

    Without times unless it is ok.
    """
    case = case or make_training_case()
    timed = {
        "step_ms": [step_ms * (1 + 0.01 * (step - 9.5) / 9.5) for step in range(20)],
        "block_steps": 22,
        "block_lengths": [20],
        "discarded": 2,
        "forward_ms": 0.3 * step_ms,
        "backward_ms": 0.6 * step_ms,
        "optimizer_ms": 0.1 * step_ms,
    }
    exchanged = {
        "comm_ms": 5.0,
        "skew_wait_ms": 1.0,
        "compress_ms": 0.0,
        "encode_ms": 0.0,
        "bucket_bytes": [1_200_000, 33_600_000],
        "sent_bytes": 34_800_000.0,
        "expected_bytes": 34_800_000.0,
        "dense_bytes": 34_800_000.0,
        "ranks_agree": True,
    }
    fields = {"parameters": 8_700_000, "seed": 7 + launch}
    if changes.get("status", "ok") == "ok":
        fields |= timed | (exchanged if case.uses_ddp else {})
    return TrainingRecord(case=case, launch=launch, **{**fields, **changes})


def make_training_launches(
    steps_ms: Sequence[float], case: TrainingCase | None = None, **changes: Any
) -> list[TrainingRecord]:
    """Return one record per launch with median steps ``steps_ms``."""
    return [
        make_training_record(case, launch=launch, step_ms=step_ms, **changes)
        for launch, step_ms in enumerate(steps_ms)
    ]


def make_training_info(**changes: Any) -> dict[str, Any]:
    """Return the ``run.json`` of a quick training on 2 ranks of one host."""
    return make_info(**{"suite": "train", **changes})


#: Six launches that differ by 1 % at most; times any factor they are as steady.
EVEN = [0.995, 0.997, 0.999, 1.001, 1.003, 1.005]


def launches_of(
    step_ms: float, case: TrainingCase | None = None, **changes: Any
) -> list[TrainingRecord]:
    """Return six launches of steps of ``step_ms`` with little noise."""
    return make_training_launches([step_ms * factor for factor in EVEN], case, **changes)


def training_rows(records: list[TrainingRecord], info: Any) -> list[TrainingRow]:
    """Return the rows of ``ddp.csv`` in order."""
    return list(keyed_training_rows(records, info).values())


def rows_of(records: list[TrainingRecord], **info: Any) -> dict[str, TrainingRow]:
    """Return the rows of ``ddp.csv`` by hook and bucket size."""
    rows = training_rows(records, make_training_info(**info))
    return {f"{row.hook} {row.bucket_cap_mb}": row for row in rows}


def run_of(
    records: Sequence[Record] = (),
    name: str = "mine",
    *,
    training: Sequence[TrainingRecord] = (),
    recommendation: Recommendation | None = None,
    **info: Any,
) -> Run:
    """Return a run of collectives, of training or of both in the directory ``name``."""
    make = make_training_info if training else make_info
    return Run(
        path=Path("/runs") / name,
        info=make(**{"run_id": name, **info}),
        records=tuple(records),
        training_records=tuple(training),
        recommendation=recommendation,
    )
