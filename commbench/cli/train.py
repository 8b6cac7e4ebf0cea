"""The command ``train``: it measures DDP's settings and recommends one."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from commbench.cli.command_line import Given, takes_options
from commbench.cli.conduct import Task, carry_out
from commbench.cli.options import Settings, opt
from commbench.cli.request import (
    AUTO_BACKEND,
    ON_CPUS,
    Place,
    check_counts,
    choose_training_backend,
    find_budget,
    ranks_by_gpus,
)
from commbench.collectives.backends import TRAINING_BACKENDS
from commbench.collectives.cases import Axes, Sweep
from commbench.ddp.plan.cases import TrainingSweep
from commbench.ddp.traces import load_trace
from commbench.errors import InputError
from commbench.fields import check_choices, join_names, option
from commbench.hooks.registry import canonical_hook, find_file_hooks
from commbench.launch.probe import probe_workload
from commbench.results import Store
from commbench.results.info import RunInfo
from commbench.stats.budgets import TRAINING_BUDGETS, TrainingBudget
from commbench.tuner.conclusion import recommend
from commbench.tuner.plans import TrainingPlan


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How to train, and what may be recommended: options of ``train`` and ``tune``."""

    backend: str = option(
        AUTO_BACKEND,
        "--backend",
        metavar="NAME",
        about=(
            f"One of {join_names([AUTO_BACKEND, *TRAINING_BACKENDS])}: gloo trains on CPUs; nccl on"
            " GPUs, the k-th rank of a host on its k-th GPU; auto is nccl if this machine has a"
            " GPU for each rank, else gloo."
        ),
        choices=("training backend", (AUTO_BACKEND, *TRAINING_BACKENDS)),
    )
    max_accuracy_loss: float | None = option(
        None,
        "--max-accuracy-loss",
        metavar="X",
        about=(
            "Never recommend a hook, precision or accumulation whose metric may end worse by more"
            " than X, e.g. 0.01; without a metric X is a share of the loss; without a loss none of"
            " them is recommended."
        ),
    )
    accept_loss: bool = option(
        False,  # noqa: FBT003 - the default
        "--accept-loss",
        about=(
            "Allow named lossy hooks without an accuracy test; by default only their speedup is"
            " stated."
        ),
    )
    threads: int | None = option(
        None,
        "--threads",
        metavar="N",
        about="Compute threads of a rank; by default a fair share.",
    )
    confirm_launches: int | None = option(
        None,
        "--confirm-launches",
        metavar="R",
        about="Confirmation launches; by default from the budget.",
        kind=int,
    )

    def check(self) -> None:
        """Raise `InputError` for an unknown backend, or a number that is out of range."""
        check_choices(self)
        check_counts({"--threads": self.threads, "--confirm-launches": self.confirm_launches})
        allowed = self.max_accuracy_loss
        if allowed is not None and not 0 <= allowed < math.inf:
            raise InputError(
                f"--max-accuracy-loss {allowed:g} was asked for; give a number of 0 or more, such"
                " as 0.01."
            )

    def permission(self, hooks: Sequence[str]) -> RunInfo:
        """Return that these hooks may be recommended, as ``--hook`` takes them."""
        names = [canonical_hook(hook) for hook in hooks]
        return {"named_hooks": names, "accepts_loss": self.accept_loss}


@takes_options
def train(
    *,
    axes: Annotated[Axes, TrainingSweep],
    env: Annotated[Axes, Sweep, "env"],
    steps: Annotated[
        int | None,
        opt(
            "--steps",
            (
                "Optimiser steps of a block, the first 3 untimed; by default from the budget's"
                " time, for digits and text from their metric."
            ),
            "N",
        ),
    ] = None,
    trained: Trained,
    budget: Annotated[
        str,
        opt(
            "--budget",
            (
                "quick (3 launches, then 6 confirmation launches), standard (6 and 10) or rigorous"
                " (10 and 20)."
            ),
            "NAME",
        ),
    ] = "quick",
    launches: Annotated[
        int | None,
        opt("--launches", "Launches of the sweep; by default from the budget.", "R"),
    ] = None,
    settings: Settings,
    given: Given,
) -> int:
    """Train with DDP under several settings, recommend one.

    Every combination of the settings is trained, with the default (fp32, no hook, DDP's buckets)
    and the step without DDP. The fastest settings are then compared with the default in
    confirmation launches; only these decide. Settings with the same gradients are preferred. FP16
    and BF16 are recommended only if --hook names them; lossy hooks also need --max-accuracy-loss or
    --accept-loss. Inside mpirun, torchrun or srun this process is one rank of one launch; repeat
    the command with the same --out to add launches.
    """
    trained.check()
    check_counts({"--steps": steps})
    requested_sweep = TrainingSweep(**axes, **env)
    fresh = trained.confirm_launches
    training_budget = find_budget(
        TRAINING_BUDGETS, budget, launches=launches, confirm_launches=fresh
    )
    if launches or fresh:
        # numbers of launches that the user gives are exact
        training_budget = dataclasses.replace(training_budget, aim_s=None)

    find_file_hooks(requested_sweep.hooks)
    named: Sequence[str] = ()
    if "--hook" in given:  # not those of the default
        named = requested_sweep.hooks
    permission = trained.permission(named)

    def plan(place: Place) -> Task:
        seed = settings.draw_seed()
        chosen_backend, left_out = backend_at(place, trained.backend, requested_sweep.workload)
        sweep = dataclasses.replace(requested_sweep, backend=chosen_backend)
        training = dataclasses.replace(
            plan_training(sweep, settings, training_budget, ranks=place.ranks, seed=seed),
            steps=steps,
            threads=trained.threads,
            max_accuracy_loss=trained.max_accuracy_loss,
            permission=permission,
        )
        name = short_name("train", sweep.workload)
        left_out = [*left_out, *training.left_out]
        task = Task(name=name, requests=(), stages=(), left_out=left_out)
        return join_training(task, training)

    return carry_out(settings, plan, lambda: training_ranks(trained.backend))


def backend_at(place: Place, requested: str, workload: str) -> tuple[str, list[str]]:
    """Return the training backend of a workload at a place, see `choose_training_backend`."""
    backend, left_out = choose_training_backend(requested, place)
    uses_gpu = TRAINING_BACKENDS[backend].uses_gpu
    kind, _, name = workload.partition(":")
    is_of_cpu = kind == "trace" and load_trace(name).device == "cpu"
    if requested == AUTO_BACKEND and uses_gpu and is_of_cpu:
        sentence = (
            f"{workload} was recorded on CPUs, which replay it; --backend nccl sends its gradients"
            " by NCCL."
        )
        return "gloo", [f"{ON_CPUS} {sentence}"]
    return backend, left_out


def training_ranks(backend: str) -> int | None:
    """Return the number of ranks for this machine's GPUs if none is given.

    None if GPUs do not decide.

    Raises:
        InputError: there is one GPU to train on, and no number was given.
    """
    if backend == AUTO_BACKEND:
        return ranks_by_gpus([trainer.name for trainer in TRAINING_BACKENDS.values()])
    trainer = TRAINING_BACKENDS[backend]
    if not trainer.uses_gpu:
        return None
    ranks = ranks_by_gpus([trainer.name])
    if ranks == 1:
        raise InputError(
            "Training with DDP takes 2 ranks or more, and this machine has 1 GPU for them; give -n"
            " 2 to have both share it, name hosts by --hostfile, or train with --backend gloo."
        )
    return ranks


def join_training(task: Task, training: TrainingPlan) -> Task:
    """Return the task with a training sweep after its other stages, and a recommendation at the
    end.
    """
    return dataclasses.replace(
        task,
        requests=[*task.requests, training.first_request()],
        stages=[*task.stages, *training.stages()],
        info={**task.info, **training.info},
        then=training.then,
        seconds=task.estimate_s() + training.estimate_s(),
        conclude=functools.partial(write_recommendation, permission=training.permission),
        is_brief=True,
    )


def plan_training(
    sweep: TrainingSweep,
    settings: Settings,
    budget: TrainingBudget,
    *,
    ranks: int,
    seed: int,
) -> TrainingPlan:
    """Try the workload and plan its sweep.

    Raises:
        InputError: the workload cannot be trained with DDP, or a number is out of range.
    """
    batch = (*sweep.batches, None)[0]
    facts = probe_workload(sweep.workload, batch, sweep.hooks, backend=sweep.backend)
    if facts.unused:  # DDP fails without the search
        sweep = dataclasses.replace(sweep, unused_parameters=(True,))
    return TrainingPlan(
        sweep=sweep,
        facts=facts,
        ranks=ranks,
        seed=seed,
        budget=budget,
        case_timeout_s=settings.case_timeout,
        time_limit_s=settings.time_limit,
    )


def write_recommendation(store: Store, permission: RunInfo) -> None:
    """Write the recommendation that follows from the records in the store.

    A resumed run may permit other hooks.
    """
    store.update(**permission)
    trainings = store.training_records
    recommendation = recommend(trainings, store.info)
    if recommendation is not None:
        store.write_recommendation(recommendation)


def short_name(command: str, workload: str) -> str:
    """Return a name for the directory of results: ``train-resnet18``, ``train-own_model`` for a
    file, or ``tune-package.module``.
    """
    name, _, _ = Path(workload.removeprefix("trace:")).name.partition(":")
    return f"{command}-{name.removesuffix('.py').removesuffix('.json')}"
