"""The command ``predict``, and the parsing of its options."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from commbench.analysis.prediction.forecast import (
    COLUMNS,
    AnyForecast,
    CollectiveForecast,
    Networks,
    StepForecast,
    collective_forecasts,
    row_to_json,
    step_forecasts,
)
from commbench.analysis.prediction.law import ForecastNetwork, MeasuredRun, Place
from commbench.analysis.prediction.links import Link, link_of
from commbench.analysis.prediction.replay import TrainedWorkload
from commbench.analysis.runs import network_model
from commbench.cli.terminal import make_console
from commbench.collectives.datatypes import DTYPES
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.errors import InputError, check_choice, noting
from commbench.hooks.registry import parse_hook
from commbench.report.prediction import (
    render_basis,
    render_collectives,
    render_steps,
)
from commbench.results import Run, load_run, under_first_env
from commbench.results.info import measures_interconnect, shares_gpu
from commbench.results.tables import csv_text
from commbench.units import format_link_rate, format_size, parse_link_rate, parse_sizes

#: The largest and the smallest number of ranks of a prediction.
MOST_RANKS, FEWEST_RANKS = 10_000, 2
_RATE_HINT = "write rates such as 200mbit,1gbit,25gbit, or measured"
_RANKS_HINT = "write ranks such as 8, 6,8 or 8:1024"


def parse_world_sizes(text: str) -> list[int]:
    """Parse numbers of ranks, ascending: ``6,8:1024`` (factor 2) or ``8:512:4``.

    Raises:
        InputError: the text is not such a list, or a number is not between 2 and 10000.
    """
    world_sizes: set[int] = set()
    for item in text.split(","):
        if not re.fullmatch(r"[0-9]{1,9}(:[0-9]{1,9}){0,2}", item.strip()):
            raise InputError(f"World sizes {text!r} are not understood; {_RANKS_HINT}.")
        low, high, factor = (*map(int, item.split(":")), *(None, None))[:3]
        if (
            not FEWEST_RANKS <= (low or 0) <= MOST_RANKS
            or not FEWEST_RANKS <= (high or MOST_RANKS) <= MOST_RANKS
        ):
            raise InputError(
                f"World sizes {text!r} are not all from {FEWEST_RANKS} to {MOST_RANKS}; choose"
                " such."
            )
        world_sizes |= set(
            _ranks_between(item.strip(), low or 0, high, 2 if factor is None else factor)
        )
    return sorted(world_sizes)


def _ranks_between(item: str, low: int, high: int | None, factor: int) -> Iterable[int]:
    """Parse one item of a list."""
    if high is not None and high < low:
        raise InputError(
            f"World sizes {item!r} end below their start; write the fewer ranks first, as in"
            " 8:1024."
        )
    if factor < 2:  # noqa: PLR2004 - the smallest factor that grows
        raise InputError(
            f"World sizes {item!r} have a factor below 2; write e.g. 8:512:4 for 8, 32, 128 and"
            " 512."
        )
    while low <= (high or low):
        yield low
        low *= factor
        if high is None:
            return


def parse_rates(text: str | None) -> list[float | None]:
    """Parse rates into bits per second; None stands for the measured rate, also as ``measured``.

    Raises:
        InputError: an item is not a rate.
    """
    rates: list[float | None] = []
    for part in ("measured" if text is None else text).split(","):
        rate = None if part.strip() == "measured" else parse_link_rate(part)
        if (rate is None and part.strip() != "measured") or rate == 0:
            raise InputError(f"The rate {part!r} is not understood; {_RATE_HINT}.")
        rates.append(rate)
    return list(dict.fromkeys(rates))


def parse_hooks(text: str | None, trained: Iterable[str]) -> list[str] | None:
    """Parse hooks into names as in `TrainingCase.hook_name`; None if no hook was given.

    Raises:
        InputError: an item is not a hook, or was not ``trained``.
    """
    if text is None:
        return None
    trained_hooks = list(dict.fromkeys(trained))
    hooks = [hook_name(part) for part in text.split(",")]
    for hook in hooks:
        if hook not in trained_hooks:
            among = (
                f"only {', '.join(trained_hooks)} can be"
                if trained_hooks
                else "no training is in these runs"
            )
            raise InputError(
                f"Steps with hook {hook} were to be predicted, but {among}; train it first, too."
            )
    return list(dict.fromkeys(hooks))


def hook_name(text: str) -> str:
    """Return the canonical name of a hook as typed: ``topk:0.010`` is ``topk:0.01``.

    Raises:
        InputError: the text is not a hook.
    """
    return TrainingCase(
        workload="", world_size=FEWEST_RANKS, batch_per_rank=1, **parse_hook(text)
    ).hook_name


def parse_message_sizes(text: str | None, dtypes: Iterable[str]) -> tuple[int, ...] | None:
    """Parse message sizes into bytes; None if none was given.

    Raises:
        InputError: a size is not a positive whole number of elements of every data type.
    """
    if text is None:
        return None
    sizes = parse_sizes(text)
    for dtype in dict.fromkeys(dtypes):
        element_bytes = DTYPES[dtype].itemsize
        wrong = next((size for size in sizes if size == 0 or size % element_bytes), None)
        if wrong is not None:
            raise InputError(
                f"Messages of {format_size(wrong)} were to be predicted, but {dtype}, which was"
                f" measured, has elements of {element_bytes} B; choose multiples of that, such as"
                f" {format_size(1024)}."
            )
    return sizes


def check_measured_rate(rates_bps: Sequence[float | None], links: Iterable[Link]) -> None:
    """Check that "as measured" means one rate.

    Raises:
        InputError: the measured rate is requested, and the runs used links of several rates.
    """
    used_bps = sorted({link.rate_bps for link in links if link.rate_bps is not None})
    if None not in rates_bps or len(used_bps) < 2:  # noqa: PLR2004 - several
        return
    names = [
        "links that are not shaped or within one host" if math.isinf(r) else format_link_rate(r)
        for r in used_bps
    ]
    raise InputError(
        f"The runs were measured over links of different rates ({' and '.join(names)}), so that"
        " 'measured' says nothing; name the rate to predict for, such as --rate"
        f" {names[0] if math.isfinite(used_bps[0]) else '1gbit'}."
    )


FORMATS = ("table", "csv", "json")

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Run directories measured under the same conditions: collectives, training, or both.",
    ),
]
WorldSizes = Annotated[
    str,
    typer.Option(
        "--world-size",
        "--world-sizes",
        metavar="RANKS",
        help="Numbers of ranks: a list and ranges, e.g. 6,8:1024 (factor 2).",
    ),
]
Rates = Annotated[
    str | None,
    typer.Option(
        "--rate",
        metavar="RATES",
        help="Rates of every host's link to predict for: e.g. measured,1gbit,25gbit.",
    ),
]
RanksPerNode = Annotated[
    int | None,
    typer.Option(
        "--ranks-per-node", metavar="K", help="Ranks on each host; by default as measured."
    ),
]
Sizes = Annotated[
    str | None,
    typer.Option(
        "--sizes", metavar="SIZES", help="Message sizes; by default three of the measured ones."
    ),
]
OnlyWorkload = Annotated[
    str | None,
    typer.Option("--workload", metavar="NAME", help="Only this workload of the trained ones."),
]
OnlyHooks = Annotated[
    str | None,
    typer.Option("--hook", metavar="HOOKS", help="Only these hooks of the trained ones."),
]
Format = Annotated[
    str,
    typer.Option("--format", metavar="STYLE", help=f"How rows are printed: {', '.join(FORMATS)}."),
]


def predict(
    paths: Runs,
    world_size: WorldSizes,
    rate: Rates = None,
    ranks_per_node: RanksPerNode = None,
    sizes: Sizes = None,
    workload: OnlyWorkload = None,
    hook: OnlyHooks = None,
    output_format: Format = "table",
) -> int:
    """Predict times on more ranks or on other links.

    Forecasts collectives and DDP steps from runs alone, with the expected error. Needs neither
    torch nor MPI.
    """
    check_choice("format", output_format, FORMATS)
    world_sizes, rates = parse_world_sizes(world_size), parse_rates(rate)
    runs = [under_first_env(load_run(path)) for path in paths]
    hooks = parse_hooks(
        hook, (r.case.hook_name for run in runs for r in run.training_records if r.case.uses_ddp)
    )
    network = ForecastNetwork.fit(
        MeasuredRun(model=network_model(run), records=run.records, info=run.info) for run in runs
    )
    if not network.curves:
        raise InputError(_nothing_known(runs))
    check_measured_rate(rates, _links(runs, network))
    hosts = _ranks_per_node(ranks_per_node, network.ranks_per_node)
    networks = Networks(world_sizes=world_sizes, rates_bps=rates, ranks_per_node=hosts)
    message_sizes = parse_message_sizes(sizes, (family.dtype for family in network.curves))
    forecasts = _Forecasts(
        runs=[run.path.name for run in runs],
        network=network,
        collectives=collective_forecasts(network, networks, message_sizes),
    )
    forecasts = _with_training(forecasts, runs, networks, workload, hooks)
    rows = forecasts.rows
    if all(row.status != "ok" for row in rows):
        reasons = [*(row.reason for row in rows), *forecasts.missing]
        raise InputError(f"Nothing of this can be predicted: {reasons[0]}")
    _print(forecasts, output_format)
    return 0


def _ranks_per_node(requested: int | None, measured: int) -> int:
    if requested is not None and requested < 1:
        raise InputError(f"{requested} ranks per node were asked for; choose 1 or more.")
    return requested or measured


def _links(runs: Iterable[Run], network: ForecastNetwork) -> list[Link]:
    """Return the links over which the runs trained and the network was measured."""
    trained = [link_of(run.info, "") for run in runs if run.training_records]
    return [
        *trained,
        *(curve.link for curves in network.curves.values() for curve in curves),
    ]


def _nothing_known(runs: Sequence[Run]) -> str:
    """Return a sentence on why nothing can be predicted, and what to measure."""
    names = " and ".join(str(run.path) for run in runs)
    if any(
        row.status == "ok" and not measures_interconnect(row) for run in runs for row in run.rows
    ):
        return (
            f"What {names} {'has' if len(runs) == 1 else 'have'} timed on GPUs comes from ranks"
            " that share a GPU, which does not show the interconnect; measure with a GPU for each"
            " rank (a smaller -n)."
        )
    backend = next((r.case.carrier for run in runs for r in run.training_records), "gloo,mpi")
    return (
        f"{names} {'has' if len(runs) == 1 else 'have'} no curve of a collective over at least 3"
        " message sizes, from which larger networks are predicted; measure some on two hosts or"
        f" more beside it: commbench run -c all_reduce,all_gather --backend {backend} --sizes"
        " 64K:16M:4 -n 4 --world-sizes 2,4."
    )


# ----------------------------------------------------------------------------------------- training


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Forecasts:
    """The forecasts to print."""

    runs: Sequence[str]
    """Names of the runs."""
    network: ForecastNetwork
    collectives: Sequence[CollectiveForecast]
    steps: Sequence[StepForecast] = ()
    missing: Sequence[str] = ()
    """A sentence on each training that cannot be predicted."""

    @property
    def rows(self) -> list[AnyForecast]:
        """All predictions."""
        return [*self.collectives, *self.steps]


def _with_training(
    forecasts: _Forecasts,
    runs: Iterable[Run],
    networks: Networks,
    workload: str | None,
    hooks: Sequence[str] | None,
) -> _Forecasts:
    """Add the forecasts of the runs' training."""
    steps: list[StepForecast] = []
    missing: list[str] = []
    for run in runs:
        for group in _groups(run.training_records, workload):
            with noting(missing.append):
                _check_own_gpus(run, group[0].case.backend)
                facts = _facts(run, group[0].case.workload)
                trained = TrainedWorkload(
                    facts=facts, records=group, place=_place(run, group), run=run.path.name
                )
                steps += step_forecasts(trained, forecasts.network, networks, hooks)
    if workload and not steps and not missing:
        raise InputError(
            f"No training of {workload!r} is in these runs; give a workload that was trained."
        )
    return dataclasses.replace(forecasts, steps=steps, missing=missing)


def _groups(records: Iterable[TrainingRecord], workload: str | None) -> list[list[TrainingRecord]]:
    """Group records by everything except the setting."""
    groups: dict[tuple[object, ...], list[TrainingRecord]] = {}
    for record in records:
        if workload in {None, record.case.workload}:
            groups.setdefault((record.case.group, record.case.precision), []).append(record)
    return list(groups.values())


def _check_own_gpus(run: Run, backend: str) -> None:
    """Raise `InputError` if ranks of a training shared a GPU: its step times include waiting for
    the GPU.
    """
    if shares_gpu(backend, run.info):
        raise InputError(
            f"The ranks of {run.path} shared a GPU, so its steps do not hold for one GPU for each"
            " rank; train with a GPU for each rank (a smaller -n)."
        )


def _facts(run: Run, workload: str) -> WorkloadFacts:
    """Return the facts about the workload in the run.

    Raises:
        InputError: the run has none.
    """
    if not run.info.get("facts"):
        raise InputError(
            f"{run.path} keeps no facts of {workload} (an earlier version trained it), without"
            " which its steps cannot be predicted; train it again: commbench train --workload"
            f" {workload} --hook none,topk:0.01."
        )
    return WorkloadFacts.from_json(run.info["facts"])


def _place(run: Run, records: Sequence[TrainingRecord]) -> Place:
    """Return the network of a training."""
    rate_bps = link_of(run.info, "").rate_bps
    if rate_bps is not None and math.isinf(rate_bps):
        rate_bps = None
    return Place(
        world_size=records[0].case.world_size,
        ranks_per_node=int(run.info.get("ranks_per_node") or 1),
        rate_bps=rate_bps,
    )


# ----------------------------------------------------------------------------------------- printing


def _print(forecasts: _Forecasts, style: str) -> None:
    if style == "table":
        console = make_console()
        for part in _tables(forecasts):
            console.print(part)
    elif style == "csv":
        sys.stdout.write(csv_text(forecasts.rows, COLUMNS))
        messages = make_console(sys.stderr)
        for sentence in forecasts.missing:
            messages.print(f"- {sentence}", markup=False)
    else:
        kinds: dict[str, Sequence[AnyForecast]] = {
            "collectives": forecasts.collectives,
            "steps": forecasts.steps,
        }
        plain = {name: [row_to_json(row) for row in rows] for name, rows in kinds.items()}
        report = {"runs": list(forecasts.runs), **plain, "missing": list(forecasts.missing)}
        sys.stdout.write(json.dumps(report, indent=1) + "\n")


def _tables(forecasts: _Forecasts) -> list[RenderableType]:
    return [
        *render_basis(forecasts.network, forecasts.runs),
        *render_collectives(forecasts.collectives),
        *render_steps(forecasts.steps),
        *(Text(f"- {sentence}") for sentence in forecasts.missing),
    ]
