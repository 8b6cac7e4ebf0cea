"""Tests of straggler detection on an emulated cluster of four hosts."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from fields import fields_of
from launching import records_from_lab

from commbench.analysis.stragglers import straggler_findings
from commbench.engine.records import Record
from commbench.results import load_run

pytestmark = [pytest.mark.lab, pytest.mark.mpi, pytest.mark.slow, pytest.mark.usefixtures("forks")]

#: A window of such messages is large beside what an emulated link lets through unshaped.
MATRIX = [
    "matrix",
    "-c",
    "bandwidth",
    "--backend",
    "mpi",
    "--sizes",
    "8K",
    "-n",
    "4",
    "--launches",
    "6",
]


def stragglers_of(out: Path, *lab: str) -> Sequence[tuple[str, str, float]]:
    """Measure the matrix in a lab of four hosts; return type, name and factor of each straggler."""
    records = records_from_lab(
        out, *MATRIX, lab=("--hosts", "4", "--rate", "100mbit", *lab), timeout_s=280
    )
    assert ["ok"] * 6 == [record.status for record in records if isinstance(record, Record)]
    found = straggler_findings(load_run(out)).stragglers
    return fields_of(found, "kind", "name", "factor.value")


def test_host_at_a_quarter_of_the_rate_is_named(tmp_path):
    """Name exactly the host at a quarter of the link rate, with its factor."""
    ((kind, name, factor),) = stragglers_of(tmp_path / "r", "--slow", "host2=25mbit")
    assert ("host", "host2") == (kind, name)
    assert 2.5 < factor < 5.5


def test_equal_hosts_are_left_alone(tmp_path):
    """Name no straggler if all links have the same rate."""
    assert [] == stragglers_of(tmp_path / "r")
