"""Tests of the model in a run's files and in print."""

import json
from pathlib import Path

from builders import KIB, MIB, make_case, make_info
from laws import SIZES, sweep
from terminals import line_with, printed
from training_builders import run_of

from commbench.analysis.prediction.network import network_model
from commbench.launch.tables import write_tables
from commbench.report.model import model_tables
from commbench.results import MODEL, Store, load_run


def make_run(path: Path, sizes: tuple[int, ...] = SIZES) -> Path:
    """Write a closed run."""
    with Store.open(path, make_info()) as store:
        for record in sweep(sizes=sizes):
            store.append(record)
        write_tables(store)
    return path


def test_the_model_is_written_where_sizes_suffice(tmp_path):
    """Write the fitted model, and nothing for two sizes."""
    path = make_run(tmp_path / "mine")
    written = json.loads((path / MODEL).read_text())
    assert json.loads(json.dumps(network_model(load_run(path)).to_json())) == written
    assert 1 == len(written["curves"])
    few = make_run(tmp_path / "few", (KIB, MIB))
    assert not (few / MODEL).exists()
    assert {} == network_model(load_run(few)).curves


def test_table_shows_lines_and_errors():
    """Print each line's start-up and rate with their intervals, and a curve's variants."""
    text = printed(*model_tables([run_of(sweep())]), width=120)
    words = line_with(text, "all_reduce").split()
    assert ["all_reduce", "mpi", "2", "1", "KiB", "1", "MiB", "20.0"] == words[:8]
    assert ["1.00"] == words[9:10]
    start_up, rate = (tuple(map(float, words[place].split("-"))) for place in (8, 10))
    assert 19 < start_up[0] <= 20 <= start_up[1] < 21
    assert 0.95 < rate[0] <= 1 <= rate[1] < 1.05
    odd = sweep(make_case(in_place=False, pattern="ring"))
    text = printed(*model_tables([run_of(odd)]), width=120)
    assert "mpi all_reduce of float32 on 2 ranks, pattern ring: measured out of place." in text


def test_report_prints_the_model(commbench):
    """Print one line below the rows, and the table on request."""
    make_run(commbench.home / "mine")
    assert "1 curve" in commbench("report mine").out
    shown = commbench("report mine --model").out
    assert "start-up" in shown
    assert "Results:" not in shown
    make_run(commbench.home / "few", (KIB, MIB))
    assert "needs 3 message sizes" in commbench("report few --model").out
