"""Tests of the tables of collectives, and of the sentences about groups of a pattern."""

import re
from typing import Any

import pytest
from builders import (
    KIB,
    MIB,
    STEADY,
    make_case,
    make_grouped,
    make_launches,
    make_record,
)
from hypothesis import given
from hypothesis import strategies as st
from pages import make_run
from terminals import line_with, printed

from commbench.cli.presentation import print_run
from commbench.cli.terminal import make_console
from commbench.engine.records import Record, Row
from commbench.report.collectives import collective_tables, group_findings, group_sentences
from commbench.report.formats import listed, time_with_interval


def table(records: list[Record], width: int = 100) -> str:
    """Return the tables of records, with the sentences below them."""
    ranks = [{"rank": rank, "host": f"host{rank // 2}"} for rank in range(4)]
    run = make_run(records, world_size=4, nodes=2, ranks=ranks)
    return printed(*collective_tables([run]), *map(str, group_sentences(run)), width=width)


def launches(*cases: Any) -> list[Record]:
    """Return six launches of each case, with little noise."""
    return [record for case in cases for record in make_launches(STEADY, case)]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_backends_stand_below_each_other(width):
    """Print each backend of a size with time, interval and bandwidths; name what does not fit."""
    text = table(launches(make_case(backend="mpi"), make_case(backend="gloo")), width)
    assert ["10.0", "9.95-10.1"] == line_with(text, "1 KiB", "mpi").split()[3:5]
    assert ["10.0", "9.95-10.1"] == line_with(text, "1 KiB", "gloo").split()[3:5]
    assert 2 == text.count(" 0.102 ") or width < 100
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "\u2026" not in text


def test_a_number_without_space_shows_that_it_is_cut():
    """Print no beginning of a number on a terminal that is too narrow for all columns."""
    cells = line_with(table(launches(make_case(backend="mpi")), 38), "mpi").split()
    assert all(
        cell.endswith("\u2026") for cell in cells if cell not in {"1", "mpi", "10.0", "0.102"}
    )
    assert "\u2026" in " ".join(cells)


def test_patterns_have_titled_tables_in_the_order_of_the_csv():
    """Title each pattern: all ranks first, then by number."""
    patterns = ["split:16", "cross", "split:2", "node"]
    text = table(launches(*(make_case(pattern=pattern) for pattern in patterns)))
    titles = [line for line in text.splitlines() if "(4 ranks on 2 hosts, 6 launches)" in line]
    places = [text.index(f", {name}") for name in ("node", "cross", "split:2", "split:16")]
    assert sorted(places) == places
    assert 4 == len(titles)


def test_what_differs_within_an_operation_is_a_column():
    """State type and place in the title, unless they vary."""
    cases = [make_case(), make_case(in_place=False), make_case(dtype="float16")]
    text = table(launches(*cases))
    assert "all_reduce, sum (" in text
    assert ["no"] == re.findall(r"float32 +(no|yes)", line_with(text, " no "))
    assert "all_reduce, float32, sum, in place (" in table(launches(make_case()))


def test_missing_results_have_their_status(capsys):
    """Print the status in place of a time, and the reasons below."""
    records = []
    for size, status in ((8, "hung"), (64, "hung"), (512, "wrong"), (4096, "unsupported")):
        case = make_case(message_bytes=size)
        records.append(make_record(case, status=status, reason=f"{status} here."))
    print_run(make_run(records), "table", make_console(width=200))
    text = capsys.readouterr().out
    assert "unsupported" in line_with(text, "4 KiB")
    assert "wrong" in line_with(text, "512 B")
    for status in ("hung", "wrong", "unsupported"):
        assert 1 == text.count(f"{status} here")


def test_a_barrier_has_neither_size_nor_bandwidth():
    """Leave out columns that no row fills."""
    text = table(make_launches(STEADY, make_case("barrier")))
    assert ["mpi", "10.0"] == text.splitlines()[-1].split()[:2]
    assert "algbw" not in text


def test_flags_that_all_rows_have_are_not_repeated():
    """Name below the rows what does not distinguish them."""
    text = table([make_record(flags=["late"]), make_record(make_case(message_bytes=8))])
    assert line_with(text, "1 KiB").rstrip().endswith(" late")
    assert "Every row: one_launch." in text
    assert 1 == text.count("one_launch")


@pytest.mark.parametrize(
    ("time_us", "low", "high", "expected"),
    [
        (1.234, 1.2, 1.31, "1.23 us [1.20, 1.31]"),
        (1234.5, 999.0, 1300.0, "1.23 ms [1.00, 1.30]"),
        (1.234, None, None, "1.23 us"),
        (1.0, 1e-6, 1e6, "1.00 us [wide]"),
        (None, None, None, ""),
    ],
)
def test_interval_shares_unit_and_digits(time_us, low, high, expected):
    """Print the interval in the time's unit and decimals."""
    assert expected == time_with_interval(time_us, low, high)


@given(st.floats(1e-3, 1e9), st.floats(0.6, 1.0), st.floats(1.0, 1.5))
def test_interval_encloses_the_printed_time(time_us, below, above):
    """Keep the order of low, time and high within one unit of the last digit."""
    text = time_with_interval(time_us, below * time_us, above * time_us)
    number, low, high = re.findall(r"[0-9.]+", text)
    tolerance = 1.1 * 10 ** -len(number.partition(".")[2])
    assert float(low) - tolerance <= float(number) <= float(high) + tolerance


# ------------------------------------------------------------------------------------------- groups


def scaled(factor: float) -> list[float]:
    """Return launches ``factor`` times as long, with little noise."""
    return [factor * time for time in STEADY]


def two(factor: float = 1.8) -> list[Record]:
    """Return launches of two groups at two sizes, the second ``factor`` times slower."""
    records = []
    for size in (KIB, MIB):
        case = make_case(pattern="node", message_bytes=size)
        records += make_grouped(case, {"0-1": STEADY, "2-3": scaled(factor)})
    return records


def test_groups_have_lines_of_their_own():
    """Print the groups at each size, and their rates together."""
    text = table(two())
    assert "(4 ranks on 2 hosts, 6 launches)" in line_with(text, "sum, in place, node")
    assert " 10.0 " in line_with(text, "1 KiB", " 0-1 ")
    assert 2 == sum(" 18.0 " in line and " 2-3 " in line for line in text.splitlines())
    together = MIB / 10 / 1e3 + MIB / 18 / 1e3
    found = re.search(r"the 2 groups together reach a bus bandwidth of (\S+) GB/s at 1 MiB", text)
    assert together == pytest.approx(float(found[1]), rel=0.01)
    barrier = make_case("barrier", pattern="node")
    assert "together" not in table(make_grouped(barrier, {"0-1": STEADY, "2-3": STEADY}))


def test_the_slowest_is_named_with_its_place():
    """Name the slowest group, its host and factor, or none among equals."""
    line = line_with(table(two(), width=300), "slowest group")
    for words in ("mpi", "2-3", "host1", "1.80", "2 of 2 cases"):
        assert words in line
    assert "slowest group" not in table(two(factor=1.0))


def test_groups_are_compared_within_a_case():
    """Compare no groups of different data types at one size."""
    rows = [
        Row(group=group, dtype=dtype, message_bytes=KIB, time_us=time_us, flags=flags)
        for group, dtype, time_us, flags in (
            ("0-1", "float32", 10.0, ""),
            ("2-3", "float32", 15.0, "slowest_group"),
            ("0-1", "float64", 90.0, ""),
            ("2-3", "float64", 90.0, ""),
        )
    ]
    (finding,) = group_findings({"mpi": rows}, {})
    assert (1.5, 1, 2) == tuple(finding.numbers[name] for name in ("ratio", "often", "cases"))


def test_the_ranks_of_a_large_group_are_abbreviated():
    """Name the first two ranks and the last of many that are not adjacent."""
    times = {}
    for group in range(9):
        ranks = ",".join(str(100 + group + 9 * place) for place in range(16))
        times[ranks] = scaled(1 + (group == 2))
    text = table(make_grouped(make_case(pattern="stride:9"), times))
    assert "slowest group 102,111,..,237: 2.00 times the median" in text


def test_groups_without_a_result_have_their_status():
    """Print the status of all groups, or of each."""
    case = make_case(pattern="cross")
    refused = make_record(case, status="unsupported", reason="no such group", group="")
    assert "unsupported" in line_with(table([refused]), "1 KiB")
    wrong = make_grouped(make_case(pattern="node"), {"0-1": [9.0], "2-3": [9.0]})[0].to_json()
    wrong["groups"][1]["wrong"] = 7
    text = table([Record.from_json({**wrong, "status": "wrong", "reason": "7 differ"})])
    assert 2 == text.count(" wrong")


def test_long_lists_are_counted():
    """Name the first items of a long list, and count the others."""
    texts = [listed(names) for names in ("", "a", "ab", "abcdef")]
    assert ["", "a", "a and b", "a, b, c, d and 2 more"] == texts
