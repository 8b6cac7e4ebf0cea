"""Rows of any table of a run as the text of a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from commbench.escapes import cell_text
from commbench.records import COLUMNS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


#: Columns of free text, whose white space is made one.
_WORDS = frozenset({"reason", "case"})


def csv_text(rows: Iterable[DataclassInstance], columns: Sequence[str] = COLUMNS) -> str:
    """The rows as the text of a CSV file: header row, ``.`` decimals, empty where a column does not apply.

    Args:
        rows: dataclasses whose fields are among ``columns``; the others stay empty.
        columns: the header, also of a table without rows.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(name, getattr(row, name, None)) for name in columns] for row in rows)
    return stream.getvalue()


def columns_text(tables: Iterable[Mapping[str, Iterable[object]]], columns: Sequence[str]) -> str:
    """As `csv_text`, of tables by column instead of by row: for very many rows.

    Args:
        tables: each with the values of every one of ``columns``, in that order.
        columns: the header.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for table in tables:
        cells = [map(_cell, repeat(name), values) for name, values in table.items()]
        writer.writerows(zip(*cells, strict=True))
    return stream.getvalue()


def _cell(name: str, value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(f"{value:.6g}"))
    if not isinstance(value, str):
        return str(value)
    return cell_text(" ".join(value.split()) if name in _WORDS else value)
