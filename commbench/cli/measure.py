"""The commands ``bench`` and ``run``, which time collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from commbench.backends import try_device
from commbench.cli.conduct import Place, Task, carry_out
from commbench.cli.options import (
    Algorithm,
    AsTool,
    Backend,
    BudgetName,
    BufferKinds,
    Cadence,
    Collective,
    Dtype,
    Energy,
    Env,
    Format,
    InPlace,
    Launches,
    Like,
    Loop,
    MaxBytes,
    MinBytes,
    OsuRange,
    Pattern,
    Redop,
    Root,
    Settings,
    Sizes,
    SoakTime,
    StepFactor,
    Sync,
    Visits,
    WorldSizes,
    takes_settings,
)
from commbench.cli.request import (
    AUTO_BACKEND,
    SizeOptions,
    find_budget,
    make_request,
    parse_numbers,
    ranks_by_gpus,
    split_names,
    unusable_reason,
    usable_suite,
)
from commbench.cli.soak import as_soak, parse_soak
from commbench.cli.train import (
    ConfirmLaunches,
    backend_at,
    default_sweep,
    join_training,
    permission_of,
    plan_training,
)
from commbench.collectives.backends import TRAINING_BACKENDS
from commbench.collectives.cases import Axes, Case
from commbench.collectives.suites import Suite, load_suite
from commbench.errors import InputError, find_entry
from commbench.interop.conventions import CONVENTIONS
from commbench.report.text_formats import STYLES
from commbench.results.plan import single_stage
from commbench.stats.budgets import BUDGETS, TRAINING_BUDGETS, Budget

#: Share of a time limit for the collectives if `bench` also trains.
COLLECTIVES_SHARE = 0.4
#: The most launches of the collectives in a quick bench, which uses three minutes on two cores for
#: narrow intervals.
MOST_LAUNCHES = 10
#: Launches beyond the budget's are left out if all launches would take longer than this number of
#: seconds.
LAUNCHES_S = 90.0
#: Fresh launches of the training in a quick bench.
FRESH_LAUNCHES = 8


@takes_settings
def bench(
    settings: Settings,
    budget: BudgetName = "quick",
    launches: Annotated[
        int | None,
        typer.Option(
            "--launches",
            metavar="R",
            help=(
                "Launches of the collectives; by default from the budget, for quick up to 10 within"
                " 90 s."
            ),
        ),
    ] = None,
    confirm_launches: ConfirmLaunches = None,
    like: Like = None,
    backend: Backend = None,
    env: Env = None,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Also train with DDP and recommend settings.")
    ] = True,
    output_format: Format = "table",
) -> int:
    """Measure this machine, and recommend DDP settings.

    Times all-reduce, all-gather and latency on every backend, 8 B to 16 MiB. Then trains a small
    model with DDP under several bucket sizes and hooks, on GPUs if each rank has one, and
    recommends a setting. Finally draws a page, report.html, beside the results.
    """
    settings = replace(settings, style=output_format)
    backends = split_names(backend)
    suite = _override(load_suite("quick"), {"backends": backends, "env": env})
    trains_over = _trains_over(backends) if train else None
    timing, training = (
        find_budget(BUDGETS, budget, launches=launches),
        find_budget(TRAINING_BUDGETS, budget),
    )
    if confirm_launches is not None:
        training = find_budget(TRAINING_BUDGETS, budget, confirm_launches=confirm_launches)
    elif budget == "quick":
        training = replace(training, confirm_launches=FRESH_LAUNCHES)

    def plan(place: Place) -> Task:
        lack = (
            unusable_reason("gloo")
            if place.ranks > 1
            else "Training with DDP takes 2 ranks or more."
        )
        trainer = TRAINING_BACKENDS.get(trains_over or "")
        if (
            trainer and trainer.uses_gpu and not lack
        ):  # a launcher that is named for collectives may lack torch or start ranks on other hosts
            lack = try_device(trainer.name).refusal
        requested = None if lack else trains_over
        limit_s = settings.time_limit
        if requested and limit_s is not None:
            limit_s *= COLLECTIVES_SHARE
        limited = replace(settings, time_limit=limit_s)
        collectives = plan_suite(suite, limited, timing, like, is_named=backends is not None)
        task = replace(collectives(place), draws_page=True, is_brief=True)
        if budget == "quick" and launches is None:
            task = _with_more_launches(task)
        if requested is None:
            return replace(
                task, left_out=[*task.left_out, *([lack] if trains_over and lack else [])]
            )
        sweep = replace(default_sweep(), env=env or ())
        on_gpus = TRAINING_BACKENDS["nccl"].name
        measures_gpus = any(case.backend == on_gpus for case in task.requests[0].cases)
        if requested == AUTO_BACKEND and measures_gpus and not try_device(on_gpus).refusal:
            requested = "nccl"
        training_backend, left_out = backend_at(place, requested, sweep.workload)
        task = replace(task, left_out=[*task.left_out, *left_out])
        sweep, seed = replace(sweep, backend=training_backend), task.requests[0].seed
        planned = plan_training(sweep, settings, training, ranks=place.ranks, seed=seed)
        unnamed = permission_of(sweep.hooks, is_given=False, accepts_loss=False)
        return join_training(task, replace(planned, begins_s=limit_s or 0.0, permission=unnamed))

    return carry_out(settings, plan, lambda: ranks_by_gpus(suite.backends))


def _with_more_launches(task: Task) -> Task:
    """Return the task with up to `MOST_LAUNCHES` launches of its collectives."""
    (request,) = task.requests
    budget = replace(request.budget, launches=MOST_LAUNCHES)
    request = replace(
        request, budget=budget, aim_s=LAUNCHES_S, fewest_launches=request.budget.launches
    )
    return replace(task, requests=(request,), stages=single_stage(request))


def _trains_over(backends: Sequence[str] | None) -> str | None:
    """Return the training backend that belongs to these backends (None: all backends).

    None if no backend can train.
    """
    if backends is None:
        return AUTO_BACKEND
    suitable = [
        name for name, trainer in TRAINING_BACKENDS.items() if {name, trainer.name} & set(backends)
    ]
    return AUTO_BACKEND if len(suitable) > 1 else next(iter(suitable), None)


SuiteName = Annotated[
    str,
    typer.Argument(
        help=(
            "A suite of commbench (quick, collectives, p2p, patterns, matrix, parallelism), or a"
            " Python file that sets SUITE."
        )
    ),
]


@takes_settings
def run(
    settings: Settings,
    suite: SuiteName = "quick",
    collective: Collective = None,
    sizes: Sizes = None,
    min_bytes: MinBytes = None,
    max_bytes: MaxBytes = None,
    step_factor: StepFactor = None,
    osu_range: OsuRange = None,
    backend: Backend = None,
    dtype: Dtype = None,
    redop: Redop = None,
    root: Root = None,
    in_place: InPlace = None,
    pattern: Pattern = None,
    world_sizes: WorldSizes = None,
    algorithm: Algorithm = None,
    sync: Sync = None,
    loop: Loop = None,
    cadence: Cadence = None,
    buffers: BufferKinds = None,
    env: Env = None,
    soak: SoakTime = None,
    as_tool: AsTool = None,
    budget: BudgetName = "quick",
    launches: Launches = None,
    visits: Visits = None,
    energy: Energy = None,
    like: Like = None,
    output_format: Format = "table",
) -> int:
    """Measure a suite of collectives.

    Each option replaces one axis of the suite. Inside mpirun, torchrun or srun this process is one
    rank of one launch; repeat the command with the same --out to add launches.
    """
    axes = {
        "operations": split_names(collective),
        "sizes": (
            SizeOptions(
                sizes=sizes,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                step_factor=step_factor,
                osu_range=osu_range,
            ).parse()
        ),
        "backends": split_names(backend),
        "dtypes": split_names(dtype),
        "redops": split_names(redop),
        "roots": parse_numbers("--root", root, "ranks; write e.g. 0,3"),
        "in_place": in_place,
        "patterns": split_names(pattern),
        "algorithms": split_names(algorithm),
        "world_sizes": parse_numbers(
            "--world-sizes", world_sizes, "numbers of ranks; write e.g. 2,4,8"
        ),
        "sync": sync,
        "loop": loop,
        "cadences": split_names(cadence),
        "buffers": split_names(buffers),
        "env": env,
    }
    settings = replace(settings, style=output_format)
    run_budget = find_budget(BUDGETS, budget, launches=launches, visits=visits, energy_s=energy)
    if as_tool is not None:
        others = {
            "SUITE": suite if suite != "quick" else None,
            "--visits": visits,
            "--like": like,
            "--world-sizes": world_sizes,
            "--soak": soak,
        }
        if clash := next((option for option, value in others.items() if value is not None), None):
            raise InputError(f"--as {as_tool} and {clash} were both given; leave one of them out.")
        if output_format == "table" and as_tool in STYLES:
            settings = replace(settings, style=as_tool)
        return _run_as(as_tool, axes, settings, run_budget)
    full_suite = _override(load_suite(suite), axes)
    plan = plan_suite(full_suite, settings, run_budget, like, is_named=axes["backends"] is not None)
    unlike_soak = {
        "--budget": budget if budget != "quick" else None,
        "--launches": launches,
        "--visits": visits,
        "--energy": energy,
        "--time-limit": settings.time_limit,
    }
    soak_s = None if soak is None else parse_soak(soak, unlike_soak)

    def plan_kind(place: Place) -> Task:
        task = plan(place)
        if soak_s is not None:
            return as_soak(task, soak_s, place)
        return task

    return carry_out(settings, plan_kind, lambda: ranks_by_gpus(full_suite.backends))


def _run_as(tool: str, axes: Axes, settings: Settings, budget: Budget) -> int:
    """Measure as another tool does; the tool names its backend."""
    convention = find_entry("tool", tool, CONVENTIONS)
    given = {axis: value for axis, value in axes.items() if value is not None}
    backends: Sequence[str] = given.get("backends", (convention.backend,))

    def plan(place: Place) -> Task:
        suite = convention.suite(given, place.ranks)
        task = plan_suite(suite, settings, budget, None, is_named=True)(place)
        (request,) = task.requests
        cases = [case for case in request.cases if isinstance(case, Case)]
        request = replace(request, fixed=convention.fixed(cases, place.ranks))
        return replace(
            task, requests=(request,), stages=single_stage(request), identity={"as": tool}
        )

    return carry_out(settings, plan, lambda: ranks_by_gpus(backends))


def _override(suite: Suite, axes: Mapping[str, object]) -> Suite:
    """Return the suite with the given axes replaced."""
    return suite.override({axis: value for axis, value in axes.items() if value is not None})


def plan_suite(
    full_suite: Suite, settings: Settings, budget: Budget, like: Path | None, *, is_named: bool
) -> Callable[[Place], Task]:
    """Return the function that plans a suite for a place.

    ``is_named``: whether the user named the backends.
    """

    def plan(place: Place) -> Task:
        suite, left_out = usable_suite(
            full_suite,
            is_named=is_named,
            carries_mpi=place.carries_mpi,
            ranks_here=place.ranks_here,
            started=place.started,
        )
        request = make_request(
            suite, settings, budget, ranks=place.ranks, ranks_here=place.ranks_here, like=like
        )
        return Task(
            name=suite.name, requests=(request,), stages=single_stage(request), left_out=left_out
        )

    return plan
