"""The command ``tune``: the best settings without measuring all of them."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from commbench.cli.conduct import Place, Task, carry_out
from commbench.cli.options import Settings, takes_settings
from commbench.cli.request import AUTO_BACKEND, check_training_backend, draw_seed, split_names
from commbench.cli.train import (
    DEFAULT_WORKLOAD,
    ConfirmLaunches,
    MaxAccuracyLoss,
    Steps,
    Threads,
    TrainingBackend,
    Workload,
    backend_at,
    check_accuracy_loss,
    check_counts,
    short_name,
    training_ranks,
    write_recommendation,
)
from commbench.ddp.plan.cases import canonical_cap
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.errors import InputError, check_choice
from commbench.launch.probe import probe_workload
from commbench.live.options import AUTO, checked_hooks
from commbench.results import load_run
from commbench.stats.budgets import TUNING_BUDGETS, TuningBudget
from commbench.tuner.stages import TuningPlan

#: Fewest steps of a block: 3 untimed ones, and 3 for a median.
FEWEST_STEPS = 6

Allow = Annotated[
    str,
    typer.Option(
        "--allow",
        metavar="HOOKS",
        help="Hooks that may be recommended, comma-separated, as in train --hook; topk means topk:0.01, randomk "
        "randomk:0.01, powersgd powersgd:2. DDP without a hook is always allowed.",
    ),
]
Caps = Annotated[
    str,
    typer.Option(
        "--bucket-cap-mb",
        metavar="SIZES",
        help="Bucket sizes to choose from, as in train; auto: one for each different layout of the model's buckets.",
    ),
]
Batch = Annotated[
    int | None, typer.Option("--batch", metavar="N", help="Samples per rank; by default from the workload.")
]
BudgetName = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="NAME",
        help="quick, standard or rigorous: up to 6, 10 or 20 fresh launches decide (a full sweep takes 3, 6 or 10 "
        "more).",
    ),
]


@takes_settings
def tune(
    settings: Settings,
    workload: Workload = DEFAULT_WORKLOAD,
    allow: Allow = "none,fp16,topk",
    bucket_cap_mb: Caps = AUTO,
    batch: Batch = None,
    backend: TrainingBackend = AUTO_BACKEND,
    steps: Steps = None,
    max_accuracy_loss: MaxAccuracyLoss = None,
    threads: Threads = None,
    budget: BudgetName = "quick",
    confirm_launches: ConfirmLaunches = None,
) -> int:
    """Find the DDP setting that trains a model fastest for about a quarter of the steps of a full sweep.

    Times the network and a few steps, predicts every setting from them, measures the promising ones beside the default,
    and compares the best one with the default in fresh launches; only these decide. Inside mpirun, torchrun or srun
    this process is one rank of one launch; repeat the command with the same --out until it says that nothing is left.
    """
    if settings.time_limit is not None and not settings.time_limit > 0:
        raise InputError(f"--time-limit {settings.time_limit:g} was asked for; give more than 0 s.")
    check_counts({"--steps": steps, "--threads": threads, "--batch": batch, "--confirm-launches": confirm_launches})
    if steps is not None and steps < FEWEST_STEPS:
        raise InputError(f"--steps {steps} was asked for; the first 3 are not timed, so give at least {FEWEST_STEPS}.")
    chosen, hooks, caps = _find_budget(budget), checked_hooks(split_names(allow) or ()), _caps(bucket_cap_mb)
    asked = check_training_backend(backend)
    allowed = check_accuracy_loss(max_accuracy_loss)

    def plan(place: Place) -> Task:
        if place.ranks < 2:  # noqa: PLR2004 - one rank has nobody to exchange gradients with
            raise InputError(f"Tuning DDP takes 2 ranks or more and -n is {place.ranks}; raise it.")
        known = known_facts(settings, workload, batch)
        chosen_backend, left_out = backend_at(place, asked, workload)
        facts = known or probe_workload(workload, batch, hooks, backend=chosen_backend)
        task = tuning_task(
            TuningPlan(
                workload=workload,
                facts=facts,
                ranks=place.ranks,
                seed=draw_seed(settings.seed_or_resumed()),
                budget=chosen,
                hooks=hooks,
                caps=caps,
                backend=chosen_backend,
                max_accuracy_loss=allowed,
                confirm_launches=confirm_launches,
                steps=steps,
                threads=threads,
                case_timeout_s=settings.case_timeout,
                time_limit_s=settings.time_limit,
            )
        )
        return dataclasses.replace(task, left_out=[*task.left_out, *left_out])

    return carry_out(settings, plan, lambda: training_ranks(asked))


def tuning_task(plan: TuningPlan) -> Task:
    """The stages of a tuning, and its conclusion."""
    return Task(
        name=short_name("tune", plan.workload),
        requests=[plan.network_request(), plan.calibrate_request()],
        stages=plan.stages(),
        info=plan.info,
        identity={
            "workload": plan.workload,
            "batch": plan.facts.batch_size,
            "max_accuracy_loss": plan.max_accuracy_loss,
            "candidates": [[case.hook_name, case.bucket_cap_mb] for case in plan.candidates],
        },
        then=plan.then,
        seconds=plan.estimate_s(),
        conclude=write_recommendation,
    )


def known_facts(settings: Settings, workload: str, batch: int | None) -> WorkloadFacts | None:
    """The facts of the workload when the run to resume was begun; every decision uses these.

    None without such a run, or if it has another workload or batch.
    """
    if settings.out is None or not (settings.out / "run.json").is_file():
        return None
    info = load_run(settings.out).info
    if not info.get("facts") or (info.get("plan") or {}).get("workload") != workload:
        return None
    facts = WorkloadFacts.from_json(info["facts"])
    return facts if batch in {None, facts.batch_size} else None


def _find_budget(name: str) -> TuningBudget:
    check_choice("budget", name, TUNING_BUDGETS)
    return TUNING_BUDGETS[name]


def _caps(text: str) -> list[str]:
    """The named bucket sizes; none for `AUTO`."""
    return [] if text.strip() == AUTO else [canonical_cap(cap) for cap in split_names(text) or ()]
