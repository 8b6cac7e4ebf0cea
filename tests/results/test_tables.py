"""Tests of rows as CSV."""

import csv
import io

import pandas as pd
import pytest
from builders import STEADY, make_case, make_launches
from fields import fields_of
from kept import RESULTS
from pages import make_run

from commbench.ddp.plan.records import BucketRow, TrainingRow
from commbench.engine.records import OverlapRow, Row, columns_of
from commbench.results.pairs import PairRow
from commbench.results.tables import column_dtypes, table_csv, table_of

# DESIGN's order; a change of it is a change of the schema.


def read_csv(rows: list[Row]) -> list[dict[str, str]]:
    """Return the cells of the rows' CSV text by column."""
    return list(csv.DictReader(io.StringIO(table_csv(table_of(Row, rows)))))


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("in_place", True, "true"),
        ("in_place", False, "false"),
        ("in_place", None, ""),
        ("time_us", 12.0, "12.0"),
        ("time_us", 0.1234567, "0.123457"),
        ("time_us", 1234567.8, "1234570.0"),
        ("time_us", float("nan"), ""),
        ("message_bytes", 2**40, "1099511627776"),
        ("reason", "=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("reason", "-1 came back", "'-1 came back"),
        ("reason", ' one\nline, "quoted"', 'one line, "quoted"'),
        ("transport", "-", "'-"),
        ("transport", "@tcp", "'@tcp"),
        ("transport", "+1", "'+1"),
        ("transport", "\t1", "'\t1"),
        ("skew_us", -1.5, "-1.5"),
    ],
)
def test_cells_are_plain(column, value, expected):
    """Write booleans, numbers and texts in plain form."""
    (line,) = read_csv([Row(**{column: value})])
    assert expected == line[column]


ROW_CLASSES = {
    "collectives": Row,
    "overlap": OverlapRow,
    "pairs": PairRow,
    "ddp": TrainingRow,
    "buckets": BucketRow,
}


@pytest.mark.parametrize("name", ROW_CLASSES)
def test_tables_without_rows_have_typed_columns(name):
    """Give every DataFrame column a nullable type, also without rows."""
    table = getattr(make_run(), name)
    assert list(columns_of(ROW_CLASSES[name])) == list(table.columns)
    assert {str(dtype) for dtype in table.dtypes} <= {"Int64", "Float64", "boolean", "string"}
    assert "Int64" == str(table.dtypes["schema"])


def test_table_holds_what_its_rows_hold():
    """Keep numbers unrounded, and use NA for missing values."""
    run = make_run([*make_launches(STEADY), *make_launches([1 / 3] * 6, make_case("barrier"))])
    table = run.collectives
    assert fields_of(run.rows, "time_us") == table["time_us"].tolist()
    assert {"barrier": True, "all_reduce": False} == dict(
        zip(table["operation"], table["message_bytes"].isna(), strict=True)
    )
    assert "Float64" == str(table.groupby("operation")["time_us"].median().dtype)


KEPT_TABLES = {
    "bench_xeon2core_20261128": ("collectives", "ddp", "buckets"),
    "matrix_slow_host_xeon2core_20261128": ("pairs",),
}


@pytest.mark.parametrize(
    ("run", "name"), [(run, name) for run, names in KEPT_TABLES.items() for name in names]
)
def test_csv_reads_back_with_its_types(run, name):
    """Write identical bytes after reading a CSV file with the documented types."""
    text = (RESULTS / run / f"{name}.csv").read_text(encoding="utf-8")
    dtypes = column_dtypes(ROW_CLASSES[name])
    read = pd.read_csv(io.StringIO(text), dtype=dtypes, keep_default_na=False, na_values=[""])
    assert text == table_csv(read)
