"""Do predictions hold, and does the tuner choose well? Tried against everything measured, on
emulated clusters.

``python benchmarks/validate_model.py`` (root, Linux) measures three parts, each in runs of its own
below ``--out``:

- *scenarios*: a workload on a link, swept exhaustively by ``commbench train`` and tuned by
``commbench tune`` with the
  same candidates, in the middle of the sweep; then the choice and the sweep's best side by side in
  fresh
  launches: what the choice loses, what it cost, how far predictions were off;
- *collectives*: message sizes that double, as people measure them, and one between each two,
predicted from these;
- *growth*: Gloo on 2 to 8 hosts, 6 and 8 predicted from 2 to 4.

Exit code 0 if every aim is met and 1 if not; the same command goes on with what is not finished.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from keeping import write_facts
from model_findings import Check, Findings, Judged, tables
from record_traces import record, save

from commbench.analysis.prediction.network import NetworkModel
from commbench.analysis.prediction.steps import StepModel
from commbench.cli.request import default_out
from commbench.cli.terminal import make_console
from commbench.ddp.plan.cases import DEFAULT_CAP, TrainingCase
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.ddp.traces import Trace
from commbench.ddp.workloads import load_workload
from commbench.errors import CommbenchError, InputError
from commbench.results import Run, load_run
from commbench.results.recommendation import setting_of
from commbench.results.tables import csv_text
from commbench.results.trained import speedup_of
from commbench.stats import Interval
from commbench.tuner.predictions import prediction_rows
from commbench.tuner.validation import (
    Exhaustive,
    HeldOutPair,
    choice_of,
    compare_held_out_ranks,
    compare_held_out_sizes,
    compare_speedups,
    compare_steps,
    median_error,
    rank_correlation,
)
from commbench.units import parse_link_rate

PARTS = ("scenarios", "collectives", "growth")
#: Of a workload whose computing leaves the cores free, as an accelerator's does.
OFFLOADED = "offloaded-"
#: Gradients take far longer than computing over each workload's first rate, and less over the
#: second. Where links are not shaped they take little of a step; of one that computes elsewhere
#: meanwhile, next to nothing.
SCENARIOS = (
    "mlp@500mbit",
    "mlp@2gbit",
    "resnet18:1@1gbit",
    "resnet18:1@2gbit",
    "resnet18:1@none",
    f"{OFFLOADED}resnet18:16@none",
)
HOOKS = "none,fp16,topk:0.01"
CAPS = "default,1,2,5,10,25,100"
HOSTS = 2
#: Networks whose collectives are measured at many sizes.
DENSE_RATES = ("1gbit", "none")
GROWTH_RATE, GROWTH_RANKS, FITTED_RANKS = "200mbit", "2,3,4,6,8", 4
#: Steps of a block and launches in which the choice and the sweep's best meet: luck made the best
#: what it is.
FRESH_STEPS, FRESH_LAUNCHES = 12, 10
#: A sub-run that takes longer hangs.
LONGEST_S = 1800
COMMBENCH = (sys.executable, "-m", "commbench")


@dataclass(frozen=True, kw_only=True)
class Scope:
    """How much is measured."""

    budget: str
    """Of the sweeps and of tuning."""
    launches: int
    """Of the sweeps."""
    caps: str
    hooks: str
    sizes: tuple[int, int]
    """Of collectives, the first and the last that is measured, in bytes."""
    growth_sizes: str
    growth_launches: int
    collective_launches: int


FULL = Scope(
    budget="standard",
    launches=6,
    caps=CAPS,
    hooks=HOOKS,
    sizes=(1 << 10, 16 << 20),
    growth_sizes="64K:4M",
    growth_launches=6,
    collective_launches=12,
)
QUICK = Scope(
    budget="quick",
    launches=2,
    caps="default,5,100",
    hooks="none,topk:0.01",
    sizes=(4 << 10, 4 << 20),
    growth_sizes="256K:1M",
    growth_launches=2,
    collective_launches=2,
)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A workload on a link, as ``[offloaded-]WORKLOAD[:BATCH]@RATE`` names it."""

    name: str
    workload: str
    batch: int | None
    rate: str
    offloaded: bool = False
    """Whether ranks sleep where the workload would compute."""

    @classmethod
    def parse(cls, name: str) -> Scenario:
        """Read a name.

        Raises:
            InputError: it is none.
        """
        workload, separator, rate = name.rpartition("@")
        workload, _, batch = workload.removeprefix(OFFLOADED).partition(":")
        is_rate = rate == "none" or parse_link_rate(rate)
        if not separator or not workload or not is_rate or (batch and not batch.isdecimal()):
            raise InputError(
                f"The scenario {name!r} is not understood; write one such as mlp@1gbit or"
                " resnet18:1@none."
            )
        size = int(batch) if batch else None
        return cls(
            name=name,
            workload=workload,
            batch=size,
            rate=rate,
            offloaded=name.startswith(OFFLOADED),
        )


# ---------------------------------------------------------------------------------------- measuring


class Runs:
    """The runs below a directory, each made by one or more commands, which are noted once they are
    through.
    """

    def __init__(self, out: Path, show: Callable[[str], None]) -> None:
        self._folder = out / "runs"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = out / "commands.json"
        self.show = show
        self.done: list[dict[str, Any]] = (
            json.loads(self._file.read_text()) if self._file.exists() else []
        )

    def make(
        self, name: str, command: Sequence[str], *, hosts: int = HOSTS, rate: str = "none"
    ) -> None:
        """Run a command of commbench in an emulated cluster, unless it was run before.

        What it says is in a log.

        Raises:
            InputError: it failed.
        """
        out = self._folder / name
        inner = [*COMMBENCH, *command, "--out", str(out)]
        whole = [*COMMBENCH, "lab", "run", "--hosts", str(hosts), "--rate", rate, "--", *inner]
        said = [
            "commbench",
            *whole[len(COMMBENCH) : whole.index("--") + 1],
            "commbench",
            *command,
            "--out",
            name,
        ]
        if any(entry["command"] == said for entry in self.done):
            return
        self.show(f"{name}: {' '.join(said)}")
        load, begun = os.getloadavg()[0], time.monotonic()
        with (self._folder / f"{name}.log").open("a") as log:
            code = subprocess.run(
                whole, stdout=log, stderr=log, timeout=LONGEST_S, check=False
            ).returncode
        seconds = time.monotonic() - begun
        if code:
            raise InputError(
                f"{' '.join(said)} ended with code {code}; see {log.name}, then repeat this"
                " command."
            )
        self.done.append(
            {"command": said, "seconds": round(seconds, 1), "load_before": round(load, 2)}
        )
        self._file.write_text(json.dumps(self.done, indent=1) + "\n")
        self.show(f"{name}: {seconds:.0f} s")

    def options(self, scenario: Scenario) -> list[str]:
        """What names a scenario's workload to ``train`` and ``tune``.

        Of an offloaded one the trace, recorded first.
        """
        if not scenario.offloaded:
            batch = [] if scenario.batch is None else ["--batch", str(scenario.batch)]
            return ["--workload", scenario.workload, *batch]
        path = self._folder / f"{scenario.name.rpartition('@')[0]}.json"
        if not path.exists():
            save(offloaded_trace(scenario), path)
        return ["--workload", f"trace:{path}"]

    def load(self, name: str) -> Run:
        """Read a run."""
        return load_run(self._folder / name)


def offloaded_trace(scenario: Scenario) -> Trace:
    """Record a workload on one core of this machine.

    As a trace of a GPU it is replayed by sleeping.

    So communication has the cores to itself, and a step takes as long however the machine's
    neighbours compute.
    """
    torch.set_num_threads(1)
    name = scenario.name.rpartition("@")[0]
    made = load_workload(
        scenario.workload, seed=1, rank=0, world_size=HOSTS, batch_size=scenario.batch
    )
    trace = record(made.model, made.loss, made.batches, name=name, optimizer=made.optimizer)
    how = (
        f"{trace.recorded['how']}, on a CPU; called a GPU's so that its computing is slept through"
    )
    return dataclasses.replace(trace, device="cuda", recorded={**trace.recorded, "how": how})


def measure_scenario(runs: Runs, scenario: Scenario, scope: Scope) -> None:
    """The exhaustive sweep, and tuning in the middle of its launches: what drifts meets both."""
    hooks = f"--bucket-cap-mb {scope.caps} --seed 1 --budget {scope.budget}".split()
    train = [
        "train",
        *runs.options(scenario),
        *hooks,
        "--hook",
        scope.hooks,
        "--confirm-launches",
        "1",
        "--launches",
    ]
    tune = ["tune", *runs.options(scenario), *hooks, "--allow", scope.hooks, "--accept-loss"]
    swept = f"train_{scenario.name}"
    runs.make(swept, [*train, str(scope.launches // 2)], rate=scenario.rate)
    steps = next(
        record.block_steps for record in runs.load(swept).training_records if record.status == "ok"
    )
    runs.make(
        f"tune_{scenario.name}", [*tune, "--steps", str(steps)], rate=scenario.rate
    )  # the same block costs as much
    runs.make(swept, [*train, str(scope.launches)], rate=scenario.rate)


def measure_choice(
    runs: Runs, scenario: Scenario, choice: TrainingCase, best: TrainingCase
) -> str | None:
    """The choice, the sweep's best and the default in fresh launches.

    None where choice and best are one.
    """
    if choice == best:
        return None
    caps = ",".join(dict.fromkeys(case.bucket_cap_mb for case in (choice, best)))
    hooks = ",".join(dict.fromkeys(case.hook_name for case in (choice, best)))
    words = (
        f"--bucket-cap-mb {caps} --hook {hooks} --seed 2 --steps {FRESH_STEPS} --launches"
        f" {FRESH_LAUNCHES}".split()
    )
    name = f"choice_{scenario.name}"
    runs.make(
        name,
        ["train", *runs.options(scenario), *words, "--confirm-launches", "1"],
        rate=scenario.rate,
    )
    return name


def measure_collectives(runs: Runs, rate: str, scope: Scope) -> None:
    """Sizes that double, and one between each two, on both host backends."""
    first, last = scope.sizes
    doubling = list(
        itertools.takewhile(lambda size: size < last, (first << i for i in itertools.count()))
    )
    sizes = ",".join(str(size) for each in doubling for size in (each, each * 3 // 2))
    command = [
        "run",
        "--backend",
        "gloo,mpi",
        "-c",
        "all_reduce,all_gather",
        "--sizes",
        f"{sizes},{last}",
    ]
    runs.make(f"sizes_{rate}", [*command, "--launches", str(scope.collective_launches)], rate=rate)


def measure_growth(runs: Runs, scope: Scope) -> None:
    """The same collectives on more and more hosts."""
    command = [
        "run",
        "--backend",
        "gloo",
        "-c",
        "all_reduce,all_gather",
        "--sizes",
        scope.growth_sizes,
    ]
    command += ["--world-sizes", GROWTH_RANKS, "--launches", str(scope.growth_launches)]
    runs.make("growth", command, hosts=int(GROWTH_RANKS.rpartition(",")[2]), rate=GROWTH_RATE)


# ------------------------------------------------------------------------------------------ judging


def judge_scenario(found: Findings, scenario: Scenario, runs: Runs) -> None:
    """Hold what the tuner predicted and chose against the sweep, and its choice in fresh launches,
    which are made.
    """
    swept, tuned = (runs.load(f"{kind}_{scenario.name}") for kind in ("train", "tune"))
    sweep = _swept(swept)
    rows = prediction_rows(tuned.records, tuned.training_records, tuned.info)
    recommendation = tuned.recommendation
    if recommendation is None:
        raise InputError(f"{tuned.path} has no recommendation; tune again.")
    predicted = {_setting(row, sweep.baseline.case): row for row in rows}
    steps_ms = {
        case: row.predicted_step_ms
        for case, row in predicted.items()
        if row.predicted_step_ms is not None
    }
    fitted = {case for case, row in predicted.items() if row.is_fitted}
    steps, speedups = compare_steps(sweep, steps_ms), compare_speedups(sweep, steps_ms)
    for quantity, held in (("step_ms", steps), ("speedup", speedups)):
        found.add(
            "scenarios",
            scenario.name,
            quantity,
            "calibrated",
            [held[case] for case in held if case in fitted],
        )
        found.add(
            "scenarios",
            scenario.name,
            quantity,
            "held_out",
            [held[case] for case in held if case not in fitted],
        )
    interleaved = _interleaved(sweep, swept, tuned)
    found.add("scenarios", scenario.name, "step_ms", "interleaved", interleaved)
    choice = choice_of(recommendation, sweep.baseline.case)
    again = measure_choice(runs, scenario, sweep.find(choice).case, sweep.best.case)
    fresh = _swept(runs.load(again)) if again else None
    regret = sweep.regret(choice, fresh)
    gain = speedup_of(fresh.find(sweep.best.case), fresh.baseline) if fresh else None
    default = next(
        row
        for row in swept.training_rows
        if row.hook == "none" and row.bucket_cap_mb == DEFAULT_CAP
    )
    held_out = [steps[case] for case in steps if case not in fitted]
    found.judged.append(
        Judged(
            scenario=scenario.name,
            settings=len(sweep.settings),
            default_ms=default.step_ms or 0.0,
            communication=(default.exposed_comm_ms or 0.0) / (default.step_ms or 1.0),
            best=_short(sweep.best.case),
            gain=sweep.gain,
            gain_ci=_less_one(sweep.gain_interval),
            fresh_gain_ci=_less_one(gain.interval if gain else None),
            choice=_short(choice),
            verdict=recommendation.verdict,
            regret=regret.against_best,
            regret_ci=_less_one(regret.interval),
            regret_fair=regret.fair,
            outcome=regret.outcome,
            steps=recommendation.measured_steps,
            exhaustive_steps=sweep.steps,
            step_error=median_error(held_out),
            worst_step_error=max((abs(one.error) for one in held_out), default=None),
            speedup_error=median_error([speedups[case] for case in speedups if case not in fitted]),
            interleaved_error=median_error(interleaved),
            rank_correlation=rank_correlation(list(steps.values())),
        )
    )


def _less_one(ratio: Interval | None) -> tuple[float, float] | None:
    return (ratio.low - 1, ratio.high - 1) if ratio else None


def _swept(run: Run) -> Exhaustive:
    return Exhaustive.of(run.training_records, run.info)


def _setting(row: Any, like: TrainingCase) -> TrainingCase:  # noqa: ANN401 - any row with the columns of a setting
    """The setting of a row, as the sweep names it."""
    return dataclasses.replace(like, **setting_of(row))


def _short(case: TrainingCase) -> str:
    return f"{case.hook_name} {case.bucket_cap_mb}"


def _interleaved(sweep: Exhaustive, swept: Run, tuned: Run) -> list[HeldOutPair]:
    """Other bucket sizes, predicted from default buckets in the same launches and the network as
    tuning timed it.
    """
    case = sweep.baseline.case
    fitted = [r for r in swept.training_records if r.case.bucket_cap_mb == DEFAULT_CAP]
    network = NetworkModel.fit(tuned.records).at(case.backend, case.world_size)
    model = StepModel.calibrate(WorkloadFacts.from_json(swept.info["facts"]), network, fitted)
    others = [
        one
        for one in sweep.settings
        if one.bucket_cap_mb != DEFAULT_CAP and one.hook_name in model.hooks
    ]
    return list(compare_steps(sweep, {one: model.predict(one).step_ms for one in others}).values())


def judge_collectives(found: Findings, runs: Runs, rate: str) -> None:
    """Hold times at the sizes between against those predicted from the sizes that double."""
    for key, held in compare_held_out_sizes(runs.load(f"sizes_{rate}").records).items():
        found.add("collectives", f"{key}, {rate}", "time_us", "held_out", held)


def judge_growth(found: Findings, runs: Runs) -> None:
    """Hold times on many hosts against those predicted from few."""
    growth = runs.load("growth")
    for (key, _), one in compare_held_out_ranks(growth.records, growth.info, FITTED_RANKS).items():
        part = "growth" if key.operation == "all_reduce" else f"growth of {key.operation}"
        found.add(part, f"{key}, {GROWTH_RATE}", "time_us", "held_out", [one])


# ---------------------------------------------------------------------------------------------- all


def validate(
    scope: Scope, scenarios: Sequence[Scenario], parts: Sequence[str], runs: Runs
) -> Findings:
    """Measure what is missing, then judge all.

    Raises:
        InputError: a run failed.
    """
    found = Findings()
    for scenario in scenarios if "scenarios" in parts else ():
        measure_scenario(runs, scenario, scope)
        judge_scenario(found, scenario, runs)
    for rate in DENSE_RATES if "collectives" in parts else ():
        measure_collectives(runs, rate, scope)
        judge_collectives(found, runs, rate)
    if "growth" in parts:
        measure_growth(runs, scope)
        judge_growth(found, runs)
    return found


def write(out: Path, found: Findings, runs: Runs) -> None:
    """Write validation.csv and validation.json."""
    columns = [each.name for each in dataclasses.fields(Check)]
    (out / "validation.csv").write_text(csv_text(found.checks, columns))
    environments = [
        runs.load(path.parent.name).info["environment"]
        for path in (out / "runs").glob("*/run.json")
    ]
    facts = {
        "met": all(aim.met for aim in found.aims),
        "aims": [dataclasses.asdict(aim) for aim in found.aims],
        "scenarios": [{**dataclasses.asdict(one), "cost": one.cost} for one in found.judged],
        "runs": runs.done,
        "environment": next(iter(environments), None),
    }
    write_facts(out / "validation.json", "validate_model", facts)


def main() -> None:
    """Read the command line and leave with the exit code."""
    parser = argparse.ArgumentParser(
        description="Hold predictions and the tuner's choice against measurements."
    )
    parser.add_argument(
        "--scenarios", help=f"comma-separated, as in {','.join(SCENARIOS)}, which are the default"
    )
    parser.add_argument(
        "--parts", default=",".join(PARTS), help=f"what to measure (default {','.join(PARTS)})"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer launches, settings and sizes: a try, no evidence",
    )
    parser.add_argument(
        "--out", type=Path, help="directory (default results/<UTC time>-validation-<host>)"
    )
    options = parser.parse_args()
    console, errors = make_console(), make_console(sys.stderr)
    begun = time.monotonic()
    try:
        scenarios = [
            Scenario.parse(name) for name in (options.scenarios or ",".join(SCENARIOS)).split(",")
        ]
        parts = options.parts.split(",")
        if unknown := sorted(set(parts) - set(PARTS)):
            raise InputError(f"--parts {unknown[0]} is unknown; choose from {', '.join(PARTS)}.")
        out = options.out or default_out("validation")
        runs = Runs(
            out,
            lambda text: errors.print(
                f"{(time.monotonic() - begun) / 60:4.1f} min  {text}", style="dim"
            ),
        )
        found = validate(QUICK if options.quick else FULL, scenarios, parts, runs)
        write(out, found, runs)
        for table in tables(found):
            console.print(table)
        console.print(f"Written: {out / 'validation.csv'} and validation.json")
        sys.exit(0 if all(aim.met for aim in found.aims) else 1)
    except CommbenchError as error:
        sys.stderr.write(f"validate_model: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
