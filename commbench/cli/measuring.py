"""The commands that time collectives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from commbench.budgets import Budget
from commbench.cli.conducting import Place, Settings, Task, carry_out
from commbench.errors import InputError
from commbench.launch.conductor import single_stage
from commbench.options import SizeOptions, find_budget, make_request, split_names, usable_suite
from commbench.parameters import (
    Backend,
    BudgetName,
    CaseTimeout,
    Collective,
    DryRun,
    Dtype,
    FailFast,
    Format,
    Hostfile,
    InPlace,
    LauncherName,
    Launches,
    Like,
    Loop,
    MaxBytes,
    MinBytes,
    OsuRange,
    Out,
    Oversubscribe,
    Pattern,
    Ranks,
    Redop,
    RoleName,
    Root,
    Seed,
    Sizes,
    StepFactor,
    Sync,
    TimeLimit,
)
from commbench.suites import load_suite


def bench(
    ranks: Ranks = None,
    budget: BudgetName = "quick",
    launches: Launches = None,
    time_limit: TimeLimit = None,
    case_timeout: CaseTimeout = 60.0,
    fail_fast: FailFast = False,
    out: Out = None,
    like: Like = None,
    hostfile: Hostfile = None,
    oversubscribe: Oversubscribe = False,
    launcher: LauncherName = None,
    backend: Backend = None,
    seed: Seed = None,
    dry_run: DryRun = False,
    output_format: Format = "table",
    role: RoleName = None,
) -> int:
    """Measure this machine or cluster: all-reduce, all-gather and latency on every backend, 8 B to 16 MiB."""
    return _measure(
        "quick",
        axes={"backends": split_names(backend)},
        budget=find_budget(budget, launches),
        like=like,
        settings=Settings(
            ranks=ranks,
            time_limit=time_limit,
            case_timeout=case_timeout,
            out=out,
            hostfile=hostfile,
            oversubscribe=oversubscribe,
            launcher=launcher,
            seed=seed,
            role=role,
            fail_fast=fail_fast,
            dry_run=dry_run,
            style=output_format,
        ),
    )


def run(
    suite: Annotated[str, typer.Argument(help="A Python file that sets SUITE, or the name of one of ours.")] = "quick",
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
    sync: Sync = None,
    loop: Loop = None,
    ranks: Ranks = None,
    budget: BudgetName = "quick",
    launches: Launches = None,
    time_limit: TimeLimit = None,
    case_timeout: CaseTimeout = 60.0,
    fail_fast: FailFast = False,
    out: Out = None,
    like: Like = None,
    hostfile: Hostfile = None,
    oversubscribe: Oversubscribe = False,
    launcher: LauncherName = None,
    seed: Seed = None,
    dry_run: DryRun = False,
    output_format: Format = "table",
    role: RoleName = None,
) -> int:
    """Measure a suite, or parts of it: each option replaces one of the suite's axes.

    Inside mpirun, torchrun or srun this process is one rank of one launch; repeat the command with the same --out to
    add launches.
    """
    axes = {
        "operations": split_names(collective),
        "sizes": SizeOptions(
            sizes=sizes, min_bytes=min_bytes, max_bytes=max_bytes, step_factor=step_factor, osu_range=osu_range
        ).parse(),
        "backends": split_names(backend),
        "dtypes": split_names(dtype),
        "redops": split_names(redop),
        "roots": _roots(root),
        "in_place": in_place,
        "patterns": split_names(pattern),
        "sync": sync,
        "loop": loop,
    }
    return _measure(
        suite,
        axes=axes,
        budget=find_budget(budget, launches),
        like=like,
        settings=Settings(
            ranks=ranks,
            time_limit=time_limit,
            case_timeout=case_timeout,
            out=out,
            hostfile=hostfile,
            oversubscribe=oversubscribe,
            launcher=launcher,
            seed=seed,
            role=role,
            fail_fast=fail_fast,
            dry_run=dry_run,
            style=output_format,
        ),
    )


def _measure(name: str, *, axes: dict[str, Any], budget: Budget, like: Path | None, settings: Settings) -> int:
    """Load a suite, replace axes of it, and measure it."""
    given = {axis: value for axis, value in axes.items() if value is not None}
    whole = load_suite(name).override(given)

    def plan(place: Place) -> Task:
        suite, left_out = usable_suite(whole, asked="backends" in given, launcher=place.launcher)
        request = make_request(
            suite,
            ranks=place.ranks,
            budget=budget,
            seed=settings.known_seed(),
            case_timeout_s=settings.case_timeout,
            time_limit_s=settings.time_limit,
            ranks_here=place.ranks_here,
            like=like,
        )
        return Task(name=suite.name, requests=[request], stages=single_stage(request), left_out=left_out)

    return carry_out(settings, plan)


def _roots(text: str | None) -> tuple[int, ...] | None:
    names = split_names(text)
    if names is None:
        return None
    try:
        return tuple(int(name) for name in names)
    except ValueError:
        raise InputError(f"--root {text} is not a list of ranks; write e.g. 0,3.") from None
