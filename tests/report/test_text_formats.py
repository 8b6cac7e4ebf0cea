"""Tests of other tools' text formats, byte for byte."""

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
from places import HERE

from commbench.engine.records import Record
from commbench.report.text_formats import render

FORMATS = HERE / "data" / "formats"
#: Times of growing digits, by size.
TIMES_US = {8: 1.234, KIB: 5.5, MIB: 345.678, 512 * MIB: 123456.0}
CASES = [
    *(
        make_case(message_bytes=size, in_place=place)
        for size in TIMES_US
        for place in (True, False)
    ),
    make_case(backend="gloo"),
    make_case("all_gather", in_place=False),
    make_case("reduce_scatter", in_place=False, redop="max"),
    make_case("broadcast", root=1),
    make_case("barrier"),
    make_case("sendrecv"),
    make_case("bandwidth", message_bytes=MIB),
    make_case("bibandwidth", message_bytes=MIB),
]


def measured() -> list[Record]:
    """Return launches of each case, of groups, and of cases without a valid result."""
    records = make_grouped(make_case(pattern="node"), {"0-1": STEADY, "2-3": STEADY})
    for case in CASES:
        times_us = [TIMES_US.get(case.message_bytes, 10.0)] * 6
        records += make_launches(times_us, case, group_size=4)
    refused, wrong = make_case(dtype="float64"), make_case("all_to_all")
    records.append(make_record(make_case(loop="python"), loop="python", library="two\nlines"))
    records.append(make_record(refused, status="unsupported", reason="not\nhere."))
    records.append(make_record(wrong, status="wrong", wrong=12))
    return records


@pytest.mark.parametrize("style", ["nccl-tests", "osu"])
def test_rows_are_printed_as_the_tool_prints_them(style):
    """Print blocks, headers, widths, counts, rates and comments as in the file."""
    text = render(summarise_run(measured(), make_info(world_size=4)), style)
    assert (FORMATS / f"{style}.txt").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("style", "line"),
    [
        (
            "nccl-tests",
            "     1048576        262144     float    none      -1     6.00  174.76  174.76       0",
        ),
        ("osu", "1048576            174762.67"),
    ],
)
def test_means_are_over_repetitions_and_ranks(style, line):
    """Print the mean and its rates for a run that measured as the tool does."""
    times_us = [5.0] * 39 + [45.0]  # the mean of a launch is 6, the median 5
    case = make_case("bandwidth", message_bytes=MIB)
    records = [make_record(case, times_us=times_us, rank_mean_us=times_us)]
    text = render(summarise_run(records, make_info()), style, means=True)
    assert line in text
