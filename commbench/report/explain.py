"""The columns of the CSV files and the flags, with the meaning of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from commbench.analysis.soak.rows import DriftRow, EventRow, TimelineRow
from commbench.ddp.plan.records import BucketRow, TrainingRow
from commbench.engine.flags import FLAGS
from commbench.engine.records import OverlapRow, Row
from commbench.errors import InputError
from commbench.report.comparison.formats import ComparisonRow
from commbench.results.pairs import PairRow
from commbench.results.tables import column_dtypes

#: The class of the rows of each CSV file; ``compare`` is what the command prints.
TABLES: Mapping[str, type[Any]] = MappingProxyType(
    {
        "collectives": Row,
        "overlap": OverlapRow,
        "pairs": PairRow,
        "timeline": TimelineRow,
        "events": EventRow,
        "drift": DriftRow,
        "ddp": TrainingRow,
        "buckets": BucketRow,
        "compare": ComparisonRow,
    }
)


def column_meanings() -> dict[tuple[str, str], list[str]]:
    """Return the files that have each column in each of its meanings."""
    files: dict[tuple[str, str], list[str]] = {}
    first_meaning: dict[str, str] = {}
    for file, row in TABLES.items():
        texts = {each.name: each.metadata.get("about") for each in dataclasses.fields(row)}
        for name in column_dtypes(row):
            meaning = texts[name] or "schema number"
            if meaning.startswith("as in "):
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
