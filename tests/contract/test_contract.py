"""Tests that rows of kept runs equal their own files, and that decisions, option names, exit codes
and printed texts equal their record.

``record.py`` writes it again after a deliberate change.
"""

import json
from pathlib import Path

import observe
import pandas as pd
import pytest
from kept import KEPT_RUNS

from commbench.results import load_run

#: Tables that are not made from samples alone.
OTHER_TABLES = {"losses.csv", "timeline.csv", "drift.csv", "events.csv"}
EXIT_CODES = json.loads((observe.RECORDED / "exit_codes.json").read_text())


def assert_equal(recorded: Path, table: pd.DataFrame) -> None:
    """Assert that a table has the columns of a file in its order, the same texts, and the same
    numbers up to the last bits.

    Columns that are newer than the file are left out.
    """
    before = pd.read_csv(recorded)
    columns = [name for name in table if name in before]
    pd.testing.assert_frame_equal(before, table[columns], rtol=1e-9, check_dtype=False)


@pytest.mark.kept
@pytest.mark.parametrize("path", KEPT_RUNS, ids=lambda path: path.name)
def test_a_kept_run_is_read_as_its_files_say(path: Path) -> None:
    """Make each table again from the samples, and no other; decide again as it is recorded."""
    run = load_run(path)
    tables = observe.tables_of(run)
    for name, table in tables.items():
        assert_equal(path / name, table)
    for file in path.glob("*.csv"):
        is_made = file.name in tables
        assert is_made or file.name in OTHER_TABLES or pd.read_csv(file).empty
    if path.name in observe.DECIDED:
        recorded = observe.RECORDED / "decisions" / f"{path.name}.csv"
        assert_equal(recorded, observe.decision_of(run))


def test_options_are_as_recorded() -> None:
    """Offer the same commands and options."""
    assert json.loads((observe.RECORDED / "options.json").read_text()) == observe.options()


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("line", EXIT_CODES)
def test_exit_codes_are_as_recorded(line: str) -> None:
    """Refuse bad input with one sentence on stderr, nothing on stdout, and the same code."""
    pytest.importorskip("mpi4py")  # else every measuring command ends with that sentence
    code, out, err = observe.run(line)
    assert (EXIT_CODES[line], "") == (code, out), err
    assert err.strip()
    assert "Traceback" not in err


@pytest.mark.parametrize("file", observe.PRINTED)
def test_printed_texts_are_as_recorded(file: str) -> None:
    """Print the same text for each kind of output."""
    pytest.importorskip("mpi4py")  # as above
    assert (observe.RECORDED / "printed" / file).read_text() == observe.run(observe.PRINTED[file])[
        1
    ]
