"""Networks that follow the law of rings: records of collectives, runs, and a trained workload."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders import KIB, MIB, make_case, make_info, make_record
from step_builders import make_facts
from training_builders import make_bucket, make_training_case, make_training_record

from commbench.analysis.prediction.law import ForecastNetwork
from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.results import Run

SIZES = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]
STRAY = (0.99, 1.0, 1.01)
#: A model of eight equal layers of 4 MiB.
LAYERS = make_facts([4.0] * 8)


@dataclass(frozen=True, kw_only=True)
class Hop:
    """Cost of a message to another rank."""

    alpha_us: float = 50.0
    beta_us_per_byte: float = 8e-3
    """By default of 1 Gbit/s without headers."""


HOP = Hop()


def ring_us(operation: str, ranks: int, message_bytes: float, hop: Hop = HOP) -> float:
    """Return the time of a ring in microseconds: p-1 messages of n/p bytes, twice in an
    all_reduce.
    """
    turns = (2 if operation == "all_reduce" else 1) * (ranks - 1)
    return max(turns, 0.1) * (hop.alpha_us + message_bytes / ranks * hop.beta_us_per_byte)


def network_records(
    ranks: Iterable[int],
    *,
    hop: Hop = HOP,
    backend: str = "gloo",
    operations: Sequence[str] = ("all_reduce", "all_gather"),
    dtypes: Sequence[str] = ("float32",),
    sizes: Sequence[int] = SIZES,
) -> list[Record]:
    """Return records of a scaling study of operations that run as rings."""
    ranks = list(ranks)
    return [
        make_record(
            make_case(
                operation,
                backend=backend,
                message_bytes=size,
                dtype=dtype,
                world_size=None if number == max(ranks) else number,
            ),
            launch=launch,
            time_us=factor * ring_us(operation, number, size, hop),
            group_size=number,
            transport="tcp/eth0",
        )
        for operation in operations
        for dtype in dtypes
        for number in ranks
        for size in sizes
        for launch, factor in enumerate(STRAY)
    ]


def network_info(
    ranks: int, rate: str | None = "1gbit", cores: int = 1000, **changes: Any
) -> dict[str, Any]:
    """Return the ``run.json`` of one rank per host, by default emulated with enough cores."""
    host = {
        "hostname": "host0",
        "cpus_allowed": cores,
        "interfaces": [{"name": "eth0", "speed_Mbps": 10000, "mtu": 1500}],
    }
    environment = {"hosts": [host] * ranks} | (
        {"emulated": {"hosts": ranks, "rate": rate}} if rate else {}
    )
    return make_info(
        **{
            "world_size": ranks,
            "nodes": ranks,
            "ranks_per_node": 1,
            "environment": environment,
            **changes,
        }
    )


def measured_run(ranks: Iterable[int], *, info: dict[str, Any] | None = None, **how: Any) -> Run:
    """Return such a scaling study as a run."""
    ranks = list(ranks)
    records = tuple(network_records(ranks, **how))
    return Run(path=Path("network"), info=info or network_info(max(ranks)), records=records)


def forecast_network(ranks: Iterable[int] = (2, 4), **how: Any) -> ForecastNetwork:
    """Return the network of such a study."""
    return ForecastNetwork.fit([measured_run(ranks, **how)])


def write_run(
    path: Path, records: Sequence[Record] = (), training: Sequence[TrainingRecord] = (), **info: Any
) -> Path:
    """Write a run's directory, as `load_run` reads it."""
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps(info))
    lines = [json.dumps(record.to_json()) + "\n" for record in [*records, *training]]
    (path / "samples.jsonl").write_text("".join(lines))
    return path


def training_of(steps_ms: dict[str, float], ranks: int = 2, **changes: Any) -> list[TrainingRecord]:
    """Return records of `LAYERS`: of the local step, and of each hook with its step
    time.
    """
    local = make_training_record(
        make_training_case("local", world_size=ranks),
        step_ms=130.0,
        forward_ms=40.0,
        backward_ms=80.0,
        optimizer_ms=5.0,
    )
    records = [local]
    for hook, step_ms in steps_ms.items():
        compress_ms = 6.0 if hook.startswith("topk") else 0.0
        buckets = [
            make_bucket(
                size,
                ready_ms=ready_ms,
                done_ms=done_ms,
                compress_ms=compress_ms * size / (32 * MIB),
            )
            for size, ready_ms, done_ms in (
                (4 * MIB, 10.0, 10.0 + (step_ms - 60.0) / 8),
                (28 * MIB, 80.0, step_ms - 50.0),
            )
        ]
        records.append(
            make_training_record(
                make_training_case(hook, world_size=ranks),
                step_ms=step_ms,
                forward_ms=40.0,
                backward_ms=step_ms - 50.0,
                optimizer_ms=5.0,
                buckets=buckets,
                compress_ms=compress_ms,
                encode_ms=0.7 * compress_ms,
                **changes,
            )
        )
    return records
