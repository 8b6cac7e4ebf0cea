"""What commbench does now: rows of kept runs, option names, exit codes, printed texts."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from commbench.results import Run
from commbench.results.tables import table_csv
from commbench.tuner.conclusion import recommend

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).resolve().parent / "recorded"
#: A decision of each kind.
DECIDED = (
    "bench_xeon2core_20261125",
    "live_trainer_300mbit_xeon2core_20261127",
    "train_resnet18_1gbit_xeon2core_20261125",
    "tune_resnet18_batch1_1gbit_xeon2core_20261127",
)
LINKS = "repo/results/links_1gbit_xeon2core_20261125"
MATRIX = "repo/results/matrix_slow_host_xeon2core_20261125"
PAIR = "repo/tests/data/pair"
#: A command line of each kind of output, by the name of its record.
PRINTED = {
    "help.txt": "--help",
    "report.csv": f"report {LINKS} --format csv",
    "report_osu.txt": f"report {LINKS} --format osu",
    "report_nccl_tests.txt": f"report {LINKS} --format nccl-tests",
    "matrix.txt": f"report {MATRIX} --format csv",
    "compare.txt": f"compare {PAIR}/monday {PAIR}/friday",
    "compare.json": f"compare {PAIR}/monday {PAIR}/friday --format json",
    "import.txt": "import repo/tests/data/imports/imb.txt --out theirs",
    "dry_run.txt": "run -c all_reduce --backend mpi -n 2 -b 8 -e 32 -f 4 --dry-run",
}
#: Variables that would make this process a rank of a launch.
RANK_PREFIXES = ("OMPI_COMM_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "PBS_")
#: Width of the terminal.
COLUMNS = 100


def tables_of(run: Run) -> dict[str, pd.DataFrame]:
    """Return each table of a run that has rows, as its CSV file is read, by file name."""
    tables = {
        "collectives.csv": run.collectives,
        "pairs.csv": run.pairs,
        "ddp.csv": run.ddp,
        "buckets.csv": run.buckets,
    }
    return {
        name: pd.read_csv(io.StringIO(table_csv(table)))
        for name, table in tables.items()
        if len(table)
    }


def decision_of(run: Run) -> pd.DataFrame:
    """Return the decision of a run, made again: a table of one row, as a CSV file is read."""
    decision = recommend(run.training_records, run.info).to_json()
    text = pd.DataFrame([dict(_leaves(decision))]).to_csv(index=False)
    return pd.read_csv(io.StringIO(text))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf of a document with its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{place}")
    else:
        yield path, value


def options() -> dict[str, list[str]]:
    """Return the spellings of the options of each command."""
    import typer.main

    from commbench import cli

    def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
        yield " ".join(words), command
        for name, inner in getattr(command, "commands", {}).items():
            yield from commands(inner, (*words, name))

    return {
        words or "commbench": sorted(
            spelling
            for parameter in command.params
            if parameter.param_type_name == "option"
            for spelling in (*parameter.opts, *parameter.secondary_opts)
        )
        for words, command in commands(typer.main.get_command(cli.app))
    }


def run(line: str) -> tuple[int, str, str]:
    """Run a command line in a directory of its own, within this process.

    The directory holds ``foreign/thesis.txt``, ``bad.py``, ``text.txt`` and ``repo``, which leads
    to this repository. The user is no root, the machine has two slots.

    Returns:
        The exit code, and what was printed on stdout and stderr.
    """
    from commbench import cli

    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    code: object = 0
    with (
        tempfile.TemporaryDirectory() as name,
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
    ):
        home = Path(name).resolve()
        (home / "foreign").mkdir()
        (home / "foreign" / "thesis.txt").write_text("not ours")
        (home / "bad.py").write_text("SUITE = 1 / 0")
        (home / "text.txt").write_text("no output of a tool\n")
        (home / "repo").symlink_to(REPOSITORY)
        for variable in os.environ.copy():
            if variable.startswith(RANK_PREFIXES):
                patch.delenv(variable)
        for variable, value in (("COLUMNS", str(COLUMNS)), ("TERM", "dumb"), ("NO_COLOR", "1")):
            patch.setenv(variable, value)
        patch.chdir(home)
        patch.setattr("commbench.launch.launchers.hosts.local_cpus", lambda: 2)
        patch.setattr("socket.gethostname", lambda: "HOST")
        patch.setattr(os, "geteuid", lambda: 1000)
        patch.setattr(sys, "argv", ["commbench", *shlex.split(line)])
        # click reads the name of the program there
        patch.setattr(sys.modules["__main__"], "__package__", None)
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
    texts = []
    for stream in streams:
        stream.seek(0)
        texts.append(stream.read().replace(str(home), "HOME").replace(str(REPOSITORY), "REPO"))
    return int(str(code or 0)), texts[0], texts[1]
