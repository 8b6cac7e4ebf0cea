"""Tests of the command export, of missing packages, and of Parquet files."""

import builtins
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commbench import cli
from commbench.ddp.plan.records import DDP_COLUMNS
from commbench.engine.records import COLUMNS
from commbench.interop.exports import EXPORTS
from commbench.interop.exports.parquet import tables_of, write_parquet
from commbench.results import load_run

RESULTS = Path(__file__).parents[2] / "results"
BENCH, MATRIX = (
    RESULTS / "bench_xeon2core_20261125",
    RESULTS / "matrix_slow_host_xeon2core_20261125",
)
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return ``export(arguments)``, which runs the command and returns exit code, stdout and
    stderr.
    """

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["commbench", "export", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def test_the_command_says_where_it_wrote(export: Command, tmp_path: Path) -> None:
    """Write metrics to a file and print its path."""
    file = tmp_path / "nightly.prom"
    code, output, _ = export(MATRIX, "--format", "openmetrics", "--out", file)
    assert (0, f"Written: {file}\n") == (code, output)
    assert file.exists()


def test_an_unknown_format_is_refused(export: Command) -> None:
    """Refuse an unknown format, and list the valid ones."""
    code, _, complaint = export(MATRIX, "--format", "excel")
    assert 2 == code
    assert all(name in complaint for name in EXPORTS)


def test_no_run_no_export(export: Command, tmp_path: Path) -> None:
    """Refuse a directory without a run."""
    code, _, complaint = export(tmp_path, "--format", "openmetrics")
    assert (2, True) == (code, "holds no run" in complaint)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--format", "parquet", "--expect", "wrong = 0"), "--expect is of --format openmetrics"),
        (("--format", "openmetrics", "--link", "1gbit"), "--link 1gbit is of --expect"),
        (("--format", "openmetrics", "--expect", "wrong <= 0"), "wrong takes ="),
    ],
)
def test_what_a_form_does_not_take_is_refused(
    export: Command, words: tuple[object, ...], sentence: str
) -> None:
    """Refuse expectations for forms without them, and a rate without expectations."""
    code, output, complaint = export(MATRIX, *words)
    assert (2, "") == (code, output)
    assert sentence in complaint


@pytest.mark.parametrize("style", ["parquet", "tensorboard", "mlflow"])
def test_a_missing_package_is_named_with_the_command(
    style: str, export: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse in one sentence with the package to install, and write nothing."""
    package = {"parquet": "pyarrow"}.get(style, style)
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # as if it could not be found
    code, _, complaint = export(MATRIX, "--format", style, "--out", tmp_path / "x")
    assert 2 == code
    assert f"install it: pip install {package}" in complaint
    assert 1 == len(complaint.splitlines())
    assert [] == list(tmp_path.iterdir())


def test_reading_for_an_export_imports_neither_torch_nor_mpi(
    export: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Export metrics without torch, mpi4py and numba."""
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        assert name.split(".", maxsplit=1)[0] not in {"torch", "mpi4py", "numba"}, name
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert 0 == export(BENCH, "--format", "openmetrics", "--out", tmp_path / "a.prom")[0]


# ------------------------------------------------------------------------------------------ Parquet


def test_tables_have_the_columns_of_the_csv_files() -> None:
    """Give each table the columns of its CSV file, with types."""
    tables = {table.name: table for table in tables_of(load_run(BENCH))}
    assert ["collectives", "ddp", "buckets", "repetitions", "steps"] == list(tables)
    assert (COLUMNS, DDP_COLUMNS) == (
        tuple(tables["collectives"].frame),
        tuple(tables["ddp"].frame),
    )
    types = {str(dtype) for table in tables.values() for dtype in table.frame.dtypes}
    assert {"string", "Int64", "Float64", "boolean"} == types


def test_every_repetition_and_step_is_a_line() -> None:
    """Write one row per sample, with case and launch."""
    run = load_run(BENCH)
    tables = {table.name: table.frame for table in tables_of(run)}
    assert [time for record in run.records for time in record.times_us] == tables["repetitions"][
        "time_us"
    ].tolist()
    assert sum(len(record.step_ms) for record in run.training_records) == len(
        tables["steps"]["launch"]
    )
    first, count = run.records[0], len(run.records[0].times_us)
    lines = list(
        zip(
            *(tables["repetitions"][name] for name in ("operation", "launch", "repetition")),
            strict=True,
        )
    )
    assert [(first.case.operation, first.launch, number) for number in range(count)] == lines[
        :count
    ]


@pytest.mark.parametrize("path", [BENCH, MATRIX], ids=lambda path: path.name)
def test_parquet_reads_back(path: Path, tmp_path: Path) -> None:
    """Read every table back with types, values, column descriptions and conditions."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    run = load_run(path)
    folder = write_parquet(run, tmp_path / "tables")
    assert {f"{table.name}.parquet" for table in tables_of(run)} == {
        each.name for each in folder.iterdir()
    }
    for table in tables_of(run):
        read = parquet.read_table(folder / f"{table.name}.parquet")
        assert (
            table.frame.astype(object).where(table.frame.notna(), None).to_dict("list")
            == read.to_pydict()
        )
        assert list(map(str, table.frame.dtypes)) == list(map(str, read.to_pandas().dtypes))
        assert run.info == json.loads(read.schema.metadata[b"commbench"])
    rows = parquet.read_table(folder / "collectives.parquet")
    assert b"ranks of the launch" == rows.schema.field("world_size").metadata[b"about"]
    assert ("int64", "bool", "double", "string") == tuple(
        str(rows.schema.field(name).type)
        for name in ("message_bytes", "in_place", "time_us", "reason")
    )


def test_parquet_is_written_beside_the_run_by_default(tmp_path: Path) -> None:
    """Write the directory into the run by default."""
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    run = load_run(MATRIX)
    copy = type(run)(path=tmp_path, info=run.info, records=run.records)
    assert tmp_path / "parquet" == write_parquet(copy)
    assert len(copy.pairs) == 2 * 4 * 3


def test_a_place_that_cannot_be_written_is_refused(export: Command, tmp_path: Path) -> None:
    """Refuse in a sentence if a file is in the way."""
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    (tmp_path / "x").write_text("")
    code, _, complaint = export(MATRIX, "--format", "parquet", "--out", tmp_path / "x")
    assert (2, 1) == (code, len(complaint.splitlines()))
