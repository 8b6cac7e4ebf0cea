"""Tests of printing matrices and the sentence on stragglers."""

import io
from pathlib import Path
from typing import Any

import pytest
from builders import make_case, make_record
from matrices import crossing, make_hosts, make_matrix, sending, touching, without
from rich.console import Console

from commbench.analysis.runs import straggler_findings
from commbench.cli.presentation import print_run
from commbench.cli.terminal import make_console
from commbench.launch.tables import write_tables
from commbench.report.matrix import conclude
from commbench.results import Run, Store, load_run


def make_run(hosts: int, ranks_per_host: int = 1, **rule: Any) -> Run:
    """Return a run of one matrix."""
    records = make_matrix(hosts, ranks_per_host, **rule)
    return Run(path=Path("mine"), info=make_hosts(hosts, ranks_per_host), records=tuple(records))


def printed(run: Run, style: str = "table", width: int = 300) -> str:
    """Return a run's printed text as in a log, with each sentence on one line."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, color_system=None)
    print_run(run, style, console)
    return stream.getvalue()


def line_of(text: str, name: str) -> list[str]:
    """Return the cells of the table line that starts with a name."""
    (line,) = [line.split() for line in text.splitlines() if line.startswith(f"{name} ")]
    return line[1:]


def test_hosts_stand_by_hosts_with_the_slow_marked() -> None:
    """Print bandwidth from row to column between hosts, slow links marked."""
    text = printed(make_run(4, noise=0.001, host_slowness=touching(2, 4.0)))
    assert "mpi bandwidth 1 MiB, matrix: GB/s from row to column (6 launches)" in text
    assert ["-", "10.5", "2.62*", "10.5"] == line_of(text, "host1")
    assert ["2.62*", "2.62*", "-", "2.62*"] == line_of(text, "host3")
    assert "* slow because of a straggler named below" in text


def test_one_way_is_marked_one_way() -> None:
    """Mark only what a slow sender sends."""
    text = printed(make_run(4, noise=0.001, host_slowness=sending(0, 4.0)))
    assert ["-", "2.62*", "2.62*", "2.62*"] == line_of(text, "host1")
    assert ["10.5", "-", "10.5", "10.5"] == line_of(text, "host2")


def test_ranks_stand_by_ranks_on_one_host() -> None:
    """Print ranks for one host, and times for latency."""
    case = make_case("latency", pattern="matrix", message_bytes=8)
    text = printed(make_run(1, 4, noise=0.001, case=case))
    assert "mpi latency 8 B, matrix: time in us from row to column (6 launches)" in text
    assert "30.0" in line_of(text, "rank 1")
    assert "*" not in text


@pytest.mark.parametrize(
    ("operation", "hosts"), [("latency", 1), ("bandwidth", 3), ("latency", 10), ("bandwidth", 10)]
)
def test_tables_fit_100_columns(hosts: int, operation: str) -> None:
    """Number the columns of long names instead of cutting them."""
    case = make_case(operation, pattern="matrix", message_bytes=8)
    ranks = 10 if hosts == 1 else 1
    info = make_hosts(hosts, ranks)
    for rank in info["ranks"]:
        rank["host"] = f"node-{rank['host']}.cluster"
    records = make_matrix(hosts, ranks, noise=0.001, case=case, host_slowness=touching(2, 20.0))
    text = printed(Run(path=Path("mine"), info=info, records=tuple(records)), width=100)
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


def test_of_many_the_worst_are_shown() -> None:
    """Print the five slowest of twelve hosts with their factors."""
    text = printed(make_run(12, noise=0.001, host_slowness=touching(6, 4.0)))
    assert ["2.62*", "2.62*", "4.00"] == line_of(text, "host7")
    assert 5 == sum(line.startswith("host") for line in text.splitlines())


def test_ranks_of_hosts_are_put_together() -> None:
    """Print the median rank pair per host pair, within hosts on the diagonal."""
    text = printed(make_run(3, 2, noise=0.001))
    assert "(median pair of ranks, 6 launches)" in text
    assert ["35", "10.5", "10.5"] == line_of(text, "host1")


@pytest.mark.parametrize("hosts", [4, 12])
def test_untimed_pairs_are_said(hosts: int) -> None:
    """State the number of untimed pairs, and print no time for them."""
    last = hosts - 1
    pairs = [pair for rank in range(last) for pair in ((rank, last), (last, rank))]
    records = without(make_matrix(hosts, noise=0.001), *pairs, group_size=hosts)
    text = printed(Run(path=Path("mine"), info=make_hosts(hosts), records=tuple(records)))
    assert f"{2 * last} of {hosts * last} pairs of ranks could not be timed: " in text
    if hosts == 4:
        assert ["-", "-", "-", "-"] == line_of(text, "host4")
    assert "could not be timed" not in printed(make_run(hosts))


def test_results_are_named_with_their_pairs(tmp_path: Path) -> None:
    """Name pairs.csv beside collectives.csv if it exists."""
    with Store.open(tmp_path / "mine", make_hosts(3)) as store:
        store.append(make_record())
        write_tables(store)
        plain = printed(load_run(tmp_path / "mine"))
        for record in make_matrix(3):
            store.append(record)
        write_tables(store)
    table, pairs = (tmp_path / "mine" / name for name in ("collectives.csv", "pairs.csv"))
    assert f"Results: {table}\n" in plain
    assert f"Results: {table}, {pairs}\n" in printed(load_run(tmp_path / "mine"))


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (touching(2, 4.0), ["host3", "4 times", "mpi bandwidth 1 MiB"]),
        (crossing(2, 4.0), ["host1, host2", "host3, host4", "4 times"]),
    ],
)
def test_sentence_names_what_is_slow(rule: Any, names: list[str]) -> None:
    """Name the slow host or the hosts between which links are slow, factor and operation."""
    sentence = conclude(straggler_findings(make_run(4, noise=0.001, host_slowness=rule)))
    assert all(name in sentence for name in names)


def test_sentence_merges_what_shows_in_several_cases() -> None:
    """Name a host once that is slow on two backends."""
    records = [
        record
        for backend in ("mpi", "gloo")
        for record in make_matrix(
            4,
            noise=0.001,
            host_slowness=touching(2, 4.0),
            case=make_case("bandwidth", backend=backend, pattern="matrix"),
        )
    ]
    sentence = conclude(
        straggler_findings(Run(path=Path("mine"), info=make_hosts(4), records=tuple(records)))
    )
    assert 1 == sentence.count("host3")
    assert "in mpi bandwidth 1 KiB" in sentence
    assert "in gloo bandwidth 1 KiB" in sentence


def test_sentence_says_none_and_what_would_be_seen() -> None:
    """State the number of comparisons and the detectable difference if nothing is slow."""
    sentence = conclude(straggler_findings(make_run(4)))
    assert sentence.startswith(
        "Slow: none of 4 hosts and 12 links differs from its peers by more than noise (a host "
    )
    assert sentence.endswith(" % slower would have been seen).")


def test_sentence_says_what_one_launch_cannot() -> None:
    """State how many launches are needed, and the slowest host of one launch."""
    sentence = conclude(
        straggler_findings(make_run(4, launches=1, noise=0.001, host_slowness=touching(0, 4.0)))
    )
    assert (
        "Slow: not judged: 4 hosts and 12 links, because 1 launch cannot distinguish slowness from"
        " chance and 5 would (host1, 4 times the typical, came out slowest)." == sentence
    )


def test_sentence_of_two_hosts() -> None:
    """State that two hosts cannot be distinguished."""
    assert (
        "Slow: with two hosts it cannot be told which of the two is slow; add a third."
        == conclude(straggler_findings(make_run(2)))
    )


def test_runs_without_peers_say_nothing() -> None:
    """Print nothing on stragglers for two ordinary ranks."""
    assert "Slow" not in printed(
        Run(path=Path("mine"), info=make_hosts(2), records=(make_record(),))
    )


def test_other_formats_are_unaffected(capsys: pytest.CaptureFixture[str]) -> None:
    """Print only rows as CSV."""
    print_run(make_run(4), "csv", make_console())
    assert "Slow" not in capsys.readouterr().out
