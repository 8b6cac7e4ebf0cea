"""Tests of printing groups of a pattern: each or three of many, their sum, and the slowest."""

import io
import re

import pytest
from builders import (
    KIB,
    MIB,
    STEADY,
    make_case,
    make_grouped,
    make_info,
    make_launches,
    make_record,
    summarise_run,
)
from rich.console import Console

from commbench.engine.records import Record, Row
from commbench.report.formats import listed
from commbench.report.groups import name_slowest
from commbench.report.table import render_table
from commbench.report.text_formats import render

HOSTS = dict(enumerate(("host0", "host0", "host1", "host1")))


def rows_of(records: list[Record]) -> list[Row]:
    """Return the rows of four ranks on two hosts."""
    return summarise_run(records, make_info(world_size=4, nodes=2))


def table(records: list[Record], width: int = 100) -> str:
    """Return the tables as printed to a log."""
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(
        render_table(rows_of(records), width=width, hosts=HOSTS)
    )
    return stream.getvalue()


def scaled(factor: float) -> list[float]:
    """Return launches ``factor`` times as long, with little noise."""
    return [factor * time for time in STEADY]


def two(factor: float = 1.8, **changes: object) -> list[Record]:
    """Return launches of two groups at two sizes, the second ``factor`` times slower."""
    cases = [make_case(pattern="node", message_bytes=size, **changes) for size in (KIB, MIB)]
    return [
        record
        for case in cases
        for record in make_grouped(case, {"0-1": STEADY, "2-3": scaled(factor)})
    ]


def many(count: int) -> list[Record]:
    """Return launches of several groups, each slightly slower than the one before, the last by
    far.
    """
    times = {f"{2 * i},{2 * i + 1}": scaled(1 + 0.001 * i) for i in range(count - 1)} | {
        "98,99": scaled(3.0)
    }
    return make_grouped(make_case(pattern="split:2", message_bytes=MIB), times)


def line_with(text: str, *words: str) -> str:
    """Return the only line that contains all words."""
    (line,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return line


def test_groups_have_lines_of_their_own() -> None:
    """Print the groups in the title and per size, with each size once."""
    text = table(two())
    assert "(4 ranks on 2 hosts, 6 launches)" in line_with(text, "groups 0-1, 2-3")
    assert "10.0 us" in line_with(text, "1 KiB", " 0-1 ")
    assert 2 == sum("18.0 us" in line and " 2-3 " in line for line in text.splitlines())
    assert 1 == text.count("1 MiB  ")


def test_rates_are_summed_beside_the_table() -> None:
    """Add the rates of concurrent groups; a barrier has none."""
    lines = [line.split() for line in table(two()).splitlines() if "all 2" in line]
    assert MIB / 10 / 1e3 + MIB / 18 / 1e3 == pytest.approx(float(lines[1][2]), rel=0.01)
    assert "all 2" not in table(
        make_grouped(make_case("barrier", pattern="node"), {"0-1": STEADY, "2-3": STEADY})
    )


def test_the_slowest_is_named_with_its_place() -> None:
    """Name the slowest group, its host and factor, or none among equals."""
    line = line_with(table(two()), "slowest group")
    for words in ("mpi", "2-3", "host1", "1.80", "2 of 2 cases"):
        assert words in line
    assert "slowest group" not in table(two(factor=1.0))


def test_groups_are_compared_within_a_case() -> None:
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
    (finding,) = name_slowest({"mpi": rows}, {})
    assert (1.5, 1, 2) == tuple(finding.numbers[name] for name in ("ratio", "often", "cases"))


@pytest.mark.parametrize(("count", "lines"), [(8, 8), (9, 3), (40, 3)])
def test_many_groups_are_shown_by_three(count: int, lines: int) -> None:
    """Print the slowest, median and fastest of more than eight groups, with the total."""
    text = table(many(count))
    shown = [line for line in text.splitlines() if " us [" in line]
    assert lines == len(shown)
    if lines == 3:
        assert f"split:2: {count} groups" in text
        assert "(98,99)" in line_with(text, "slowest", "30.0 us")
        assert "(0,1)" in line_with(text, "fastest")
        middle = (count - 1) // 2
        assert f"({2 * middle},{2 * middle + 1})" in line_with(text, "  median  ")
    assert f"all {count}" in text


@pytest.mark.parametrize("count", [8, 9])
def test_groups_of_many_ranks_fit_the_line(count: int) -> None:
    """Abbreviate the ranks of large groups to fit 100 columns."""
    times = {
        ",".join(str(100 + i + count * k) for k in range(16)): scaled(1 + (i == 2))
        for i in range(count)
    }
    text = table(make_grouped(make_case(pattern=f"stride:{count}"), times))
    expected = f"102,{102 + count},..,{102 + 15 * count}"
    assert f"slowest group {expected}: 2.00 times the median" in text
    assert 2 + (count == 8) == text.count(expected)
    assert max(map(len, text.splitlines())) <= 100
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_groups_without_a_result_say_why() -> None:
    """Print the status; name only groups with wrong data wrong."""
    case = make_case(pattern="cross")
    refused = make_record(case, status="unsupported", reason="no such group", group="")
    assert "unsupported" in line_with(table([refused]), "1 KiB")
    wrong = make_grouped(make_case(pattern="node"), {"0-1": [9.0], "2-3": [9.0]})[0].to_json()
    wrong["groups"][1]["wrong"] = 7
    text = table([Record.from_json({**wrong, "status": "wrong", "reason": "7 differ"})])
    assert "wrong (7 elements)" in line_with(text, " 2-3 ", "wrong (")
    assert "not timed" in line_with(text, " 0-1 ")


@pytest.mark.parametrize("style", ["nccl-tests", "osu"])
def test_other_tools_formats_have_a_block_a_group(style: str) -> None:
    """Print a named block per group in other tools' formats."""
    text = render(rows_of(two()), style)
    blocks = [line for line in text.splitlines() if "2 ranks" in line]
    assert ["group 0-1", "group 2-3"] == re.findall("group [0-9-]+", "\n".join(blocks))
    assert 4 == sum(not line.startswith("#") and bool(line.strip()) for line in text.splitlines())
    assert "group" not in render(rows_of(make_launches(STEADY)), style)


def test_long_lists_are_counted() -> None:
    """Name the first items of a long list, and count the others."""
    texts = [listed(names) for names in ("", "a", "ab", "abcdef")]
    assert ["", "a", "a and b", "a, b, c, d and 2 more"] == texts
