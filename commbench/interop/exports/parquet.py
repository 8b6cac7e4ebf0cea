"""A run's tables, and every repetition and step, as Parquet files for data frames and SQL."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.collectives.cases import Case
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import BucketRow, TrainingRow
from commbench.engine.records import OverlapRow, Row
from commbench.errors import InputError
from commbench.interop.exports.common import import_optional
from commbench.results import Run
from commbench.results.files import refusing
from commbench.results.info import RunInfo
from commbench.results.pairs import PairRow
from commbench.results.tables import column_dtypes, table_of_columns
from commbench.tuner.predictions import PredictionRow, prediction_table

if TYPE_CHECKING:
    from pandas import DataFrame

FOLDER = "parquet"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a run."""

    name: str
    """The name of its file, without the ending."""
    frame: DataFrame
    about: Mapping[str, str]
    """The documentation of each column that has some."""


def write_parquet(run: Run, out: Path | None = None) -> Path:
    """Write one file for each table that the run has, and return their directory.

    The columns are those of the CSV files, with types, documentation and no rounding. The tables
    ``repetitions`` and ``steps`` hold the samples. The metadata of each file hold the contents of
    ``run.json`` under ``commbench``.

    Args:
        run: the run to export.
        out: the directory; by default ``parquet`` in the run's directory.

    Raises:
        InputError: pyarrow is not installed, or the directory cannot be written.
    """
    parquet = import_optional("pyarrow.parquet", package="pyarrow", style="parquet")
    folder = out or run.path / FOLDER
    with refusing(folder, InputError):
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables_of(run):
            temporary = folder / f".{table.name}.tmp"
            parquet.write_table(_arrow(table, run.info), temporary)
            temporary.replace(folder / f"{table.name}.parquet")
    return folder


def _arrow(table: Table, info: RunInfo) -> Any:  # noqa: ANN401 - pyarrow's
    arrow = import_optional("pyarrow", package="pyarrow", style="parquet")
    types = {
        "string": arrow.string(),
        "Int64": arrow.int64(),
        "Float64": arrow.float64(),
        "boolean": arrow.bool_(),
    }
    fields = [
        arrow.field(
            str(name), types[str(dtype)], metadata={"about": table.about.get(str(name), "")}
        )
        for name, dtype in table.frame.dtypes.items()
    ]
    schema = arrow.schema(fields, metadata={"commbench": json.dumps(info, default=str)})
    return arrow.Table.from_pandas(table.frame, schema=schema, preserve_index=False)


def tables_of(run: Run) -> list[Table]:
    """Return the tables of a run that have at least one row."""
    samples = [(record.case, record.launch, record.times_us) for record in run.records]
    steps = [(record.case, record.launch, record.step_ms) for record in run.training_records]
    tables = [
        _documented("collectives", run.collectives, Row),
        _documented("overlap", run.overlap, OverlapRow),
        _documented("pairs", run.pairs, PairRow),
        _documented("ddp", run.ddp, TrainingRow),
        _documented("buckets", run.buckets, BucketRow),
        _documented("predictions", prediction_table(run), PredictionRow),
        _samples("repetitions", ("repetition", "time_us"), Case, samples),
        _samples("steps", ("step", "step_ms"), TrainingCase, steps),
    ]
    return [table for table in tables if len(table.frame)]


def _documented(name: str, frame: DataFrame, row_class: type[Any]) -> Table:
    about = {field.name: field.metadata.get("about", "") for field in dataclasses.fields(row_class)}
    return Table(name=name, frame=frame, about=about)


def _samples(
    name: str,
    added: tuple[str, str],
    case_class: type[Any],
    records: Iterable[tuple[Any, int, Sequence[float]]],
) -> Table:
    """Return a table with a line for each sample: its case, its launch, and the columns ``added``:
    number and value.
    """
    number, value = added
    dtypes = {**column_dtypes(case_class), "launch": "Int64", number: "Int64", value: "Float64"}
    columns: dict[str, list[object]] = {column: [] for column in dtypes}
    for case, launch, values in records:
        for column, field_value in dataclasses.asdict(case).items():
            columns[column] += [field_value] * len(values)
        columns["launch"] += [launch] * len(values)
        columns[number] += range(len(values))
        columns[value] += values
    return Table(name=name, frame=table_of_columns(dtypes, columns), about={})
