"""Code of all commands that measure: find this process's role and the launcher, carry out the run,
print it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from commbench.cli.options import Settings
from commbench.cli.presentation import check_style, print_answer, print_run, print_unfinished
from commbench.cli.request import Place, default_out, plan_identity
from commbench.cli.terminal import Display, make_console
from commbench.errors import InputError
from commbench.fields import join_names
from commbench.launch.conductor import conduct
from commbench.launch.identity import Identity, identify
from commbench.launch.launchers.base import Launcher, Placement
from commbench.launch.launchers.choice import check_slots, choose_launcher
from commbench.launch.launchers.hosts import check_interface, interface_variables
from commbench.launch.standalone import AFTER_RANK_0_S, OwnRank
from commbench.report.page import write_page
from commbench.results import Run, Store
from commbench.results.info import RunInfo, is_complete
from commbench.results.plan import RunRequest, Stage, dry_run_estimate, single_stage
from commbench.results.tables import rows_by, visible
from commbench.system.software import git_commit
from commbench.tuner.conclusion import recommend
from commbench.tuner.plans import TrainingPlan
from commbench.units import counted, format_duration, utc_now

#: The most ranks on one host by default, if GPUs do not decide.
DEFAULT_RANKS = 8


@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of a command: collectives, a training, or one after the other."""

    name: str
    """The name of the suite or workload, used for the directory of results."""
    request: RunRequest | None = None
    """The collectives."""
    training: TrainingPlan | None = None
    """The training, which ends with a recommendation."""
    left_out: Sequence[str] = ()
    """A sentence for each part that is not measured, with the reason."""
    identity: Mapping[str, object] = field(default_factory=dict)
    """Values that must be equal, beside the requests, to resume a run."""
    draws_page: bool = False
    """Whether the conductor draws a page at the end."""

    @property
    def requests(self) -> list[RunRequest]:
        """Requests of the stages that are known in advance: they identify the run, and a dry run
        lists them.
        """
        requests = []
        if self.request is not None:
            requests.append(self.request)
        if self.training is not None:
            requests.append(self.training.first_request())
        return requests

    def stages(self) -> list[Stage]:
        """Return all stages."""
        stages = []
        if self.request is not None:
            stages += single_stage(self.request)
        if self.training is not None:
            stages += self.training.stages()
        return stages

    @property
    def extent(self) -> str:
        """Text such as ``60 cases on 2 ranks in 6 launches, then ...``."""
        parts = []
        for request in self.requests:
            launches = counted(request.budget.launches, "launch")
            if request.aim_s is not None:
                launches = f"up to {launches}"
            if len(request.envs) > 1:
                launches += f" of each of {len(request.envs)} environments"
            cases, ranks = counted(len(request.cases), "case"), counted(request.ranks, "rank")
            parts.append(f"{cases} on {ranks} in {launches}")
            if request.soak_s is not None:
                parts.append(f"as many more as fit into {format_duration(request.soak_s)}")
        if self.training is not None:
            launches = counted(self.training.budget.confirm_launches, "confirmation launch")
            parts.append(f"the fastest again in {launches}")
        return ", then ".join(parts)

    def header(self) -> RunInfo:
        """Return the initial entries of run.json."""
        requests = self.requests
        header: RunInfo = {}
        if self.training is not None:
            header.update(self.training.info)
        header |= {
            "suite": self.name,
            "argv": ["commbench", *sys.argv[1:]],
            "seed": requests[0].seed,
            "started": utc_now(),
            "git_commit": git_commit(Path(__file__).parent),
            "plan": {**plan_identity(requests), **self.identity},
            "status": "running",
        }
        envs = dict.fromkeys(env for request in requests for env in request.envs if env)
        if envs:
            header["env"] = list(envs)
        if self.left_out:
            header["left_out"] = list(self.left_out)
        return header

    def estimate_s(self) -> float:
        """Return an upper estimate of the run's time, in seconds."""
        seconds = 0.0
        if self.training is not None:
            seconds = self.training.estimate_s()
        request = self.request
        if request is None:
            return seconds
        if request.soak_s is not None:
            return request.soak_s
        slices, launches = request.slices(request.cases), request.budget.launches
        starts = len(request.envs)
        return seconds + dry_run_estimate(slices, request.budget, launches, starts=starts)

    def conclude(self, store: Store) -> None:
        """Write the recommendation that follows from the records in the store.

        A resumed run may permit other hooks.
        """
        if self.training is None:
            return
        store.update(**self.training.permission)
        recommendation = recommend(store.training_records, store.info)
        if recommendation is not None:
            store.write_recommendation(recommendation)


def carry_out(
    settings: Settings,
    plan: Callable[[Place], Task],
    by_gpus: Callable[[], int | None] = lambda: None,
) -> int:
    """Measure a task as conductor, or as a rank of a launch that another launcher has started.

    Return the exit code.

    Args:
        settings: how to measure.
        plan: makes the task for a place; called once, on every rank if this process is one.
        by_gpus: number of ranks for this machine's GPUs if none is given; None if GPUs do not
            decide.

    Raises:
        CommbenchError: the task cannot be carried out.
    """
    check_style(settings.style)
    identity = identify(os.environ, settings.role)
    if identity.role == "rank":
        _be_rank(settings, identity, plan)
    placement = Placement(
        hostfile=settings.hostfile,
        oversubscribe=settings.oversubscribe,
        extra=_launcher_words(settings.launcher_arg or ()),
        ranks_per_node=settings.ranks_per_node,
        bind_to=settings.bind_to,
        interface=settings.interface,
    )
    launcher = choose_launcher(settings.launcher, placement)
    ranks = settings.ranks
    if ranks is None:
        ranks = default_ranks(launcher, by_gpus)
    ranks_here = launcher.ranks_per_host(ranks)
    task = plan(Place(ranks=ranks, ranks_here=ranks_here, carries_mpi=launcher.carries_mpi))
    check_slots(ranks, launcher)
    messages = make_console(sys.stderr)
    if settings.style == "table" and settings.prints_rows:
        messages = make_console()
    _print_left_out(task, messages)
    if settings.dry_run:
        return _print_plan(task, messages, launcher.hosts())
    return _conduct(task, settings, launcher, messages)


def default_ranks(launcher: Launcher, by_gpus: Callable[[], int | None]) -> int:
    """Return the default number of ranks: the ranks per node on each host, else one for every slot.

    On this host alone: one for each measured GPU, or at most `DEFAULT_RANKS` if GPUs do not decide.
    """
    limit = launcher.limit()
    if limit is not None:
        return limit
    if launcher.is_local:
        return min(launcher.slots(), by_gpus() or DEFAULT_RANKS)
    return launcher.slots()


def _launcher_words(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the words of ``--launcher-arg``.

    Raises:
        InputError: a quote is not closed.
    """
    words = []
    try:
        for text in texts:
            words += shlex.split(text)
    except ValueError as error:
        raise InputError(
            f"--launcher-arg {text} is not understood ({error}); close the quotes in it."
        ) from error
    return tuple(words)


def print_error(error: BaseException) -> None:
    """Print an error on stderr; of several ranks with the same error, only the first prints.

    The other ranks wait a moment, because their launcher ends all ranks when the first exits. A
    rank that is still alive then prints its own error.
    """
    prefix = "commbench: "
    with contextlib.suppress(InputError):  # the lookup of the host name may fail, too
        identity = identify(os.environ)
        if identity.rank:
            time.sleep(AFTER_RANK_0_S)
            prefix += f"rank {identity.rank} on host {socket.gethostname()}: "
    sys.stderr.write(f"{prefix}{visible(str(error))}\n")


def _print_left_out(task: Task, messages: Console) -> None:
    for sentence in task.left_out:
        messages.print(f"Left out: {sentence}")


def _print_plan(task: Task, messages: Console, hosts: Mapping[str, int]) -> int:
    """Print the cases, the settings that a tuning chooses from, the hosts by their slots, and how
    long it would take.
    """
    for request in task.requests:
        for case in request.cases:
            messages.print(str(case))
    alternatives = []
    if task.training is not None and task.training.schedule.searches:
        alternatives = [case for case in task.training.measured if case.uses_ddp]
    for hook, cases in rows_by(alternatives, attrgetter("hook_name")).items():
        caps = join_names(case.bucket_cap_mb for case in cases)
        line = f"To choose from: {hook} with buckets of {caps} MiB"
        messages.print(line, soft_wrap=True)
    for slots, names in rows_by(hosts, hosts.__getitem__).items():
        line = f"{counted(slots, 'slot')} a host: {join_names(names)}"
        messages.print(line, soft_wrap=True)
    closing = f"{task.extent}, about {format_duration(task.estimate_s())}. Nothing was measured."
    messages.print(closing, soft_wrap=True)
    return 0


def _conduct(task: Task, settings: Settings, launcher: Launcher, messages: Console) -> int:
    out = settings.out or default_out(task.name)
    with Store.open(out, task.header()) as store:
        kind = "Resuming" if store.resumed else "Measuring"
        messages.print(f"{kind} {task.extent} by {launcher.name}, into {out}", soft_wrap=True)
        display = Display(messages)
        try:
            code = conduct(task.stages(), store, launcher, display, fail_fast=settings.fail_fast)
        except InputError:
            store.discard()
            raise
        finally:
            display.close()
        task.conclude(store)
    measured_run = store.run
    page = _draw_page(measured_run, messages) if task.draws_page else None
    _print_end(task, settings, measured_run, messages, make_console(), page)
    return code


def _print_end(
    task: Task,
    settings: Settings,
    run: Run,
    messages: Console,
    console: Console,
    page: Path | None = None,
) -> None:
    """Print the first answer or all tables of a run, and why it is incomplete."""
    is_brief = task.draws_page or task.training is not None
    if settings.prints_rows and is_brief and settings.style == "table":
        print_answer(run, console, page)
    elif settings.prints_rows:
        print_run(run, settings.style, console, hint=True)
    if messages.file is sys.stdout and not is_complete(run.info):
        messages = make_console(sys.stderr)
    print_unfinished(run, messages)


def _draw_page(run: Run, messages: Console) -> Path | None:
    """Draw the page of a run and return its path; a failure here does not fail the run."""
    try:
        return write_page([run], run.path)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run is measured and printed
        messages.print(f"No page was drawn: {str(error) or type(error).__name__}", soft_wrap=True)
    return None


def _apply_interface(settings: Settings, ranks: int) -> None:
    """Apply the requested interface.

    Refuse options that only a launcher can apply, and another number of ranks.

    Raises:
        InputError: such an option was given, or this host has no such interface.
    """
    for name in ("launcher", "hostfile", "ranks_per_node", "bind_to", "launcher_arg"):
        if getattr(settings, name):
            raise InputError(
                f"--{name.replace('_', '-')} was given to ranks that are started already; give it"
                " to what started them, or add --role conductor to start ranks from here."
            )
    if settings.ranks not in {None, ranks}:
        raise InputError(
            f"-n {settings.ranks} was asked for but the launcher has started"
            f" {counted(ranks, 'rank')}; leave it out, start as many, or add --role conductor to"
            " start ranks from here."
        )
    if settings.interface:
        check_interface(settings.interface)
        os.environ.update(interface_variables(settings.interface))


def _be_rank(settings: Settings, identity: Identity, plan: Callable[[Place], Task]) -> NoReturn:
    """Run as one rank of a launch that another launcher has started, then exit."""
    place = Place(
        ranks=identity.world_size,
        ranks_here=identity.local_size,
        carries_mpi=identity.carries_mpi,
        started=True,
    )
    _apply_interface(settings, identity.world_size)
    task = plan(place)
    if any(any(request.envs) for request in task.requests):
        raise InputError(
            "Environment variables are to be varied (--env), but the ranks are started already; set"
            " a variable where they are started, each value with an --out of its own."
        )
    # absolute, as a person's workload may change the working directory
    out = (settings.out or default_out(task.name)).absolute()
    messages = make_console(sys.stderr, plain=True)
    if identity.rank == 0:
        _print_left_out(task, messages)
    if settings.dry_run:
        sys.exit(_print_plan(task, messages, {}) if identity.rank == 0 else 0)

    display = Display(messages)

    def finish(store: Store) -> None:
        display.close()
        task.conclude(store)
        _print_end(task, settings, store.run, messages, make_console(plain=True))

    OwnRank(task.stages(), identity, lambda: Store.open(out, task.header()), display, finish).run()
