"""The table of environments, for a terminal and for a page: the time under each over that under the
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commbench.analysis.env import EnvRatio, collective_envs, training_envs
from commbench.report.columns import (
    Column,
    Table,
    make_table,
    number,
    prefixes,
)
from commbench.report.formats import launches_of
from commbench.results import Run
from commbench.system.env import is_control
from commbench.words import thousandths


def _verdict(row: EnvRatio) -> str:
    return "control" if is_control(row.env) else str(row.comparison.verdict)


_COLUMNS: list[Column[EnvRatio]] = [
    Column("environment", "env"),
    Column(
        "time [CI]",
        "comparison.estimate",
        text_of=thousandths,
        about="over the time under the first environment: geometric mean over all cases",
    ),
    Column("verdict", _verdict),
    number("cases faster", "faster", text_of=str, about="of cases judged one by one"),
    number("slower", "slower", text_of=str),
    number("of", "cases", text_of=str),
]


def env_tables(runs: Sequence[Run], *, of_training: bool = False) -> Iterator[Table]:
    """Yield the table of environments of each run that varied any, over its collectives or its
    training.
    """
    compare = collective_envs
    if of_training:
        compare = training_envs
    for run, prefix in prefixes(runs):
        comparison = compare(run)
        if comparison is not None:
            rows = [(run.name, ratio) for ratio in comparison.ratios]
            notes = [str(comparison.finding)]
            launches = launches_of(comparison.ratios)
            what = f"time over that under {comparison.first}"
            title = f"{prefix}Environments: {what} ({launches} of each)"
            yield make_table(title, rows, _COLUMNS, notes=notes)
