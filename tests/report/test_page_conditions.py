"""Tests of what a page says about a run's conditions and files."""

from pathlib import Path

import pytest

from commbench.report.page.conditions import files_tables
from commbench.results import load_run

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("theme", ["soak_200mbit", "bench", "live_trainer_300mbit"])
def test_a_page_lists_every_file_of_a_run(theme: str) -> None:
    """Name all files of a kept run, with what each holds."""
    [path] = RESULTS.glob(f"{theme}_xeon2core_*")
    (table,) = files_tables([load_run(path)], beside=True)
    listed = {line[0].text for line in table.lines}
    assert {file.name for file in path.iterdir() if file.is_file()} <= listed
