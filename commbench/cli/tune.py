"""The commands ``tune`` and ``watch``: the best settings of a user's own training, or of a workload
without a full sweep; and where the steps of a training go.
"""

from __future__ import annotations

import dataclasses
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from commbench.cli.command_line import Given, check_needed, refuse, takes_options
from commbench.cli.conduct import Task, carry_out
from commbench.cli.options import Settings, duration, opt
from commbench.cli.request import Place, default_out, find_budget, training_backend
from commbench.cli.separator import command_behind
from commbench.cli.train import Trained, short_name, training_ranks
from commbench.collectives.cases import Axes
from commbench.ddp.plan.cases import TrainingSweep
from commbench.ddp.plan.workload import WorkloadFacts, check_all_used
from commbench.errors import InputError
from commbench.fields import as_names
from commbench.hooks.registry import find_file_hooks
from commbench.launch.probe import probe_hooks, probe_workload
from commbench.live.command import attach_to, name_of
from commbench.live.options import (
    AUTO,
    LiveOptions,
    Mode,
    checked_caps,
    checked_hooks,
    checked_then,
)
from commbench.results.files import refusing
from commbench.schema import read_as
from commbench.stats.budgets import TRAINING_BUDGETS
from commbench.system.software import git_commit
from commbench.tuner.plans import TrainingPlan, candidate_sweep
from commbench.tuner.rules import TUNE

#: The fewest steps of a block: 3 untimed steps, and 3 for a median.
FEWEST_STEPS = 6

#: Options that apply to the training of a COMMAND.
LIVE_OPTIONS = (
    "--bucket-cap-mb",
    "--allow",
    "--steps",
    "--time-limit",
    "--then",
    "--out",
    "--seed",
    "--accept-loss",
)
Then = Annotated[
    str,
    opt(
        "--then",
        (
            "With a COMMAND, what follows: go-on trains on, with the best setting where it was"
            " tuned; stop ends all ranks with exit code 0."
        ),
        "WHAT",
    ),
]


@takes_options
def tune(
    *,
    axes: Annotated[Axes, TrainingSweep, "workload"],
    allow: Annotated[
        str,
        opt(
            "--allow",
            (
                "Hooks to try, comma-separated, as in train --hook; topk means topk:0.01,"
                " powersgd powersgd:2. DDP without a hook is always tried. A hook is recommended"
                " only if it is named here, and a lossy one only with --max-accuracy-loss or"
                " --accept-loss. With a COMMAND the default is none, because a hook changes what"
                " the training learns."
            ),
            "HOOKS",
        ),
    ] = "none,fp16,topk",
    bucket_cap_mb: Annotated[
        str,
        opt(
            "--bucket-cap-mb",
            (
                "Bucket sizes to choose from, as in train; auto: one for each different layout of"
                " the model's buckets."
            ),
            "SIZES",
        ),
    ] = AUTO,
    batch: Annotated[
        int | None,
        opt("--batch", "Samples per rank; by default from the workload.", "N", min=1),
    ] = None,
    steps: Annotated[
        int | None,
        opt(
            "--steps",
            (
                "With a COMMAND: optimiser steps after which tuning ends; by default when it is"
                " decided. Without: optimiser steps of a block, the first 3 untimed; by default"
                " from the budget's time, for digits and text from their metric."
            ),
            "N",
            min=1,
        ),
    ] = None,
    then: Then = "go-on",
    trained: Trained,
    budget: Annotated[
        str,
        opt(
            "--budget",
            (
                "quick, standard or rigorous: 6, 10 or 20 confirmation launches decide, or twice as"
                " many if these do not."
            ),
            "NAME",
        ),
    ] = "quick",
    settings: Settings,
    context: typer.Context,
    given: Given,
) -> int:
    """Find the fastest DDP setting for a training.

    With -- COMMAND: tunes your own training while it runs. COMMAND is what you type anyway, e.g.
    torchrun --nproc-per-node 8 train.py, accelerate launch, mpirun or srun; the script stays as it
    is. Bucket sizes are tried in short blocks of steps, and the best one is kept. When COMMAND
    ends, the lines to add are printed. The exit code is COMMAND's. Options for it, before --:
    --bucket-cap-mb, --allow, --accept-loss, --steps, --time-limit, --then, --out, --seed.
    The same command with the same --out adds to its results.

    Without a COMMAND: trains --workload. One launch searches: it trains with each hook in turns,
    drops the slow ones, and then tries bucket sizes for the others. The best are compared with the
    default in confirmation launches; only these decide. Inside mpirun, torchrun or srun this
    process is one rank of one launch; repeat the command with the same --out until it says that
    nothing is left.
    """
    command = command_behind(context)
    if command is not None:
        not_of_it = [option for option in given if option not in LIVE_OPTIONS]
        refuse((*given, "COMMAND"), "COMMAND", not_of_it, "whose training has its own")
    else:
        check_needed(given, "--then", "COMMAND")
        if steps is not None and steps < FEWEST_STEPS:
            raise InputError(
                f"--steps {steps} was asked for; the first 3 are not timed, so give at least"
                f" {FEWEST_STEPS}."
            )
    caps = checked_caps(as_names(bucket_cap_mb))
    hooks = ["none"]
    if command is None or "--allow" in given:
        hooks = checked_hooks(as_names(allow))
    if command is not None:
        file_hooks = find_file_hooks(hooks)
        probe_hooks(hooks)
        return start(
            command,
            settings.out,
            bucket_cap_mb=tuple(caps),
            allow=tuple(hooks),
            file_hooks=file_hooks,
            accept_loss=trained.accept_loss,
            steps=steps,
            then=checked_then(then),
            time_limit_s=settings.time_limit,
            # not that of the run to resume: each launch has an order of its own
            seed=dataclasses.replace(settings, out=None).draw_seed(),
        )
    fresh, schedule = trained.confirm_launches, TUNE
    tuning_budget = find_budget(TRAINING_BUDGETS, budget, confirm_launches=fresh)
    if fresh is not None:  # a number that the user gives is exact
        schedule = dataclasses.replace(TUNE, looks=(1,))
    workload: str = axes["workload"]
    permission = trained.permission(hooks if "--allow" in given else [])

    def plan(place: Place) -> Task:
        if place.ranks < 2:  # the fewest that exchange gradients
            raise InputError(f"Tuning DDP takes 2 ranks or more and -n is {place.ranks}; raise it.")
        trains_over, left_out = training_backend(place, trained.backend, workload)
        facts = known_facts(settings, workload, batch) or probe_workload(
            workload, batch, hooks, backend=trains_over
        )
        check_all_used(facts.unused)
        sweep = TrainingSweep(workload=workload, backend=trains_over, hooks=hooks, bucket_caps=caps)
        tuning = TrainingPlan(
            sweep=candidate_sweep(sweep, facts),
            facts=facts,
            ranks=place.ranks,
            seed=settings.draw_seed(),
            budget=tuning_budget,
            schedule=schedule,
            max_accuracy_loss=trained.max_accuracy_loss,
            permission=permission,
            steps=steps,
            threads=trained.threads,
            case_timeout_s=settings.case_timeout,
            time_limit_s=settings.time_limit,
        )
        candidates = []
        for case in tuning.cases:
            if case.uses_ddp:
                candidates.append([case.hook_name, case.bucket_cap_mb])
        identity = {
            "workload": workload,
            "batch": facts.batch_size,
            "max_accuracy_loss": tuning.max_accuracy_loss,
            "candidates": candidates,
        }
        name = short_name("tune", workload)
        return Task(name=name, training=tuning, left_out=left_out, identity=identity)

    return carry_out(settings, plan, lambda: training_ranks(trained.backend))


def start(command: Sequence[str], out: Path | None, mode: Mode = "tune", **terms: Any) -> int:
    """Start the command of a training and tune or watch it; return the command's exit code.

    ``terms`` are the fields of `LiveOptions` that say what may be done.
    """
    workload = name_of(command)
    out = out or default_out(short_name(mode, workload))
    with refusing(out, InputError):  # the working directory may have been deleted
        absolute = str(out.absolute())
    options = LiveOptions(
        out=absolute,
        workload=workload,
        mode=mode,
        argv=("commbench", *sys.argv[1:]),
        invocation=uuid.uuid4().hex,
        git_commit=git_commit(Path(__file__).parent),
        **terms,
    )
    return attach_to(command, options)


def known_facts(settings: Settings, workload: str, batch: int | None) -> WorkloadFacts | None:
    """Return the facts of the workload from the start of the run to resume, on which every decision
    is based.

    None without such a run, or if it has another workload or batch.
    """
    info = settings.resumed_info()
    if not info.get("facts") or info.get("plan", {}).get("workload") != workload:
        return None
    facts = read_as(WorkloadFacts, info["facts"])
    if batch in {None, facts.batch_size}:
        return facts
    return None


def watch(
    context: typer.Context,
    out: Annotated[
        Path | None,
        opt("--out", "Run directory; by default results/TIME-watch-NAME-HOST.", "DIR"),
    ] = None,
    steps: Annotated[
        int | None,
        opt(
            "--steps",
            "Optimiser steps to watch after a short warm-up; by default 200.",
            "N",
            min=1,
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        opt(
            "--time-limit",
            "Time after which watching ends: seconds, or e.g. 20min.",
            "TIME",
            parser=duration,
        ),
    ] = None,
    then: Then = "go-on",
) -> int:
    """Show where the time of your training goes.

    COMMAND is what you type anyway, e.g. torchrun --nproc-per-node 8 train.py; the script stays as
    it is. Prints the time of the forward pass, the backward pass, exposed communication, the
    optimiser and the rest of a step, the rank that others wait for, and how much faster a step
    could be. commbench ends with the exit code of COMMAND.
    """
    command = command_behind(context)
    if command is None:
        raise InputError(
            "watch takes a command behind --; write e.g. commbench watch -- torchrun train.py."
        )
    then = checked_then(then)
    return start(command, out, "watch", steps=steps, time_limit_s=time_limit, then=then)
