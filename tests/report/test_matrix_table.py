"""Tests of printing matrices."""

import io
from typing import Any

import pytest
from builders import make_case
from matrices import make_hosts, make_matrix, sending, touching, without
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


def line_of(text: str, name: str) -> list[str]:
    """Return the cells of the table line that starts with a name."""
    line = next(line.split() for line in text.splitlines() if line.startswith(f"{name} "))
    return line[1:]


def test_hosts_stand_by_hosts_with_the_slow_marked():
    """Print bandwidth from row to column between hosts, slow links marked."""
    text = printed(matrix_run(4, noise=0.001, host_slowness=touching(2, 4.0)))
    assert "mpi bandwidth 1 MiB, matrix: GB/s from row to column (6 launches)" in text
    assert ["-", "10.5", "2.62*", "10.5"] == line_of(text, "host1")
    assert ["2.62*", "2.62*", "-", "2.62*"] == line_of(text, "host3")
    assert "* slow because of a straggler named below" in text


def test_one_way_is_marked_one_way():
    """Mark only what a slow sender sends."""
    text = printed(matrix_run(4, noise=0.001, host_slowness=sending(0, 4.0)))
    assert ["-", "2.62*", "2.62*", "2.62*"] == line_of(text, "host1")
    assert ["10.5", "-", "10.5", "10.5"] == line_of(text, "host2")


def test_ranks_stand_by_ranks_on_one_host():
    """Print ranks for one host, and times for latency."""
    case = make_case("latency", pattern="matrix", message_bytes=8)
    text = printed(matrix_run(1, 4, noise=0.001, case=case))
    assert "mpi latency 8 B, matrix: time in us from row to column (6 launches)" in text
    assert "30.0" in line_of(text, "rank 1")
    assert "*" not in text


@pytest.mark.parametrize(
    ("operation", "hosts"), [("latency", 1), ("bandwidth", 3), ("latency", 10), ("bandwidth", 10)]
)
def test_tables_fit_100_columns(hosts, operation):
    """Number the columns of long names instead of cutting them."""
    case = make_case(operation, pattern="matrix", message_bytes=8)
    ranks = 10 if hosts == 1 else 1
    info = make_hosts(hosts, ranks)
    for rank in info["ranks"]:
        rank["host"] = f"node-{rank['host']}.cluster"
    records = make_matrix(hosts, ranks, noise=0.001, case=case, host_slowness=touching(2, 20.0))
    text = printed(make_run(records, **info), width=100)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    lines = text.splitlines()
    (place,) = [place for place, line in enumerate(lines) if "from row to column" in line]
    expected = {
        1: " ".join(f"rank {rank}" for rank in range(10)),
        3: " ".join(f"node-host{host}.cluster" for host in (1, 2, 3)),
        10: " ".join(str(number) for number in range(1, 11)),
    }
    assert expected[hosts].split() == lines[place + 1].split()
    assert ("time in us" if operation == "latency" else "kB/s") in text


def test_of_many_the_slowest_pairs_are_shown():
    """Print the slowest pairs of twelve hosts with their factors."""
    text = printed(matrix_run(12, noise=0.001, host_slowness=touching(6, 4.0)))
    assert "The slowest 10 of 132 pairs" in text
    assert 10 == len([line for line in text.splitlines() if " host7 " in line and " 4.00" in line])


def test_ranks_of_hosts_stand_by_themselves():
    """Print ranks where a host has several, each with its host, which may be named as slow."""
    text = printed(matrix_run(3, 2, noise=0.001))
    assert ["on", "host1", "-", "35.0", "10.5"] == line_of(text, "rank 0")[1:6]
    assert ["on", "host3"] == line_of(text, "rank 5")[1:3]


@pytest.mark.parametrize("hosts", [4, 12])
def test_untimed_pairs_are_said(hosts):
    """State the number of untimed pairs, and print no time for them."""
    last = hosts - 1
    pairs = [pair for rank in range(last) for pair in ((rank, last), (last, rank))]
    records = without(make_matrix(hosts, noise=0.001), *pairs, group_size=hosts)
    text = printed(make_run(records, **make_hosts(hosts)))
    assert f"{2 * last} of {hosts * last} pairs of ranks could not be timed: " in text
    if hosts == 4:
        assert ["-", "-", "-", "-"] == line_of(text, "host4")
    assert "could not be timed" not in printed(matrix_run(hosts))
