"""The command ``train``: it measures DDP's settings and recommends one."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Annotated

import typer

from commbench.cli.command_line import Given, takes_options
from commbench.cli.conduct import Task, carry_out
from commbench.cli.options import Settings
from commbench.cli.request import (
    AUTO_BACKEND,
    ON_CPUS,
    Place,
    check_counts,
    check_training_backend,
    choose_training_backend,
    draw_seed,
    find_budget,
    ranks_by_gpus,
)
from commbench.collectives.backends import TRAINING_BACKENDS
from commbench.collectives.cases import Axes, Sweep
from commbench.ddp.plan.cases import TrainingSweep
from commbench.ddp.traces import load_trace
from commbench.errors import InputError
from commbench.fields import join_names
from commbench.hooks.registry import canonical_hook, find_file_hooks
from commbench.launch.probe import probe_workload
from commbench.results import Store
from commbench.stats.budgets import TRAINING_BUDGETS, TrainingBudget
from commbench.tuner.conclusion import recommend
from commbench.tuner.learning import Permission
from commbench.tuner.plans import TrainingPlan

TrainingBackend = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        help=(
            f"One of {join_names([AUTO_BACKEND, *TRAINING_BACKENDS])}: gloo trains on CPUs; nccl on"
            " GPUs, the k-th rank of a host on its k-th GPU; auto is nccl if this machine has a"
            " GPU for each rank, else gloo."
        ),
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", help="Compute threads of a rank; by default a fair share."
    ),
]
MaxAccuracyLoss = Annotated[
    float | None,
    typer.Option(
        "--max-accuracy-loss",
        metavar="X",
        help=(
            "Never recommend a hook, precision or accumulation whose metric may end worse by more"
            " than X, e.g. 0.01; without a metric X is a share of the loss; without a loss none of"
            " them is recommended."
        ),
    ),
]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help=(
            "Allow named lossy hooks without an accuracy test; by default only their speedup is"
            " stated."
        ),
    ),
]
ConfirmLaunches = Annotated[
    int | None,
    typer.Option(
        "--confirm-launches",
        metavar="R",
        help="Confirmation launches; by default from the budget.",
    ),
]


@takes_options
def train(
    *,
    axes: Annotated[Axes, TrainingSweep],
    env: Annotated[Axes, Sweep, "env"],
    backend: TrainingBackend = AUTO_BACKEND,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="N",
            help=(
                "Optimiser steps of a block, the first 3 untimed; by default from the budget's"
                " time, for digits and text from their metric."
            ),
        ),
    ] = None,
    max_accuracy_loss: MaxAccuracyLoss = None,
    accept_loss: AcceptLoss = False,
    threads: Threads = None,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="NAME",
            help=(
                "quick (3 launches, then 6 confirmation launches), standard (6 and 10) or rigorous"
                " (10 and 20)."
            ),
        ),
    ] = "quick",
    launches: Annotated[
        int | None,
        typer.Option(
            "--launches", metavar="R", help="Launches of the sweep; by default from the budget."
        ),
    ] = None,
    confirm_launches: ConfirmLaunches = None,
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
    requested = check_training_backend(backend)
    requested_sweep = TrainingSweep(**axes, **env)
    check_counts({"--steps": steps, "--threads": threads})
    training_budget = find_budget(
        TRAINING_BUDGETS, budget, launches=launches, confirm_launches=confirm_launches
    )
    if launches or confirm_launches:
        # numbers of launches that the user gives are exact
        training_budget = dataclasses.replace(training_budget, aim_s=None)

    find_file_hooks(requested_sweep.hooks)
    permission = permission_of(
        requested_sweep.hooks, is_given="--hook" in given, accepts_loss=accept_loss
    )

    def plan(place: Place) -> Task:
        seed = draw_seed(settings.seed_or_resumed())
        chosen_backend, left_out = backend_at(place, requested, requested_sweep.workload)
        sweep = dataclasses.replace(requested_sweep, backend=chosen_backend)
        training = dataclasses.replace(
            plan_training(sweep, settings, training_budget, ranks=place.ranks, seed=seed),
            steps=steps,
            threads=threads,
            max_accuracy_loss=check_accuracy_loss(max_accuracy_loss),
            permission=permission,
        )
        name = short_name("train", sweep.workload)
        task = Task(name=name, requests=(), stages=(), left_out=left_out)
        return join_training(task, training)

    return carry_out(settings, plan, lambda: training_ranks(requested))


def backend_at(place: Place, requested: str, workload: str) -> tuple[str, list[str]]:
    """Return the training backend of a workload at a place, see `choose_training_backend`."""
    backend, left_out = choose_training_backend(requested, place)
    uses_gpu = TRAINING_BACKENDS[backend].uses_gpu
    if requested == AUTO_BACKEND and uses_gpu and _computes_on_hosts(workload):
        sentence = (
            f"{workload} was recorded on CPUs, which replay it; --backend nccl sends its gradients"
            " by NCCL."
        )
        return "gloo", [f"{ON_CPUS} {sentence}"]
    return backend, left_out


def _computes_on_hosts(workload: str) -> bool:
    """Return whether the workload is a trace whose replay uses CPU time."""
    kind, _, name = workload.partition(":")
    return kind == "trace" and load_trace(name).device == "cpu"


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
        left_out=[*task.left_out, *training.left_out],
        info={**task.info, **training.info},
        then=training.then,
        seconds=(
            task.estimate_s() + training.estimate_s() if task.requests else training.estimate_s()
        ),
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


def check_accuracy_loss(allowed: float | None) -> float | None:
    """Return the value of --max-accuracy-loss.

    Raises:
        InputError: it is below 0, infinite or not a number.
    """
    if allowed is not None and not 0 <= allowed < math.inf:
        raise InputError(
            f"--max-accuracy-loss {allowed:g} was asked for; give a number of 0 or more, such as"
            " 0.01."
        )
    return allowed


def permission_of(hooks: Sequence[str], *, is_given: bool, accepts_loss: bool) -> Permission:
    """Return which hooks may be recommended: those that the user named, not those of an option's
    default.

    Args:
        hooks: value of ``--hook`` or ``--allow``.
        is_given: whether the user gave that option.
        accepts_loss: whether the user gave ``--accept-loss``.
    """
    names = []
    if is_given:
        names = [canonical_hook(hook) for hook in hooks]
    return Permission(named_hooks=names, accepts_loss=accepts_loss)


def write_recommendation(store: Store, permission: Permission) -> None:
    """Write the recommendation that follows from the records in the store.

    A resumed run may permit other hooks.
    """
    store.update(**permission.info)
    trainings = store.training_records
    recommendation = recommend(trainings, store.info)
    if recommendation is not None:
        store.write_recommendation(recommendation)


def short_name(command: str, workload: str) -> str:
    """Return a name for the directory of results: ``train-resnet18``, or ``train-own_model`` for a
    file.
    """
    stem = (
        workload.removeprefix("trace:")
        .split("/")[-1]
        .split(":")[0]
        .removesuffix(".py")
        .removesuffix(".json")
    )
    return f"{command}-{stem}"
