"""Run on real ranks: train the configurations of a launch.

Print rank 0's records and every rank's observations.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from reporting import report_and_exit
from stand_in import StandIn

from commbench.backends.mpi_control import MpiControl
from commbench.ddp import block, session
from commbench.ddp.devices import Device, open_device
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.terms import Terms
from commbench.engine.control import gather_everywhere
from commbench.engine.timing.loops import Progress
from commbench.hooks import Hook
from commbench.hooks.base import Launched, Stopwatch

WORKLOADS = Path(__file__).parent / "train_workloads.py"


class Short(Hook):
    """A hook that returns one element too few from the fourth step on."""

    name = "short"
    steps = 0

    def begin_step(self) -> None:
        """Count steps."""
        self.steps += 1

    def launch(self, bucket: dist.GradBucket, watch: Stopwatch) -> Launched:
        """All-reduce the bucket."""
        buffer = bucket.buffer()
        future, _ = self.reduce_whole(buffer, watch)
        return future, lambda _: buffer[1:] if self.steps > 3 else buffer


RUN_BLOCK = block.Training.run_block


def make_case(fields: dict[str, Any]) -> TrainingCase:
    """Return a configuration whose workload is named without its file."""
    return TrainingCase(**{**fields, "workload": f"{WORKLOADS}:{fields['workload']}"})


def train(task: dict[str, Any], control: MpiControl) -> dict[str, Any]:
    """Train one launch."""
    cases = [make_case(fields) for fields in task["cases"]]
    records = []
    begun = []
    seen = {}
    made = vars(block)["make_hook"]

    def run_block(training: block.Training, steps: int, **how: bool) -> block.BlockSamples:
        samples = RUN_BLOCK(training, steps, **how)
        seen.setdefault(training.case.key, []).append([len(step) for step in samples.watched])
        return samples

    block.Training.run_block = run_block
    vars(block)["make_hook"] = lambda name, **options: (
        Short() if "broken" in options["options"] else made(name, **options)
    )
    device = StandIn() if task["backend"] == "stand-in" else open_device(task["backend"], control)
    if task["free_bytes"] is not None:
        device.free_bytes = lambda: task["free_bytes"]
    with marking_steps(device):
        launch = session.TrainingLaunch(
            cases=cases,
            terms=Terms(seed=5, **task["terms"]),
            launch=task["launch"],
            control=control,
            device=device,
            progress=(progress := Progress()),
            on_begin=begun.append,
            on_record=records.append,
            on_refusal=lambda _: None,
            is_out_of_time=lambda: len(begun) >= task.get("most_blocks", 1000),
        )
        finished = launch.train()
    vars(block)["make_hook"], block.Training.run_block = made, RUN_BLOCK
    observations = gather_everywhere(control, [seen.get(case.key, []) for case in cases])
    by_key = {record.case.key: dataclasses.asdict(record) for record in records}
    return {
        "records": [by_key.get(case.key) for case in cases],
        "seen": [[of_rank[i] for of_rank in observations] for i in range(len(cases))],
        "finished": finished,
        "begun": begun,
        "counters": [int(count) for count in progress.counters],
        "device": device.asked() if isinstance(device, StandIn) else {},
    }


@contextlib.contextmanager
def marking_steps(device: Device) -> Iterator[None]:
    """Mark on the stand-in for a GPU when a step is being made: until its marks are handed over."""
    step = vars(block.Training)["_step"]

    def watched(training: Any) -> Any:
        add = training.log.add

        def read(marks: Any) -> None:
            device.cuda.inside = False
            add(marks)

        training.log.add, device.cuda.inside = read, True
        try:
            return step(training)
        finally:
            training.log.add, device.cuda.inside = add, False

    if isinstance(device, StandIn):
        block.Training._step = watched
    try:
        yield
    finally:
        block.Training._step = step


def main() -> None:
    """Train the launches that the argument lists."""
    control = MpiControl()
    results = [train(task, control) for task in json.loads(sys.argv[1])]
    report_and_exit(results, control)


if __name__ == "__main__":
    main()
