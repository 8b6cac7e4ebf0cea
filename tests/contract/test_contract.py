"""Tests that rows of kept runs equal their own files, and that decisions, option names, refusals
and printed texts equal their record.

``record.py`` writes it again after a deliberate change.
"""

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from commands import COMMANDS
from kept import KEPT_RUNS
from places import ROOT

from commbench.results import load_run
from commbench.results.tables import table_csv
from commbench.tuner.conclusion import recommend

RECORDED = Path(__file__).parent / "recorded"
#: A variable: what is found is recorded.
RECORDS = "COMMBENCH_RECORDS"
#: A decision of each kind.
DECIDED = (
    "bench_xeon2core_20261128",
    "live_trainer_300mbit_xeon2core_20261128",
    "train_resnet18_1gbit_xeon2core_20261128",
    "tune_resnet18_batch1_1gbit_xeon2core_20261128",
)
#: Tables that are not made from samples alone.
OTHER_TABLES = {"losses.csv", "timeline.csv", "drift.csv", "events.csv"}
#: Written by hand: command lines of bad input, with words of the sentence.
REFUSALS = json.loads((RECORDED / "refusals.json").read_text())
LINKS = "repo/results/links_1gbit_xeon2core_20261128"
MATRIX = "repo/results/matrix_slow_host_xeon2core_20261128"
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


def assert_equal(text: str, recorded: Path) -> None:
    """Assert that a table as CSV has the columns of a file in its order, the same texts, and the
    same numbers up to the last bits.

    Columns that are newer than the file are left out.
    """
    before, table = pd.read_csv(recorded), pd.read_csv(io.StringIO(text))
    columns = [name for name in table if name in before]
    pd.testing.assert_frame_equal(before, table[columns], rtol=1e-9, check_dtype=False)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf of a document with its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{place}")
    else:
        yield path, value


@pytest.mark.kept
@pytest.mark.parametrize("path", KEPT_RUNS, ids=lambda path: path.name)
def test_a_kept_run_is_read_as_its_files_say(path):
    """Make each table again from the samples, and no other; decide again as it is recorded."""
    run = load_run(path)
    made = {
        "collectives.csv": run.collectives,
        "pairs.csv": run.pairs,
        "ddp.csv": run.ddp,
        "buckets.csv": run.buckets,
    }
    for name, table in made.items():
        if len(table):
            assert_equal(table_csv(table), path / name)
    for file in path.glob("*.csv"):
        is_made = len(made.get(file.name, ())) > 0
        assert is_made or file.name in OTHER_TABLES or pd.read_csv(file).empty
    if path.name in DECIDED:
        decision = dict(leaves(recommend(run.training_records, run.info).to_json()))
        text = pd.DataFrame([decision]).to_csv(index=False)
        recorded = RECORDED / "decisions" / f"{path.name}.csv"
        if RECORDS in os.environ:
            recorded.write_text(text)
        assert_equal(text, recorded)


def assert_recorded(text: str, recorded: Path) -> None:
    """Assert that a text equals its record."""
    if RECORDS in os.environ:
        recorded.write_text(text)
    assert recorded.read_text() == text


def test_options_are_as_recorded():
    """Offer the same commands and options."""
    options = {}
    commands = [("", COMMANDS)]
    for words, command in commands:
        for name, inner in getattr(command, "commands", {}).items():
            commands.append((f"{words} {name}".strip(), inner))
        spellings = []
        for parameter in command.params:
            if parameter.param_type_name == "option":
                spellings += [*parameter.opts, *parameter.secondary_opts]
        options[words or "commbench"] = sorted(spellings)
    text = json.dumps(options, indent=1) + "\n"
    assert_recorded(text, RECORDED / "options.json")


@pytest.fixture
def here(commbench, monkeypatch, stub):
    """Return the command of a user who is no root, on a terminal of 100 columns, beside this
    repository and a text.
    """
    (commbench.home / "text.txt").write_text("no output of a tool\n")
    (commbench.home / "repo").symlink_to(ROOT)
    for variable, value in {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(variable, value)
    stub("socket.gethostname", "HOST")
    stub("os.geteuid", 1000)
    # click reads the name of the program there
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)
    pytest.importorskip("mpi4py")  # else every measuring command ends with that sentence
    return commbench


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("line", REFUSALS)
def test_bad_input_is_refused(here, line):
    """Refuse bad input as it is recorded, and write nothing."""
    here.refuses(line, REFUSALS[line])


@pytest.mark.parametrize("file", PRINTED)
def test_printed_texts_are_as_recorded(here, file):
    """Print the same text for each kind of output."""
    text = here(PRINTED[file]).out.replace(str(here.home), "HOME").replace(str(ROOT), "REPO")
    assert_recorded(text, RECORDED / "printed" / file)
