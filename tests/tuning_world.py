"""A simulated cluster that runs the stages of a tuning, with a known best setting."""

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from builders import make_record
from training_builders import make_training_record

from commbench.analysis.prediction.steps import HookCost, StepModel
from commbench.collectives.cases import Case
from commbench.ddp.plan.cases import CALIBRATE, SWEEP, TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import ParameterFacts, WorkloadFacts
from commbench.engine.records import Record
from commbench.hooks.registry import parse_hook
from commbench.results.plan import RunRequest, missing_cases
from commbench.results.record_types import AnyRecord
from commbench.stats.budgets import TUNING_BUDGETS
from commbench.tuner.stages import TuningPlan

FORWARD_MS, BACKWARD_MS, OPTIMIZER_MS = 20.0, 40.0, 5.0
BLOCK_STEPS = 8


def make_facts(parameters: int = 40, mib: float = 1.0) -> WorkloadFacts:
    """Return a workload of equal parameters whose gradients become ready in sequence."""
    numel = int(mib * 2**20) // 4
    made = tuple(
        ParameterFacts(
            name=f"p{i}",
            numel=numel,
            itemsize=4,
            dtype="float32",
            ready_ms=BACKWARD_MS * (parameters - i) / parameters,
            shape=(numel,),
        )
        for i in range(parameters)
    )
    return WorkloadFacts(
        parameters=made,
        ready_order=tuple(range(parameters))[::-1],
        buffer_bytes=0,
        batch_size=8,
        forward_ms=FORWARD_MS,
        backward_ms=BACKWARD_MS,
        optimizer_ms=OPTIMIZER_MS,
        metric="",
        target=None,
        steps=None,
    )


def make_plan(
    facts: WorkloadFacts | None = None, budget: str = "standard", **changes: Any
) -> TuningPlan:
    """Return a tuning on 2 ranks among no hook, FP16 and top-k."""
    fields: dict[str, Any] = {
        "workload": "mlp",
        "ranks": 2,
        "seed": 3,
        "hooks": ["none", "fp16", "topk:0.01"],
    }
    return TuningPlan(
        facts=facts or make_facts(), budget=TUNING_BUDGETS[budget], **{**fields, **changes}
    )


@dataclass(frozen=True, kw_only=True)
class Link:
    """A network with latency and seconds per byte, equal for all operations and types."""

    latency_us: float = 300.0
    gbit: float = 1.0
    world_size: int = 2
    servers: int = 2

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:  # noqa: ARG002 - a `Network`
        """Return the latency plus half the bytes at the link's rate."""
        return self.latency_us + message_bytes * 8e-3 / self.gbit


@dataclass(kw_only=True)
class World:
    """Simulated measurements, equal for equal requests."""

    plan: TuningPlan
    link: Link = field(default_factory=Link)
    noise: float = 0.01
    """Standard deviation of a configuration within a launch."""
    misfit: float = 0.1
    """Standard deviation of what no model knows of a configuration, as a share of what it adds
    to the step alone."""
    overlap: float = 0.7
    failing: str = ""
    """A hook that cannot be trained."""
    disturbed: str = ""
    """A hook whose block of the calibration takes twice as long."""

    def __post_init__(self) -> None:
        hooks = {"fp16", *(case.hook_name for case in self.plan.candidates)}
        self._model = StepModel(
            facts=self.plan.facts,
            network=self.link,
            reference=self.plan.baseline.local(),
            forward_ms=FORWARD_MS,
            backward_ms=BACKWARD_MS,
            optimizer_ms=OPTIMIZER_MS,
            other_ms=0.0,
            hooks=dict.fromkeys(hooks, HookCost()),
            overlap=dict.fromkeys(hooks, self.overlap),
        )

    def true_ms(self, case: TrainingCase) -> float:
        """Return the true step time."""
        if not case.uses_ddp:
            return FORWARD_MS + BACKWARD_MS + OPTIMIZER_MS
        alone = FORWARD_MS + BACKWARD_MS + OPTIMIZER_MS
        if not case.is_predicted:  # takes as long as FP16
            return self.true_ms(replace(case, **parse_hook("fp16")))
        added = self._model.predict(replace(case, phase=SWEEP)).step_ms - alone
        return alone + added * math.exp(self.misfit * _gauss("misfit", _name(case)))

    def best(self) -> TrainingCase:
        """Return the candidate that is truly fastest."""
        return min(self.plan.candidates, key=self.true_ms)

    def regret(self, case: TrainingCase) -> float:
        """Return the true step time relative to the best."""
        return self.true_ms(case) / self.true_ms(self.best()) - 1

    def record(self, case: TrainingCase | Case, launch: int) -> AnyRecord:
        """Return a launch's measurement of a case."""
        return (
            self._collective(case, launch)
            if isinstance(case, Case)
            else self._training(case, launch)
        )

    def _collective(self, case: Case, launch: int) -> Record:
        time_us = self.link.time_us(case.operation, str(case.dtype), case.message_bytes)
        return make_record(
            case, launch=launch, time_us=time_us * math.exp(self.noise * _gauss(case.key, launch))
        )

    def _training(self, case: TrainingCase, launch: int) -> TrainingRecord:
        if case.hook_name == self.failing:
            return make_training_record(
                case, launch=launch, status="failed", reason="boom", block_steps=0
            )
        shared = 0.03 * _gauss("launch", case.phase, launch)
        twice = 2.0 if (case.phase, case.hook_name) == (CALIBRATE, self.disturbed) else 1.0
        step_ms = (
            twice
            * self.true_ms(case)
            * math.exp(shared + self.noise * _gauss(_name(case), case.phase, launch))
        )
        return make_training_record(
            case,
            launch=launch,
            step_ms=step_ms,
            forward_ms=FORWARD_MS,
            optimizer_ms=OPTIMIZER_MS,
            backward_ms=step_ms - FORWARD_MS - OPTIMIZER_MS,
            block_steps=BLOCK_STEPS,
            block_lengths=[BLOCK_STEPS - 3],
        )


def _name(case: TrainingCase) -> tuple[str, str]:
    return case.hook_name, case.bucket_cap_mb


def _gauss(*key: object) -> float:
    return random.Random(repr(key)).gauss(0, 1)


@dataclass(kw_only=True)
class Played:
    """The records and requests of a simulated tuning."""

    records: list[AnyRecord]
    requests: list[RunRequest]
    """Of the stages that had something to measure."""


def play(
    world: World,
    known: Sequence[AnyRecord] = (),
    *,
    most: int | None = None,
    stages: int | None = None,
) -> Played:
    """Run the first ``stages`` (or all) as the conductor does, after the records ``known``, up to
    ``most`` records.
    """
    played = Played(records=list(known), requests=[])
    for stage in world.plan.stages()[:stages]:
        request = stage(tuple(played.records))
        if request is None:
            continue
        played.requests.append(request)
        for launch in range(request.first_launch, request.budget.launches):
            failed = {r.case.key for r in played.records if r.status == "failed"}
            for case in missing_cases(request, played.records, launch, failed):
                if most is not None and len(played.records) >= most:
                    return played
                played.records.append(world.record(case, launch))
    return played


@functools.cache
def default_world() -> World:
    """Return a cluster with the default plan, shared by tests that change neither."""
    return World(plan=make_plan())


@functools.cache
def default_play() -> Played:
    """Return the simulated tuning on `default_world`."""
    return play(default_world())
