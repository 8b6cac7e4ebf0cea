"""The command ``train``: it measures DDP's settings and recommends one."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Annotated

import typer

from commbench.cli.conduct import Place, Task, carry_out
from commbench.cli.options import Env, Settings, join_names, takes_settings
from commbench.cli.request import (
    AUTO_BACKEND,
    check_counts,
    check_training_backend,
    choose_training_backend,
    draw_seed,
    find_budget,
    parse_numbers,
    ranks_by_gpus,
    split_names,
)
from commbench.cli.separator import given_options
from commbench.collectives.backends import TRAINING_BACKENDS
from commbench.ddp.plan.cases import COMPILE_MODES, PRECISIONS, TrainingSweep
from commbench.ddp.traces import load_trace
from commbench.errors import InputError, check_choice
from commbench.hooks.registry import HOOKS, canonical_hook, find_file_hooks
from commbench.launch.probe import probe_workload
from commbench.results import Store
from commbench.results.record_types import collective_records
from commbench.stats.budgets import TRAINING_BUDGETS, TrainingBudget
from commbench.tuner.decision import recommend
from commbench.tuner.learning import Permission
from commbench.tuner.predictions import with_search
from commbench.tuner.sweep import TrainingPlan

#: The default sweep: it shows a trend within a minute.
DEFAULT_WORKLOAD = "mlp"
DEFAULT_CAPS = "default,5,25,100"
DEFAULT_HOOKS = "none,fp16,topk:0.01"
OFF, ALL = "off", "all"
_SWITCHES = {OFF: (False,), "on": (True,), "both": (False, True)}

Workload = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        metavar="WORKLOAD",
        help=(
            "What to train: mlp, resnet18, gpt, digits (accuracy), text (loss); trace:resnet50,"
            " trace:bert-base, trace:gpt2-small, trace:many-tiny or trace:FILE (recorded gradients,"
            " replayed); or your own model as FILE.py:CALLABLE, see benchmarks/own_model.py."
        ),
    ),
]
BucketCaps = Annotated[
    str,
    typer.Option(
        "--bucket-cap-mb",
        metavar="SIZES",
        help=(
            "DDP bucket sizes in MiB, comma-separated: default (1, then 25), numbers, and lists"
            " such as 1+5+25."
        ),
    ),
]
Hooks = Annotated[
    str,
    typer.Option(
        "--hook",
        metavar="HOOKS",
        help=(
            f"Communication hooks, comma-separated: {join_names(HOOKS)}; topk:0.01"
            " sends 1 %, powersgd:2 has rank 2;"
            " options follow as in topk:0.01:values=float16. FILE.py:CALLABLE is a hook of your"
            " own: a function of (state, bucket), or a factory without required arguments."
        ),
    ),
]
Precisions = Annotated[
    str, typer.Option("--precision", metavar="NAMES", help=f"Any of {join_names(PRECISIONS)}.")
]
Accumulations = Annotated[
    str,
    typer.Option(
        "--accumulation",
        metavar="NUMBERS",
        help="Backward passes per optimiser step, comma-separated.",
    ),
]
BucketView = Annotated[
    str,
    typer.Option(
        "--bucket-view", metavar="WHICH", help="gradient_as_bucket_view: off, on or both."
    ),
]
StaticGraph = Annotated[
    str, typer.Option("--static-graph", metavar="WHICH", help="static_graph: off, on or both.")
]
UnusedParameters = Annotated[
    str,
    typer.Option(
        "--unused-parameters",
        metavar="WHICH",
        help=(
            "find_unused_parameters: off, on or both; on by itself for a model whose loss leaves"
            " parameters out."
        ),
    ),
]
BroadcastBuffers = Annotated[
    str,
    typer.Option(
        "--broadcast-buffers",
        metavar="WHICH",
        help=(
            "Whether rank 0 sends its buffers before each forward pass (DDP's forward_sync_buffers,"
            " or broadcast_buffers before torch 2.13): on, off or both."
        ),
    ),
]
BatchedGradCopy = Annotated[
    str,
    typer.Option(
        "--batched-grad-copy",
        metavar="WHICH",
        help="batched_grad_copy (torch 2.13): off, on or both.",
    ),
]
Compile = Annotated[
    str,
    typer.Option(
        "--compile",
        metavar="MODES",
        help=(
            "torch.compile of the DDP object, comma-separated: off, and optimize_ddp's"
            f" {join_names(COMPILE_MODES)}; all is all four."
        ),
    ),
]
Batches = Annotated[
    str | None,
    typer.Option(
        "--batch",
        metavar="NUMBERS",
        help="Samples per rank, comma-separated; by default the workload's.",
    ),
]
WorldSizes = Annotated[
    str | None,
    typer.Option(
        "--world-size",
        "--world-sizes",
        metavar="NUMBERS",
        help="Train on the first N ranks, comma-separated.",
    ),
]
TrainingBackend = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        help=(
            f"One of {join_names([AUTO_BACKEND, *TRAINING_BACKENDS])}: gloo trains on CPUs; nccl on"
            " GPUs, the k-th rank of a host on its k-th GPU; auto is nccl if this machine has a"
            " GPU for each rank, else gloo."
        ),
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        metavar="N",
        help=(
            "Optimiser steps of a block, the first 3 untimed; by default from the budget's time,"
            " for digits and text from their metric."
        ),
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", help="Compute threads of a rank; by default a fair share."
    ),
]
TrainingBudgetName = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="NAME",
        help=(
            "quick (3 launches, then 6 fresh launches of the winners), standard (6 and 10) or"
            " rigorous (10 and 20)."
        ),
    ),
]
MaxAccuracyLoss = Annotated[
    float | None,
    typer.Option(
        "--max-accuracy-loss",
        metavar="X",
        help=(
            "Never recommend a hook, precision or accumulation whose metric may end worse by more"
            " than X, e.g. 0.01; without a metric X is a share of the loss; without a loss none of"
            " them is recommended."
        ),
    ),
]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help=(
            "Recommend a lossy hook that is named, whatever it does to learning; by default only if"
            " --max-accuracy-loss shows its accuracy, else its speedup is only stated."
        ),
    ),
]
SweepLaunches = Annotated[
    int | None,
    typer.Option(
        "--launches", metavar="R", help="Launches of the sweep; by default from the budget."
    ),
]
ConfirmLaunches = Annotated[
    int | None,
    typer.Option(
        "--confirm-launches",
        metavar="R",
        help="Fresh launches of the winners; by default from the budget.",
    ),
]


@takes_settings
def train(
    settings: Settings,
    context: typer.Context,
    workload: Workload = DEFAULT_WORKLOAD,
    bucket_cap_mb: BucketCaps = DEFAULT_CAPS,
    hook: Hooks = DEFAULT_HOOKS,
    precision: Precisions = "fp32",
    accumulation: Accumulations = "1",
    bucket_view: BucketView = "off",
    static_graph: StaticGraph = "off",
    unused_parameters: UnusedParameters = "off",
    broadcast_buffers: BroadcastBuffers = "on",
    batched_grad_copy: BatchedGradCopy = "off",
    compile_modes: Compile = OFF,
    batch: Batches = None,
    world_size: WorldSizes = None,
    env: Env = None,
    backend: TrainingBackend = AUTO_BACKEND,
    steps: Steps = None,
    max_accuracy_loss: MaxAccuracyLoss = None,
    accept_loss: AcceptLoss = False,
    threads: Threads = None,
    budget: TrainingBudgetName = "quick",
    launches: SweepLaunches = None,
    confirm_launches: ConfirmLaunches = None,
) -> int:
    """Train with DDP under several settings, recommend one.

    Every combination of the settings is trained; the recommendation has a confidence interval.
    The baseline (fp32, no hook, DDP's default buckets) and the step without DDP are always measured
    too. The winners are measured again in fresh launches; only these decide. What leaves learning
    as it is comes first; FP16 and BF16 are recommended only where --hook names them, lossy hooks
    only with their accuracy shown or accepted. Inside mpirun, torchrun or srun this process is one
    rank of one launch; repeat the command with the same --out to add launches.
    """
    requested = check_training_backend(backend)
    requested_sweep = TrainingSweep(
        workload=workload,
        bucket_caps=split_names(bucket_cap_mb) or (),
        hooks=split_names(hook) or (),
        precisions=split_names(precision) or (),
        accumulations=parse_numbers("--accumulation", accumulation) or (),
        bucket_views=_switch("--bucket-view", bucket_view),
        static_graphs=_switch("--static-graph", static_graph),
        unused_parameters=_switch("--unused-parameters", unused_parameters),
        broadcast_buffers=_switch("--broadcast-buffers", broadcast_buffers),
        batched_grad_copies=_switch("--batched-grad-copy", batched_grad_copy),
        compile_modes=_compile_modes(compile_modes),
        batches=parse_numbers("--batch", batch) or (),
        world_sizes=parse_numbers("--world-size", world_size) or (),
        env=env or (),
    )
    check_counts({"--steps": steps, "--threads": threads})
    training_budget = find_budget(
        TRAINING_BUDGETS, budget, launches=launches, confirm_launches=confirm_launches
    )
    if launches or confirm_launches:
        # numbers of launches that the user gives are exact
        training_budget = dataclasses.replace(training_budget, aim_s=None)

    find_file_hooks(requested_sweep.hooks)
    permission = permission_of(
        requested_sweep.hooks, is_given="hook" in given_options(context), accepts_loss=accept_loss
    )

    def plan(place: Place) -> Task:
        seed = draw_seed(settings.seed_or_resumed())
        chosen_backend, left_out = backend_at(place, requested, workload)
        sweep = dataclasses.replace(requested_sweep, backend=chosen_backend)
        training = dataclasses.replace(
            plan_training(sweep, settings, training_budget, ranks=place.ranks, seed=seed),
            steps=steps,
            threads=threads,
            max_accuracy_loss=check_accuracy_loss(max_accuracy_loss),
            permission=permission,
        )
        task = Task(name=short_name("train", workload), requests=(), stages=(), left_out=left_out)
        return join_training(task, training)

    return carry_out(settings, plan, lambda: training_ranks(requested))


def backend_at(place: Place, requested: str, workload: str) -> tuple[str, list[str]]:
    """Return the training backend of a workload at a place, see `choose_training_backend`."""
    backend, left_out = choose_training_backend(
        requested, ranks_here=place.ranks_here, started=place.started
    )
    if (
        requested == AUTO_BACKEND
        and TRAINING_BACKENDS[backend].uses_gpu
        and _computes_on_hosts(workload)
    ):
        sentence = (
            f"{workload} was recorded on CPUs, which replay it; --backend nccl sends its gradients"
            " by NCCL."
        )
        return "gloo", [f"Training on GPUs: this trains over Gloo on CPUs. {sentence}"]
    return backend, left_out


def _computes_on_hosts(workload: str) -> bool:
    """Return whether the workload is a trace whose replay uses CPU time."""
    kind, _, name = workload.partition(":")
    return kind == "trace" and load_trace(name).device == "cpu"


def training_ranks(backend: str) -> int | None:
    """Return the number of ranks for this machine's GPUs if none is given.

    None if GPUs do not decide.

    Raises:
        InputError: there is one GPU to train on, and no number was given.
    """
    if backend == AUTO_BACKEND:
        return ranks_by_gpus([trainer.name for trainer in TRAINING_BACKENDS.values()])
    trainer = TRAINING_BACKENDS[backend]
    ranks = ranks_by_gpus([trainer.name]) if trainer.uses_gpu else None
    if ranks == 1:
        raise InputError(
            "Training with DDP takes 2 ranks or more, and this machine has 1 GPU for them; give -n"
            " 2 to have both share it, name hosts by --hostfile, or train with --backend gloo."
        )
    return ranks


def default_sweep() -> TrainingSweep:
    """Return the default sweep."""
    return TrainingSweep(
        workload=DEFAULT_WORKLOAD,
        bucket_caps=DEFAULT_CAPS.split(","),
        hooks=DEFAULT_HOOKS.split(","),
    )


def join_training(task: Task, training: TrainingPlan) -> Task:
    """Return the task with a training sweep after its other stages, and a recommendation at the
    end.
    """
    return dataclasses.replace(
        task,
        requests=[*task.requests, training.sweep_request()],
        stages=[*task.stages, *training.stages()],
        left_out=[*task.left_out, *training.left_out],
        info={**task.info, **training.info},
        then=training.then,
        seconds=(
            task.estimate_s() + training.estimate_s() if task.requests else training.estimate_s()
        ),
        conclude=functools.partial(write_recommendation, permission=training.permission),
        is_brief=True,
    )


def plan_training(
    sweep: TrainingSweep,
    settings: Settings,
    budget: TrainingBudget,
    *,
    ranks: int,
    seed: int,
) -> TrainingPlan:
    """Try the workload and plan its sweep.

    Raises:
        InputError: the workload cannot be trained with DDP, or a number is out of range.
    """
    batch = sweep.batches[0] if sweep.batches else None
    facts = probe_workload(sweep.workload, batch, sweep.hooks, backend=sweep.backend)
    if facts.unused:  # DDP fails without the search
        sweep = dataclasses.replace(sweep, unused_parameters=(True,))
    return TrainingPlan(
        sweep=sweep,
        facts=facts,
        ranks=ranks,
        seed=seed,
        budget=budget,
        case_timeout_s=settings.case_timeout,
        time_limit_s=settings.time_limit,
    )


def check_accuracy_loss(allowed: float | None) -> float | None:
    """Return the value of --max-accuracy-loss.

    Raises:
        InputError: it is below 0, infinite or not a number.
    """
    if allowed is not None and not 0 <= allowed < math.inf:
        raise InputError(
            f"--max-accuracy-loss {allowed:g} was asked for; give a number of 0 or more, such as"
            " 0.01."
        )
    return allowed


def permission_of(hooks: Sequence[str], *, is_given: bool, accepts_loss: bool) -> Permission:
    """Return which hooks may be recommended: those that the user named, not those of an option's
    default.

    Args:
        hooks: value of ``--hook`` or ``--allow``.
        is_given: whether the user gave that option.
        accepts_loss: whether the user gave ``--accept-loss``.
    """
    names = list(map(canonical_hook, hooks)) if is_given else []
    return Permission(named_hooks=names, accepts_loss=accepts_loss)


def write_recommendation(store: Store, permission: Permission) -> None:
    """Write the recommendation that follows from the records in the store.

    A resumed run may permit other hooks.
    """
    store.update(**permission.info)
    trainings = store.training_records
    recommendation = recommend(trainings, store.info)
    if recommendation is not None:
        completed = with_search(
            recommendation, collective_records(store.records), trainings, store.info
        )
        store.write_recommendation(completed)


def _switch(option: str, text: str) -> tuple[bool, ...]:
    if text not in _SWITCHES:
        raise InputError(f"{option} {text} is not understood; choose from {', '.join(_SWITCHES)}.")
    return _SWITCHES[text]


def _compile_modes(text: str) -> tuple[str, ...]:
    names = split_names(text) or ()
    for name in names:
        check_choice("compile mode", name, (OFF, ALL, *COMPILE_MODES))
    return tuple(
        "" if name == OFF else name for name in ((OFF, *COMPILE_MODES) if ALL in names else names)
    )


def short_name(command: str, workload: str) -> str:
    """Return a name for the directory of results: ``train-resnet18``, or ``train-own_model`` for a
    file.
    """
    stem = (
        workload.removeprefix("trace:")
        .split("/")[-1]
        .split(":")[0]
        .removesuffix(".py")
        .removesuffix(".json")
    )
    return f"{command}-{stem}"
