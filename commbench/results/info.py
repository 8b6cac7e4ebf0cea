"""The entries of ``run.json`` and their types, as far as reading a run uses them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from commbench.collectives.backends import GPU_BACKENDS
from commbench.engine.records import Record
from commbench.engine.timing.clocks import ClockFacts
from commbench.errors import InputError
from commbench.schema import JsonMapping, Ranks, check_as
from commbench.system.environment import Environment
from commbench.system.topology import Topology


class _Rank(TypedDict):
    """The required entries of `Rank`."""

    rank: Ranks
    """Number of the rank."""
    host: str
    """Name of its host."""


class Rank(_Rank, total=False):
    """A rank, its host, its process and the CPUs that it may use."""

    pid: int
    """Process number."""
    cpus: Sequence[int] | None
    """CPUs that the rank may use."""


class FailedRank(TypedDict, total=False):
    """The rank that a diagnosis names; ``rank`` is None if it is unknown."""

    rank: int | None
    """Number of the rank; None: no rank can be named."""
    host: str | None
    """Its host."""
    pid: int | None
    """Its process number."""
    case: str | None
    """What was measured."""
    state: str | None
    """What is wrong with the rank."""
    stack: Sequence[str]
    """Frames of its main thread, the innermost first."""
    others: Sequence[JsonMapping]
    """What other ranks were doing: ``ranks`` that were ``in`` the same place."""


class VariableValues(TypedDict):
    """The values of a variable that the ranks of a launch had, each once; None: it was not set."""

    ranks: Sequence[str | None]
    """In the environment of the ranks."""
    nccl: Sequence[str]
    """In NCCL's log; empty if NCCL did not read the variable or was not used."""


class Launch(TypedDict, total=False):
    """A launch with the durations of its parts and its end; ``started`` is UTC in ISO 8601."""

    stage: str
    """``collectives``, ``sweep``, ``search``, ``confirm`` or ``live``."""
    seconds: float
    """Wall time of the launch."""
    startup_s: float
    """Wall time until the ranks were connected."""
    measuring_s: float
    """Sum of ``measuring_s`` of its records."""
    other_s: float
    """Wall time of everything else."""
    status: str
    """``ok``, ``cut``, ``failed``, ``hung``, ``interrupted`` or ``refused``."""
    reason: str
    """Why the launch did not complete, in one sentence."""
    launch: int
    """Number of the launch."""
    started: str | None
    """UTC in ISO 8601."""
    failed_rank: FailedRank | None
    """The failed rank."""
    ending: str
    """Why a live tuning ended, see `commbench.tuner.experiment.Experiment.ending`."""
    invocation: str
    """See `commbench.live.options.LiveOptions`."""
    env: str
    """The variables of the ranks, see `commbench.system.env`; absent if none was asked for."""
    variables: Mapping[str, VariableValues]
    """By name, the values of these variables that the ranks had."""


class Output(TypedDict):
    """An output of another tool that was imported."""

    file: str
    """Name of the file."""
    sha256: str
    """Checksum of its content."""
    tool: str
    """The tool that wrote it."""
    version: str
    """Version of the tool; empty if the output does not state it."""


class Energy(TypedDict):
    """The counted kinds of energy, and why others are missing.

    See `commbench.engine.energy.EnergyMeter`.
    """

    counted: Sequence[str]
    """Kinds of energy that were counted: ``cpu``, ``gpu``."""
    missing: Mapping[str, str]
    """By kind, why it was not counted."""


class MachineStates(TypedDict):
    """The two speeds of the machine under one backend, as the probe shows them.

    See `commbench.results.states`.
    """

    fast_us: float
    """The probe's median time at the higher speed."""
    slow_us: float
    """The probe's median time at the lower speed."""
    boundary_us: float
    """A sample with a longer probe met the lower speed."""
    fast_share: float
    """Share of all samples that met the higher speed."""
    visits: int
    """Number of samples."""


class RunInfo(TypedDict, total=False):
    """The entries of ``run.json``; entries of later versions are kept."""

    schema: int
    """Version of the files' format."""
    run_id: str
    """Name of the run's directory."""
    suite: str | None
    """What was measured: a suite, or ``train`` or ``tune`` and the workload."""
    launcher: str | None
    """Program that started the ranks."""
    git_commit: str | None
    """Commit of commbench; ``-dirty`` behind it: with changes."""
    status: str
    """``running``, ``complete``, ``cut``, ``partial`` or ``interrupted``; see the exit codes."""
    started: str | None
    """UTC in ISO 8601."""
    imported_at: str | None
    """Of an imported run: UTC in ISO 8601."""
    reason: str
    """Why the run did not complete, in one sentence."""
    seed: int | None
    """Seed of the random order of cases."""
    plan: JsonMapping
    """The request, with which a resumed run must agree."""
    budget: str | None
    """Name of the budget."""
    relative_half_width: float | None
    """Half-width of the interval that the budget aims at, as a share of the time."""
    tick_us: float | None
    """Largest step of a rank's clock."""
    world_size: Ranks | None
    """Number of ranks."""
    nodes: Ranks | None
    """Number of hosts."""
    ranks_per_node: Ranks | None
    """Most ranks on one host."""
    ranks_per_gpu: Ranks | None
    """Most ranks on one physical GPU; None without GPUs."""
    nccl_settings: Mapping[str, str]
    """Variables of NCCL that commbench has set for the ranks."""
    ranks: Sequence[Rank]
    """The ranks of the last launch."""
    environment: Environment
    """The conditions of the run."""
    libraries: Mapping[str, str]
    """By backend, library and version that carried it."""
    mpi_init_s: float | None
    """Duration of MPI_Init on the slowest rank."""
    mpi_takes_gpu_memory: bool | None
    """Whether MPI states that it takes addresses in GPU memory."""
    energy: Energy
    """Which energy was counted."""
    oversubscribed: bool
    """Whether ranks shared cores."""
    shared_clock: bool | None
    """Whether all ranks read one clock."""
    clock: ClockFacts
    """How well the ranks' clocks agree."""
    fast_selection: str | None
    """Implementation of the selection in hook topk, in training."""
    launches: Sequence[Launch]
    """The launches, in the order of their start."""
    imported: Sequence[Output]
    """The imported outputs."""
    argv: Sequence[str]
    """The command line."""
    stragglers: Sequence[JsonMapping]
    """Hosts, ranks, links, uplinks and groups that are slower than their peers: ``kind``, ``name``,
    ``factor`` (times as slow as a typical peer), its 95 % interval ``ci`` over launches (None for
    one launch), and ``evidence``."""
    straggler_comparisons: int
    """Number of hosts, ranks, links and groups that were compared."""
    straggler_remarks: Sequence[str]
    """Sentences on what could not be told."""
    env: Sequence[str]
    """The environments of the launches, the first one and its control first; absent if none was
    asked for."""
    left_out: Sequence[str]
    """Sentences on backends and operations that were left out."""
    same_layout: Mapping[str, str]
    """By case, the case that makes the same buckets and stands for it."""
    layouts: Mapping[str, Sequence[int]]
    """By case, predicted sizes of its buckets in bytes."""
    batches: Sequence[int]
    """Samples per rank that were asked for."""
    candidates: Sequence[str]
    """Cases among which a tuning chooses."""
    components: Mapping[str, Mapping[str, float | None]]
    """Components of variance of each case by level, see `commbench.stats.components.Components`."""
    states: Mapping[str, MachineStates]
    """By backend, where the machine ran at two speeds."""
    facts: JsonMapping
    """The workload's parameters and the order of their gradients."""
    first_look: int | None
    """New launches after which a tuning looks at the result for the first time."""
    max_accuracy_loss: float | None
    """Value of ``--max-accuracy-loss``."""
    named_hooks: Sequence[str] | None
    """Hooks that the user named, as ``--hook`` takes them; absent in older runs, which
    recommended any hook."""
    accepts_loss: bool
    """Whether lossy hooks may be recommended whatever they do to learning (``--accept-loss``)."""
    settings: Sequence[str]
    """The keys of the cases that a live tuning may try."""
    baseline: str
    """The key of the case that others are compared with, in a live tuning: the script's own
    setting."""
    framework: str
    """The library that wrapped the model in DDP in a live tuning; empty: the script itself."""
    own_hook: bool
    """Whether the script of a live tuning has registered a communication hook."""


def host_by_rank(info: RunInfo) -> dict[int, str]:
    """Return the host of each rank; empty where ``run.json`` holds none."""
    return {rank["rank"]: rank["host"] for rank in info.get("ranks", ())}


def environment_of(info: RunInfo) -> Environment:
    """Return the conditions of a run; empty if it states none."""
    return info.get("environment", {})


def is_live(info: RunInfo) -> bool:
    """Return whether commbench ran inside a person's own training."""
    return bool(info.get("plan", {}).get("live"))


def is_watched(info: RunInfo) -> bool:
    """Return whether a person's own training was watched and nothing was tuned."""
    return bool(info.get("plan", {}).get("watch"))


def is_complete(info: RunInfo) -> bool:
    """Return whether every planned case was measured, be it in fewer launches than planned."""
    return info.get("status", "complete") in {"complete", "cut"}


def check_info(info: JsonMapping) -> RunInfo:
    """Return the entries of ``run.json``, each of the type that reading expects.

    Unknown entries are returned unchecked.

    Raises:
        InputError: one is of another type.
    """
    checked: RunInfo = check_as(RunInfo, dict(info))
    ranks = [entry["rank"] for entry in checked.get("ranks", ())]
    if len(set(ranks)) < len(ranks):
        raise InputError("ranks names a rank twice")
    for host in checked.get("environment", {}).get("hosts", ()):
        _check_topology(host.get("topology"))
    return checked


def _check_topology(topology: Topology | None) -> None:
    """Raise `InputError` if the parts of a topology do not match."""
    if not topology:
        return
    devices, matrix = topology["links"]["devices"], topology["links"]["matrix"]
    if {len(devices)} != {len(matrix), *map(len, matrix)}:
        raise InputError("topology.links.matrix does not have a line and a column for each device")
    for node in topology["numa"]:
        if not re.fullmatch(r"(\d{1,6}(-\d{1,6})?,?)*", node["cpus"] or ""):
            raise InputError(
                f"topology.numa.cpus must be a list such as 0-3,8, and is {node['cpus']!r:.40}"
            )


def ranks_per_gpu(backend: str, info: RunInfo) -> int | None:
    """Return the most ranks on one GPU from ``run.json``.

    None for a backend with buffers in host memory.
    """
    return info.get("ranks_per_gpu") if backend in GPU_BACKENDS else None


def shares_gpu(backend: str, info: RunInfo) -> bool:
    """Return whether ranks of a backend shared a GPU."""
    return (ranks_per_gpu(backend, info) or 0) > 1


def measures_interconnect(row: Any) -> bool:
    """Return whether a row measures an interconnect: ranks that share a GPU wait for time slices
    and use TCP.
    """
    return (row.ranks_per_gpu or 0) <= 1


def first_env(info: RunInfo) -> str:
    """Return the first environment of a run, which predictions are for; empty if none varied."""
    return next(iter(info.get("env", ())), "")


def network_records(records: Iterable[Record], info: RunInfo) -> list[Record]:
    """Return the records that show the network: of ranks that share no GPU, under the first
    environment of the run.
    """
    env = first_env(info)
    return [
        record
        for record in records
        if record.case.env == env and not shares_gpu(record.case.backend, info)
    ]
