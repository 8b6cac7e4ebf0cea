"""Tests of the command export, of missing packages, and of Parquet files."""

import builtins
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fields import fields_of
from kept import load_kept
from places import RESULTS

from commbench.ddp.plan.records import TrainingRow
from commbench.engine.records import Row, columns_of
from commbench.interop.exports import EXPORTS
from commbench.interop.exports.parquet import tables_of, write_parquet

BENCH = RESULTS / "bench_xeon2core_20261128"
MATRIX = RESULTS / "matrix_slow_host_xeon2core_20261128"
TRAINED = RESULTS / "train_hooks_1gbit_xeon2core_20261128"


@pytest.mark.parametrize(
    ("style", "package"),
    [
        ("parquet", "pyarrow"),
        ("tensorboard", "tensorboard"),
        ("mlflow", "mlflow"),
        ("wandb", "wandb"),
    ],
)
def test_a_missing_package_is_named_with_the_command(style, package, commbench, monkeypatch):
    """Refuse with the package to install, and write nothing."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # as if it could not be found
    line = f"export {MATRIX} --format {style} --out x"
    commbench.refuses(line, f"pip install {package}")


@pytest.mark.parametrize("style", EXPORTS)
def test_a_run_without_rows_is_refused(style, commbench, tmp_path):
    """Write nothing of a run that has measured nothing, but for metrics, which say so."""
    info = {"schema": 3, "run_id": "empty", "status": "partial"}
    (tmp_path / "run.json").write_text(json.dumps(info))
    (tmp_path / "samples.jsonl").touch()
    line = f"export {tmp_path} --format {style} --out x.prom"
    if style == "openmetrics":
        assert 0 == commbench(line).code
        assert "commbench_run_complete{" in Path("x.prom").read_text()
    else:
        commbench.refuses(line, "no rows")
        assert not Path("x.prom").exists()


def test_reading_for_an_export_imports_neither_torch_nor_mpi(commbench, monkeypatch):
    """Export metrics without torch, mpi4py and numba."""
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        assert name.split(".", maxsplit=1)[0] not in {"torch", "mpi4py", "numba"}, name
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert 0 == commbench(f"export {MATRIX} --format openmetrics --out a.prom").code


# ------------------------------------------------------------------------------------------ Parquet


def test_tables_have_the_columns_of_the_csv_files():
    """Give each table the columns of its CSV file, with types."""
    tables = tables_of(load_kept(BENCH.name))
    assert ["collectives", "ddp", "buckets", "repetitions", "steps"] == list(tables)
    assert columns_of(Row) == tuple(tables["collectives"])
    assert columns_of(TrainingRow) == tuple(tables["ddp"])
    types = {str(dtype) for table in tables.values() for dtype in table.dtypes}
    assert {"string", "Int64", "Float64", "boolean"} == types


def test_every_repetition_and_step_is_a_line():
    """Write one row per sample, with case and launch."""
    run = load_kept(BENCH.name)
    tables = tables_of(run)
    columns = ["operation", "launch", "repetition", "time_us"]
    expected = [
        (record.case.operation, record.launch, number, time_us)
        for record in run.records
        for number, time_us in enumerate(record.times_us)
    ]
    assert expected == list(tables["repetitions"][columns].itertuples(index=False, name=None))
    assert len(tables["steps"]) == sum(len(record.step_ms) for record in run.training_records)


@pytest.mark.parametrize("path", [TRAINED, MATRIX], ids=lambda path: path.name)
def test_parquet_reads_back(path, tmp_path):
    """Read every table back with types, values, column descriptions and conditions."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    run = dataclasses.replace(load_kept(path.name), path=tmp_path)
    folder = write_parquet(run)
    assert tmp_path / "parquet" == folder
    tables = tables_of(run)
    assert {f"{name}.parquet" for name in tables} == set(fields_of(folder.iterdir(), "name"))
    for name, table in tables.items():
        read = parquet.read_table(folder / f"{name}.parquet")
        values = table.astype(object).where(table.notna(), None)
        assert values.to_dict("list") == read.to_pydict()
        assert list(map(str, table.dtypes)) == list(map(str, read.to_pandas().dtypes))
        assert run.info == json.loads(read.schema.metadata[b"commbench"])


def test_parquet_documents_its_columns(tmp_path):
    """Write types and descriptions of columns."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    folder = write_parquet(load_kept(MATRIX.name), tmp_path)
    schema = parquet.read_table(folder / "collectives.parquet").schema
    assert b"ranks of the launch" == schema.field("world_size").metadata[b"about"]
    types = {"message_bytes": "int64", "in_place": "bool", "time_us": "double", "reason": "string"}
    assert types == {name: str(schema.field(name).type) for name in types}


def test_a_place_that_cannot_be_written_is_refused(commbench):
    """Refuse if a file is in the way."""
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    commbench.refuses(f"export {MATRIX} --format parquet --out bad.py", "bad.py")
