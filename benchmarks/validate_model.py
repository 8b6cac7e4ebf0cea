"""Do predictions hold, and does the tuner choose well? Held against everything measured, on emulated clusters.

``python benchmarks/validate_model.py`` (root, Linux) measures four parts, each in runs of its own below ``--out``:

- *scenarios*: a workload on a link, swept exhaustively by ``commbench train`` and tuned by ``commbench tune`` with the
  same candidates, between two launches of the sweep: what the choice loses, what it cost, how far predictions were off;
- *collectives*: a dense grid of message sizes, every other one predicted from those beside it;
- *growth*: Gloo on 2 to 8 hosts, 6 and 8 predicted from 2 to 4;
- *break-even*: top-k of several densities, won or lost against sending gradients whole, as predicted or not.

Exit code 0 if every aim is met and 1 if not; the same command goes on with what is not finished.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.table import Table

from commbench.environment import git_commit
from commbench.errors import CommbenchError, InputError
from commbench.options import default_out
from commbench.prediction.accuracy import prediction_rows
from commbench.prediction.breakeven import break_even, compare_with_measured
from commbench.prediction.larger_steps import on_network
from commbench.prediction.network import NetworkModel
from commbench.prediction.steps import StepModel
from commbench.prediction.validating import (
    MARGIN,
    Exhaustive,
    Held,
    choice_of,
    growing_up_to,
    held_ranks,
    held_sizes,
    held_speedups,
    held_steps,
    median_error,
    rank_correlation,
)
from commbench.store import Run, load_run
from commbench.tables import csv_text
from commbench.terminal import make_console
from commbench.training.cases import DEFAULT_CAP, TrainingCase
from commbench.training.conclusion import Recommendation
from commbench.training.workload import WorkloadFacts
from commbench.units import parse_link_rate

PARTS = ("scenarios", "collectives", "growth", "break-even")
#: Both gradients take longer than computing over the first rate, about as long over the second; over the third, with
#: more samples to compute on, they do not matter.
SCENARIOS = ("mlp@500mbit", "mlp@2gbit", "mlp:512@none", "resnet18:1@500mbit", "resnet18:1@2gbit", "resnet18:32@none")
HOOKS = "none,fp16,topk:0.01"
CAPS = "default,1,2,5,10,25,100"
HOSTS = 2
#: Networks whose collectives are measured at many sizes.
DENSE_RATES = ("1gbit", "none")
GROWTH_RATE, GROWTH_RANKS, FITTED_RANKS = "200mbit", "2,3,4,6,8", 4
#: Where top-k is tried: the scenario that the prediction is fitted to, hosts, rate, densities around 1/hosts.
BREAK_EVENS = (
    ("mlp@500mbit", 2, "500mbit", (0.05, 0.2, 0.8)),
    ("mlp@2gbit", 2, "2gbit", (0.05, 0.2, 0.8)),
    ("mlp@500mbit", 4, "500mbit", (0.02, 0.1, 0.5)),
)
#: What the model must come to, as shares.
STEP_AIM, SIZE_AIM, GROWTH_AIM, COST_AIM = 0.10, 0.10, 0.20, 0.25
#: So many densities must have won or lost as predicted.
POINTS_AIM = 4
#: A sub-run that takes longer hangs.
LONGEST_S = 1800
COMMBENCH = (sys.executable, "-m", "commbench")


@dataclass(frozen=True, kw_only=True)
class Scope:
    """How much is measured."""

    launches: int
    caps: str
    hooks: str
    sizes: str
    growth_sizes: str
    collective_launches: int


FULL = Scope(launches=3, caps=CAPS, hooks=HOOKS, sizes="1K:16M", growth_sizes="64K:4M", collective_launches=3)
QUICK = Scope(
    launches=2,
    caps="default,5,100",
    hooks="none,topk:0.01",
    sizes="4K:4M",
    growth_sizes="256K:1M",
    collective_launches=2,
)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A workload on a link, as ``WORKLOAD[:BATCH]@RATE`` names it."""

    name: str
    workload: str
    batch: int | None
    rate: str

    @classmethod
    def parse(cls, name: str) -> Scenario:
        """Read a name.

        Raises:
            InputError: it is none.
        """
        workload, separator, rate = name.rpartition("@")
        workload, _, batch = workload.partition(":")
        if not separator or not workload or (batch and not batch.isdecimal()):
            raise InputError(
                f"The scenario {name!r} is not understood; write one such as mlp@1gbit or resnet18:1@none."
            )
        parse_link_rate(rate)
        return cls(name=name, workload=workload, batch=int(batch) if batch else None, rate=rate)

    @property
    def options(self) -> list[str]:
        """What names it to ``train`` and ``tune``."""
        return ["--workload", self.workload, *([] if self.batch is None else ["--batch", str(self.batch)])]


# ------------------------------------------------------------------------------------------------------- measuring


class Runs:
    """The runs below a directory, each made by one or more commands, which are noted once they are through."""

    def __init__(self, out: Path, show: Callable[[str], None]) -> None:
        self._folder = out / "runs"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = out / "commands.json"
        self._show = show
        self.done: list[dict[str, Any]] = json.loads(self._file.read_text()) if self._file.exists() else []

    def make(self, name: str, command: Sequence[str], *, hosts: int = HOSTS, rate: str = "none") -> None:
        """Run a command of commbench in an emulated cluster, unless it was run before; what it says is in a log.

        Raises:
            InputError: it failed.
        """
        out = self._folder / name
        inner = [*COMMBENCH, *command, "--out", str(out)]
        whole = [*COMMBENCH, "lab", "run", "--hosts", str(hosts), "--rate", rate, "--", *inner]
        said = ["commbench", *whole[len(COMMBENCH) : whole.index("--") + 1], "commbench", *command, "--out", name]
        if any(entry["command"] == said for entry in self.done):
            return
        self._show(f"{name}: {' '.join(said)}")
        load, begun = os.getloadavg()[0], time.monotonic()
        with (self._folder / f"{name}.log").open("a") as log:
            code = subprocess.run(whole, stdout=log, stderr=log, timeout=LONGEST_S, check=False).returncode
        seconds = time.monotonic() - begun
        if code:
            raise InputError(f"{' '.join(said)} ended with code {code}; see {log.name}, then repeat this command.")
        self.done.append({"command": said, "seconds": round(seconds, 1), "load_before": round(load, 2)})
        self._file.write_text(json.dumps(self.done, indent=1) + "\n")
        self._show(f"{name}: {seconds:.0f} s")

    def load(self, name: str) -> Run:
        """Read a run."""
        return load_run(self._folder / name)

    def has(self, name: str) -> bool:
        """Whether there is such a run."""
        return (self._folder / name).is_dir()


def measure_scenario(runs: Runs, scenario: Scenario, scope: Scope) -> None:
    """The exhaustive sweep, and tuning between its first launch and the others: what drifts meets both."""
    hooks = f"--bucket-cap-mb {scope.caps} --seed 1".split()
    train = ["train", *scenario.options, *hooks, "--hook", scope.hooks, "--confirm-launches", "1", "--launches"]
    tune = ["tune", *scenario.options, *hooks, "--allow", scope.hooks]
    runs.make(f"train_{scenario.name}", [*train, "1"], rate=scenario.rate)
    runs.make(f"tune_{scenario.name}", tune, rate=scenario.rate)
    runs.make(f"train_{scenario.name}", [*train, str(scope.launches)], rate=scenario.rate)


def measure_collectives(runs: Runs, rate: str, scope: Scope) -> None:
    """A dense grid of message sizes on both host backends."""
    command = ["run", "--backend", "gloo,mpi", "-c", "all_reduce,all_gather", "--sizes", scope.sizes]
    runs.make(f"sizes_{rate}", [*command, "--launches", str(scope.collective_launches)], rate=rate)


def measure_growth(runs: Runs, scope: Scope) -> None:
    """The same collectives on more and more hosts."""
    command = ["run", "--backend", "gloo", "-c", "all_reduce,all_gather", "--sizes", scope.growth_sizes]
    command += ["--world-sizes", GROWTH_RANKS, "--launches", str(scope.collective_launches)]
    runs.make("growth", command, hosts=int(GROWTH_RANKS.rpartition(",")[2]), rate=GROWTH_RATE)


def measure_break_even(runs: Runs, scenario: Scenario, hosts: int, rate: str, densities: Sequence[float]) -> None:
    """Top-k of several densities beside no hook."""
    hooks = ",".join(["none", *(f"topk:{density:g}" for density in densities)])
    command = ["train", *scenario.options, "--bucket-cap-mb", DEFAULT_CAP, "--hook", hooks, "--seed", "1"]
    name = f"densities_{scenario.workload}_{hosts}hosts_{rate}"
    runs.make(name, [*command, "--launches", "4", "--confirm-launches", "1"], hosts=hosts, rate=rate)


# --------------------------------------------------------------------------------------------------------- judging


@dataclass(frozen=True, kw_only=True)
class Check:
    """A line of validation.csv: a prediction beside its measurement."""

    part: str
    where: str
    """Scenario, network or run."""
    what: str
    quantity: str
    """``step_ms``, ``speedup``, ``time_us``."""
    predicted: float
    measured: float
    measured_ci_low: float | None = None
    measured_ci_high: float | None = None
    error: float
    used: str
    """``calibrated``, ``held_out`` or, of the sweep's own launches, ``interleaved``."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a scenario showed; shares are of 1."""

    scenario: str
    settings: int
    default_ms: float
    communication: float
    """Share of the default's step in which communication is not hidden."""
    best: str
    gain: float
    """Of the best over the default, by the sweep."""
    choice: str
    verdict: str
    regret: float
    regret_ci: tuple[float, float] | None
    regret_fair: float | None
    within_noise: bool
    steps: int
    exhaustive_steps: int
    step_error: float | None
    """Median error of the step at settings that the tuner's model was not fitted to, measured by the sweep."""
    worst_step_error: float | None
    speedup_error: float | None
    interleaved_error: float | None
    """The same of a model fitted to default buckets in the sweep's own launches: without drift between two runs."""
    rank_correlation: float | None

    @property
    def cost(self) -> float:
        """Steps of tuning over those of the sweep."""
        return self.steps / self.exhaustive_steps


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What must be shown, and the figure that was found."""

    aim: str
    found: str
    met: bool


@dataclass(kw_only=True)
class Findings:
    """All that was found."""

    checks: list[Check] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)

    def add(self, part: str, where: str, quantity: str, used: str, held: Iterable[Held]) -> None:
        """Keep predictions."""
        self.checks += [
            Check(
                part=part,
                where=where,
                what=one.what,
                quantity=quantity,
                predicted=one.predicted,
                measured=one.measured,
                measured_ci_low=one.low,
                measured_ci_high=one.high,
                error=one.error,
                used=used,
            )
            for one in held
        ]

    def errors(self, part: str, quantity: str, used: str = "held_out") -> list[float]:
        """Absolute errors of a part's predictions."""
        wanted = part, quantity, used
        return [abs(one.error) for one in self.checks if (one.part, one.quantity, one.used) == wanted]

    @cached_property
    def aims(self) -> list[Aim]:
        """The aims of the parts that were measured."""
        return [*self._choices(), *self._errors(), *self._break_even()]

    def _choices(self) -> Iterable[Aim]:
        if not self.judged:
            return
        good = [one for one in self.judged if one.within_noise]
        worst = max(self.judged, key=lambda one: one.regret)
        yield Aim(
            aim="the tuner's choice is within 2 % of the exhaustive best, or not shown to be slower, in every scenario",
            found=f"{len(good)} of {len(self.judged)}; the largest difference is {worst.regret:.1%} ({worst.scenario})",
            met=len(good) == len(self.judged),
        )
        dearest = max(self.judged, key=lambda one: one.cost)
        yield Aim(
            aim=f"it takes at most {COST_AIM:.0%} of the exhaustive sweep's steps in every scenario",
            found=f"at most {dearest.cost:.0%} ({dearest.scenario})",
            met=dearest.cost <= COST_AIM,
        )
        even = [one for one in self.judged if one.gain <= MARGIN]
        if even:
            kept = [one for one in even if one.verdict == "keep"]
            yield Aim(
                aim="where no setting gains 2 % by the sweep it says keep",
                found=f"{len(kept)} of {len(even)} ({', '.join(f'{one.scenario}: {one.verdict}' for one in even)})",
                met=len(kept) == len(even),
            )

    def _errors(self) -> Iterable[Aim]:
        for part, quantity, aim, what in (
            ("scenarios", "step_ms", STEP_AIM, "the step at held-out settings"),
            ("collectives", "time_us", SIZE_AIM, "collectives at unmeasured sizes"),
            ("growth", "time_us", GROWTH_AIM, f"Gloo all_reduce beyond {FITTED_RANKS} hosts"),
        ):
            errors = self.errors(part, quantity)
            if errors:
                found = statistics.median(errors)
                text = f"{found:.1%} over {len(errors)} predictions, the largest {max(errors):.0%}"
                yield Aim(aim=f"the median error of {what} is at most {aim:.0%}", found=text, met=found <= aim)

    def _break_even(self) -> Iterable[Aim]:
        if not self.points:
            return
        shown = [point for point in self.points if point["agrees"] is not None]
        right = [point for point in shown if point["agrees"]]
        sides = {point["has_won"] for point in right}
        yield Aim(
            aim=f"top-k wins and loses as predicted wherever it is shown, at {POINTS_AIM} points or more, on both sides",
            found=f"{len(right)} of {len(shown)} that were shown, of {len(self.points)} in all; "
            f"{sum(point['has_won'] for point in right)} won",
            met=len(right) >= POINTS_AIM and right == shown and len(sides) > 1,
        )


def judge_scenario(found: Findings, scenario: Scenario, swept: Run, tuned: Run) -> None:
    """Hold what the tuner predicted and chose against the sweep."""
    sweep = Exhaustive.of(swept.training_records, swept.info)
    rows = prediction_rows(tuned.records, tuned.training_records, tuned.info)
    recommendation = Recommendation.from_json(tuned.recommendation or {})
    predicted = {_setting(row, sweep.baseline.case): row for row in rows}
    steps_ms = {case: row.predicted_step_ms for case, row in predicted.items() if row.predicted_step_ms is not None}
    fitted = {case for case, row in predicted.items() if row.used == "calibrated"}
    steps, speedups = held_steps(sweep, steps_ms), held_speedups(sweep, steps_ms)
    for quantity, held in (("step_ms", steps), ("speedup", speedups)):
        found.add("scenarios", scenario.name, quantity, "calibrated", [held[case] for case in held if case in fitted])
        found.add("scenarios", scenario.name, quantity, "held_out", [held[case] for case in held if case not in fitted])
    interleaved = _interleaved(sweep, swept, tuned)
    found.add("scenarios", scenario.name, "step_ms", "interleaved", interleaved)
    choice = choice_of(recommendation, sweep.baseline.case)
    regret = sweep.regret(choice)
    default = next(row for row in swept.training_rows if row.hook == "none" and row.bucket_cap_mb == DEFAULT_CAP)
    held_out = [steps[case] for case in steps if case not in fitted]
    found.judged.append(
        Judged(
            scenario=scenario.name,
            settings=len(sweep.settings),
            default_ms=default.step_ms or 0.0,
            communication=(default.exposed_comm_ms or 0.0) / (default.step_ms or 1.0),
            best=_short(sweep.best.case),
            gain=sweep.gain,
            choice=_short(choice),
            verdict=recommendation.verdict,
            regret=regret.against_best,
            regret_ci=(regret.interval.low - 1, regret.interval.high - 1) if regret.interval else None,
            regret_fair=regret.fair,
            within_noise=regret.is_none,
            steps=recommendation.measured_steps,
            exhaustive_steps=sweep.steps,
            step_error=median_error(held_out),
            worst_step_error=max((abs(one.error) for one in held_out), default=None),
            speedup_error=median_error([speedups[case] for case in speedups if case not in fitted]),
            interleaved_error=median_error(interleaved),
            rank_correlation=rank_correlation(list(steps.values())),
        )
    )


def _setting(row: Any, like: TrainingCase) -> TrainingCase:  # noqa: ANN401 - any row with the columns of a setting
    """The setting of a row, as the sweep names it."""
    names = (
        "bucket_cap_mb",
        "hook",
        "density",
        "hook_options",
        "precision",
        "bucket_view",
        "static_graph",
        "accumulation",
    )
    return dataclasses.replace(like, **{name: getattr(row, name) for name in names})


def _short(case: TrainingCase) -> str:
    return f"{case.hook_name} {case.bucket_cap_mb}"


def _interleaved(sweep: Exhaustive, swept: Run, tuned: Run) -> list[Held]:
    """Other bucket sizes, predicted from default buckets in the same launches and the network as tuning timed it."""
    case = sweep.baseline.case
    fitted = [r for r in swept.training_records if r.case.bucket_cap_mb == DEFAULT_CAP]
    network = NetworkModel.fit(tuned.records).at(case.backend, case.world_size)
    model = StepModel.calibrate(WorkloadFacts.from_json(swept.info["facts"]), network, fitted)
    others = [one for one in sweep.settings if one.bucket_cap_mb != DEFAULT_CAP and one.hook_name in model.hooks]
    return list(held_steps(sweep, {one: model.predict(one).step_ms for one in others}).values())


def judge_break_even(found: Findings, runs: Runs, name: str, hosts: int, rate: str) -> None:
    """Hold what top-k did at several densities against the break-even predicted from another run."""
    scenario = Scenario.parse(name)
    swept, tuned = runs.load(f"train_{name}"), runs.load(f"tune_{name}")
    case = Exhaustive.of(swept.training_records, swept.info).baseline.case
    network = NetworkModel.fit(tuned.records).at(case.backend, case.world_size)
    model = StepModel.calibrate(WorkloadFacts.from_json(swept.info["facts"]), network, swept.training_records)
    if hosts != HOSTS:
        growth = runs.load("growth")
        larger = growing_up_to(growth.records, growth.info, hosts - 1)
        there = larger.at(case.backend, hosts, rate_bps=parse_link_rate(rate), crowded=True)
        model = on_network(model, there)
    predicted = break_even(model, [DEFAULT_CAP])
    measured = runs.load(f"densities_{scenario.workload}_{hosts}hosts_{rate}")
    for point in compare_with_measured(predicted, measured.training_rows):
        found.points.append({"where": f"{scenario.workload}, {hosts} hosts, {rate}", **dataclasses.asdict(point)})
        found.points[-1]["agrees"] = point.agrees


# ------------------------------------------------------------------------------------------------------------ all


def validate(scope: Scope, scenarios: Sequence[Scenario], parts: Sequence[str], runs: Runs) -> Findings:
    """Measure what is missing, then judge all.

    Raises:
        InputError: a run failed.
    """
    found = Findings()
    names = {scenario.name for scenario in scenarios} if "scenarios" in parts else set()
    tried = [each for each in BREAK_EVENS if each[0] in names and (each[1] == HOSTS or "growth" in parts)]
    if "scenarios" in parts:
        for scenario in scenarios:
            measure_scenario(runs, scenario, scope)
            swept, tuned = (runs.load(f"{kind}_{scenario.name}") for kind in ("train", "tune"))
            judge_scenario(found, scenario, swept, tuned)
    if "collectives" in parts:
        for rate in DENSE_RATES:
            measure_collectives(runs, rate, scope)
            for key, held in held_sizes(runs.load(f"sizes_{rate}").records).items():
                found.add("collectives", f"{key}, {rate}", "time_us", "held_out", held)
    if "growth" in parts:
        measure_growth(runs, scope)
        growth = runs.load("growth")
        for (key, _), one in held_ranks(growth.records, growth.info, FITTED_RANKS).items():
            part = "growth" if key.operation == "all_reduce" else f"growth of {key.operation}"
            found.add(part, f"{key}, {GROWTH_RATE}", "time_us", "held_out", [one])
    if "break-even" in parts:
        for name, hosts, rate, densities in tried:
            measure_break_even(runs, Scenario.parse(name), hosts, rate, densities)
            judge_break_even(found, runs, name, hosts, rate)
    return found


def write(out: Path, found: Findings, runs: Runs) -> None:
    """Write validation.csv and validation.json."""
    columns = [each.name for each in dataclasses.fields(Check)]
    (out / "validation.csv").write_text(csv_text(found.checks, columns))
    environments = [load_run(path.parent).info.get("environment") for path in sorted((out / "runs").glob("*/run.json"))]
    facts = {
        "schema": 1,
        "argv": ["python", "benchmarks/validate_model.py", *sys.argv[1:]],
        "git_commit": git_commit(Path(__file__).parent),
        "met": all(aim.met for aim in found.aims),
        "aims": [dataclasses.asdict(aim) for aim in found.aims],
        "scenarios": [{**dataclasses.asdict(one), "cost": one.cost} for one in found.judged],
        "break_even": found.points,
        "runs": runs.done,
        "environment": environments[0] if environments else None,
    }
    (out / "validation.json").write_text(json.dumps(facts, indent=1) + "\n")


def tables(found: Findings) -> list[Table]:
    """What was found, for people."""
    made: list[Table] = []
    columns: tuple[str, ...]
    if found.judged:
        columns = (
            "scenario",
            "settings",
            "default ms",
            "comm",
            "best",
            "gain",
            "choice",
            "verdict",
            "regret",
            "95 %",
            "fair",
        )
        columns += ("steps", "step error", "worst", "speedup error", "interleaved", "rank corr.")
        made.append(_table("The tuner against the exhaustive sweep", columns, map(_scenario_cells, found.judged)))
    where = list(dict.fromkeys((one.part, one.where) for one in found.checks if one.quantity == "time_us"))
    cells = []
    for part, place in where:
        errors = [abs(one.error) for one in found.checks if (one.part, one.where) == (part, place)]
        cells.append((place, str(len(errors)), _percent(statistics.median(errors)), _percent(max(errors))))
    if cells:
        made.append(_table("Predicted collectives", ("curve", "predictions", "median error", "largest"), cells))
    if found.points:
        columns = ("where", "density", "break-even", "speedup", "won", "as predicted")
        made.append(_table("Where top-k pays", columns, map(_point_cells, found.points)))
    aims = [(aim.aim, aim.found, "met" if aim.met else "NOT met") for aim in found.aims]
    return [*made, _table("Aims", ("aim", "found", ""), aims)]


def _table(title: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    return table


def _scenario_cells(one: Judged) -> list[str]:
    interval = f"{one.regret_ci[0]:+.1%} {one.regret_ci[1]:+.1%}" if one.regret_ci else ""
    return [
        *(one.scenario, str(one.settings), f"{one.default_ms:.0f}", _percent(one.communication), one.best),
        *(_percent(one.gain), one.choice, one.verdict, _percent(one.regret), interval, _percent(one.regret_fair)),
        *(f"{one.steps}/{one.exhaustive_steps} ({one.cost:.0%})", _percent(one.step_error)),
        *(_percent(one.worst_step_error), _percent(one.speedup_error), _percent(one.interleaved_error)),
        "" if one.rank_correlation is None else f"{one.rank_correlation:.2f}",
    ]


def _point_cells(point: dict[str, Any]) -> list[str]:
    words = {True: "yes", False: "no", None: "not shown"}
    predicted = "none" if point["predicted"] is None else f"{point['predicted']:.3g}"
    won, agrees = words[point["has_won"]], words[point["agrees"]]
    return [point["where"], f"{point['density']:g}", predicted, f"{point['speedup']:.2f}", won, agrees]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def main() -> None:
    """Read the command line and leave with the exit code."""
    parser = argparse.ArgumentParser(description="Hold predictions and the tuner's choice against measurements.")
    parser.add_argument("--scenarios", help=f"comma-separated, as in {','.join(SCENARIOS)}, which are the default")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"what to measure (default {','.join(PARTS)})")
    parser.add_argument("--quick", action="store_true", help="fewer launches, settings and sizes: a try, no evidence")
    parser.add_argument("--out", type=Path, help="directory (default results/<UTC time>-validation-<host>)")
    options = parser.parse_args()
    console, errors = make_console(), make_console(sys.stderr)
    begun = time.monotonic()
    try:
        scenarios = [Scenario.parse(name) for name in (options.scenarios or ",".join(SCENARIOS)).split(",")]
        parts = options.parts.split(",")
        if unknown := sorted(set(parts) - set(PARTS)):
            raise InputError(f"--parts {unknown[0]} is unknown; choose from {', '.join(PARTS)}.")
        out = options.out or default_out("validation")
        runs = Runs(out, lambda text: errors.print(f"{(time.monotonic() - begun) / 60:4.1f} min  {text}", style="dim"))
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
