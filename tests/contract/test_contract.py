"""Tests that rows, option names, exit codes and printed texts equal their record.

``record.py`` writes it again after a deliberate change.
"""

import json
from pathlib import Path

import observe
import pandas as pd
import pytest

ROWS = observe.RECORDED / "rows"
TABLES = sorted(ROWS.rglob("*.csv"))
EXIT_CODES = json.loads((observe.RECORDED / "exit_codes.json").read_text())


@pytest.mark.kept
@pytest.mark.parametrize("file", TABLES, ids=lambda file: str(file.relative_to(ROWS)))
def test_rows_of_a_kept_run_are_as_recorded(file: Path) -> None:
    """Have the same columns in the same order, the same texts, and numbers up to the last bits."""
    table = observe.tables_of(file.parent.name)[file.name]
    pd.testing.assert_frame_equal(pd.read_csv(file), table, rtol=1e-9, check_dtype=False)


@pytest.mark.kept
def test_kept_runs_have_the_recorded_tables() -> None:
    """Fill no table that is not recorded."""
    names = {ROWS / run / file for run in observe.RUNS for file in observe.tables_of(run)}
    assert set(TABLES) == names


def test_options_are_as_recorded() -> None:
    """Offer the same commands and options."""
    assert json.loads((observe.RECORDED / "options.json").read_text()) == observe.options()


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
