"""The commands ``import`` and ``export``."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from commbench.analysis.expectations import judge, read_expectations
from commbench.cli.command_line import takes_options
from commbench.cli.options import Expect, LinkRate, opt
from commbench.cli.request import default_out
from commbench.cli.terminal import make_console
from commbench.errors import InputError, WrongDataError, check_choice
from commbench.fields import check_choices, join_names
from commbench.interop.exports import EXPORTS, write_openmetrics
from commbench.interop.imports.gathering import TOOLS, Imported, Source, import_outputs
from commbench.interop.imports.reading import ImportOptions
from commbench.launch.tables import write_tables
from commbench.results import Store, load_run
from commbench.results.files import encode, refusing
from commbench.units import counted, utc_now


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", show_default=False, help="A run directory.")
    ],
    style: Annotated[str, opt("--format", f"One of {join_names(EXPORTS)}.", "FORM")],
    out: Annotated[
        Path | None,
        opt(
            "--out",
            (
                "Where to: openmetrics a file NAME.prom, parquet, tensorboard and wandb a"
                " directory, each by default in RUN; "
                "mlflow an SQLite file, by default what MLFLOW_TRACKING_URI says; nccl-tuner a"
                " file, by default in RUN."
            ),
            "PATH",
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
    if style != "openmetrics" and not loaded.rows and not loaded.training_rows:
        # Prometheus alerts on runs that are not complete.
        raise InputError(
            f"Run {loaded.name} has no rows to export as {style}: nothing has been measured yet."
        )
    destination: Path | str
    if expect:
        answers = judge(loaded, read_expectations(expect), link)
        destination = write_openmetrics(loaded, out, answers)
    else:
        destination = EXPORTS[style](loaded, out)
    make_console().print(f"Written: {destination}", soft_wrap=True)
    return 0


STDIN = "-"


@takes_options
def import_(
    *,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help=f"Outputs of other tools; {STDIN} is standard input."
        ),
    ],
    out: Annotated[
        Path | None,
        opt("--out", "Directory for the run; by default one below results.", "RUN"),
    ] = None,
    tool: Annotated[
        str | None,
        opt(
            "--tool",
            f"The tool; by default detected from the content: {join_names(TOOLS)}.",
            "NAME",
        ),
    ] = None,
    options: ImportOptions,
) -> int:
    """Import output of nccl-tests, OSU, IMB or PARAM.

    It becomes a run, for report, compare and predict. The same case in several files counts as
    several launches, which give an interval.
    """
    check_choices(options)
    sources = [_read_source(file) for file in files]
    imported = import_outputs(sources, tool=tool, options=options)
    path = out or default_out("import")
    rows = _write(path, imported, sources)
    _print_import(imported, rows, path, make_console())
    is_row_wrong = any(record.status == "wrong" for record in imported.records)
    if is_row_wrong or any(reading.wrong for reading in imported.readings):
        return WrongDataError.exit_code
    return 0


def _read_source(file: str) -> Source:
    if file == STDIN:
        return Source(name=STDIN, data=sys.stdin.buffer.read())
    with refusing(Path(file), InputError):
        return Source(name=file, data=Path(file).read_bytes())


def _write(path: Path, imported: Imported, sources: Sequence[Source]) -> int:
    """Write the run, or complete an interrupted import; return the number of rows."""
    measured = "\n".join(encode(record.to_json()) for record in imported.records)
    header = {
        "suite": "import",
        "argv": ["commbench", *sys.argv[1:]],
        "imported_at": utc_now(),
        "plan": {
            "imported": sorted(source.sha256 for source in sources),
            "records": len(imported.records),
            "measurements": hashlib.sha256(measured.encode()).hexdigest(),
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
        write_tables(store)
        return len(store.run.rows)


def _print_import(imported: Imported, rows: int, path: Path, console: Console) -> None:
    """Print the imported measurements, the assumptions, and the parts that were left out, with
    reasons.
    """
    lines = []
    assumed: dict[str, None] = {}
    left_out = []
    remarks = []
    for reading in imported.readings:
        version = reading.version.removeprefix("OSU ")
        measurements = counted(len(reading.records), "measurement")
        lines.append(f"{reading.name}: {measurements} of {f'{reading.tool} {version}'.strip()}.")
        assumed |= reading.assumed
        for text, times in reading.left_out.items():
            repeated = f" ({times} times)" if times > 1 else ""
            left_out.append(f"Not imported of {reading.name}: {text}{repeated}.")
        remarks.append(reading.wrong)
    lines += [f"Assumed: {text}." for text in assumed]
    lines += left_out
    if len({record.launch for record in imported.records}) == 1:
        lines.append(
            "Each case has one launch, so there are no intervals; import several outputs of it to"
            " get them."
        )
    lines += [f"! {remark}." for remark in filter(None, remarks)]
    wrong = sum(record.status == "wrong" for record in imported.records)
    if wrong:
        lines.append(f"! {counted(wrong, 'measurement')} of wrong data: without bandwidths.")
    lines.append(f"Results: {path} ({counted(rows, 'row')})")
    for line in lines:
        console.print(line, soft_wrap=True)
