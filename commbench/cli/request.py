"""Turns options into a request: axes, number of ranks, check of memory, the run's identity and
directory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

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
from commbench.ddp.traces import load_trace
from commbench.engine.records import FixedSettings
from commbench.errors import InputError, find_entry
from commbench.launch.facts import emulated_conditions
from commbench.results import load_run
from commbench.results.plan import RunRequest, fixed_settings
from commbench.stats.budgets import Budget, TrainingBudget
from commbench.system.gpus import gpu_addresses
from commbench.system.host import memory_bytes
from commbench.units import counted, format_size, parse_sizes

BudgetT = TypeVar("BudgetT", Budget, TrainingBudget)

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
        return parse_sizes(f"{low or '4'}:{high}")  # OSU's reductions also begin at one float
    if min_bytes is None and max_bytes is None and step_factor is None:
        return None
    low = min_bytes or max_bytes or "32M"
    high = max_bytes or low
    text = f"{low}:{high}"
    if step_factor is not None:
        text = f"{text}:{step_factor}"
    return parse_sizes(text)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a run: number of ranks, ranks on this host, and whether MPI sees the ranks."""

    ranks: int
    ranks_here: int
    """Ranks that use the GPUs of a host like this one; 0: unknown."""
    carries_mpi: bool = True
    started: bool = False
    """Whether the ranks run already; each may then see different GPUs."""


def usable_suite(suite: Suite, place: Place, *, is_named: bool) -> tuple[Suite, list[str]]:
    """Return the suite without backends that this machine lacks, and a sentence for each that was
    left out.

    Unless it was named, NCCL is left out silently without a GPU, and with a sentence if ranks would
    share one of several GPUs. Ranks share a single GPU; a sentence says what that leaves out.

    Args:
        suite: what to measure.
        place: where.
        is_named: whether the user named the backends.

    Raises:
        InputError: a named backend is missing, or none is left.
    """
    on_hosts = [backend for backend in suite.backends if backend not in NCCL_BACKENDS]
    candidates: Sequence[str] = suite.backends
    remark = ""
    if on_hosts and not is_named:  # a suite only for GPUs counts as naming its backends
        remark = _single_gpu_remark(candidates, place)
        if not has_gpus():
            candidates = on_hosts
    if remark or not on_hosts:
        place = dataclasses.replace(place, ranks_here=0)
    usable, reasons = [], {}
    for backend in candidates:
        reason = unusable_reason(backend, place, is_named=is_named)
        if reason:
            reasons[reason] = backend
        else:
            usable.append(backend)
    sentences = list(reasons)
    if sentences and (is_named or not usable):
        raise InputError(sentences[0])
    if remark and any(backend in NCCL_BACKENDS for backend in usable):
        sentences = [remark, *sentences]
    sweeps = []
    for sweep in suite.sweeps:
        backends = tuple(backend for backend in sweep.backends if backend in usable)
        if backends:
            sweeps.append(dataclasses.replace(sweep, backends=backends))
    return Suite(name=suite.name, sweeps=sweeps), sentences


def unusable_reason(backend: str, place: Place, *, is_named: bool = True) -> str | None:
    """Return a sentence on why ``backend`` cannot be used on this machine; None if it can.

    Args:
        backend: the backend's name.
        place: where it is to be used.
        is_named: whether the user named it: GPUs are then not checked here, because ranks may run
            on other machines.
    """
    if backend in MPI_BACKENDS and not place.carries_mpi:
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
    gpus = _gpus_here([backend], place)
    if refusal or place.ranks_here <= gpus:
        return refusal
    return (
        f"{place.ranks_here} ranks of a host would share {counted(gpus, 'GPU')}: start {gpus} on"
        f" each (--ranks-per-node {gpus}), or let them share by --backend nccl."
    )


def _gpus_here(backends: Sequence[str], place: Place) -> int:
    """Return how many GPUs the ranks of this host can use, by any of the backends.

    A launcher may show each rank that it has started different GPUs.
    """
    gpus = 0
    for backend in backends:
        if not missing_library(backend):
            gpus = max(gpus, try_device(backend).gpus)
    if place.started:
        return max(gpus, len(gpu_addresses()))
    return gpus


def _single_gpu_remark(backends: Sequence[str], place: Place) -> str:
    """Return what rows of NCCL leave out if all ranks of a host share its only GPU; else ""."""
    if not has_gpus() or emulated_conditions() or place.ranks_here < 2:  # a pair
        return ""
    if _gpus_here([name for name in backends if name in NCCL_BACKENDS], place) != 1:
        return ""
    return (
        "the links between GPUs. This machine has 1 GPU and a second one is missing:"
        f" {place.ranks_here} ranks share it and take turns, so that rows of NCCL (flag shared_gpu)"
        " show that every collective is right, not how fast an interconnect is."
    )


def training_backend(place: Place, requested: str, workload: str) -> tuple[str, list[str]]:
    """Return the training backend: the requested one, or for ``auto`` NCCL if each rank has a GPU,
    else Gloo, also for a trace that was recorded on CPUs.

    Args:
        place: where the ranks train.
        requested: one of `commbench.collectives.backends.TRAINING_BACKENDS`, or ``auto``.
        workload: what they train.

    Returns:
        Its name, and a sentence on why ``auto`` does not use existing GPUs.
    """
    kind, _, name = workload.partition(":")
    is_of_cpu = kind == "trace" and load_trace(name).device == "cpu"
    if requested != AUTO_BACKEND:
        return requested, []
    on_cpus, on_gpus = TRAINING_BACKENDS.values()
    if not has_gpus():
        return on_cpus.training_name, []
    reason = unusable_reason(on_gpus.name, place, is_named=False)
    if reason is None and is_of_cpu:
        reason = (
            f"{workload} was recorded on CPUs, which replay it; --backend nccl sends its gradients"
            " by NCCL."
        )
    if reason is None:
        return on_gpus.training_name, []
    return on_cpus.training_name, [f"Training on GPUs: this trains over Gloo on CPUs. {reason}"]


def ranks_by_gpus(backends: Sequence[str]) -> int | None:
    """Return the number of ranks that gives each rank a GPU of this machine, if a backend uses
    GPUs.

    None if GPUs do not decide: no GPU is usable, or there is one GPU and a backend that uses none.
    """
    using = [backend for backend in backends if backend in GPU_BACKENDS]
    if not using or not has_gpus():
        return None
    gpus = _gpus_here(using, Place(ranks=0, ranks_here=0))
    if gpus > 1 or (gpus == 1 and len(using) == len(backends)):
        return gpus
    return None


def find_budget(budgets: Mapping[str, BudgetT], name: str, **changes: float | None) -> BudgetT:
    """Return the budget called ``name`` with the given numbers in its fields.

    Raises:
        InputError: the name is unknown.
    """
    given: dict[str, Any] = {field: each for field, each in changes.items() if each is not None}
    return dataclasses.replace(find_entry("budget", name, budgets), **given)


def make_request(
    place: Place,
    suite: Suite,
    settings: Settings,
    budget: Budget,
    like: Path | None = None,
    *,
    is_named: bool = True,
) -> tuple[RunRequest, list[str]]:
    """Return the request for a suite, and a sentence for each backend that was left out.

    Args:
        place: where it is measured.
        suite: what to measure.
        settings: how.
        budget: how long.
        like: a run whose batch sizes and warm-ups are reused, so that all cases can be compared.
        is_named: whether the user named the backends, see `usable_suite`.

    Raises:
        InputError: nothing to measure, or a message exceeds this host's memory.
    """
    usable, left_out = usable_suite(suite, place, is_named=is_named)
    cases = all_cases(usable.sweeps, place.ranks)
    check_memory(cases, place.ranks_here)
    fixed: Mapping[str, FixedSettings] = {}
    if like is not None:
        fixed = fixed_settings(load_run(like).records, budget)
    request = RunRequest(
        cases=cases,
        ranks=place.ranks,
        seed=settings.draw_seed(),
        budget=budget,
        case_timeout_s=settings.case_timeout,
        time_limit_s=settings.time_limit,
        fixed=fixed,
    )
    return request, left_out


def check_memory(cases: Sequence[Case], ranks_here: int) -> None:
    """Raise `InputError` if buffers exceed this host's memory.

    A full GPU gives a row with the reason instead.

    Raises:
        InputError: the largest message does not fit; the sentence states the available memory.
    """
    on_host = [case.message_bytes for case in cases if case.backend not in NCCL_BACKENDS]
    largest = max(on_host, default=0)
    needed_bytes = largest * BUFFERS_PER_RANK * ranks_here
    _, available = memory_bytes()
    if available is not None and needed_bytes > available:
        raise InputError(
            f"Messages of {format_size(largest)} on {counted(ranks_here, 'rank')} of this host need"
            f" about {format_size(needed_bytes)} and {format_size(available)} are available; choose"
            " smaller --sizes."
        )


def plan_identity(requests: Sequence[RunRequest]) -> dict[str, object]:
    """Return the settings that must be equal to resume a run, for the stages that are known in
    advance.
    """
    keys = [case.key for request in requests for case in request.cases]
    budget = requests[0].budget
    identity: dict[str, object] = {
        "ranks": requests[0].ranks,
        "budget": budget.name,
        "cases": len(keys),
        "cases_sha256": hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16],
    }
    if budget.energy_s:
        identity["energy_s"] = budget.energy_s
    trainings = [request.training for request in requests if request.training]
    if trainings:
        identity["steps"] = trainings[0].steps
        identity["threads"] = trainings[0].threads
    if requests[0].soak_s is not None:
        identity["soak_s"] = requests[0].soak_s
    return identity


def default_out(name: str) -> Path:
    """Return ``results/<UTC time>-<suite or workload>-<host>``, with a number behind it if that
    exists already.
    """
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    stem = f"{stamp}-{name}-{socket.gethostname().split('.')[0]}"
    path = Path("results") / stem
    number = 2
    while path.exists():
        path = Path("results") / f"{stem}-{number}"
        number += 1
    return path
