"""The commands ``import`` and ``export``."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from commbench.analysis.expectations import judge, read_expectations
from commbench.cli.options import Expect, LinkRate
from commbench.cli.request import default_out
from commbench.cli.terminal import make_console
from commbench.collectives.datatypes import DTYPES, find_dtype
from commbench.collectives.operations import find_operation
from commbench.engine.records import Record
from commbench.errors import InputError, WrongDataError, check_choice
from commbench.fields import join_names
from commbench.interop.exports import EXPORTS, write_openmetrics
from commbench.interop.imports import TOOLS, Imported, ImportOptions, Source, import_outputs
from commbench.interop.imports.param import PARAM_BACKENDS
from commbench.launch.tables import write_tables
from commbench.results import Store, load_run
from commbench.results.files import encode
from commbench.schema import MOST_RANKS
from commbench.units import counted


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", show_default=False, help="A run directory.")
    ],
    style: Annotated[
        str, typer.Option("--format", metavar="FORM", help=f"One of {join_names(EXPORTS)}.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help=(
                "Where to: openmetrics a file NAME.prom, parquet, tensorboard and wandb a"
                " directory, each by default in RUN; "
                "mlflow an SQLite file, by default what MLFLOW_TRACKING_URI says; nccl-tuner a"
                " file, by default in RUN."
            ),
        ),
    ] = None,
    expect: Expect = None,
    link: LinkRate = "",
) -> int:
    """Export a run to the formats of other tools.

    To Prometheus, data frames, TensorBoard, MLflow, Weights & Biases and NCCL. Needs neither
    torch nor MPI.

    With --expect the metrics for Prometheus say which expectations the run meets, as commbench
    check does.
    """
    check_choice("format", style, EXPORTS)
    if expect and style != "openmetrics":
        raise InputError(f"--expect works only with --format openmetrics, not with {style}.")
    if link and not expect:
        raise InputError(f"--link {link} works only with --expect; add an expectation.")
    loaded = load_run(run)
    destination: Path | str
    if expect:
        answers = judge(loaded, read_expectations(expect), link)
        destination = write_openmetrics(loaded, out, answers)
    else:
        destination = EXPORTS[style](loaded, out)
    make_console().print(f"Written: {destination}", markup=False, soft_wrap=True)
    return 0


STDIN = "-"


def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help=f"Outputs of other tools; {STDIN} is standard input."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="RUN", help="Directory for the run; by default one below results."
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--ranks",
            metavar="RANKS",
            help="Number of ranks, if the output does not state it.",
        ),
    ] = None,
    tool: Annotated[
        str | None,
        typer.Option(
            "--tool",
            metavar="NAME",
            help=f"The tool; by default detected from the content: {join_names(TOOLS)}.",
        ),
    ] = None,
    operation: Annotated[
        str | None,
        typer.Option(
            "--operation",
            metavar="NAME",
            help="Operation, if the output does not state it (old nccl-tests).",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="NAME",
            help=f"Element type, if the output does not state it: {join_names(DTYPES)}.",
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            metavar="NAME",
            help=f"Backend of PARAM's output: {join_names(PARAM_BACKENDS)}.",
        ),
    ] = None,
) -> int:
    """Import output of nccl-tests, OSU, IMB or PARAM.

    It becomes a run, for report, compare and predict. The same case in several files counts as
    several launches, which give an interval.
    """
    options = ImportOptions(ranks=ranks, operation=operation, dtype=dtype, backend=backend)
    _check_options(options)
    sources = [_read_source(file) for file in files]
    imported = import_outputs(sources, tool=tool, options=options)
    path = out or default_out("import")
    rows = _write(path, imported, sources)
    _print_import(imported, rows, path, make_console())
    is_row_wrong = any(record.status == "wrong" for record in imported.records)
    if is_row_wrong or any(reading.wrong for _, reading in imported.readings):
        return WrongDataError.exit_code
    return 0


def _check_options(options: ImportOptions) -> None:
    if options.ranks is not None and not 1 <= options.ranks <= MOST_RANKS:
        raise InputError(f"-n {options.ranks} is no number of ranks; give 1 or more.")
    if options.operation is not None:
        find_operation(options.operation)
    if options.dtype is not None:
        find_dtype(options.dtype)
    if options.backend is not None:
        check_choice("backend", options.backend, PARAM_BACKENDS)


def _read_source(file: str) -> Source:
    if file == STDIN:
        return Source(name=STDIN, data=sys.stdin.buffer.read())
    path = Path(file)
    if path.is_dir():
        raise InputError(
            f"{path} is a directory; name the files in it (a run of commbench needs no import)."
        )
    try:
        return Source(name=file, data=path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}); name another file."
        ) from error


def _write(path: Path, imported: Imported, sources: Sequence[Source]) -> int:
    """Write the run, or complete an interrupted import; return the number of rows."""
    header = {
        "suite": "import",
        "argv": ["commbench", *sys.argv[1:]],
        "imported_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "plan": {
            "imported": sorted(source.sha256 for source in sources),
            "records": len(imported.records),
            "measurements": _digest(imported.records),
        },
        "status": "running",
        **imported.info,
    }
    with Store.open(path, header) as store:
        stored = {(record.case.key, record.launch) for record in store.records}
        for record in imported.records:
            if (record.case.key, record.launch) not in stored:
                store.append(record)
        store.update(status="complete")
        return len(write_tables(store))


def _digest(records: Iterable[Record]) -> str:
    """Return the SHA-256 of the outputs and of the options that affect how they are read."""
    return hashlib.sha256(
        "\n".join(encode(record.to_json()) for record in records).encode()
    ).hexdigest()


def _print_import(imported: Imported, rows: int, path: Path, console: Console) -> None:
    """Print the imported measurements, the assumptions, and the parts that were left out, with
    reasons.
    """
    for tool, reading in imported.readings:
        version = f" {reading.version.removeprefix('OSU ')}" if reading.version else ""
        measurements = counted(len(reading.records), "measurement")
        console.print(f"{reading.name}: {measurements} of {tool.title}{version}.", soft_wrap=True)
    _list(
        console,
        "Assumed: ",
        dict.fromkeys(text for _, reading in imported.readings for text in reading.assumed),
    )
    for _, reading in imported.readings:
        texts = (
            f"{text}{f' ({times} times)' if times > 1 else ''}"
            for text, times in reading.left_out.items()
        )
        _list(console, f"Not imported of {reading.name}: ", texts)
    launches = {record.launch for record in imported.records}
    if len(launches) == 1:
        console.print(
            "Each case has one launch, so there are no intervals; import several outputs of it to"
            " get them."
        )
    wrong = sum(record.status == "wrong" for record in imported.records)
    remarks = [imported.remark, *(reading.wrong for _, reading in imported.readings)]
    _list(console, "! ", filter(None, remarks))
    if wrong:
        console.print(f"! {counted(wrong, 'measurement')} of wrong data: without bandwidths.")
    console.print(f"Results: {path} ({counted(rows, 'row')})", soft_wrap=True)


def _list(console: Console, head: str, sentences: Iterable[str]) -> None:
    for sentence in sentences:
        console.print(f"{head}{sentence}.", soft_wrap=True)
