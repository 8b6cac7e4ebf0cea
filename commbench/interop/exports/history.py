"""A history of runs: a CSV file that grows by a line for each case of each run, and its form for
Apache Otava.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from commbench.errors import InputError
from commbench.interop.exports.common import Labels, case_labels, dated_s, training_labels
from commbench.interop.exports.otava import FOLDER_SUFFIX, write_otava
from commbench.results import Run
from commbench.results.files import refusing, replace_file, sign_lock, take_lock
from commbench.results.tables import csv_text, table_csv
from commbench.units import counted

if TYPE_CHECKING:
    from pandas import DataFrame

SUFFIX = ".csv"


@dataclass(frozen=True, kw_only=True)
class Line:
    """The time of one case in one run."""

    time: str
    """When the run began, in UTC."""
    run: str
    """Name of the run's directory."""
    version: str
    """Of commbench."""
    git_commit: str
    library: str
    """The library that carried the case; empty for training."""
    transport: str
    """Empty for training."""
    case: str
    """What was measured; equal from run to run."""
    launches: int
    time_us: float
    """As in ``collectives.csv``; for training, that of a step."""
    time_us_ci_low: float | None
    time_us_ci_high: float | None


COLUMNS = tuple(field.name for field in fields(Line))
#: Columns that identify a run: directories of two machines can have one name.
_RUN = ["time", "run"]


def write_history(runs: Sequence[Run], out: Path | None) -> str:
    """Add runs to a history, write the history for Otava beside it, and return both destinations.

    The lines of a run that the history has already are replaced, so that no run counts twice. Lines
    are sorted by time, because Otava reads a series in the order of its file.

    Args:
        runs: the runs to add.
        out: the history, a file whose name ends in ``.csv``. It is made if it does not exist.

    Raises:
        InputError: there is no file name, the file has other columns or cannot be written, or a run
            cannot be added.
    """
    if out is None or out.suffix != SUFFIX:
        asked = f"--out {out} is not" if out else "--format history needs"
        raise InputError(
            f"{asked} a file NAME{SUFFIX} that grows from run to run; give --out history{SUFFIX}."
        )
    added = _table(csv_text([line for run in runs for line in _lines_of(run)], COLUMNS))
    folder = out.with_suffix(FOLDER_SUFFIX)
    with refusing(out, InputError):
        read_history(out)  # refuses a foreign file before anything is made
        folder.mkdir(exist_ok=True)
        with _locked(folder):
            history = merged(read_history(out), added)
            replace_file(out, table_csv(history))
            write_otava(history, folder)
    return (
        f"{out} ({counted(_run_count(history), 'run')},"
        f" {counted(history['case'].nunique(), 'case')}), {folder}"
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other exports from the history; two at the same time would lose the lines of one."""
    lock = take_lock(folder)
    try:
        sign_lock(lock)
        yield
    finally:
        os.close(lock)


def read_history(file: Path) -> DataFrame:
    """Return the lines of a history as texts; none if the file does not exist or is empty.

    Raises:
        InputError: the file is no history.
    """
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        return _table(text or csv_text([], COLUMNS))
    except (ValueError, csv.Error) as error:
        columns = ", ".join(COLUMNS)
        raise InputError(
            f"--out {file} is no history of commbench, whose columns are {columns}; choose another"
            " file."
        ) from error


def merged(history: DataFrame, added: DataFrame) -> DataFrame:
    """Return both, sorted by time, without the lines of the history whose run was added."""
    import pandas as pd

    is_replaced = pd.MultiIndex.from_frame(history[_RUN]).isin(
        pd.MultiIndex.from_frame(added[_RUN])
    )
    both = pd.concat([history[~is_replaced], added]).drop_duplicates([*_RUN, "case"], keep="last")
    return both.sort_values("time", kind="stable", ignore_index=True)


def _table(text: str) -> DataFrame:
    """Return the cells of a history as texts.

    Raises:
        ValueError: a line has other cells than a history.
        csv.Error: a cell is too long to be one of a history.
    """
    import pandas as pd

    header, *lines = csv.reader(io.StringIO(text))
    if tuple(header) != COLUMNS or any(len(line) != len(COLUMNS) for line in lines):
        raise ValueError
    return pd.DataFrame(lines, columns=list(COLUMNS), dtype=object)


def _run_count(history: DataFrame) -> int:
    return len(history[_RUN].drop_duplicates())


def _lines_of(run: Run) -> list[Line]:
    """Return a line for each case with a sound time.

    Raises:
        InputError: the run has none, or does not state when it began.
    """
    began_s = dated_s(run.info)
    if began_s is None:
        raise InputError(
            f"Run {run.name} does not state when it began, which orders a history; leave it out."
        )
    time = datetime.fromtimestamp(began_s, tz=timezone.utc).isoformat(timespec="seconds")
    lines = [*_of_collectives(run, time), *_of_training(run, time)]
    if not lines:
        raise InputError(f"Run {run.name} has no case with a time; leave it out of the history.")
    return lines


def _of_collectives(run: Run, time: str) -> Iterator[Line]:
    for row, labels in zip(run.rows, case_labels(run.rows), strict=True):
        if row.status == "ok" and row.time_us is not None:
            yield Line(
                **_run_fields(run, time),
                library=row.library,
                transport=row.transport,
                case=collective_name(labels),
                launches=row.launches or 0,
                time_us=row.time_us,
                time_us_ci_low=row.time_us_ci_low,
                time_us_ci_high=row.time_us_ci_high,
            )


def _of_training(run: Run, time: str) -> Iterator[Line]:
    for row in run.training_rows:
        if row.status == "ok" and row.step_ms is not None:
            times_ms = (row.step_ms, row.step_ms_ci_low, row.step_ms_ci_high)
            time_us, low_us, high_us = (None if ms is None else 1e3 * ms for ms in times_ms)
            yield Line(
                **_run_fields(run, time),
                library="",
                transport="",
                case=training_name(training_labels(row)),
                launches=row.launches or 0,
                time_us=time_us or 0.0,
                time_us_ci_low=low_us,
                time_us_ci_high=high_us,
            )


def _run_fields(run: Run, time: str) -> dict[str, str]:
    versions = (run.info.get("environment") or {}).get("versions") or {}
    return {
        "time": time,
        "run": run.info.get("run_id") or run.name,
        "version": str(versions.get("commbench") or ""),
        "git_commit": run.info.get("git_commit") or "",
    }


def collective_name(labels: Labels) -> str:
    """Return the name of a case, such as ``mpi all_reduce 1024 B, 2 ranks, float32``."""
    pattern = "" if labels["pattern"] == "flat" else labels["pattern"]
    size = "" if labels["message_bytes"] in {"", "0"} else f"{labels['message_bytes']} B"
    head = " ".join(
        filter(None, [labels["backend"], labels["operation"], pattern, labels["group"], size])
    )
    return ", ".join(
        filter(None, [head, f"{labels['ranks']} ranks", labels["dtype"], labels["variant"]])
    )


def training_name(labels: Labels) -> str:
    """Return the name of a configuration, such as ``mlp gloo none, default buckets, 2 ranks, batch
    32, fp32``.
    """
    head = (
        f"{labels['workload']} {labels['backend']} {labels['hook']}, {labels['bucket_cap_mb']}"
        " buckets"
    )
    steps = "" if labels["accumulation"] in {"", "1"} else f"accumulation {labels['accumulation']}"
    tail = [
        f"{labels['ranks']} ranks",
        f"batch {labels['batch_per_rank']}",
        labels["precision"],
        steps,
    ]
    return ", ".join(filter(None, [head, *tail, labels["variant"]]))
