"""The columns of the CSV files and the flags, with the meaning of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commbench.analysis.soak.rows import DriftRow, EventRow, TimelineRow
from commbench.ddp.plan.records import BucketRow, TrainingRow
from commbench.engine.flags import FLAGS
from commbench.engine.records import OverlapRow, Row, about, columns_of
from commbench.errors import InputError
from commbench.report.comparison import COMPARISON_COLUMNS
from commbench.results.pairs import PairRow


def _meanings(row_class: type[Any]) -> dict[str, str]:
    """Return the columns of a table of such rows, with the meaning of each."""
    return {name: about(row_class, name) for name in columns_of(row_class)}


#: The columns of each CSV file, with their meanings; ``compare`` is what the command prints.
TABLES: Mapping[str, Mapping[str, str]] = {
    "collectives": _meanings(Row),
    "overlap": _meanings(OverlapRow),
    "pairs": _meanings(PairRow),
    "timeline": _meanings(TimelineRow),
    "events": _meanings(EventRow),
    "drift": _meanings(DriftRow),
    "ddp": _meanings(TrainingRow),
    "buckets": _meanings(BucketRow),
    "compare": COMPARISON_COLUMNS,
}


def column_meanings() -> dict[tuple[str, str], list[str]]:
    """Return the files that have each column in each of its meanings."""
    files: dict[tuple[str, str], list[str]] = {}
    first_meaning: dict[str, str] = {}
    for file, columns in TABLES.items():
        for name, stated in columns.items():
            meaning = stated
            if stated.startswith("as in "):
                meaning = first_meaning[name]
            first_meaning.setdefault(name, meaning)
            files.setdefault((name, meaning), []).append(file)
    return files


def explain(name: str) -> list[str]:
    """Return what a flag, its mark or a column means, a line for each meaning.

    Raises:
        InputError: there is neither a flag nor a column of this name.
    """
    lines = []
    for flag in FLAGS.values():
        if name in {flag.name, flag.mark}:
            lines.append(f"{flag.name}, flag {flag.mark}: {flag.description}")
    for (column, meaning), files in column_meanings().items():
        if column == name:
            lines.append(f"{column}, column of {', '.join(files)}: {meaning}")
    if not lines:
        raise InputError(f"{name!r} is neither a flag nor a column; docs/columns.md lists them.")
    return lines
