"""A run in which NCCL was asked for several algorithms, as the configuration of NCCL's example tuner plugin."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.algorithms import CHOOSING, Choice
from commbench.cases import DEVICE_BACKENDS
from commbench.errors import InputError
from commbench.records import Row
from commbench.store import Run

#: As the plugin reads them (NCCL, plugins/tuner/example, README); -1 is any, or as NCCL likes.
HEADING = (
    *("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels"),
    *("nNodes", "nRanks", "numPipeOps", "regBuff"),
)
#: Its names of algorithms, where ours are without underscores.
_NAMES = {"collnetdirect": "collnet_direct", "collnetchain": "collnet_chain", "nvlstree": "nvls_tree"}
_ANY = -1
FILE = "nccl_tuner.csv"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What carries an operation fastest from one message size to another."""

    operation: str
    least_bytes: int
    most_bytes: int
    choice: Choice
    nodes: int | None
    ranks: int | None

    @property
    def line(self) -> tuple[object, ...]:
        """As the plugin reads it."""
        algorithm = _NAMES.get(self.choice.algorithm, self.choice.algorithm)
        return (
            *(self.operation.replace("_", ""), self.least_bytes, self.most_bytes, algorithm, self.choice.protocol),
            *(self.choice.channels or _ANY, self.nodes or _ANY, self.ranks or _ANY, _ANY, _ANY),
        )


def write_nccl_tuner(run: Run, out: Path | None) -> Path:
    """Write the rules of a run to ``out``, by default a file in the run's directory.

    Raises:
        InputError: it shows no algorithm to be faster than NCCL's own choice.
    """
    rules = rules_of(run.whole_rows)
    if not rules:
        raise InputError(
            f"Run {run.name} shows no algorithm of NCCL to be faster than its own choice; measure several, e.g. "
            "commbench run collectives --backend nccl --algorithm auto,ring/ll,ring/simple,tree/ll,tree/simple."
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADING)
    writer.writerows(rule.line for rule in rules)
    path = out or run.path / FILE
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def rules_of(rows: Iterable[Row]) -> list[Rule]:
    """Where something asked for was surely faster than NCCL's own choice, which rules elsewhere.

    Surely: its interval lies wholly below that of ``auto`` at the same size. Between two sizes with the same choice it
    holds, too; between others up to the middle, and nothing is said of smaller and larger sizes than were measured.
    """
    counted = [row for row in rows if _counts(row)]
    curves = itertools.groupby(sorted(counted, key=_curve), key=_curve)
    return [rule for _, members in curves for rule in _rules_of_curve(list(members))]


def _counts(row: Row) -> bool:
    usual = row.operation in CHOOSING and row.pattern == "flat" and row.backend in DEVICE_BACKENDS
    return usual and row.status == "ok" and row.time_us is not None and row.message_bytes is not None


def _curve(row: Row) -> tuple[str, str, str, str, int, int]:
    plain = (row.backend, str(row.dtype), str(row.redop))
    return (row.operation, *plain, row.group_size or 0, row.nodes or 0)


def _rules_of_curve(rows: Sequence[Row]) -> list[Rule]:
    by_size: dict[int, list[Row]] = {}
    for row in rows:
        by_size.setdefault(row.message_bytes or 0, []).append(row)
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
    """The fastest of what was asked for, if it is surely faster than NCCL's own choice and known whole."""
    own = next((row for row in rows if not row.algorithm_requested), None)
    asked = [row for row in rows if row.algorithm_requested]
    if own is None or own.time_us_ci_low is None or not asked:
        return None
    best = min(asked, key=lambda row: row.time_us or 0.0)
    if best.time_us_ci_high is None or best.time_us_ci_high >= own.time_us_ci_low:
        return None
    wanted, ran = Choice.parse(best.algorithm_requested), _ran(best)
    whole = Choice(
        algorithm=wanted.algorithm or ran.algorithm,
        protocol=wanted.protocol or ran.protocol,
        channels=wanted.channels,
    )
    return whole if whole.algorithm and whole.protocol else None


def _ran(row: Row) -> Choice:
    """What the row says that ran; nothing where it does not, or where launches differ."""
    try:
        return Choice.parse(row.algorithm or "auto")
    except InputError:
        return Choice()
