"""A run's tables, and every repetition and step, as Parquet files for data frames and SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.collectives.cases import Case
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import BucketRow, TrainingRow
from commbench.engine.records import OverlapRow, Row, about
from commbench.errors import InputError
from commbench.interop.exports.common import import_optional
from commbench.results import Run
from commbench.results.files import refusing
from commbench.results.pairs import PairRow
from commbench.results.tables import table_of

if TYPE_CHECKING:
    from pandas import DataFrame

FOLDER = "parquet"
#: The class of the rows of each table of a `Run`, whose fields document the columns.
ROW_CLASSES: dict[str, type[Any]] = {
    "collectives": Row,
    "overlap": OverlapRow,
    "pairs": PairRow,
    "ddp": TrainingRow,
    "buckets": BucketRow,
}


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
    arrow = import_optional("pyarrow")
    parquet = import_optional("pyarrow.parquet")
    folder = out or run.path / FOLDER
    info = json.dumps(run.info, default=str)
    with refusing(folder, InputError):
        folder.mkdir(parents=True, exist_ok=True)
        for name, frame in tables_of(run).items():
            table = arrow.Table.from_pandas(frame, preserve_index=False)
            fields = []
            for field in table.schema:
                meaning = ""
                if name in ROW_CLASSES:
                    meaning = about(ROW_CLASSES[name], field.name)
                fields.append(field.with_metadata({"about": meaning}))
            schema = arrow.schema(fields, {**table.schema.metadata, "commbench": info})
            temporary = folder / f".{name}.tmp"
            parquet.write_table(table.cast(schema), temporary)
            temporary.replace(folder / f"{name}.parquet")
    return folder


def tables_of(run: Run) -> dict[str, DataFrame]:
    """Return the tables of a run that have at least one row, by name."""
    tables: dict[str, DataFrame] = {name: getattr(run, name) for name in ROW_CLASSES}
    tables["repetitions"] = _samples(Case, run.records, "times_us", "repetition", "time_us")
    tables["steps"] = _samples(TrainingCase, run.training_records, "step_ms", "step", "step_ms")
    return {name: table for name, table in tables.items() if len(table)}


def _samples(
    case_class: type[Any], records: Sequence[Any], field: str, number: str, value: str
) -> DataFrame:
    """Return a table with a line for each sample of a field: case, launch, number and value."""
    records = [record for record in records if len(getattr(record, field))]
    table = table_of(case_class, [record.case for record in records])
    table["launch"] = [record.launch for record in records]
    table[value] = [list(getattr(record, field)) for record in records]
    table = table.explode(value)
    table.insert(len(table.columns) - 1, number, table.groupby(level=0).cumcount())
    table = table.reset_index(drop=True)
    return table.astype({"launch": "Int64", number: "Int64", value: "Float64"})
