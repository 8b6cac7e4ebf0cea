"""What do tuning and watching inside a training cost, and does tuning call equal settings
different?

``live_tuning.py`` trains an MLP of 8.4 million parameters on two ranks and
answers four questions, or some of them (``--only watching,equal``):

- *after*: a step after the decision, with the setting that was chosen, over a step of a model that
  had this setting from its beginning; both models train in short blocks in turn.
- *while*: a training of 300 steps with tuning over one without, in turn; and the part of it that
  worse settings cost.
- *watching*: steps of a training that is watched over steps of the same training when it is not;
  both in turn.
- *equal*: how many of some tunings among twelve equal settings (one bucket each), of 600 steps at
  most, say ``change``.

Exit code 0 if *after* lies within 1 % of 1, *while* without the cost of worse settings is at most
1.05, *watching* at most 1.05, and no tuning of equal settings says ``change``; 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from keeping import add_out, empty_out, end, own_environment, run, write_facts
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commbench
from commbench.ddp.plan.cases import TrainingCase
from commbench.errors import InputError
from commbench.live import tune
from commbench.live.director import WARM_UP_PASSES, Director
from commbench.live.options import LiveOptions
from commbench.live.run import Facts
from commbench.live.watch import BLOCK_STEPS
from commbench.results import load_run
from commbench.stats import Interval, launch_interval, median
from commbench.tuner.experiment import UNTIMED

ROOT = Path(__file__).parents[2]
WIDTH, LAYERS, BATCH = 1024, 8, 8
#: Optimiser steps of a training in *while*, those of a block in *after*, and the most of a tuning
#: in *equal*.
STEPS, BLOCK, EQUAL_STEPS = 300, 10, 600
#: Twelve bucket sizes in MiB beyond the model's size: one bucket each.
EQUAL = tuple(str(100 + number) for number in range(12))
WITHIN, WHILE_MOST = 0.01, 1.05
#: The questions, in this order.
QUESTIONS = ("after", "while", "watching", "equal")
#: Steps that are watched in *watching*: three blocks with their ends.
WATCHED = 3 * (UNTIMED + BLOCK_STEPS)
FACTS = "live_tuning.json"
#: The questions take an hour at most.
LONGEST_S = 7200.0


class Training:
    """A model in DDP with its optimiser."""

    def __init__(self, bucket_cap_mb: float | None = None, *, has_views: bool = False) -> None:
        torch.manual_seed(0)
        layers = itertools.chain.from_iterable(
            (nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)
        )
        self.model = DistributedDataParallel(
            nn.Sequential(*layers), bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=has_views
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.data = torch.randn(
            BATCH, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank())
        )

    def step(self) -> None:
        """Make an optimiser step."""
        self.optimizer.zero_grad()
        self.model(self.data).square().mean().backward()
        self.optimizer.step()

    def seconds_of(self, steps: int) -> float:
        """Make steps; return their time, which ranks that exchange gradients have in common."""
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        return time.perf_counter() - began


def measure_after(directory: Path, pairs: int) -> dict[str, object]:
    """Compare steps after a tuning with those of a model that had the chosen setting from its
    beginning.
    """
    tuned = Training()
    tuning = commbench.autotune(
        tuned.model, out=directory / "after", bucket_cap_mb=["5"], workload="mlp", steps=120
    )
    while not tuning.done:
        tuned.step()
    cap_mb = tuned.model._get_ddp_logging_data()["bucket_cap_bytes"] / 2**20  # noqa: SLF001
    is_default = tuned.model.bucket_bytes_cap_default
    by_hand = Training(
        None if is_default else cap_mb, has_views=tuned.model.gradient_as_bucket_view
    )
    by_hand.seconds_of(BLOCK)
    ratios = in_turn(pairs, lambda _: tuned.seconds_of(BLOCK), lambda _: by_hand.seconds_of(BLOCK))
    return {"bucket_cap_mb": "default" if is_default else cap_mb, **summary(ratios)}


def in_turn(pairs: int, one: Callable[[int], float], other: Callable[[int], float]) -> list[float]:
    """Return the ratios of the seconds of one to those of the other, called with the number of the
    pair; each pair begins with another.
    """
    ratios = []
    for number in range(pairs):
        if number % 2:
            seconds = one(number)
            ratios.append(seconds / other(number))
        else:
            seconds = other(number)
            ratios.append(one(number) / seconds)
    return ratios


def measure_while(directory: Path, pairs: int) -> dict[str, object]:
    """Compare trainings with and without tuning, and find what worse settings cost."""
    plain_s = []

    def tuned(number: int) -> float:
        training = Training()
        training.seconds_of(5)
        out = directory / f"while{number}"
        commbench.autotune(training.model, out=out, workload="mlp", steps=STEPS)
        return training.seconds_of(STEPS)

    def plain(_: int) -> float:
        training = Training()
        training.seconds_of(5)
        plain_s.append(training.seconds_of(STEPS))
        return plain_s[-1]

    found = summary(in_turn(pairs, tuned, plain))
    if dist.get_rank() == 0:
        costs = [
            cost_of_worse(directory / f"while{number}") / seconds
            for number, seconds in enumerate(plain_s)
        ]
        found["cost_of_worse_settings"] = median(costs)
    return found


def measure_watching(directory: Path, pairs: int) -> dict[str, object]:
    """Compare steps of one training while it is watched and while it is not, in turn."""
    training = Training()
    training.seconds_of(BLOCK)

    def plain(_: int) -> float:
        training.seconds_of(WARM_UP_PASSES + 5)  # as the set-up, which is not timed
        return training.seconds_of(WATCHED)

    def watched(number: int) -> float:
        out = str(directory / f"watch{number}")
        options = LiveOptions(out=out, workload="mlp", mode="watch", steps=2 * WATCHED)
        watching = Director(training.model, options)
        seconds = plain(number)
        watching.release("its time was taken")
        return seconds

    return summary(in_turn(pairs, watched, plain))


def cost_of_worse(out: Path) -> float:
    """Return the seconds that timed steps of slower settings took beyond those of the script's own
    setting.
    """
    run = load_run(out)
    records = {record.case: record for record in run.training_records}
    own = TrainingCase.from_key(run.info["baseline"])
    own_ms: list[float] = []
    for case, record in records.items():
        if dataclasses.replace(case, phase=own.phase) == own:
            own_ms += record.step_ms
    base_ms = median(own_ms)
    beyond_ms = [np.sum(np.asarray(record.step_ms) - base_ms) for record in records.values()]
    return max(0.0, float(sum(beyond_ms))) / 1e3


def measure_equal(directory: Path, runs: int) -> dict[str, object]:
    """Tune among twelve equal settings, some times; return the verdicts."""
    tune.settings_of = equal_settings  # type: ignore[assignment] # the only way
    verdicts = []
    for number in range(runs):
        training = Training(99)
        out = directory / f"equal{number}"
        tuning = commbench.autotune(
            training.model, out=out, workload="mlp", seed=number, steps=EQUAL_STEPS
        )
        while not tuning.done:
            training.step()
        verdicts.append(tuning.recommendation.verdict if tuning.recommendation else "none")
    return {"verdicts": verdicts}


def equal_settings(facts: Facts, *_: object) -> list[TrainingCase]:
    """Return settings with one bucket each, under different names."""
    original = facts.original
    return [original, *(dataclasses.replace(original, bucket_cap_mb=cap) for cap in EQUAL[1:])]


def summary(ratios: Sequence[float]) -> dict[str, object]:
    """Return the median ratio with its 95 % interval."""
    interval: Interval | None = launch_interval(ratios)
    return {
        "ratio": median(ratios),
        "interval": [interval.low, interval.high] if interval else None,
        "ratios": ratios,
    }


def rank_main(arguments: argparse.Namespace) -> None:
    """Answer all questions on a rank; rank 0 writes what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    directory = Path(arguments.out)
    found: dict[str, object] = {"environment": own_environment()}
    measurements: dict[str, Callable[[], dict[str, object]]] = {
        "after": lambda: measure_after(directory, arguments.pairs),
        "while": lambda: measure_while(directory, max(2, arguments.pairs // 8)),
        "watching": lambda: measure_watching(directory, arguments.pairs),
        "equal": lambda: measure_equal(directory, arguments.runs),
    }
    for name in arguments.only.split(","):
        found[name] = measurements[name]()
        if dist.get_rank() == 0:  # each answer is kept if a later one is interrupted
            arguments.facts.write_text(json.dumps(found), "utf-8")
    dist.barrier()
    os._exit(0)


def main(arguments: argparse.Namespace) -> int:
    """Start the ranks and judge what they found."""
    if min(arguments.pairs, arguments.runs) < 1:
        raise InputError("--pairs and --runs must be at least 1.")
    unknown = set(arguments.only.split(",")) - set(QUESTIONS)
    if unknown:
        raise InputError(f"--only {unknown.pop()} is no question; choose from {QUESTIONS}.")
    out = empty_out(arguments.out, "live-tuning")
    out.mkdir(parents=True, exist_ok=True)
    ranks = "-m torch.distributed.run --standalone --nproc-per-node 2"
    with tempfile.TemporaryDirectory() as scratch:
        facts = Path(scratch, FACTS)
        words = f"{__file__} --out {scratch} --facts {facts} --only {arguments.only}"
        words += f" --pairs {arguments.pairs} --runs {arguments.runs}"
        try:
            command = [sys.executable, *ranks.split(), *words.split()]
            run(command, {"OMP_NUM_THREADS": "1"}, timeout_s=LONGEST_S)
        finally:
            if facts.exists():
                write_facts(out / FACTS, "live_tuning", json.loads(facts.read_text("utf-8")))
    return report(out)


def report(out: Path) -> int:
    """Print each answer with its aim; return 0 if all aims are met."""
    found = json.loads((out / FACTS).read_text("utf-8"))
    aims: dict[str, bool] = {}
    if after := found.get("after"):
        text = f"after: {after['ratio']:.4f} {after['interval']} (aim within {WITHIN:g} of 1)"
        aims[text] = abs(after["ratio"] - 1) <= WITHIN
    if during := found.get("while"):
        net = during["ratio"] - (during["cost_of_worse_settings"] or 0.0)
        text = (
            f"while: {during['ratio']:.3f}, {net:.3f} without the cost of worse settings (aim"
            f" {WHILE_MOST:g})"
        )
        aims[text] = net <= WHILE_MOST
    if watching := found.get("watching"):
        text = f"watching: {watching['ratio']:.4f} {watching['interval']} (aim {WHILE_MOST:g})"
        aims[text] = watching["ratio"] <= WHILE_MOST
    if equal := found.get("equal"):
        changes = equal["verdicts"].count("change")
        aims[f"equal: {changes} of {len(equal['verdicts'])} say change (aim 0)"] = not changes
    for text, is_met in aims.items():
        sys.stdout.write(f"{'met ' if is_met else 'MISSED '}{text}\n")
    return 0 if all(aims.values()) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_out(parser, "live-tuning")
    parser.add_argument(
        "--pairs",
        type=int,
        default=32,
        help="pairs in *after* and *watching*, an eighth in *while*",
    )
    parser.add_argument("--only", default=",".join(QUESTIONS), help="questions, comma-separated")
    parser.add_argument(
        "--runs", type=int, default=20, help="tunings of equal settings, at least 1"
    )
    parser.add_argument("--facts", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    with contextlib.suppress(BrokenPipeError):
        if given.facts:
            rank_main(given)
        end("live_tuning", lambda: main(given))
