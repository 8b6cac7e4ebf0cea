"""Rows as DataFrames and as CSV text; sanitizes text from outside."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args, get_type_hints

from commbench.engine.records import columns_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pandas import DataFrame

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
#: Values of a row, by column.
Columns: TypeAlias = dict[str, Any]

#: Start of the line that marks output of commbench in another tool's format.
PRINTED_BY_COMMBENCH = "Printed by commbench in the format of"
#: What such a line says of the means of ``run --as``; without it the times in nccl-tests' format
#: are medians of the slowest rank.
MEANS_PRINTED = "times are means over repetitions and ranks"

#: Control characters, and those that turn the direction of what follows; new lines stay.
_HIDDEN = (
    *range(32),
    *range(127, 160),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    0x2028,
    0x2029,
)
_VISIBLE = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"  # a byte
    for code in _HIDDEN
    if code != ord("\n")
}
_ONE_LINE = _VISIBLE | {ord("\n"): "\\n"}
#: A spreadsheet runs a cell that begins with one of these as a formula, unless an apostrophe leads.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """Return the text with control characters as escapes, so that a terminal does not obey them.

    New lines stay.
    """
    return text.translate(_VISIBLE)


def one_line(text: str) -> str:
    """Return the text with control characters and new lines as escapes."""
    return text.translate(_ONE_LINE)


#: Columns of free text, where each run of white space becomes one space.
_FREE_TEXT = frozenset({"reason", "case"})
#: The pandas type of each annotated type; each holds NA where a column does not apply. Texts such
#: as operations are no categories: concatenating tables whose versions register unlike operations
#: would turn categories into plain texts.
_DTYPES = {int: "Int64", float: "Float64", bool: "boolean", str: "string[python]"}


def column_dtypes(row_class: type[Any]) -> dict[str, str]:
    """Return the pandas type of each column of a row's dataclass: Int64, Float64, boolean or
    string[python].
    """
    hints = get_type_hints(row_class)
    dtypes = {}
    for name in columns_of(row_class):
        kind, *_ = get_args(hints[name]) or [hints[name]]  # of X | None, X
        dtypes[name] = _DTYPES[kind]
    return dtypes


def table_of(row_class: type[Any], rows: Iterable[DataclassInstance]) -> DataFrame:
    """Return rows as a DataFrame with the columns of ``row_class`` and the types of
    `column_dtypes`.

    A number that does not apply is NA, a text that does not apply is empty.
    """
    import pandas as pd

    rows = list(rows)
    dtypes = column_dtypes(row_class)
    columns = {name: [getattr(row, name) for row in rows] for name in dtypes}
    return pd.DataFrame(columns, dtype=object).astype(dtypes)


def rows_of(table: DataFrame) -> Iterable[Any]:
    """Return the rows of a table as named tuples, with None for NA."""
    return table.astype(object).where(table.notna(), None).itertuples(index=False, name="Row")


def rows_by(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return typed rows by their key, in the order of the first row of each group."""
    groups: dict[K, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def rows_csv(rows: Iterable[Mapping[str, Any]], columns: Collection[str]) -> str:
    """Return rows, each a value by column, as the text of a CSV file."""
    return _csv(columns, (map(row.get, columns) for row in rows))


def table_csv(table: DataFrame) -> str:
    """Return a table as the text of a CSV file, with empty cells for NA."""
    return _csv(list(table.columns), rows_of(table))


def _csv(columns: Collection[str], lines: Iterable[Iterable[object]]) -> str:
    """Return the text of a CSV file: header row, ``.`` decimals, six digits."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for line in lines:
        writer.writerow(map(_cell, columns, line))
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
    if name in _FREE_TEXT:
        value = " ".join(value.split())
    if value.startswith(_FORMULA):
        return f"'{value}"
    return value
