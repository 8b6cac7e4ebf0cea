"""Launches of training on real ranks by ``ranks/train_session.py``."""

import dataclasses
import json
from typing import Any

from launching import RunRanks
from training_builders import make_training_case

from commbench.ddp.plan.cases import TrainingCase

#: A bucket size of which the tiny model makes two buckets.
SMALL = "0.1"


def case(
    hook: str = "none", cap: str = SMALL, workload: str = "tiny", **changes: Any
) -> TrainingCase:
    """Return a configuration of a workload of ``ranks/train_workloads.py``."""
    return make_training_case(hook, cap, workload=workload, batch_per_rank=8, **changes)


def task(
    cases: dict[str, TrainingCase],
    launch: int = 0,
    most_blocks: int = 1000,
    backend: str = "gloo",
    free_bytes: int | None = None,
    **terms: Any,
) -> dict[str, Any]:
    """Return the task of one launch for the script; the backend ``stand-in`` simulates a GPU."""
    fields = [dataclasses.asdict(each) for each in cases.values()]
    known = {
        "cases": fields,
        "launch": launch,
        "most_blocks": most_blocks,
        "backend": backend,
        "free_bytes": free_bytes,
    }
    return {**known, "terms": {"block_s": 0.02, **terms}}


class Launch:
    """The outcome of a launch by case name."""

    def __init__(self, names: list[str], found: dict[str, Any]) -> None:
        self.records = dict(zip(names, found["records"], strict=True))
        self.seen = dict(zip(names, found["seen"], strict=True))
        self.finished = found["finished"]
        self.begun = found["begun"]
        self.counters = found["counters"]
        self.device = found["device"]


def launches_of(
    run_ranks: RunRanks,
    ranks: int,
    *,
    timeout_s: float = 120,
    **tasks: tuple[dict[str, TrainingCase], dict[str, Any]],
) -> Any:
    """Train launches in sequence on the same ranks; return them by name."""
    words = json.dumps([task(cases, **options) for cases, options in tasks.values()])
    results = run_ranks(ranks, "train_session.py", words, timeout=timeout_s)
    return {
        name: Launch(list(tasks[name][0]), each) for name, each in zip(tasks, results, strict=True)
    }
