"""Says where the steps of a watched training go: parts of a step, ranks, the straggler, and what
tuning could gain.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Sequence
from operator import attrgetter
from statistics import fmean
from typing import NamedTuple

import numpy as np

from commbench.analysis.stragglers.judging import ALPHA, RELEVANT, judge, rank_sum_p
from commbench.ddp.plan.records import TrainingRecord
from commbench.findings import Finding
from commbench.results.info import RunInfo, host_by_rank
from commbench.stats import median

#: The part of a step in which it waits for gradients.
EXPOSED = "exposed communication of gradients"
#: Ranks of which neither is the typical one.
_PAIR = 2


class Part(NamedTuple):
    """A part of the mean step."""

    name: str
    ms: float
    share: float
    """Of the step."""


class RankTime(NamedTuple):
    """What one rank does between two exchanges of gradients."""

    rank: int
    host: str
    computing_ms: float
    """Median time from the end of an exchange to the last local gradient before the next one,
    without broadcasts."""


def parts_of(record: TrainingRecord) -> list[Part]:
    """Return the parts of the mean step; they add up to it, because the last one is the rest."""
    step_ms, exposed_ms = fmean(record.step_ms), record.exposed_comm_ms or 0.0
    parts_ms = {}
    if record.broadcast_ms:
        parts_ms["broadcast of buffers, as of BatchNorm"] = record.broadcast_ms
    parts_ms |= {
        "forward pass, with the loss": record.forward_ms or 0.0,
        "backward pass, without exposed communication": (record.backward_ms or 0.0) - exposed_ms,
        EXPOSED: exposed_ms,
        "optimiser": record.optimizer_ms or 0.0,
    }
    rest_ms = step_ms - sum(parts_ms.values())
    parts_ms["other, such as loading data, logging, saving"] = max(0.0, rest_ms)
    return [Part(name, ms, ms / step_ms) for name, ms in parts_ms.items()]


def rank_times(record: TrainingRecord, info: RunInfo) -> list[RankTime]:
    """Return the ranks of a watched training in their order."""
    hosts = host_by_rank(info)
    medians_ms = np.median(np.asarray(record.computing_ms), axis=0).tolist()
    return [RankTime(rank, hosts.get(rank, ""), ms) for rank, ms in enumerate(medians_ms)]


def watched_findings(record: TrainingRecord, info: RunInfo) -> list[Finding]:
    """Return what of a watched step waits, the mean step, the range of ranks, the straggler and the
    bound.

    Args:
        record: of a launch, with a block or more.
        info: contents of ``run.json``.
    """
    step_ms, exposed_ms = fmean(record.step_ms), record.exposed_comm_ms or 0.0
    ranks = rank_times(record, info)
    fastest, slowest = (choose(ranks, key=attrgetter("computing_ms")) for choose in (min, max))
    words = itertools.dropwhile(lambda word: word != "--", info["argv"])
    command = shlex.join(itertools.islice(words, 1, None))
    straggler = find_straggler(record.computing_ms)
    of_straggler = Finding("watched_even")
    if straggler is not None:
        others_ms = [each.computing_ms for each in ranks if each.rank != straggler]
        name = f"rank {straggler}"
        if ranks[straggler].host:
            name = f"{name} on {ranks[straggler].host}"
        late_ms = ranks[straggler].computing_ms - median(others_ms)
        of_straggler = Finding("watched_straggler", name, {"late_ms": late_ms})
    gain = step_ms / (step_ms - exposed_ms)
    return [
        Finding("watched_exposed", numbers={"share": exposed_ms / step_ms}),
        Finding(
            "watched_step",
            numbers={
                "mean_ms": step_ms,
                "median_ms": median(record.step_ms),
                "steps": len(record.step_ms),
            },
        ),
        Finding(
            "watched_ranks",
            numbers={
                "fastest": fastest.rank,
                "fastest_ms": fastest.computing_ms,
                "slowest": slowest.rank,
                "slowest_ms": slowest.computing_ms,
            },
        ),
        of_straggler,
        Finding("watched_bound", numbers={"gain": gain, "command": command}),
    ]


def watched_lines(record: TrainingRecord, info: RunInfo) -> list[str]:
    """Return `watched_findings` in words, with the parts of a step as a table, for a terminal."""
    parts = parts_of(record)
    width = max(len(part.name) for part in parts)
    exposed, step, *others = map(str, watched_findings(record, info))
    lines = [exposed, step]
    for part in parts:
        lines.append(f"    {part.name:<{width}} {part.ms:10.2f} ms {100 * part.share:5.1f} %")
    return lines + others


def find_straggler(computing_ms: Sequence[Sequence[float]]) -> int | None:
    """Return the rank that is slower than its peers beyond noise; None if there is none.

    The rule is that of `commbench.analysis.stragglers`, with groups of steps in place of launches.
    Of two ranks neither is typical. The slower one is named if it is slower in so many groups that
    chance is excluded.

    Args:
        computing_ms: by group of steps and rank, as `TrainingRecord.computing_ms`.
    """
    values = np.log(np.maximum(np.asarray(computing_ms, dtype=float), 1e-6))
    if values.ndim != _PAIR or not len(values):
        return None
    if values.shape[1] != _PAIR:
        slow = judge(values, alpha=ALPHA).slow
        return slow[0] if slow else None
    ahead = values[:, 1] - values[:, 0]
    slower = int(np.median(ahead) > 0)
    if not slower:
        ahead = -ahead
    times_slowest = int((ahead > 0).sum())
    # rank 1 in each group in which it is the slower one, else 2
    total = 2 * len(values) - times_slowest
    is_beyond = float(np.median(ahead)) > math.log(RELEVANT)
    if is_beyond and rank_sum_p(total, _PAIR, len(values)) <= ALPHA / _PAIR:
        return slower
    return None
