"""The command ``train``: it measures DDP's settings and recommends one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from commbench.cli.command_line import Given, takes_options
from commbench.cli.conduct import Task, carry_out
from commbench.cli.options import Settings, opt
from commbench.cli.request import (
    AUTO_BACKEND,
    Place,
    find_budget,
    ranks_by_gpus,
    training_backend,
)
from commbench.collectives.backends import TRAINING_BACKENDS
from commbench.collectives.cases import Axes, Sweep
from commbench.ddp.plan.cases import TrainingSweep
from commbench.errors import InputError
from commbench.fields import check_choices, join_names, option
from commbench.hooks.registry import canonical_hook, find_file_hooks
from commbench.launch.probe import probe_workload
from commbench.results.info import RunInfo
from commbench.stats.budgets import TRAINING_BUDGETS, TrainingBudget
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
        min=1,
    )
    confirm_launches: int | None = option(
        None,
        "--confirm-launches",
        metavar="R",
        about="Confirmation launches; by default from the budget.",
        kind=int,
        min=1,
    )

    def __post_init__(self) -> None:
        """Raise `InputError` for an unknown backend, or a number that is out of range."""
        check_choices(self)
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
            min=1,
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
        opt("--launches", "Launches of the sweep; by default from the budget.", "R", min=1),
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
        workload = requested_sweep.workload
        backend, left_out = training_backend(place, trained.backend, workload)
        training = plan_training(
            dataclasses.replace(requested_sweep, backend=backend),
            settings,
            training_budget,
            place,
            seed=settings.draw_seed(),
            steps=steps,
            threads=trained.threads,
            max_accuracy_loss=trained.max_accuracy_loss,
            permission=permission,
        )
        left_out += training.left_out
        return Task(name=short_name("train", workload), training=training, left_out=left_out)

    return carry_out(settings, plan, lambda: training_ranks(trained.backend))


def training_ranks(backend: str) -> int | None:
    """Return the number of ranks for this machine's GPUs if none is given.

    None if GPUs do not decide.

    Raises:
        InputError: there is one GPU to train on, and no number was given.
    """
    names = []
    for name, trainer in TRAINING_BACKENDS.items():
        if backend in {AUTO_BACKEND, name}:
            names.append(trainer.name)
    ranks = ranks_by_gpus(names)
    if ranks == 1:
        raise InputError(
            "Training with DDP takes 2 ranks or more, and this machine has 1 GPU for them; give -n"
            " 2 to have both share it, name hosts by --hostfile, or train with --backend gloo."
        )
    return ranks


def plan_training(
    sweep: TrainingSweep,
    settings: Settings,
    budget: TrainingBudget,
    place: Place,
    **terms: Any,
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
        ranks=place.ranks,
        budget=budget,
        case_timeout_s=settings.case_timeout,
        time_limit_s=settings.time_limit,
        **terms,
    )


def short_name(command: str, workload: str) -> str:
    """Return a name for the directory of results: ``train-resnet18``, ``train-own_model`` for a
    file, or ``tune-package.module``.
    """
    name, _, _ = Path(workload.removeprefix("trace:")).name.partition(":")
    return f"{command}-{name.removesuffix('.py').removesuffix('.json')}"
