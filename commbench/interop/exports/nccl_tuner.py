"""Rules for NCCL's example tuner plugin, from a run that measured several of NCCL's algorithms."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from commbench.analysis.runs import all_rank_rows
from commbench.collectives.algorithms import Choice
from commbench.collectives.backends import NCCL_BACKENDS
from commbench.collectives.operations import find_operation
from commbench.engine.records import Row
from commbench.errors import InputError
from commbench.results import Run
from commbench.results.info import measures_interconnect
from commbench.results.overhead import ALIKE
from commbench.results.tables import rows_by

#: Columns of the plugin's configuration (NCCL, plugins/tuner/example, README); -1 stands for any.
HEADING = (
    *("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels"),
    *("nNodes", "nRanks", "numPipeOps", "regBuff"),
)
#: Start of a comment; the plugin reads every other line as a rule. A line has at most 254
#: characters.
_COMMENT = "# "
_WARNING = (
    "As shipped, the plugin has NCCL use one channel for whatever no rule covers: set *nChannels to"
    " 0 instead of 1 at the beginning of its pluginGetCollInfo."
)
#: The plugin's names of algorithms that have no underscore in commbench.
_NAMES = {
    "collnetdirect": "collnet_direct",
    "collnetchain": "collnet_chain",
    "nvlstree": "nvls_tree",
}
_ANY = -1
FILE = "nccl_tuner.csv"
#: Columns that a rule can distinguish, beside message sizes.
_RULE_COLUMNS = ("operation", "group_size", "nodes")
#: Columns that must be equal in compared rows and that a rule cannot distinguish.
_CONDITIONS = ("backend", "loop", *(name for name in ALIKE if name != "algorithm_requested"))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The fastest algorithm, protocol and channels of an operation in a range of message sizes."""

    operation: str
    least_bytes: int
    most_bytes: int
    choice: Choice
    """States all three parts: despite its README the plugin reads a missing number of channels
    as 1."""
    nodes: int | None
    ranks: int | None

    @property
    def line(self) -> tuple[object, ...]:
        """The rule as a row of the plugin's file."""
        algorithm = _NAMES.get(self.choice.algorithm, self.choice.algorithm)
        return (
            *(
                self.operation.replace("_", ""),
                self.least_bytes,
                self.most_bytes,
                algorithm,
                self.choice.protocol,
            ),
            *(self.choice.channels, self.nodes or _ANY, self.ranks or _ANY, _ANY, _ANY),
        )


def write_nccl_tuner(run: Run, out: Path | None) -> Path:
    """Write the rules of a run to ``out``, by default a file in the run's directory, and return the
    file.

    Raises:
        InputError: no algorithm was faster than NCCL's own choice, or ranks shared a GPU.
    """
    rules = rules_of(all_rank_rows(run))
    if not rules:
        if any(_is_usable(row) and not measures_interconnect(row) for row in all_rank_rows(run)):
            raise InputError(
                f"The ranks of run {run.name} shared a GPU, where what is fastest is no rule for an"
                " interconnect; measure with a GPU for each rank (a smaller -n)."
            )
        raise InputError(
            f"Run {run.name} shows no algorithm of NCCL to be faster than its own choice in all"
            " rows that are alike but for it, and to be known with its channels from NCCL's log"
            " (2.24 or newer); measure several, e.g. commbench run collectives --backend nccl"
            " --algorithm auto,ring/ll,ring/simple,tree/ll,tree/simple."
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
    """Return a rule for each range of sizes in which a requested choice was faster than NCCL's own
    choice.

    A choice is faster if its interval lies wholly below that of ``auto`` at the same size, backend,
    data type and all other columns that rows share. It must be so in all rows that tried the
    choice, because the rule covers all of them. A rule reaches from size to size if both have the
    same choice, else to the middle between them. Sizes outside the measured range get no rule. Rows
    of ranks that share a GPU do not count.
    """
    usable_rows = (row for row in rows if _is_usable(row) and measures_interconnect(row))
    groups = rows_by(usable_rows, attrgetter(*_RULE_COLUMNS)).values()
    return [rule for members in groups for rule in _rules_by_size(members)]


def _is_usable(row: Row) -> bool:
    usual = (
        find_operation(row.operation).has_nccl_algorithms
        and row.pattern == "flat"
        and row.backend in NCCL_BACKENDS
    )
    return (
        usual and row.status == "ok" and row.time_us is not None and row.message_bytes is not None
    )


def _rules_by_size(rows: Sequence[Row]) -> list[Rule]:
    by_size = rows_by(rows, lambda row: row.message_bytes or 0)
    sizes = sorted(by_size)
    middles = [(below + above) // 2 for below, above in itertools.pairwise(sizes)]
    ranges = zip(
        [sizes[0], *(middle + 1 for middle in middles)], [*middles, sizes[-1]], strict=True
    )
    choices = [
        (*ends, _best_choice(by_size[size])) for ends, size in zip(ranges, sizes, strict=True)
    ]
    rules = []
    for choice, members in itertools.groupby(choices, key=lambda part: part[2]):
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


def _best_choice(rows: Sequence[Row]) -> Choice | None:
    """Return the choice whose smallest gain over NCCL's own choice is largest, at one size.

    None without one.
    """
    shares: defaultdict[Choice, list[float]] = defaultdict(list)
    for comparable_rows in rows_by(rows, attrgetter(*_CONDITIONS)).values():
        own_choice_row = next((row for row in comparable_rows if not row.algorithm_requested), None)
        for row in comparable_rows:
            choice = _measured_choice(row)
            if row.algorithm_requested and choice is not None:
                shares[choice].append(_share(row, own_choice_row))
    largest_shares = {
        choice: max(members) for choice, members in shares.items() if max(members) < 1
    }
    return min(largest_shares, key=lambda choice: largest_shares[choice], default=None)


def _share(row: Row, own_choice_row: Row | None) -> float:
    """Return the largest ratio of the row's time to the time of NCCL's own choice within both
    intervals.
    """
    if (
        own_choice_row is None
        or own_choice_row.time_us_ci_low is None
        or row.time_us_ci_high is None
    ):
        return math.inf
    return row.time_us_ci_high / own_choice_row.time_us_ci_low


def _measured_choice(row: Row) -> Choice | None:
    """Return the choice that ran; None if the row states it in part only, or if launches differ."""
    try:
        choice = Choice.parse(row.algorithm or "auto")
    except InputError:
        return None
    return choice if choice.algorithm and choice.protocol and choice.channels else None
