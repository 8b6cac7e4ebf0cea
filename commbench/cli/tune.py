"""The command ``tune``: the best settings of a person's own training, or of a workload without measuring all."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, cast, get_args

import typer

from commbench.cli.conduct import Place, Task, carry_out
from commbench.cli.options import Settings, takes_settings
from commbench.cli.request import (
    AUTO_BACKEND,
    check_counts,
    check_training_backend,
    default_out,
    draw_seed,
    find_budget,
    split_names,
)
from commbench.cli.separator import command_behind, given_options
from commbench.cli.train import (
    DEFAULT_WORKLOAD,
    ConfirmLaunches,
    MaxAccuracyLoss,
    Threads,
    TrainingBackend,
    Workload,
    backend_at,
    check_accuracy_loss,
    short_name,
    training_ranks,
    write_recommendation,
)
from commbench.ddp.plan.cases import canonical_cap
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.errors import InputError, check_choice
from commbench.launch.probe import probe_workload
from commbench.live.command import find_program, name_of, tune_training
from commbench.live.options import AUTO, LiveOptions, Then, checked_hooks
from commbench.results import load_run
from commbench.stats.budgets import TUNING_BUDGETS
from commbench.tuner.stages import TuningPlan

#: Fewest steps of a block: 3 untimed ones, and 3 for a median.
FEWEST_STEPS = 6

#: Options that apply to the training of a COMMAND.
LIVE_OPTIONS = frozenset({"bucket_cap_mb", "allow", "steps", "time_limit", "then", "out", "seed"})

Allow = Annotated[
    str,
    typer.Option(
        "--allow",
        metavar="HOOKS",
        help="Hooks that may be recommended, comma-separated, as in train --hook; topk means topk:0.01, randomk "
        "randomk:0.01, powersgd powersgd:2. DDP without a hook is always allowed. With a COMMAND the default is none, "
        "because a hook changes what the training learns.",
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
TuningSteps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        metavar="N",
        help="With a COMMAND: optimiser steps after which tuning ends; by default when it is decided. Without: "
        "optimiser steps of a block, the first 3 untimed; by default from the budget's time, for digits and text from "
        "their metric.",
    ),
]
ThenName = Annotated[
    str,
    typer.Option(
        "--then",
        metavar="WHAT",
        help="With a COMMAND, after tuning: go-on trains on with the best setting; stop ends all ranks with exit code "
        "0.",
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
    context: typer.Context,
    workload: Workload = DEFAULT_WORKLOAD,
    allow: Allow = "none,fp16,topk",
    bucket_cap_mb: Caps = AUTO,
    batch: Batch = None,
    backend: TrainingBackend = AUTO_BACKEND,
    steps: TuningSteps = None,
    then: ThenName = "go-on",
    max_accuracy_loss: MaxAccuracyLoss = None,
    threads: Threads = None,
    budget: BudgetName = "quick",
    confirm_launches: ConfirmLaunches = None,
) -> int:
    """Find the fastest DDP setting: for your own training while it runs (tune -- COMMAND), or for a workload.

    With -- COMMAND: tunes your own training while it runs. COMMAND is what you type anyway, e.g. torchrun
    --nproc-per-node 8 train.py, accelerate launch, mpirun or srun; the script stays as it is. Bucket sizes are tried in
    short blocks of steps, the best one is kept, and the lines to paste are printed when COMMAND has ended, with whose
    exit code commbench ends. Options for it, before --: --bucket-cap-mb, --allow, --steps, --time-limit, --then, --out,
    --seed. The same command with the same --out adds to its results.

    Without a COMMAND: trains --workload, for about a quarter of the steps of a full sweep. Times the network and a few
    steps, predicts every setting from them, measures the promising ones beside the default, and compares the best one
    with the default in fresh launches; only these decide. Inside mpirun, torchrun or srun this process is one rank of
    one launch; repeat the command with the same --out until it says that nothing is left.
    """
    if settings.time_limit is not None and not settings.time_limit > 0:
        raise InputError(f"--time-limit {settings.time_limit:g} was asked for; give more than 0 s.")
    check_counts({"--steps": steps, "--threads": threads, "--batch": batch, "--confirm-launches": confirm_launches})
    command, given = command_behind(context), given_options(context)
    _check_options(given, has_command=command is not None)
    caps = _caps(bucket_cap_mb)
    if command is not None:
        hooks = checked_hooks(split_names(allow) or ()) if "allow" in given else ["none"]
        return _start(settings, command, caps=caps, hooks=hooks, steps=steps, then=then)
    if steps is not None and steps < FEWEST_STEPS:
        raise InputError(f"--steps {steps} was asked for; the first 3 are not timed, so give at least {FEWEST_STEPS}.")
    chosen, hooks = find_budget(TUNING_BUDGETS, budget), checked_hooks(split_names(allow) or ())
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


def _check_options(given: Mapping[str, str], *, has_command: bool) -> None:
    """Refuse options that do not apply.

    Raises:
        InputError: there is one.
    """
    if not has_command and "then" in given:
        raise InputError("--then was given and applies to a training only; put the command of one behind --.")
    others = [option for name, option in given.items() if name not in LIVE_OPTIONS]
    if has_command and others:
        raise InputError(f"{others[0]} was given and does not apply to the training of a COMMAND; leave it out.")


def _start(
    settings: Settings,
    command: Sequence[str],
    *,
    caps: Sequence[str],
    hooks: Sequence[str],
    steps: int | None,
    then: str,
) -> int:
    """Start the command of a training and tune it; return the command's exit code."""
    check_choice("value of --then", then, get_args(Then))
    find_program(command)
    workload = name_of(command)
    out = settings.out or default_out(short_name("tune", workload))
    options = LiveOptions(
        out=str(out.absolute()),
        workload=workload,
        bucket_cap_mb=tuple(caps),
        allow=tuple(hooks),
        steps=steps,
        time_limit_s=settings.time_limit,
        then=cast("Then", then),
        seed=draw_seed(settings.seed),
        argv=tuple(command),
        invocation=uuid.uuid4().hex,
    )
    return tune_training(command, options)


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


def _caps(text: str) -> list[str]:
    """The named bucket sizes; none for `AUTO`."""
    return [] if text.strip() == AUTO else [canonical_cap(cap) for cap in split_names(text) or ()]
