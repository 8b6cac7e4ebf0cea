"""The commands ``bench`` and ``run``, which time collectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from commbench.backends import try_device
from commbench.cli.command_line import Given, refuse, takes_options
from commbench.cli.conduct import Task, carry_out
from commbench.cli.options import BudgetName, Format, Like, Settings, duration, opt
from commbench.cli.request import (
    AUTO_BACKEND,
    Place,
    find_budget,
    foreign_sizes,
    make_request,
    ranks_by_gpus,
    training_backend,
    unusable_reason,
)
from commbench.cli.train import Trained, plan_training
from commbench.collectives.backends import TRAINING_BACKENDS
from commbench.collectives.cases import Axes, Case, Sweep
from commbench.collectives.composed import MATRIX
from commbench.collectives.suites import load_suite
from commbench.ddp.plan.cases import TrainingSweep
from commbench.errors import InputError, find_entry
from commbench.fields import join_names
from commbench.interop.conventions import CONVENTIONS
from commbench.report.text_formats import STYLES
from commbench.results.plan import RunRequest
from commbench.stats.budgets import BUDGETS, TRAINING_BUDGETS, Budget

#: Share of a time limit for the collectives if `bench` also trains.
COLLECTIVES_SHARE = 0.4
#: Confirmation of the training in a quick bench. Steps vary more within a launch than between
#: launches, so a setting has more blocks than by the budget.
CONFIRMATION = {"confirm_launches": 8, "confirm_blocks": 6}


@takes_options
def bench(
    *,
    budget: BudgetName = "quick",
    launches: Annotated[
        int | None,
        opt("--launches", "Launches of the collectives; by default from the budget.", "R"),
    ] = None,
    fresh: Annotated[Mapping[str, int], Trained, "confirm_launches"],
    like: Like = None,
    axes: Annotated[Axes, Sweep, "backends", "env"],
    train: Annotated[
        bool, opt("--train/--no-train", "Also train with DDP and recommend settings.")
    ] = True,
    output_format: Format = "table",
    settings: Settings,
) -> int:
    """Measure this machine, and recommend DDP settings.

    Times all-reduce, all-gather and latency on every backend, 8 B to 16 MiB. Then trains a small
    model with DDP under several bucket sizes and hooks, on GPUs if each rank has one, and
    recommends a setting. Finally draws a page, report.html, beside the results.
    """
    settings = replace(settings, style=output_format)
    backends = axes.get("backends")
    suite = load_suite("quick").override(axes)
    timing = find_budget(BUDGETS, budget, launches=launches)
    if not fresh and budget == "quick":
        fresh = CONFIRMATION
    training = find_budget(TRAINING_BUDGETS, budget, **fresh)

    trains_over = None
    if train:
        trains_over = _trains_over(backends)

    def plan(place: Place) -> Task:
        lack = ""
        limited = settings
        if trains_over is not None:
            lack = _training_lack(trains_over, place)
            if not lack and settings.time_limit is not None:
                limited = replace(settings, time_limit=settings.time_limit * COLLECTIVES_SHARE)
        is_named = backends is not None
        request, left_out = make_request(place, suite, limited, timing, like, is_named=is_named)
        if lack:
            left_out.append(lack)
        planned = None
        if trains_over is not None and not lack:
            requested = trains_over
            on_gpus = TRAINING_BACKENDS["nccl"].name
            measures_gpus = any(case.backend == on_gpus for case in request.cases)
            if requested == AUTO_BACKEND and measures_gpus and not try_device(on_gpus).refusal:
                requested = "nccl"
            sweep = TrainingSweep(env=axes.get("env", ()))
            backend, reasons = training_backend(place, requested, sweep.workload)
            planned = plan_training(
                replace(sweep, backend=backend),
                settings,
                training,
                place,
                seed=request.seed,
                begins_s=limited.time_limit or 0.0,
                permission={"named_hooks": (), "accepts_loss": False},
            )
            left_out += [*reasons, *planned.left_out]
        return Task(
            name=suite.name,
            request=request,
            training=planned,
            left_out=left_out,
            draws_page=True,
        )

    return carry_out(settings, plan, lambda: ranks_by_gpus(suite.backends))


def _training_lack(trains_over: str, place: Place) -> str:
    """Return a sentence on why training is left out; empty if it is not."""
    if place.ranks == 1:
        return "Training with DDP takes 2 ranks or more."
    lack = unusable_reason("gloo", place)
    if lack is None and trains_over == "nccl":
        # a launcher that is named for collectives may lack torch or start ranks on other hosts
        lack = try_device(TRAINING_BACKENDS[trains_over].name).refusal
    return lack or ""


def _trains_over(backends: Sequence[str] | None) -> str | None:
    """Return the training backend that belongs to these backends (None: all backends).

    None if no backend can train.
    """
    if backends is None:
        return AUTO_BACKEND
    suitable = []
    for name, trainer in TRAINING_BACKENDS.items():
        if name in backends or trainer.name in backends:
            suitable.append(name)
    if len(suitable) > 1:
        return AUTO_BACKEND
    return next(iter(suitable), None)


@takes_options
def run(
    *,
    suite: Annotated[
        str,
        typer.Argument(
            help=(
                "A suite of commbench (quick, collectives, p2p, patterns, matrix, parallelism), or"
                " a Python file that sets SUITE."
            )
        ),
    ] = "quick",
    axes: Annotated[Axes, Sweep],
    min_bytes: Annotated[
        str | None,
        opt("-b --min-bytes", "Smallest message size, as in nccl-tests.", "SIZE"),
    ] = None,
    max_bytes: Annotated[
        str | None,
        opt("-e --max-bytes", "Largest message size; without -b the only size.", "SIZE"),
    ] = None,
    step_factor: Annotated[
        int | None,
        opt(
            "-f --step-factor",
            (
                "Factor between sizes; 2 by default. nccl-tests adds 1 MiB instead; its option -i"
                " does not exist here."
            ),
            "N",
        ),
    ] = None,
    osu_range: Annotated[
        str | None,
        opt(
            "-m --message-size",
            (
                "Range of sizes in OSU's spelling, with MIN 4 B by default. Sizes are counted as"
                " for --sizes."
            ),
            "[MIN:]MAX",
        ),
    ] = None,
    soak: Annotated[
        float | None,
        opt(
            "--soak",
            (
                "Repeat for TIME, e.g. 20min or 2h, launch after launch; report spikes, failures"
                " and drift with their times. Failed launches are restarted."
            ),
            "TIME",
            duration,
        ),
    ] = None,
    as_tool: Annotated[
        str | None,
        opt(
            "--as",
            (
                f"Measure as another tool does: {join_names(CONVENTIONS)}. The output is its text"
                " (imb: the table). The tool decides on sizes, type, in or out of place, cadence,"
                " warm-up and repetitions; options that you give replace these. all_reduce by"
                " default."
            ),
            "TOOL",
        ),
    ] = None,
    budget: BudgetName = "quick",
    launches: Annotated[
        int | None,
        opt("--launches", "Number of launches; by default the budget's.", "R"),
    ] = None,
    visits: Annotated[
        int | None,
        opt(
            "--visits",
            (
                "Sample each case at most N times per launch, spread over the launch; by default"
                " the budget's."
            ),
            "N",
        ),
    ] = None,
    energy: Annotated[
        float | None,
        opt(
            "--energy",
            (
                "Repeat each case for S more seconds so that power meters can read it (GPUs: 2 or"
                " more)."
            ),
            "S",
        ),
    ] = None,
    like: Like = None,
    output_format: Format = "table",
    settings: Settings,
    given: Given,
) -> int:
    """Measure a suite of collectives.

    Each option replaces one axis of the suite. Inside mpirun, torchrun or srun this process is one
    rank of one launch; repeat the command with the same --out to add launches.
    """
    sizes_of_nccl = ("--min-bytes", "--max-bytes", "--step-factor")
    refuse(given, "--sizes", (*sizes_of_nccl, "--message-size"), "which names all sizes")
    refuse(given, "--message-size", sizes_of_nccl, "which names all sizes")
    refuse(
        given,
        "--as",
        ("SUITE", "--visits", "--like", "--world-sizes", "--soak"),
        "which decides on it",
    )
    refuse(
        given,
        "--soak",
        ("--budget", "--launches", "--visits", "--energy", "--time-limit"),
        "which chooses its launches and their length",
    )
    sizes = foreign_sizes(min_bytes, max_bytes, step_factor, osu_range)
    if sizes is not None:
        axes = {**axes, "sizes": sizes}
    settings = replace(settings, style=output_format)
    run_budget = find_budget(BUDGETS, budget, launches=launches, visits=visits, energy_s=energy)
    if as_tool is not None:
        if output_format == "table" and as_tool in STYLES:
            settings = replace(settings, style=as_tool)
        return _run_as(as_tool, axes, settings, run_budget)
    full_suite = load_suite(suite).override(axes)
    if soak is not None and soak < SHORTEST_S:
        raise InputError(f"--soak {soak:g} s is too short; give at least {SHORTEST_S:g} s.")

    def plan(place: Place) -> Task:
        is_named = "backends" in axes
        request, left_out = make_request(
            place, full_suite, settings, run_budget, like, is_named=is_named
        )
        if soak is not None:
            request = as_soak(request, soak, place)
        return Task(name=full_suite.name, request=request, left_out=left_out)

    return carry_out(settings, plan, lambda: ranks_by_gpus(full_suite.backends))


def _run_as(tool: str, axes: Axes, settings: Settings, budget: Budget) -> int:
    """Measure as another tool does; the tool names its backend."""
    convention = find_entry("tool", tool, CONVENTIONS)
    backends: Sequence[str] = axes.get("backends", (convention.backend,))

    def plan(place: Place) -> Task:
        suite = convention.suite(axes, place.ranks)
        request, left_out = make_request(place, suite, settings, budget)
        cases = [case for case in request.cases if isinstance(case, Case)]
        request = replace(request, fixed=convention.fixed(cases, place.ranks))
        return Task(name=suite.name, request=request, left_out=left_out, identity={"as": tool})

    return carry_out(settings, plan, lambda: ranks_by_gpus(backends))


# ------------------------------------------------------------------------------------------- a soak

#: The shortest soak, in seconds: start-up takes some of it.
SHORTEST_S = 10.0
#: A launch lasts a minute, so that start-up is a small share; of a short soak a sixth, so that
#: there is an interval.
LAUNCH_S, LEAST_LAUNCH_S, LEAST_LAUNCHES = 60.0, 10.0, 6
#: A long soak has about this many launches, longer ones: they bound the disk space.
MOST_SOAK_LAUNCHES = 100
#: The most visits of a case in a launch, points of the time line, and the shortest visit in
#: seconds.
MOST_VISITS, VISIT_S = 12, 1.0
#: The least time for a case in a launch, in seconds.
LEAST_SLICE_S = 0.2


def as_soak(request: RunRequest, soak_s: float, place: Place) -> RunRequest:
    """Return the request for the same cases until the time is up.

    Raises:
        InputError: the ranks run already, a case is a matrix, or there are several environments.
    """
    if place.started:
        raise InputError(
            "--soak starts ranks again and again, and these are started already; run it outside"
            " mpirun."
        )
    if len(request.envs) > 1:
        raise InputError(
            "--soak measures under one environment; give --env one value, or leave it out."
        )
    if any(isinstance(case, Case) and case.pattern == MATRIX for case in request.cases):
        raise InputError(
            "--soak takes no pattern matrix, which has no time line; name another --pattern."
        )
    cases = len(request.cases)
    launch_s = max(length_of_launch_s(soak_s), LEAST_SLICE_S * cases)
    slice_s = launch_s / cases
    budget = replace(
        request.budget,
        launches=max(1, round(soak_s / launch_s)),
        slice_s=slice_s,
        visits=max(1, min(MOST_VISITS, int(slice_s / VISIT_S))),
        is_soak=True,
    )
    return replace(request, budget=budget, soak_s=soak_s)


def length_of_launch_s(soak_s: float) -> float:
    """Return the length of a launch in seconds: a minute, less in a short soak, more in a long
    one.
    """
    shorter = max(LEAST_LAUNCH_S, soak_s / LEAST_LAUNCHES)
    return math.ceil(max(min(LAUNCH_S, shorter), soak_s / MOST_SOAK_LAUNCHES))
