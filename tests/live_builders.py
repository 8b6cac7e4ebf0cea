"""Runs of live tuning built by hand: an experiment on simulated step times, and the directory that
rank 0 writes.
"""

import dataclasses
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from launching import finished
from training_builders import make_training_case

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.live.options import LiveOptions
from commbench.live.run import Facts, LiveRun
from commbench.tuner.experiment import UNTIMED, Experiment

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
#: The script's own setting.
OWN = make_training_case(workload="train.py")
#: Milliseconds of a step by bucket size.
STEPS_MS = {"default": 100.0, "1": 97.0, "5": 80.0, "10": 84.0, "25": 99.0, "100": 120.0}
#: Optimiser steps before the first block.
WARM_UP = 5


def run_python(
    words: Sequence[str], directory: Path, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python command to its end, with a thread for each rank."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environ}
    return finished(sys.executable, *words, cwd=directory, env=env, seconds=240)


def make_options(out: Path, **changes: object) -> LiveOptions:
    """Return the options of a live tuning into ``out``."""
    fields = {
        "out": str(out),
        "workload": "train.py",
        "argv": ("commbench", "tune", "--", "torchrun", "train.py"),
        "invocation": "first",
        "git_commit": "c0ffee",
    }
    return LiveOptions(**{**fields, **changes})


def with_cap(cap: str, **changes: object) -> TrainingCase:
    """Return the script's setting with another bucket size."""
    return dataclasses.replace(OWN, bucket_cap_mb=cap, **changes)


def make_record(
    case: TrainingCase, blocks_ms: Sequence[Sequence[float]], at: Sequence[int], launch: int = 0
) -> TrainingRecord:
    """Return the record of blocks with these steps, which began at these steps of the training."""
    steps_ms = [step_ms for block_ms in blocks_ms for step_ms in block_ms]
    return TrainingRecord(
        case=case,
        launch=launch,
        discarded=UNTIMED,
        parameters=8_700_000,
        step_ms=steps_ms,
        block_lengths=list(map(len, blocks_ms)),
        block_at=at,
        block_steps=UNTIMED + len(blocks_ms[-1]),
        bucket_bytes=(1_200_000, 33_600_000),
        measuring_s=sum(steps_ms) / 1e3,
    )


def make_blocks(
    case: TrainingCase, medians_ms: Sequence[float], *, launch: int = 0, first: int = WARM_UP
) -> TrainingRecord:
    """Return the record of blocks of three equal steps with these times."""
    at = list(range(first, first + 10 * len(medians_ms), 10))
    return make_record(case, [[median_ms] * 3 for median_ms in medians_ms], at, launch)


def simulate(
    steps_ms: Mapping[str, float] = STEPS_MS, *, launch: int = 0, noise: float = 0.02, seed: int = 3
) -> tuple[list[TrainingRecord], str]:
    """Tune a training with these step times.

    Return the record of each block, and why the experiment ended.
    """
    generator = random.Random(f"{seed}:{launch}")
    settings = [with_cap(cap) for cap in steps_ms]
    experiment = Experiment(settings, seed=seed + launch)
    numbers = Counter()
    written, step = [], WARM_UP
    while (block := experiment.next_block(step, 0)) is not None:
        case = dataclasses.replace(settings[block.setting], phase=block.phase)
        usual_ms = steps_ms[case.bucket_cap_mb] * generator.lognormvariate(0, noise)
        times_ms = [usual_ms * generator.lognormvariate(0, noise) for _ in range(block.steps)]
        numbers[case] += 1
        record = make_record(case, [times_ms], [step], launch)
        written.append(dataclasses.replace(record, block=numbers[case]))
        experiment.add(block, times_ms)
        step += UNTIMED + block.steps
    return written, experiment.ending


def losses_until(step: int, seed: int = 3) -> list[float]:
    """Return the falling losses of a training."""
    generator = random.Random(seed)
    return [2.3 / (1 + number / 200) + generator.gauss(0, 0.05) for number in range(WARM_UP, step)]


def make_facts(own: TrainingCase = OWN) -> Facts:
    """Return the facts of a training."""
    return Facts(original=own, parameters=8_700_000)


def open_run(out: Path, *, own: TrainingCase = OWN, options: LiveOptions | None = None) -> LiveRun:
    """Start a launch of a live tuning in ``out``."""
    settings = [own, *(with_cap(cap) for cap in STEPS_MS if cap != own.bucket_cap_mb)]
    return LiveRun(options or make_options(out), settings, make_facts(own))


def make_live_run(
    out: Path, steps_ms: Mapping[str, float] = STEPS_MS, *, launches: int = 1, noise: float = 0.02
) -> None:
    """Write the directory of a complete live tuning."""
    for _ in range(launches):
        run = open_run(out)
        records, ending = simulate(steps_ms, launch=run.launch, noise=noise)
        for record in records:
            run.append(record)
        end = max(record.block_at[-1] + record.block_steps for record in records)
        run.add_losses(WARM_UP, losses_until(end))
        run.conclude(ending)
        run.close()
        run.wait()
