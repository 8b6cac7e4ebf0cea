"""How far off is `commbench predict`? Its forecasts beside what the kept runs measured.

``forecast_error.py`` reads ``results/`` alone and prints the median and the
largest error of forecasts of

- message sizes, each second one predicted from those between;
- collectives on four hosts, predicted from two over the same link;
- collectives on two to eight hosts over other links, predicted from two and four at 1 Gbit/s: runs
  of other days;
- steps of training on four hosts at 200 Mbit/s, replayed from two at 1 Gbit/s.

`KEPT_ERROR` and `KEPT_STEP_ERROR` of `commbench.analysis.prediction.law` are its last two errors a
doubling of ranks or rate, rounded up to a percent.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from commbench.analysis.prediction.law import (
    Family,
    ForecastNetwork,
    HeldOut,
    Place,
    error_per_doubling,
    hold_out,
)
from commbench.analysis.prediction.links import link_of
from commbench.analysis.prediction.network import NetworkModel
from commbench.analysis.prediction.replay import TrainedWorkload
from commbench.cli.terminal import make_console
from commbench.ddp.plan.cases import DEFAULT_CAP
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.hooks.registry import hook_words
from commbench.results import Run, load_run
from commbench.schema import read_as

RESULTS = Path(__file__).parents[2] / "results"
#: The collectives from which others are predicted.
NETWORK = "network_4hosts_1gbit_xeon2core_20261128"
#: Runs of collectives over other links or on other numbers of ranks.
OTHERS = (
    "network_8hosts_200mbit_xeon2core_20261128",
    "env_links_200mbit_xeon2core_20261128",
    "links_1gbit_xeon2core_20261128",
    "soak_200mbit_xeon2core_20261128",
)
#: Trainings of one workload: on two hosts, and on more over a slower link.
TRAINED = (
    "train_hooks_1gbit_xeon2core_20261128",
    "train_resnet18_batch1_1gbit_xeon2core_20261128",
    "train_resnet18_int8_1gbit_xeon2core_20261128",
)
STEPS = "train_bytes_4hosts_200mbit_xeon2core_20261128"


def kept_pairs() -> dict[str, list[HeldOut]]:
    """Return the forecasts of other networks over what was measured, by what was predicted."""
    network = ForecastNetwork.fit([load_run(RESULTS / NETWORK)])
    ranks = [pair for curves in network.curves.values() for pair in hold_out(curves)]
    others = list(_other_links(network))
    return {
        "four hosts from two": ranks,
        "other hosts and links": others,
        "both of these": [*ranks, *others],
        "steps of training": list(_steps(network)),
    }


def _sizes() -> Iterator[HeldOut]:
    """Yield times at every other inner size, predicted from the sizes between."""
    for path in sorted(RESULTS.glob("*/samples.jsonl.gz")):
        records = load_run(path.parent).records
        measured = NetworkModel.fit(records)
        for key, curve in measured.curves.items():
            left_out = set(list(curve.sizes)[1:-1:2])
            fitted = NetworkModel.fit(r for r in records if r.case.message_bytes not in left_out)
            if key not in fitted.curves:
                continue
            for size, time_us in zip(curve.sizes, curve.times_us, strict=True):
                if size in left_out:
                    yield HeldOut(fitted.curves[key].time_us(size) / time_us, 0.0)


def _other_links(network: ForecastNetwork) -> Iterator[HeldOut]:
    for name in OTHERS:
        run = load_run(RESULTS / name)
        for row in run.rows:
            family = Family(row.operation, row.backend, str(row.dtype))
            if family not in network.curves or not row.time_us or "eth1" in row.env:
                continue  # eth1 has another rate than the run states
            place = Place(world_size=row.group_size or 0, rate_bps=link_of(run.info, "").rate_bps)
            nearest = network.nearest(family, place)
            if not nearest.is_at(place):
                predicted_us = nearest.time_us(row.message_bytes or 0, place)
                yield HeldOut(predicted_us / row.time_us, nearest.place.doublings(place))


def _steps(network: ForecastNetwork) -> Iterator[HeldOut]:
    there = load_run(RESULTS / STEPS)
    measured_ms = {}
    for row in there.training_rows:
        if row.step_ms:
            measured_ms[hook_words(row.hook, row.density, row.hook_options)] = row.step_ms
    for name in TRAINED:
        trained = _trained(load_run(RESULTS / name))
        place = _place(there)
        for hook in dict.fromkeys(case.hook_name for case in trained.settings):
            if hook in measured_ms:
                replay = trained.replay(network, hook, place)
                ratio = replay.step_ms / measured_ms[hook]
                yield HeldOut(ratio, trained.place.doublings(place))


def _trained(run: Run) -> TrainedWorkload:
    """Return the training in DDP's default buckets, as in the run that it is compared with."""
    records = [each for each in run.training_records if each.case.bucket_cap_mb == DEFAULT_CAP]
    return TrainedWorkload(
        facts=read_as(WorkloadFacts, run.info["facts"]), records=records, place=_place(run)
    )


def _place(run: Run) -> Place:
    rate_bps = link_of(run.info, "").rate_bps
    return Place(world_size=run.training_records[0].case.world_size, rate_bps=rate_bps)


def main() -> None:
    """Print a line for each kind of forecast."""
    table = Table("forecast of", "forecasts", "median error", "largest", "a doubling")
    all_pairs = {"message sizes": list(_sizes()), **kept_pairs()}
    for kind, pairs in all_pairs.items():
        errors = [abs(pair.ratio - 1) for pair in pairs]
        shares = (statistics.median(errors), max(errors), error_per_doubling(pairs))
        table.add_row(kind, str(len(pairs)), *(f"{100 * share:.1f} %" for share in shares))
    make_console().print(table)


if __name__ == "__main__":
    main()
