"""Tests of printing matrices."""

import io
from typing import Any

import pytest
from builders import make_case
from matrices import make_hosts, make_matrix, touching, without
from pages import make_run
from rich.console import Console

from commbench.cli.presentation import print_run
from commbench.results import Run


def matrix_run(hosts: int, ranks_per_host: int = 1, **rule: Any) -> Run:
    """Return a run of one matrix."""
    records = make_matrix(hosts, ranks_per_host, **rule)
    return make_run(records, **make_hosts(hosts, ranks_per_host))


def printed(run: Run, width: int = 300) -> str:
    """Return a run's printed text as in a log, with each sentence on one line."""
    stream = io.StringIO()
    print_run(run, "table", Console(file=stream, width=width, highlight=False, color_system=None))
    return stream.getvalue()


@pytest.mark.parametrize(("hosts", "slow", "pairs"), [(4, 6, 12), (12, 10, 132)])
def test_the_slowest_pairs_are_shown(hosts, slow, pairs):
    """Print the slowest pairs with their factors."""
    text = printed(matrix_run(hosts, noise=0.001, host_slowness=touching(2, 4.0)))
    assert f"The slowest 10 of {pairs} pairs" in text
    found = [line for line in text.splitlines() if " host3 " in line and " 4.00" in line]
    assert slow == len(found)


@pytest.mark.parametrize("operation", ["latency", "bandwidth"])
def test_tables_fit_100_columns(operation):
    """Leave out columns beside long names instead of cutting them."""
    case = make_case(operation, pattern="matrix", message_bytes=8)
    info = make_hosts(10, 1)
    for rank in info["ranks"]:
        rank["host"] = f"node-{rank['host']}.cluster"
    records = make_matrix(10, 1, noise=0.001, case=case, host_slowness=touching(2, 20.0))
    text = printed(make_run(records, **info), width=100)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert "No space for p95" in text


@pytest.mark.parametrize("hosts", [4, 12])
def test_untimed_pairs_are_said(hosts):
    """State the number of untimed pairs."""
    last = hosts - 1
    pairs = [pair for rank in range(last) for pair in ((rank, last), (last, rank))]
    records = without(make_matrix(hosts, noise=0.001), *pairs, group_size=hosts)
    text = printed(make_run(records, **make_hosts(hosts)))
    assert f"{2 * last} of {hosts * last} pairs of ranks could not be timed: " in text
    assert "could not be timed" not in printed(matrix_run(hosts))
