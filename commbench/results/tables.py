"""Rows of any table as CSV text; text from outside is sanitized: control characters become visible, formulas become text."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING
from commbench.engine.records import COLUMNS


#: Control characters, and those that turn the direction of what follows; a new line is left to who lays out lines.
_HIDDEN = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)
_VISIBLE = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _HIDDEN if code != ord("\n")}  # noqa: PLR2004 - a byte
_ONE_LINE = _VISIBLE | {ord("\n"): "\\n"}
#: A spreadsheet runs a cell that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """The text with control characters, such as a terminal obeys, written as escapes; new lines stay."""
    return text.translate(_VISIBLE)


def one_line(text: str) -> str:
    """As `visible`, with new lines as escapes, too."""
    return text.translate(_ONE_LINE)


def cell_text(text: str) -> str:
    """The text as a cell of a CSV file: behind an apostrophe where a spreadsheet would run it as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


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
