"""A run in which NCCL was asked for several algorithms, as the configuration of NCCL's example tuner plugin."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.analysis.runs import all_rank_rows
from commbench.collectives.algorithms import Choice
from commbench.collectives.backends import NCCL_BACKENDS
from commbench.collectives.operations import find_operation
from commbench.engine.records import Row
from commbench.errors import InputError
from commbench.results import Run
from commbench.results.overhead import ALIKE
from commbench.results.sharing import measures_interconnect

#: As the plugin reads them (NCCL, plugins/tuner/example, README); -1 is any.
HEADING = (
    *("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels"),
    *("nNodes", "nRanks", "numPipeOps", "regBuff"),
)
#: The plugin takes every line for a rule that does not begin so; none may have more than 254 characters.
_COMMENT = "# "
_WARNING = (
    "As shipped, the plugin has NCCL use one channel for whatever no rule covers: set *nChannels to 0 instead of 1 at "
    "the beginning of its pluginGetCollInfo."
)
#: Its names of algorithms, where ours are without underscores.
_NAMES = {"collnetdirect": "collnet_direct", "collnetchain": "collnet_chain", "nvlstree": "nvls_tree"}
_ANY = -1
FILE = "nccl_tuner.csv"
#: What a rule can be for, beside sizes.
_TOLD_APART = ("operation", "group_size", "nodes")
#: What rows that are compared have alike, and the plugin does not know.
_CONDITIONS = ("backend", "loop", *(name for name in ALIKE if name != "algorithm_requested"))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What carries an operation fastest from one message size to another."""

    operation: str
    least_bytes: int
    most_bytes: int
    choice: Choice
    """Whole: the plugin takes a number of channels that is left out for one channel, whatever its README says."""
    nodes: int | None
    ranks: int | None

    @property
    def line(self) -> tuple[object, ...]:
        """As the plugin reads it."""
        algorithm = _NAMES.get(self.choice.algorithm, self.choice.algorithm)
        return (
            *(self.operation.replace("_", ""), self.least_bytes, self.most_bytes, algorithm, self.choice.protocol),
            *(self.choice.channels, self.nodes or _ANY, self.ranks or _ANY, _ANY, _ANY),
        )


def write_nccl_tuner(run: Run, out: Path | None) -> Path:
    """Write the rules of a run to ``out``, by default a file in the run's directory.

    Raises:
        InputError: it shows no algorithm to be faster than NCCL's own choice, or its ranks shared a GPU.
    """
    rules = rules_of(all_rank_rows(run))
    if not rules:
        if any(_counts(row) and not measures_interconnect(row) for row in all_rank_rows(run)):
            raise InputError(
                f"The ranks of run {run.name} shared a GPU, where what is fastest is no rule for an interconnect; "
                "measure with a GPU for each rank (a smaller -n)."
            )
        raise InputError(
            f"Run {run.name} shows no algorithm of NCCL to be faster than its own choice in all rows that are alike "
            "but for it, and to be known with its channels from NCCL's log (2.24 or newer); measure several, e.g. "
            "commbench run collectives --backend nccl --algorithm auto,ring/ll,ring/simple,tree/ll,tree/simple."
        )
    text = io.StringIO()
    text.write(f"{_COMMENT}{_WARNING}\n{_COMMENT}")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADING)
    writer.writerows(rule.line for rule in rules)
    path = out or run.path / FILE
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def rules_of(rows: Iterable[Row]) -> list[Rule]:
    """Where something asked for was surely faster than NCCL's own choice, which rules elsewhere.

    Surely: its interval lies wholly below that of ``auto`` at the same size, of the same backend, in the same data type
    and whatever else rows have alike; and it does so wherever it was tried, for a rule is for all of these. Between two
    sizes with the same choice it holds, too; between others up to the middle, and nothing is said of smaller and larger
    sizes than were measured. What ranks did that share a GPU does not count.
    """
    counted = [row for row in rows if _counts(row) and measures_interconnect(row)]
    return [rule for members in _parted(counted, _TOLD_APART) for rule in _rules_by_size(members)]


def _counts(row: Row) -> bool:
    usual = find_operation(row.operation).has_nccl_algorithms and row.pattern == "flat" and row.backend in NCCL_BACKENDS
    return usual and row.status == "ok" and row.time_us is not None and row.message_bytes is not None


def _parted(rows: Iterable[Row], names: Sequence[str]) -> list[list[Row]]:
    """Rows that are alike in some columns together, in the order of the first of them."""
    found: defaultdict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(getattr(row, name) for name in names)].append(row)
    return list(found.values())


def _rules_by_size(rows: Sequence[Row]) -> list[Rule]:
    by_size = {members[0].message_bytes or 0: members for members in _parted(rows, ("message_bytes",))}
    sizes = sorted(by_size)
    middles = [(below + above) // 2 for below, above in itertools.pairwise(sizes)]
    ranges = zip([sizes[0], *(middle + 1 for middle in middles)], [*middles, sizes[-1]], strict=True)
    found = [(*ends, _better(by_size[size])) for ends, size in zip(ranges, sizes, strict=True)]
    rules = []
    for choice, members in itertools.groupby(found, key=lambda part: part[2]):
        parts = list(members)
        if choice is not None:
            rules.append(
                Rule(
                    operation=rows[0].operation,
                    least_bytes=parts[0][0],
                    most_bytes=parts[-1][1],
                    choice=choice,
                    nodes=rows[0].nodes,
                    ranks=rows[0].group_size,
                )
            )
    return rules


def _better(rows: Sequence[Row]) -> Choice | None:
    """Of what ran at one size, what gains most over NCCL's own choice, wherever it was tried and at the least."""
    shares: defaultdict[Choice, list[float]] = defaultdict(list)
    for alike in _parted(rows, _CONDITIONS):
        own = next((row for row in alike if not row.algorithm_requested), None)
        for row in alike:
            choice = _ran(row)
            if row.algorithm_requested and choice is not None:
                shares[choice].append(_share(row, own))
    most = {choice: max(found) for choice, found in shares.items() if max(found) < 1}
    return min(most, key=lambda choice: most[choice], default=None)


def _share(row: Row, own: Row | None) -> float:
    """The time that a row takes of that of NCCL's own choice, at the most that their intervals leave open."""
    if own is None or own.time_us_ci_low is None or row.time_us_ci_high is None:
        return math.inf
    return row.time_us_ci_high / own.time_us_ci_low


def _ran(row: Row) -> Choice | None:
    """What the row says that ran; None where it does not say it whole, or where launches differ."""
    try:
        choice = Choice.parse(row.algorithm or "auto")
    except InputError:
        return None
    return choice if choice.algorithm and choice.protocol and choice.channels else None
