"""The command ``predict``, and the parsing of its options."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from commbench.analysis.prediction.forecast import (
    COLUMNS,
    AnyForecast,
    StepForecast,
    collective_forecasts,
    row_to_json,
    step_forecasts,
)
from commbench.analysis.prediction.law import ForecastNetwork, Place
from commbench.analysis.prediction.links import Link, link_of
from commbench.analysis.prediction.replay import TrainedWorkload
from commbench.cli.options import opt
from commbench.cli.terminal import make_console, print_json
from commbench.ddp.plan.records import TrainingRecord
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.errors import InputError, check_choice
from commbench.fields import as_names, join_names
from commbench.hooks.registry import canonical_hook
from commbench.report.prediction import render_predictions
from commbench.results import Run, load_run
from commbench.results.info import first_env, shares_gpu
from commbench.results.tables import rows_by, rows_csv
from commbench.schema import read_as
from commbench.units import format_link_rate, parse_link_rate, parse_sizes

#: The smallest and the largest number of ranks of a prediction.
FEWEST_RANKS, MOST_RANKS = 2, 10_000
FORMATS = ("table", "csv", "json")
NOTHING_KNOWN = (
    "These runs have no curve of a collective over at least 3 message sizes, by ranks that do not"
    " share a GPU, from which larger networks are predicted; measure some on two hosts or more"
    " beside it: commbench run -c all_reduce,all_gather --backend gloo,mpi --sizes 64K:16M:4 -n 4"
    " --world-sizes 2,4."
)


def predict(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help=(
                "Run directories measured under the same conditions: collectives, training, or"
                " both."
            ),
        ),
    ],
    world_size: Annotated[
        str,
        opt(
            "--world-size --world-sizes",
            "Numbers of ranks: a list and ranges, e.g. 6,8:1024 (factor 2).",
            "RANKS",
        ),
    ],
    rate: Annotated[
        str,
        opt(
            "--rate",
            "Rates of every host's link to predict for: e.g. measured,1gbit,25gbit.",
            "RATES",
        ),
    ] = "measured",
    ranks_per_node: Annotated[
        int | None,
        opt("--ranks-per-node", "Ranks on each host; by default as measured.", "K", min=1),
    ] = None,
    sizes: Annotated[
        str | None,
        opt("--sizes", "Message sizes; by default three of the measured ones.", "SIZES"),
    ] = None,
    workload: Annotated[
        str | None,
        opt("--workload", "Only this workload of the trained ones.", "NAME"),
    ] = None,
    hook: Annotated[
        str | None,
        opt("--hook", "Only these hooks of the trained ones.", "HOOKS"),
    ] = None,
    output_format: Annotated[
        str,
        opt("--format", f"How rows are printed: {join_names(FORMATS)}.", "STYLE"),
    ] = "table",
) -> int:
    """Predict times on more ranks or on other links.

    Forecasts collectives and DDP steps from runs alone, with the expected error. Needs neither
    torch nor MPI.
    """
    check_choice("format", output_format, FORMATS)
    world_sizes, rates_bps = parse_world_sizes(world_size), parse_rates(rate)
    runs = list(map(load_run, paths))
    hooks = parse_hooks(hook, runs)
    network = ForecastNetwork.fit(runs)
    if not network.curves:
        raise InputError(NOTHING_KNOWN)
    links = [curve.link for curves in network.curves.values() for curve in curves]
    links += [link_of(run.info, "") for run in runs if run.training_records]
    if None in rates_bps:
        _check_one_rate(links)
    per_node = ranks_per_node or network.ranks_per_node
    places = [
        Place(world_size=ranks, ranks_per_node=per_node, rate_bps=rate_bps)
        for rate_bps, ranks in itertools.product(rates_bps, world_sizes)
    ]
    collectives = collective_forecasts(network, places, parse_message_sizes(sizes))
    missing: list[str] = []
    steps: list[StepForecast] = []
    for run, records in _trainings(runs, workload):
        try:
            steps += step_forecasts(_trained(run, records), network, places, hooks)
        except InputError as error:  # noqa: PERF203 - the others are predicted
            missing.append(str(error))
    if workload and not steps and not missing:
        raise InputError(
            f"No training of {workload!r} is in these runs; give a workload that was trained."
        )
    rows: list[AnyForecast] = [*collectives, *steps]
    if all(row.status != "ok" for row in rows):
        reasons = [*(row.reason for row in rows), *missing]
        raise InputError(f"Nothing of this can be predicted: {reasons[0]}")
    names = [run.path.name for run in runs]
    messages = make_console(sys.stderr)
    if output_format == "json":
        document = {
            "runs": names,
            "collectives": [row_to_json(row) for row in collectives],
            "steps": [row_to_json(row) for row in steps],
            "missing": missing,
        }
        print_json(document)
        return 0
    if output_format == "csv":
        sys.stdout.write(rows_csv(map(row_to_json, rows), COLUMNS))
    else:
        messages = make_console()
        messages.print(*render_predictions(network, names, collectives, steps), sep="\n")
    for sentence in missing:
        messages.print(f"- {sentence}")
    return 0


def parse_world_sizes(text: str) -> list[int]:
    """Parse numbers of ranks, ascending: ``6,8:1024`` (factor 2) or ``8:512:4``.

    Raises:
        InputError: the text is not such a list, or a number is not between 2 and 10000.
    """
    try:
        world_sizes = sorted(parse_sizes(text))
    except InputError as error:
        raise InputError(f"--world-size {text}: {error}") from error
    if world_sizes[0] < FEWEST_RANKS or world_sizes[-1] > MOST_RANKS:
        raise InputError(
            f"--world-size {text} is not all from {FEWEST_RANKS} to {MOST_RANKS} ranks; write e.g."
            " 6,8:1024."
        )
    return world_sizes


def parse_rates(text: str) -> list[float | None]:
    """Parse rates into bits per second; None stands for ``measured``.

    Raises:
        InputError: an item is not a rate.
    """
    rates = []
    for name in as_names(text):
        rate = parse_link_rate(name)
        if name != "measured" and not rate:
            raise InputError(
                f"The rate {name!r} is not understood; write rates such as 200mbit,1gbit,25gbit, or"
                " measured."
            )
        rates.append(rate)
    return list(dict.fromkeys(rates))


def parse_hooks(text: str | None, runs: Iterable[Run]) -> list[str] | None:
    """Parse hooks into names as in `TrainingCase.hook_name`; None if no hook was given.

    Raises:
        InputError: an item is not a hook, or was not trained in a run.
    """
    if text is None:
        return None
    records = [record for run in runs for record in run.training_records]
    trained = dict.fromkeys(each.case.hook_name for each in records if each.case.uses_ddp)
    hooks = [canonical_hook(part) for part in text.split(",")]
    for hook in hooks:
        if hook not in trained:
            raise InputError(
                f"Steps with hook {hook} were to be predicted, and these runs trained"
                f" {join_names(trained) or 'nothing'}; train it first."
            )
    return list(dict.fromkeys(hooks))


def parse_message_sizes(text: str | None) -> tuple[int, ...] | None:
    """Parse message sizes into bytes; None if none was given.

    Raises:
        InputError: a size is not understood, or 0.
    """
    if text is None:
        return None
    sizes = parse_sizes(text)
    if 0 in sizes:
        raise InputError("Messages of 0 B were to be predicted; choose larger --sizes.")
    return sizes


def _check_one_rate(links: Iterable[Link]) -> None:
    """Check that "as measured" means one rate.

    Raises:
        InputError: the runs used links of several rates.
    """
    rates_bps = sorted({link.rate_bps for link in links if link.rate_bps is not None})
    if len(rates_bps) > 1:
        least = format_link_rate(rates_bps[0])
        raise InputError(
            f"The runs were measured over links of different rates (the slowest of {least}), so"
            " that 'measured' says nothing; name the rate to predict for, such as --rate"
            f" {least}."
        )


def _trainings(
    runs: Iterable[Run], workload: str | None
) -> Iterator[tuple[Run, Sequence[TrainingRecord]]]:
    """Yield the records of each training of the runs, or of one workload, in the first environment.

    The records of a training differ only in the setting.
    """
    for run in runs:
        env = first_env(run.info)
        in_env = [record for record in run.training_records if record.case.env == env]
        for records in rows_by(in_env, attrgetter("case.group", "case.precision")).values():
            if workload in {None, records[0].case.workload}:
                yield run, records


def _trained(run: Run, records: Sequence[TrainingRecord]) -> TrainedWorkload:
    """Return the training that records of a run show.

    Raises:
        InputError: its ranks shared a GPU, so that its steps include waiting for it, or the run
            keeps no facts of the workload.
    """
    case = records[0].case
    if shares_gpu(case.backend, run.info):
        raise InputError(
            f"The ranks of {run.path} shared a GPU, so its steps do not hold for one GPU for each"
            " rank; train with a GPU for each rank (a smaller -n)."
        )
    if not run.info.get("facts"):
        raise InputError(
            f"{run.path} keeps no facts of {case.workload} (an earlier version trained it), without"
            " which its steps cannot be predicted; train it again: commbench train --workload"
            f" {case.workload} --hook none,topk:0.01."
        )
    rate_bps = link_of(run.info, "").rate_bps
    if rate_bps is not None and math.isinf(rate_bps):
        rate_bps = None
    place = Place(
        world_size=case.world_size,
        ranks_per_node=run.info.get("ranks_per_node") or 1,
        rate_bps=rate_bps,
    )
    facts = read_as(WorkloadFacts, run.info["facts"])
    return TrainedWorkload(facts=facts, records=records, place=place, run=run.path.name)
