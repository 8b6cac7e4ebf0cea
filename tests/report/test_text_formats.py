"""Tests of other tools' text formats, parsed back here."""

import re
from typing import Any

import pytest
from builders import (
    KIB,
    MIB,
    make_case,
    make_info,
    make_launches,
    make_record,
    summarise_run,
)

from commbench.collectives.cases import Case
from commbench.engine.records import Record, Row
from commbench.report.text_formats import render

SIZES = (8, KIB, MIB, 512 * MIB)
TIMES = (1.234, 5.5, 345.678, 123456.0)


def measure(cases: list[Case], group_size: int = 2) -> list[Record]:
    """Return six equal launches of each case; time grows with size."""
    times = dict(zip(SIZES, TIMES, strict=True))
    return [
        record
        for case in cases
        for record in make_launches(
            [times.get(case.message_bytes, 10.0)] * 6, case, group_size=group_size
        )
    ]


def summarise(records: list[Record]) -> list[Row]:
    """Return the rows of a run."""
    return summarise_run(records, make_info())


def parse_nccl(text: str) -> list[list[str]]:
    """Return the words of each data line, as nccl-tests parsers do."""
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def parse_osu(text: str) -> list[tuple[str, list[tuple[int, float]]]]:
    """Return each test's title and its (size, value) lines."""
    tests: list[tuple[str, list[tuple[int, float]]]] = []
    for line in text.splitlines():
        if line.startswith("# OSU "):
            tests.append((line[2:], []))
        elif line and not line.startswith("#"):
            size, value = line.split()
            tests[-1][1].append((int(size), float(value)))
    return tests


# --------------------------------------------------------------------------------------- nccl-tests


def test_nccl_lines_parse_back() -> None:
    """Parse equal sizes, times and bandwidths from both halves of each line."""
    cases = [
        make_case(message_bytes=size, in_place=place) for place in (False, True) for size in SIZES
    ]
    rows = summarise(measure(cases, group_size=4))
    lines = parse_nccl(render(rows, "nccl-tests"))
    assert [13] * len(SIZES) == [len(line) for line in lines]
    for half, in_place in ((5, False), (9, True)):
        expected = {row.message_bytes: row for row in rows if row.in_place is in_place}
        for line in lines:
            row = expected[int(line[0])]
            assert [row.time_us, row.algbw_GBps, row.busbw_GBps] == [
                pytest.approx(float(word), abs=0.0051, rel=1e-5) for word in line[half : half + 3]
            ]
            assert "0" == line[half + 3]


@pytest.mark.parametrize(
    ("operation", "changes", "expected"),
    [
        ("all_reduce", {}, ["1024", "256", "float", "sum", "-1"]),
        ("all_gather", {}, ["1024", "64", "float", "none", "-1"]),
        ("reduce_scatter", {"redop": "max"}, ["1024", "64", "float", "max", "-1"]),
        ("broadcast", {"root": 1}, ["1024", "256", "float", "none", "1"]),
    ],
)
def test_nccl_count_is_of_one_rank(
    operation: str, changes: dict[str, Any], expected: list[str]
) -> None:
    """Print size, one rank's count, type, redop and root as nccl-tests does."""
    case = make_case(operation, in_place=False, **changes)
    (line,) = parse_nccl(render(summarise(measure([case], group_size=4)), "nccl-tests"))
    assert expected == line[:5]


def test_nccl_footer_averages_bus_bandwidth() -> None:
    """Print the average bus bandwidth, and no value out of bounds."""
    rows = summarise(measure([make_case(message_bytes=size) for size in SIZES]))
    text = render(rows, "nccl-tests")
    (average,) = re.findall(r"# Avg bus bandwidth +: (\S+)", text)
    expected = sum(row.busbw_GBps or 0 for row in rows) / len(rows)
    assert pytest.approx(expected, rel=1e-5) == float(average)
    assert "# Out of bounds values : 0 OK" in text.splitlines()


def test_nccl_wrong_data_fails() -> None:
    """Print the number of wrong elements, no bandwidth, and a failed footer."""
    text = render(summarise([make_record(status="wrong", wrong=12)]), "nccl-tests")
    (line,) = parse_nccl(text)
    assert ["10.00", "N/A", "N/A", "12"] == line[9:]
    assert "# Out of bounds values : 1 FAILED" in text.splitlines()


def test_nccl_blocks_are_one_per_backend_operation_and_loop() -> None:
    """Print a block with its program per operation, and comment lines without results."""
    records = measure([make_case(), make_case(backend="gloo")])
    records += measure([make_case("all_to_all"), make_case("barrier")])
    records.append(make_record(make_case(loop="python"), loop="python"))
    unsupported = make_case(message_bytes=8)
    records.append(make_record(unsupported, status="unsupported", reason="not here."))
    text = render(summarise(records), "nccl-tests")
    programs = re.findall(r"Collective test starting: (\S+)", text)
    assert ["all_reduce_perf"] * 3 + ["alltoall_perf"] == programs
    assert 4 == len(parse_nccl(text))
    assert "# mpi all_reduce 8 B float32: unsupported: not here." in text.splitlines()


def test_nccl_header_stands_over_its_columns() -> None:
    """Align headings with figures."""
    rows = summarise(measure([make_case(message_bytes=512 * MIB)]))
    lines = render(rows, "nccl-tests").splitlines()
    (header,) = [line for line in lines if "#wrong" in line]
    (data,) = [line for line in lines if line and not line.startswith("#")]
    assert len(header) == len(data)
    assert header.index("size") + len("size") == data.index(str(512 * MIB)) + len(str(512 * MIB))


# ---------------------------------------------------------------------------------------------- OSU


def test_osu_latency_is_the_mean_over_ranks() -> None:
    """Print OSU's title, heading, sizes and mean over ranks."""
    rows = summarise(measure([make_case(message_bytes=size) for size in SIZES]))
    text = render(rows, "osu")
    ((title, lines),) = parse_osu(text)
    assert "OSU MPI Allreduce Latency Test v7.4" == title
    expected = {row.osu_bytes: row.time_us_rank_mean for row in rows}
    assert pytest.approx(expected, abs=0.0051) == dict(lines)
    assert {"# Size       Avg Latency(us)", "# Datatype: MPI_FLOAT."} <= set(text.splitlines())


def test_osu_lines_have_its_widths() -> None:
    """Use column widths of 10 and 18."""
    text = render(summarise(measure([make_case()])), "osu")
    assert f"{1024:<10d}{4.95:18.2f}" in text.splitlines()


@pytest.mark.parametrize(
    ("operation", "title", "factor"),
    [
        ("bandwidth", "OSU MPI Bandwidth Test v7.4", 1),
        ("bibandwidth", "OSU MPI Bi-Directional Bandwidth Test v7.4", 2),
    ],
)
def test_osu_bandwidth_is_in_millions_of_bytes(operation: str, title: str, factor: int) -> None:
    """Print MB/s with MB = 1e6 bytes."""
    text = render(summarise(measure([make_case(operation, message_bytes=MIB)])), "osu")
    ((heading, lines),) = parse_osu(text)
    assert title == heading
    assert [(MIB, pytest.approx(factor * MIB / 345.678, abs=0.0051))] == lines
    assert "# Size      Bandwidth (MB/s)" in text.splitlines()


def test_osu_barrier_has_no_sizes() -> None:
    """Print the latency alone for a barrier."""
    lines = render(summarise(make_launches([10.0] * 6, make_case("barrier"))), "osu").splitlines()
    assert "# Avg Latency(us)" in lines
    assert "             9.00" in lines


def test_osu_tests_are_one_per_choice() -> None:
    """Repeat no size within a test, and omit with a note what OSU lacks."""
    cases = [
        make_case(),
        make_case(in_place=False),
        make_case(backend="gloo"),
        make_case("sendrecv"),
    ]
    text = render(summarise(measure(cases)), "osu")
    titles = [title for title, lines in parse_osu(text) if len(lines) == 1]
    assert ["OSU GLOO", "OSU MPI", "OSU MPI"] == sorted(title.split(" All")[0] for title in titles)
    assert "# OSU has no test like sendrecv; it is left out" in text.splitlines()


# -------------------------------------------------------------------------------------------- means


def test_means_are_over_repetitions_and_ranks() -> None:
    """Print the mean and its rates for a run that measured as the tool does."""
    times_us = [5.0] * 39 + [45.0]  # the mean of a launch is 6, the median 5
    case = make_case("bandwidth", message_bytes=MIB)
    records = [
        make_record(case, launch=launch, times_us=times_us, rank_mean_us=times_us)
        for launch in range(6)
    ]
    (words,) = parse_nccl(render(summarise(records), "nccl-tests", means=True))
    assert ["6.00", f"{MIB / 6e3:.2f}", f"{MIB / 6e3:.2f}"] == words[5:8]
    ((_, ((_, rate),)),) = parse_osu(render(summarise(records), "osu", means=True))
    assert pytest.approx(MIB / 6, abs=0.0051) == rate


# -------------------------------------------------------------------------------------------- style


def test_osu_prints_no_wrong_data() -> None:
    """Print a wrong result as a comment."""
    text = render(summarise([make_record(status="wrong", wrong=12)]), "osu")
    assert [] == parse_osu(text)[0][1]
    assert (
        "# mpi all_reduce 1024 B float32: wrong: 12 elements were wrong in 1 of 1 launches."
        in text.splitlines()
    )
