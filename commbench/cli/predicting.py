"""The command that tells what nobody has measured: predict."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from commbench.cli.asking import (
    check_measured_rate,
    parse_hooks,
    parse_message_sizes,
    parse_rates,
    parse_world_sizes,
)
from commbench.errors import InputError, noting
from commbench.prediction.larger import GrowingNetwork, MeasuredRun
from commbench.prediction.larger_steps import TrainedWorkload
from commbench.prediction.links import Link, link_of
from commbench.prediction.outlook import (
    COLUMNS,
    AnyOutlook,
    BreakEvenOutlook,
    CollectiveOutlook,
    Networks,
    StepOutlook,
    collective_outlooks,
    training_outlooks,
)
from commbench.report.prediction import render_basis, render_break_evens, render_collectives, render_steps
from commbench.sharing import measures_interconnect, shares_gpu
from commbench.store import Run, load_run
from commbench.tables import csv_text
from commbench.terminal import make_console
from commbench.training.records import TrainingRecord
from commbench.training.workload import WorkloadFacts

FORMATS = ("table", "csv", "json")


def predict(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories, measured alike: collectives, training, or both."),
    ],
    world_size: Annotated[
        str,
        typer.Option(
            "--world-size",
            "--world-sizes",
            metavar="RANKS",
            help="Numbers of ranks: a list and ranges, e.g. 6,8:1024 (factor 2).",
        ),
    ],
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate", metavar="RATES", help="What if every host's link were so fast: e.g. measured,1gbit,25gbit."
        ),
    ] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option("--ranks-per-node", metavar="K", help="Ranks on each host; by default as measured.")
    ] = None,
    sizes: Annotated[
        str | None, typer.Option("--sizes", metavar="SIZES", help="Message sizes; by default three that were measured.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", metavar="NAME", help="Of several that were trained, this one only.")
    ] = None,
    hook: Annotated[
        str | None, typer.Option("--hook", metavar="HOOKS", help="Of the hooks that were trained, these only.")
    ] = None,
    output_format: Annotated[
        str, typer.Option("--format", metavar="STYLE", help=f"How rows are printed: {', '.join(FORMATS)}.")
    ] = "table",
) -> int:
    """Predict collectives and DDP training on more ranks and other links, from runs alone, and how far off that may be.

    Needs neither torch nor MPI.
    """
    if output_format not in FORMATS:
        raise InputError(f"Unknown format {output_format!r}; choose from {', '.join(FORMATS)}.")
    world_sizes, rates = parse_world_sizes(world_size), parse_rates(rate)
    runs = [load_run(path) for path in paths]
    hooks = parse_hooks(hook, (r.case.hook_name for run in runs for r in run.training_records if r.case.uses_ddp))
    network = GrowingNetwork.fit(MeasuredRun(model=run.model, records=run.records, info=run.info) for run in runs)
    if not network.curves:
        raise InputError(_nothing_known(runs, network))
    check_measured_rate(rates, _links(runs, network))
    hosts = _hosts(ranks_per_node, network.ranks_per_node)
    asked = Networks(world_sizes=world_sizes, rates_bps=rates, ranks_per_node=hosts)
    chosen = parse_message_sizes(sizes, (family.dtype for family in network.curves))
    outlook = _Outlook(
        runs=[run.path.name for run in runs], network=network, collectives=collective_outlooks(network, asked, chosen)
    )
    outlook = _with_training(outlook, runs, asked, workload, hooks)
    rows = outlook.rows
    if all(row.status != "ok" for row in rows):
        reasons = [*(row.reason for row in rows), *outlook.missing]
        raise InputError(f"Nothing of this can be predicted: {reasons[0]}")
    _print(outlook, output_format)
    return 0


def _hosts(asked: int | None, measured: int) -> int:
    if asked is not None and asked < 1:
        raise InputError(f"{asked} ranks per node were asked for; choose 1 or more.")
    return asked or measured


def _links(runs: Iterable[Run], network: GrowingNetwork) -> list[Link]:
    """Over which links was measured, and trained."""
    trained = [link_of(run.info, "") for run in runs if run.training_records]
    return [*trained, *(one.link for curve in network.curves.values() for one in curve.measured)]


def _nothing_known(runs: Sequence[Run], network: GrowingNetwork) -> str:
    """Why nothing can be predicted, and what would help."""
    if network.unknown:
        return next(iter(network.unknown.values()))
    names = " and ".join(str(run.path) for run in runs)
    if any(row.status == "ok" and not measures_interconnect(row) for run in runs for row in run.rows):
        return (
            f"What {names} {'has' if len(runs) == 1 else 'have'} timed on GPUs is of ranks that share one, which tells "
            "nothing of an interconnect; measure with a GPU for each rank (a smaller -n)."
        )
    backend = next((r.case.carrier for run in runs for r in run.training_records), "gloo,mpi")
    return (
        f"{names} {'has' if len(runs) == 1 else 'have'} no curve of a collective over at least 3 message sizes, from "
        "which larger networks are predicted; measure some on two hosts or more beside it: commbench run -c "
        f"all_reduce,all_gather --backend {backend} --sizes 64K:16M:4 -n 4 --world-sizes 2,4."
    )


# ---------------------------------------------------------------------------------------------------------- training


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Outlook:
    """All that is printed."""

    runs: Sequence[str]
    """By name."""
    network: GrowingNetwork
    collectives: Sequence[CollectiveOutlook]
    steps: Sequence[StepOutlook] = ()
    break_evens: Sequence[BreakEvenOutlook] = ()
    missing: Sequence[str] = ()
    """What of the training cannot be predicted, a sentence each."""

    @property
    def rows(self) -> list[AnyOutlook]:
        """All predictions."""
        return [*self.collectives, *self.steps, *self.break_evens]


def _with_training(
    outlook: _Outlook,
    runs: Iterable[Run],
    asked: Networks,
    workload: str | None,
    hooks: Sequence[str] | None,
) -> _Outlook:
    """With the training that the runs hold."""
    steps: list[StepOutlook] = []
    break_evens: list[BreakEvenOutlook] = []
    missing: list[str] = []
    for run in runs:
        for group in _groups(run.training_records, workload):
            with noting(missing.append):
                _check_own_gpus(run, group[0].case.backend)
                facts = _facts(run, group[0].case.workload)
                trained = TrainedWorkload(
                    facts=facts,
                    records=group,
                    run=run.path.name,
                    ranks_per_node=run.info.get("ranks_per_node"),
                    rate_bps=_rate_bps(run),
                    shared_cores=link_of(run.info, "").shared_cores,
                )
                found = training_outlooks(trained, outlook.network, asked, hooks)
                steps += found[0]
                break_evens += found[1]
    if workload and not steps and not missing:
        raise InputError(f"No training of {workload!r} is in these runs; give a workload that was trained.")
    return dataclasses.replace(outlook, steps=steps, break_evens=break_evens, missing=missing)


def _groups(records: Iterable[TrainingRecord], workload: str | None) -> list[list[TrainingRecord]]:
    """The records by what is alike but for the setting."""
    groups: dict[tuple[Any, ...], list[TrainingRecord]] = {}
    for record in records:
        if workload in {None, record.case.workload}:
            groups.setdefault((record.case.group, record.case.precision), []).append(record)
    return list(groups.values())


def _check_own_gpus(run: Run, backend: str) -> None:
    """Raise `InputError` where a run trained on ranks that took turns on a GPU: so would computing seem to take."""
    if shares_gpu(backend, run.info):
        raise InputError(
            f"The ranks of {run.path} shared a GPU, so that its steps tell nothing of ranks with one each; train with "
            "a GPU for each rank (a smaller -n)."
        )


def _facts(run: Run, workload: str) -> WorkloadFacts:
    """What the run says about its workload.

    Raises:
        InputError: it says nothing.
    """
    if not run.info.get("facts"):
        raise InputError(
            f"{run.path} keeps no facts of {workload} (an earlier version trained it), without which its steps cannot "
            f"be predicted; train it again: commbench train --workload {workload} --hook none,topk:0.01."
        )
    return WorkloadFacts.from_json(run.info["facts"])


def _rate_bps(run: Run) -> float | None:
    """The rate of the links that a run trained over, where that is known."""
    rate_bps = link_of(run.info, "").rate_bps
    return rate_bps if rate_bps is not None and math.isfinite(rate_bps) else None


# ---------------------------------------------------------------------------------------------------------- printing


def _print(outlook: _Outlook, style: str) -> None:
    if style == "table":
        console = make_console()
        for part in _tables(outlook):
            console.print(part)
    elif style == "csv":
        sys.stdout.write(csv_text(outlook.rows, COLUMNS))
        messages = make_console(sys.stderr)
        for sentence in outlook.missing:
            messages.print(f"- {sentence}", markup=False)
    else:
        kinds: dict[str, Sequence[AnyOutlook]] = {
            "collectives": outlook.collectives,
            "steps": outlook.steps,
            "break_evens": outlook.break_evens,
        }
        plain = {name: [dataclasses.asdict(row) for row in rows] for name, rows in kinds.items()}
        found = {"runs": list(outlook.runs), **plain, "missing": list(outlook.missing)}
        sys.stdout.write(json.dumps(found, indent=1) + "\n")


def _tables(outlook: _Outlook) -> list[RenderableType]:
    return [
        *render_basis(outlook.network, outlook.runs),
        *render_collectives(outlook.collectives),
        *render_steps(outlook.steps),
        *render_break_evens(outlook.break_evens),
        *(Text(f"- {sentence}") for sentence in outlook.missing),
    ]
