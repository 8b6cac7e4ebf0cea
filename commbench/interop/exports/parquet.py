"""A run's tables, and every single repetition and step, as Parquet files for data frames and SQL."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from commbench.collectives.cases import Case
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import BucketRow, TrainingRow
from commbench.engine.records import OverlapRow, Row
from commbench.errors import InputError
from commbench.interop.exports.common import needed
from commbench.results import Run
from commbench.results.files import refusing
from commbench.results.info import RunInfo
from commbench.results.pairs import PairRow
from commbench.tuner.accuracy import PredictionRow, predictions

FOLDER = "parquet"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table by column, whatever will hold it."""

    name: str
    """Of the file, without its ending."""
    types: Mapping[str, type]
    """Of each column: str, int, float or bool; every value may be None."""
    about: Mapping[str, str]
    """What a column is, where that is stated."""
    columns: Mapping[str, Sequence[object]]


def write_parquet(run: Run, out: Path | None = None) -> Path:
    """Write one file for each table that the run has, and return their directory.

    The columns are those of the CSV files, with types, what they are, and no rounding; ``repetitions`` and ``steps``
    hold the samples. What ``run.json`` says is in the metadata of each file under ``commbench``.

    Args:
        run: what to tell of.
        out: the directory; by default ``parquet`` in the run's own.

    Raises:
        InputError: pyarrow is not installed, or the directory cannot be written.
    """
    parquet = needed("pyarrow.parquet", package="pyarrow", style="parquet")
    folder = out or run.path / FOLDER
    with refusing(folder, InputError):
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables_of(run):
            temporary = folder / f".{table.name}.tmp"
            parquet.write_table(_arrow(table, run.info), temporary)
            temporary.replace(folder / f"{table.name}.parquet")
    return folder


def _arrow(table: Table, info: RunInfo) -> Any:  # noqa: ANN401 - pyarrow's
    arrow = needed("pyarrow", package="pyarrow", style="parquet")
    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    fields = [
        arrow.field(name, kinds[kind], metadata={"about": table.about.get(name, "")})
        for name, kind in table.types.items()
    ]
    schema = arrow.schema(fields, metadata={"commbench": json.dumps(info, default=str)})
    return arrow.table(dict(table.columns), schema=schema)


def tables_of(run: Run) -> list[Table]:
    """The tables that a run has any line of."""
    made = [
        _of_rows("collectives", Row, run.rows),
        _of_rows("overlap", OverlapRow, run.overlaps),
        _of_rows("pairs", PairRow, run.pair_rows),
        _of_rows("ddp", TrainingRow, run.training_rows),
        _of_rows("buckets", BucketRow, run.bucket_rows),
        _of_rows("predictions", PredictionRow, predictions(run)),
        _of_samples(
            *("repetitions", "repetition", "time_us", Case),
            [(record.case, record.launch, record.times_us) for record in run.records],
        ),
        _of_samples(
            *("steps", "step", "step_ms", TrainingCase),
            [(record.case, record.launch, record.step_ms) for record in run.training_records],
        ),
    ]
    return [table for table in made if any(len(values) for values in table.columns.values())]


def _of_rows(name: str, kind: type[Any], rows: Sequence[object]) -> Table:
    types = column_types(kind)
    return Table(
        name=name,
        types=types,
        about={field.name: field.metadata.get("about", "") for field in dataclasses.fields(kind)},
        columns={column: [getattr(row, column) for row in rows] for column in types},
    )


def _of_samples(
    name: str, count: str, value: str, kind: type[Any], records: Iterable[tuple[Any, int, Sequence[float]]]
) -> Table:
    """One line a sample: the case, the launch, its number within that, its value."""
    types = {**column_types(kind), "launch": int, count: int, value: float}
    columns: dict[str, list[object]] = {column: [] for column in types}
    for case, launch, values in records:
        for column, stated in dataclasses.asdict(case).items():
            columns[column] += [stated] * len(values)
        columns["launch"] += [launch] * len(values)
        columns[count] += range(len(values))
        columns[value] += values
    return Table(name=name, types=types, about={}, columns=columns)


def column_types(kind: type[Any]) -> dict[str, type]:
    """The type of each field of a row, without None."""
    return {
        name: next((part for part in get_args(hint) if part is not type(None)), hint)
        for name, hint in get_type_hints(kind).items()
    }
