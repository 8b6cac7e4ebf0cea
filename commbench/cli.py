"""The command line: parse, build, run, report."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from commbench import __version__
from commbench.advice import advise
from commbench.budgets import Budget
from commbench.environment import collect_host, collect_versions, git_commit, relevant_variables
from commbench.errors import CommbenchError, InputError
from commbench.launch.conductor import RunRequest, conduct, dry_run_estimate
from commbench.launch.launchers import Launcher, check_slots, choose_launcher
from commbench.launch.standalone import run_standalone
from commbench.launch.whoami import Identity, identify
from commbench.options import (
    SizeOptions,
    default_out,
    find_budget,
    make_request,
    plan_identity,
    run_header,
    split_names,
    usable_suite,
)
from commbench.parameters import (
    Backend,
    BudgetName,
    CaseTimeout,
    Collective,
    DryRun,
    Dtype,
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
from commbench.presentation import check_style, facts_table, print_run, print_unfinished
from commbench.report.comparison import compare as compare_runs
from commbench.report.comparison import render_comparison
from commbench.store import Store, check_out, load_run
from commbench.suites import Suite, load_suite
from commbench.terminal import make_console, make_display
from commbench.units import counted, format_duration

app = typer.Typer(
    name="commbench",
    help="Time collectives over MPI and Gloo across ranks, message sizes and launches; say how sure the numbers are.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    result_callback=lambda code, **_: sys.exit(code),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.command()
def bench(
    ranks: Ranks = None,
    budget: BudgetName = "quick",
    launches: Launches = None,
    time_limit: TimeLimit = None,
    case_timeout: CaseTimeout = 60.0,
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
        settings=_Settings(
            ranks=ranks,
            budget=find_budget(budget, launches),
            time_limit=time_limit,
            case_timeout=case_timeout,
            out=out,
            like=like,
            hostfile=hostfile,
            oversubscribe=oversubscribe,
            launcher=launcher,
            seed=seed,
            role=role,
        ),
        dry_run=dry_run,
        style=output_format,
    )


@app.command()
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
        settings=_Settings(
            ranks=ranks,
            budget=find_budget(budget, launches),
            time_limit=time_limit,
            case_timeout=case_timeout,
            out=out,
            like=like,
            hostfile=hostfile,
            oversubscribe=oversubscribe,
            launcher=launcher,
            seed=seed,
            role=role,
        ),
        dry_run=dry_run,
        style=output_format,
    )


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The run to compare with.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The run that may be faster or slower.")],
) -> int:
    """Say which cases of run B are faster or slower than in run A, with confidence intervals.

    Exit code 5 if any became slower or broke.
    """
    table = compare_runs(load_run(a), load_run(b))
    make_console().print(render_comparison(table))
    return 5 if table.regressions else 0


@app.command()
def report(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    output_format: Format = "table",
) -> int:
    """Print a run's rows again, from its files; needs neither torch nor MPI."""
    check_style(output_format)
    run_ = load_run(path)
    print_run(run_, output_format, make_console())
    print_unfinished(run_, make_console(sys.stderr) if output_format != "table" else make_console())
    return 0


@app.command()
def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
    probe_mpi: Annotated[
        bool, typer.Option("--mpi/--no-mpi", help="Start one MPI rank to see the library, its transport and MPI_Init.")
    ] = True,
) -> int:
    """Print what a record would state about this machine, and what to do about it."""
    host, versions, variables = collect_host(), collect_versions(), relevant_variables(os.environ)
    mpi = _probe_mpi() if probe_mpi else {}
    facts: dict[str, Any] = {
        "host": host,
        "versions": versions,
        "variables": variables,
        "git_commit": git_commit(Path(__file__).parent),
        "mpi": mpi,
    }
    if as_json:
        sys.stdout.write(json.dumps(facts, indent=1, default=str) + "\n")
        return 0
    console = make_console()
    for title, part in (
        ("This host", host),
        ("MPI", mpi),
        ("Versions", versions),
        ("Variables that matter", variables),
    ):
        console.print(facts_table(title, part))
    advice = advise(
        host,
        ranks=None,
        transport=mpi.get("on_host"),
        mpi_init_s=mpi.get("init_s"),
        mpi_library=mpi.get("library"),
        versions=versions,
        variables=variables,
    )
    console.print("Advice" if advice else "No advice: nothing here is known to spoil measurements.", style="bold")
    for item in advice:
        console.print(f"- {item}", markup=False)
    return 0


# -------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """Everything about a run but what is measured."""

    ranks: int | None
    budget: Budget
    time_limit: float | None
    case_timeout: float
    out: Path | None
    like: Path | None
    hostfile: Path | None
    oversubscribe: bool
    launcher: str | None
    seed: int | None
    role: str | None


#: Ranks that are started where nobody says how many and the host has more cores.
DEFAULT_RANKS = 8


def _measure(name: str, *, axes: dict[str, Any], settings: _Settings, dry_run: bool, style: str) -> int:
    """Load, override and measure a suite, as conductor or as a rank."""
    check_style(style)
    given = {axis: value for axis, value in axes.items() if value is not None}
    suite = load_suite(name).override(given)
    identity = identify(os.environ, settings.role)
    if identity.role == "rank":
        _be_rank(suite, given, settings, identity, style)
    launcher = choose_launcher(
        requested=settings.launcher, hostfile=settings.hostfile, oversubscribe=settings.oversubscribe
    )
    suite, left_out = usable_suite(suite, asked="backends" in given, launcher=launcher.name)
    slots = launcher.slots()
    ranks = settings.ranks
    if ranks is None:
        ranks = slots if settings.hostfile else min(slots, DEFAULT_RANKS)
    request = _request(suite, settings, ranks, ranks_here=min(ranks, os.cpu_count() or ranks))
    check_slots(ranks, launcher)
    messages = make_console(sys.stderr) if style != "table" else make_console()
    for sentence in left_out:
        messages.print(f"Left out: {sentence}", markup=False)
    if dry_run:
        return _show_plan(request, messages)
    return _conduct(suite, request, settings, launcher, messages, style)


def _request(suite: Suite, settings: _Settings, ranks: int, ranks_here: int) -> RunRequest:
    return make_request(
        suite,
        ranks=ranks,
        budget=settings.budget,
        seed=settings.seed if settings.seed is not None else _stored_seed(settings.out),
        case_timeout_s=settings.case_timeout,
        time_limit_s=settings.time_limit,
        ranks_here=ranks_here,
        like=settings.like,
    )


def _conduct(
    suite: Suite, request: RunRequest, settings: _Settings, launcher: Launcher, messages: Console, style: str
) -> int:
    out = settings.out or default_out(suite.name)
    check_out(out, plan_identity(request))
    with Store.open(out, run_header(request, suite)) as store:
        kind = "Resuming" if store.resumed else "Measuring"
        messages.print(
            f"{kind} {suite.name}: {_extent(request)} by {launcher.name}, into {out}",
            markup=False,
            soft_wrap=True,
        )
        code = conduct(request, store, launcher, make_display(messages))
    finished = load_run(out)
    print_run(finished, style, make_console())
    print_unfinished(finished, messages)
    return code


def _be_rank(suite: Suite, given: dict[str, Any], settings: _Settings, identity: Identity, style: str) -> None:
    """Be one rank of a launch that somebody else has started; does not return."""
    try:
        suite, left_out = usable_suite(suite, asked="backends" in given, launcher=identity.launcher)
        request = _request(suite, settings, identity.world_size, ranks_here=identity.local_size)
        out = settings.out or default_out(suite.name)
    except CommbenchError as error:
        if identity.rank == 0:
            _complain(error)
        sys.exit(error.exit_code)
    messages = make_console(sys.stderr, plain=True)
    if identity.rank == 0:
        for sentence in left_out:
            messages.print(f"Left out: {sentence}", markup=False)

    def finish() -> None:
        print_run(load_run(out), style, make_console(plain=True))

    run_standalone(
        request, identity, lambda: Store.open(out, run_header(request, suite)), make_display(messages), finish
    )


def _stored_seed(out: Path | None) -> int | None:
    """The seed of the run that is to be resumed: its order of cases goes on."""
    if out is None or not (out / "run.json").is_file():
        return None
    seed = load_run(out).info.get("seed")
    return seed if isinstance(seed, int) else None


def _roots(text: str | None) -> tuple[int, ...] | None:
    names = split_names(text)
    if names is None:
        return None
    try:
        return tuple(int(name) for name in names)
    except ValueError:
        raise InputError(f"--root {text} is not a list of ranks; write e.g. 0,3.") from None


def _show_plan(request: RunRequest, console: Console) -> int:
    for case in request.cases:
        console.print(str(case), markup=False)
    seconds = dry_run_estimate(len(request.cases), request.budget, request.budget.launches)
    console.print(f"{_extent(request)}, at most about {format_duration(seconds)}. Nothing was measured.")
    return 0


def _extent(request: RunRequest) -> str:
    """``60 cases on 2 ranks in 6 launches``."""
    return (
        f"{counted(len(request.cases), 'case')} on {counted(request.ranks, 'rank')} "
        f"in {counted(request.budget.launches, 'launch')}"
    )


def _probe_mpi() -> dict[str, Any]:
    """What one MPI process finds, in a process of its own: a broken MPI must not take this one along."""
    from commbench.launch.probe import probe_mpi

    return probe_mpi()


def _complain(error: BaseException) -> None:
    sys.stderr.write(f"commbench: {error}\n")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    if version:
        sys.stdout.write(f"commbench {__version__}\n")
        raise typer.Exit


def main() -> None:
    """Run the command line and leave with its exit code (see `commbench.errors`)."""
    try:
        app()
    except CommbenchError as error:
        _complain(error)
        sys.exit(error.exit_code)
