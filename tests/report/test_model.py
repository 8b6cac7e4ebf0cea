"""Tests of the model in a run's files and in print."""

import io
import json
import re
from pathlib import Path

from builders import KIB, MIB, make_case, make_info
from commands import Command
from laws import SIZES, sweep
from rich.console import Console

from commbench.analysis.prediction.network import NetworkModel, network_model
from commbench.launch.tables import write_tables
from commbench.report.model import render_model
from commbench.results import MODEL, Store, load_run


def printed(model: NetworkModel) -> str:
    """Return the table as printed to a terminal of 120 characters."""
    console = Console(file=io.StringIO(), width=120)
    console.print(render_model(model))
    return console.file.getvalue()  # type: ignore[attr-defined] - it is the StringIO given


def make_run(path: Path, sizes: tuple[int, ...] = SIZES) -> Path:
    """Write a closed run."""
    with Store.open(path, make_info()) as store:
        for record in sweep(sizes=sizes):
            store.append(record)
        write_tables(store)
    return path


def test_the_model_is_written_where_sizes_suffice(tmp_path: Path) -> None:
    """Write the fitted model, and nothing for two sizes."""
    path = make_run(tmp_path / "mine")
    written = json.loads((path / MODEL).read_text())
    assert json.loads(json.dumps(network_model(load_run(path)).to_json())) == written
    assert 1 == len(written["curves"])
    few = make_run(tmp_path / "few", (KIB, MIB))
    assert not (few / MODEL).exists()
    assert {} == network_model(load_run(few)).curves


def test_table_shows_lines_and_errors() -> None:
    """Print each line's latency and rate, and a curve's errors and variants."""
    text = printed(NetworkModel.fit(sweep()))
    (line,) = (line for line in text.splitlines() if line.startswith("all_reduce"))
    words = ["all_reduce", "mpi", "float32", "2", "1", "KiB", "1", "MiB", "20.0", "us"]
    assert words == line.split()[:10]
    start_up, rate = re.findall(r"\[([0-9.]+), ([0-9.]+)\]", line)
    assert 19 < float(start_up[0]) <= 20 <= float(start_up[1]) < 21
    assert 0.95 < float(rate[0]) <= 1 <= float(rate[1]) < 1.05
    assert 2 == line.count("%")
    odd = printed(NetworkModel.fit(sweep(make_case(in_place=False, pattern="ring"))))
    assert "all_reduce ring" in odd
    assert "mpi all_reduce of float32 on 2 ranks, pattern ring: measured out of place." in odd
    assert "needs 3 message sizes" in printed(NetworkModel.fit([]))


def test_report_prints_the_model(commbench: Command) -> None:
    """Print one line below the rows, and the table on request."""
    make_run(commbench.home / "mine")
    assert "1 curve" in commbench("report mine").out
    shown = commbench("report mine --model").out
    assert "start-up" in shown
    assert "Results:" not in shown
