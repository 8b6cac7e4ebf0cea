"""Turns options into a request: axes, number of ranks, check of memory, the run's identity and
directory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import psutil

from commbench.backends import WITHOUT_MPI, has_gpus, missing_library, try_device
from commbench.cli.options import Settings
from commbench.collectives.backends import (
    GPU_BACKENDS,
    MPI_BACKENDS,
    NCCL_BACKENDS,
    TRAINING_BACKENDS,
)
from commbench.collectives.cases import Case, all_cases
from commbench.collectives.suites import Suite
from commbench.errors import InputError, check_choice, find_entry
from commbench.launch.facts import emulated_conditions
from commbench.results import load_run
from commbench.results.info import RunInfo
from commbench.results.plan import RunRequest, fixed_settings
from commbench.stats.budgets import Budget, TrainingBudget, TuningBudget
from commbench.system.gpus import gpu_addresses
from commbench.system.software import git_commit
from commbench.units import counted, format_size, parse_size, parse_sizes

BudgetT = TypeVar("BudgetT", Budget, TrainingBudget, TuningBudget)

#: Send and receive buffers of every rank count twice: libraries also stage messages.
BUFFERS_PER_RANK = 3
#: The option value that trains over the backend that suits the machine.
AUTO_BACKEND = "auto"


def foreign_sizes(
    min_bytes: str | None, max_bytes: str | None, step_factor: int | None, osu_range: str | None
) -> tuple[int, ...] | None:
    """Return the sizes in bytes that nccl-tests' or OSU's options name; None if none was given.

    Without -b or -e there is one size, as in nccl-tests; there is no step -i.

    Raises:
        InputError: one of them cannot be parsed.
    """
    if osu_range is not None:
        low, _, high = osu_range.rpartition(":")
        return parse_sizes(f"{low or '4'}:{high}:2")  # OSU's reductions also begin at one float
    if min_bytes is None and max_bytes is None and step_factor is None:
        return None
    low = min_bytes or max_bytes or "32M"
    high = max_bytes or low
    if parse_size(low) == parse_size(high):
        return (parse_size(low),)
    return parse_sizes(f"{low}:{high}:{step_factor or 2}")


def usable_suite(
    suite: Suite,
    *,
    is_named: bool,
    carries_mpi: bool = True,
    ranks_here: int | None = None,
    started: bool = False,
) -> tuple[Suite, list[str]]:
    """Return the suite without backends that this machine lacks, and a sentence for each that was
    left out.

    Unless it was named, NCCL is left out silently without a GPU, and with a sentence if ranks would
    share one of several GPUs. Ranks share a single GPU; a sentence says what that leaves out.

    Args:
        suite: what to measure.
        is_named: whether the user named the backends.
        carries_mpi: see `unusable_reason`.
        ranks_here: see `unusable_reason`.
        started: see `unusable_reason`.

    Raises:
        InputError: a named backend is missing, or none is left.
    """
    on_hosts = [backend for backend in suite.backends if backend not in NCCL_BACKENDS]
    candidates = suite.backends if is_named or has_gpus() or not on_hosts else on_hosts
    # a suite only for GPUs counts as naming its backends
    sharing = ranks_here if on_hosts else None
    remark = _single_gpu_remark(candidates, sharing, started=started) if not is_named else ""
    if remark:
        sharing = None
    reasons = {
        backend: unusable_reason(
            backend, is_named=is_named, carries_mpi=carries_mpi, ranks_here=sharing, started=started
        )
        for backend in candidates
    }
    sentences = list(dict.fromkeys(sentence for sentence in reasons.values() if sentence))
    usable = [backend for backend, sentence in reasons.items() if not sentence]
    if sentences and (is_named or not usable):
        raise InputError(sentences[0])
    if remark and any(backend in NCCL_BACKENDS for backend in usable):
        sentences = [remark, *sentences]
    if usable == list(suite.backends):
        return suite, sentences
    sweeps_and_backends = [
        (sweep, tuple(backend for backend in sweep.backends if backend in usable))
        for sweep in suite.sweeps
    ]
    sweeps = [
        dataclasses.replace(sweep, backends=backends)
        for sweep, backends in sweeps_and_backends
        if backends
    ]
    return Suite(name=suite.name, sweeps=sweeps), sentences


def unusable_reason(
    backend: str,
    *,
    is_named: bool = True,
    carries_mpi: bool = True,
    ranks_here: int | None = None,
    started: bool = False,
) -> str | None:
    """Return a sentence on why ``backend`` cannot be used on this machine; None if it can.

    Args:
        backend: the backend's name.
        is_named: whether the user named it: GPUs are then not checked here, because ranks may run
            on other machines.
        carries_mpi: whether MPI sees the ranks.
        ranks_here: number of ranks that use the GPUs of a host like this one; None: unknown.
        started: whether the ranks run already: a launcher may then show each rank different GPUs.
    """
    if backend in MPI_BACKENDS and not carries_mpi:
        return WITHOUT_MPI
    sentence = missing_library(backend)
    if sentence or is_named or backend not in NCCL_BACKENDS:
        return sentence
    if emulated_conditions():
        return (
            "NCCL is not for emulated hosts, which share the GPUs of a machine; --backend nccl"
            " tries it there."
        )
    refusal = try_device(backend).refusal
    gpus = _gpus_here(backend, started=started)
    if refusal or (ranks_here or 0) <= gpus:
        return refusal
    return (
        f"{ranks_here} ranks of a host would share {counted(gpus, 'GPU')}: start {gpus} on each"
        f" (--ranks-per-node {gpus}), or let them share by --backend nccl."
    )


def _gpus_here(backend: str, *, started: bool) -> int:
    """Return how many GPUs the ranks of this host can use."""
    gpus = try_device(backend).gpus
    return max(gpus, len(gpu_addresses())) if started else gpus


def _single_gpu_remark(backends: Sequence[str], ranks_here: int | None, *, started: bool) -> str:
    """Return what rows of NCCL leave out if all ranks of a host share its only GPU; else ""."""
    if not has_gpus() or emulated_conditions() or (ranks_here or 0) < 2:  # noqa: PLR2004 - a pair
        return ""
    usable = [name for name in backends if name in NCCL_BACKENDS and not missing_library(name)]
    if max((_gpus_here(name, started=started) for name in usable), default=0) != 1:
        return ""
    return (
        f"the links between GPUs. This machine has 1 GPU and a second one is missing: {ranks_here}"
        " ranks share it and take turns, so that rows of NCCL (flag shared_gpu) show that every"
        " collective is right, not how fast an interconnect is."
    )


def check_training_backend(name: str) -> str:
    """Return the name of a training backend; raise `InputError` for an unknown name."""
    check_choice("training backend", name, (AUTO_BACKEND, *TRAINING_BACKENDS))
    return name


def choose_training_backend(
    requested: str, *, ranks_here: int, started: bool = False
) -> tuple[str, list[str]]:
    """Return the training backend: the requested one, or for ``auto`` NCCL if each rank has a GPU,
    else Gloo.

    Args:
        requested: one of `commbench.collectives.backends.TRAINING_BACKENDS`, or ``auto``.
        ranks_here: see `unusable_reason`.
        started: see `unusable_reason`.

    Returns:
        Its name, and a sentence on why ``auto`` does not use existing GPUs.
    """
    if requested != AUTO_BACKEND:
        return requested, []
    on_cpus, on_gpus = TRAINING_BACKENDS.values()
    reason = (
        unusable_reason(on_gpus.name, is_named=False, ranks_here=ranks_here, started=started)
        if has_gpus()
        else ""
    )
    if reason is None:
        return on_gpus.training_name, []
    return on_cpus.training_name, (
        [f"Training on GPUs: this trains over Gloo on CPUs. {reason}"] if reason else []
    )


def ranks_by_gpus(backends: Sequence[str]) -> int | None:
    """Return the number of ranks that gives each rank a GPU of this machine, if a backend uses
    GPUs.

    None if GPUs do not decide: no GPU is usable, or there is one GPU and a backend that uses none.
    """
    using = [backend for backend in backends if backend in GPU_BACKENDS]
    if not using or not has_gpus():
        return None
    gpus = max(0 if missing_library(backend) else try_device(backend).gpus for backend in using)
    return gpus if gpus > 1 or (gpus and len(using) == len(backends)) else None


def check_counts(counts: Mapping[str, int | None]) -> None:
    """Raise `InputError` if a given number is not above 0."""
    for option, number in counts.items():
        if number is not None and number < 1:
            raise InputError(f"{option} {number} was asked for; give at least 1.")


def find_budget(budgets: Mapping[str, BudgetT], name: str, **changes: float | None) -> BudgetT:
    """Return the budget called ``name`` with the given numbers in its fields.

    Raises:
        InputError: the name is unknown, or a number is not above 0.
    """
    numbers = {field: number for field, number in changes.items() if number is not None}
    for field, number in numbers.items():
        if not 0 < number < math.inf:
            option = field.removesuffix("_s").replace("_", "-")
            least = "more than 0 seconds" if field.endswith("_s") else "at least 1"
            raise InputError(f"--{option} {number:g} was asked for; give {least}.")
    return dataclasses.replace(find_entry("budget", name, budgets), **numbers)  # type: ignore[arg-type] # fields are numbers


def make_request(
    suite: Suite,
    settings: Settings,
    budget: Budget,
    *,
    ranks: int,
    ranks_here: int,
    like: Path | None = None,
) -> RunRequest:
    """Return the request for a suite on ``ranks`` ranks, ``ranks_here`` of them on this host.

    ``like``: a run whose batch sizes and warm-ups are reused, so that every case can be compared.

    Raises:
        InputError: nothing to measure, or a message exceeds this host's memory.
    """
    if ranks < 1:
        raise InputError(f"-n {ranks} was asked for; give at least 1 rank.")
    cases = all_cases(suite.sweeps, ranks)
    check_memory(cases, ranks_here)
    return RunRequest(
        cases=cases,
        ranks=ranks,
        seed=draw_seed(settings.seed_or_resumed()),
        budget=budget,
        case_timeout_s=settings.case_timeout,
        time_limit_s=settings.time_limit,
        fixed=fixed_settings(load_run(like).records, budget) if like else {},
    )


def draw_seed(seed: int | None) -> int:
    """Return the given seed, including 0, else a random one."""
    return secrets.randbelow(2**31) if seed is None else seed


def check_memory(cases: Sequence[Case], ranks_here: int) -> None:
    """Raise `InputError` if buffers exceed this host's memory.

    A full GPU gives a row with the reason instead.

    Raises:
        InputError: the largest message does not fit; the sentence states the available memory.
    """
    largest = max(
        (case.message_bytes for case in cases if case.backend not in NCCL_BACKENDS), default=0
    )
    needed_bytes, available = (
        largest * BUFFERS_PER_RANK * ranks_here,
        psutil.virtual_memory().available,
    )
    if needed_bytes > available:
        raise InputError(
            f"Messages of {format_size(largest)} on {ranks_here} ranks of this host need about"
            f" {format_size(needed_bytes)} and {format_size(available)} are available; choose"
            " smaller --sizes."
        )


def plan_identity(requests: Sequence[RunRequest]) -> dict[str, object]:
    """Return the settings that must be equal to resume a run, for the stages that are known in
    advance.
    """
    keys = [case.key for request in requests for case in request.cases]
    digest = hashlib.sha256("\n".join(keys).encode()).hexdigest()
    terms = next((request.training for request in requests if request.training), None)
    energy_s = requests[0].budget.energy_s
    return {
        **({"energy_s": energy_s} if energy_s else {}),
        **({"steps": terms.steps, "threads": terms.threads} if terms else {}),
        "ranks": requests[0].ranks,
        "budget": requests[0].budget.name,
        "cases": len(keys),
        "cases_sha256": digest[:16],
    }


def run_header(
    name: str,
    requests: Sequence[RunRequest],
    info: RunInfo | None = None,
    identity: Mapping[str, object] = MappingProxyType({}),
) -> RunInfo:
    """Return the initial entries of ``run.json``.

    Args:
        name: of the suite or workload.
        requests: as for `plan_identity`.
        info: further entries.
        identity: further entries that must be equal to resume the run.
    """
    envs = list(dict.fromkeys(env for request in requests for env in request.envs if env))
    return {
        **(info or RunInfo()),
        **(RunInfo(env=envs) if envs else RunInfo()),
        "suite": name,
        "argv": ["commbench", *sys.argv[1:]],
        "seed": requests[0].seed,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "git_commit": git_commit(Path(__file__).parent),
        "plan": {**plan_identity(requests), **identity},
        "status": "running",
    }


def default_out(name: str) -> Path:
    """Return ``results/<UTC time>-<suite or workload>-<host>``, with a number behind it if that
    exists already.
    """
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    stem = f"{stamp}-{name}-{socket.gethostname().split('.')[0]}"
    numbered = (Path("results") / f"{stem}-{number}" for number in itertools.count(2))
    return next(
        path for path in itertools.chain([Path("results") / stem], numbered) if not path.exists()
    )
