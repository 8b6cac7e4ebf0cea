"""Tests of printed tables and the warnings below them."""

import io
import math

import pytest
from builders import (
    KIB,
    MIB,
    STEADY,
    make_case,
    make_info,
    make_launches,
    make_record,
    summarise_run,
)
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from commbench.engine.records import Record, Row
from commbench.report.table import format_time_us, render_table


def render(records: list[Record], width: int = 100) -> str:
    """Return the tables as printed to a log."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=False)
    console.print(render_table(summarise_run(records, make_info()), width=width))
    return stream.getvalue()


def line_with(text: str, *words: str) -> str:
    """Return the only line that contains all words."""
    (line,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return line


def sweep(*backends: str, sizes: tuple[int, ...] = (8, KIB, 64 * MIB)) -> list[Record]:
    """Return launches of every size on every backend, with little noise."""
    cases = [
        make_case(backend=backend, message_bytes=size) for backend in backends for size in sizes
    ]
    return [record for case in cases for record in make_launches(STEADY, case)]


def test_backends_stand_side_by_side() -> None:
    """Print one size per line with each backend's time, interval and bandwidths."""
    line = line_with(render(sweep("mpi", "gloo")), "64 MiB")
    assert 2 == line.count("10.0 us [9.95, 10.1]") or 2 == line.count("10.0 us [9.9, 10.1]")
    assert 4 == line.count("6711")


def test_plain_text_fits_100_columns() -> None:
    """Print no escape codes and at most 100 columns without a terminal."""
    text = render(sweep("mpi", "gloo"))
    assert "\x1b" not in text
    assert 100 >= max(map(len, text.splitlines()))
    assert "\u2026" not in text


def test_backends_that_do_not_fit_follow_below() -> None:
    """Print backends that do not fit in further tables."""
    text = render(sweep("mpi", "gloo", "nccl"), width=70)
    assert 70 >= max(map(len, text.splitlines()))
    assert 3 == sum("64 MiB" in line for line in text.splitlines())
    assert 1 == sum(
        "64 MiB" in line for line in render(sweep("mpi", "gloo", "nccl"), width=200).splitlines()
    )
    assert "\u2026" not in text


def test_groups_have_tables_of_their_own() -> None:
    """Print a titled table per dtype and place."""
    cases = [make_case(), make_case(in_place=False), make_case(dtype="float16")]
    text = render([record for case in cases for record in make_launches(STEADY, case)])
    for title in ("float32, sum, in place", "float32, sum, out of place", "float16, sum, in place"):
        assert "(2 ranks on 1 host, 6 launches)" in line_with(text, title)


def test_patterns_follow_the_order_of_the_csv() -> None:
    """Sort patterns as the rows: all ranks first, then by number."""
    patterns = ["split:16", "cross", "split:2", "node"]
    cases = [make_case(pattern=pattern) for pattern in patterns]
    text = render([record for case in cases for record in make_launches(STEADY, case)])
    places = [text.index(f", {name}") for name in ("node", "cross", "split:2", "split:16")]
    assert sorted(places) == places


def test_missing_results_say_why() -> None:
    """Print the status in the cell and each reason once."""
    records = [
        make_record(
            make_case(message_bytes=size, backend=backend),
            status=status,
            reason=f"{status} here.",
            wrong=12 if status == "wrong" else None,
        )
        for size, backend, status in [
            (8, "mpi", "hung"),
            (64, "mpi", "hung"),
            (8, "gloo", "unsupported"),
            (512, "gloo", "wrong"),
        ]
    ]
    text = render(records)
    assert "unsupported" in line_with(text, " 8 B ", "hung")
    assert "wrong (12 elements)" in line_with(text, "512 B")
    for reason in ("mpi: hung: hung here.", "gloo: unsupported: unsupported here."):
        assert 1 == text.count(reason)


def test_barrier_has_a_line_without_size() -> None:
    """Print a barrier's time without bandwidth columns."""
    text = render(make_launches(STEADY, make_case("barrier")))
    assert "10.0 us" in line_with(text, "   - ")
    assert "algbw" not in text


def test_marks_are_explained() -> None:
    """Mark a flagged time, and explain the mark below."""
    text = render([*make_launches([10.0] * 3), *make_launches(STEADY, make_case(message_bytes=8))])
    assert line_with(text, "1 KiB").endswith(" f")
    assert "f few_launches" in line_with(text, "marks:")
    assert "one_launch" not in text


@pytest.mark.parametrize(
    ("time_us", "low", "high", "expected"),
    [
        (1.234, 1.2, 1.31, "1.23 us [1.20, 1.31]"),
        (912.3, 905.0, 1002.0, "912 us [905, 1002]"),
        (0.2612, 0.25, 0.27, "0.26 us [0.25, 0.27]"),
        (1234.5, 999.0, 1300.0, "1.23 ms [1.00, 1.30]"),
        (2.5e6, 2.4e6, 2.6e6, "2.50 s [2.40, 2.60]"),
        (1.234, None, None, "1.23 us"),
        (1.0, 1e-6, 1e6, "1.00 us [wide]"),
        (None, None, None, ""),
    ],
)
def test_interval_shares_unit_and_digits(
    time_us: float | None, low: float | None, high: float | None, expected: str
) -> None:
    """Print the interval in the time's unit and decimals."""
    assert expected == format_time_us(
        Row(time_us=time_us, time_us_ci_low=low, time_us_ci_high=high)
    )


@given(st.floats(1e-3, 1e9), st.floats(0.6, 1.0), st.floats(1.0, 1.5))
def test_interval_encloses_the_printed_time(time_us: float, below: float, above: float) -> None:
    """Keep the order of low, time and high within one unit of the last digit."""
    row = Row(time_us=time_us, time_us_ci_low=below * time_us, time_us_ci_high=above * time_us)
    number, _, low, high = (
        format_time_us(row).replace("[", "").replace("]", "").replace(",", "").split()
    )
    tolerance = 1.1 * 10 ** -len(number.partition(".")[2])
    assert float(low) - tolerance <= float(number) <= float(high) + tolerance
    assert math.isfinite(float(high))


def test_flags_of_all_rows_are_no_marks() -> None:
    """Mark only what distinguishes rows."""
    text = render([make_record(flags=["late"]), make_record(make_case(message_bytes=8))])
    assert "l late" in text
    assert "1 one_launch" not in text
