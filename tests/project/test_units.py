"""Tests of parsing and formatting sizes, times and rates."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.errors import InputError
from commbench.units import (
    algbw_GBps,
    counted,
    format_duration,
    format_size,
    format_time,
    parse_duration,
    parse_size,
    parse_sizes,
    three_digits,
    utc_text,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("8", 8),
        ("8B", 8),
        ("1K", 1024),
        ("1k", 1024),
        ("1KB", 1024),
        ("64KiB", 65536),
        ("64 kib", 65536),
        (" 2M ", 2 * 1024**2),
        ("1G", 1024**3),
        ("1.5K", 1536),
        ("0.5M", 512 * 1024),
    ],
)
def test_parse_size_reads_bytes(text: str, expected: int) -> None:
    """Parse every accepted spelling as powers of 1024."""
    assert expected == parse_size(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "K",
        "1e3",
        "8iB",
        "1T",
        "1.K",
        "inf",
        "8 8",
        "\u0663",
        "-8",
        "-1K",
        "0.5",
        "0.3K",
        "99999999999999999999",
    ],
)
def test_parse_size_refuses(text: str) -> None:
    """Refuse an invalid size in one sentence that quotes it."""
    with pytest.raises(InputError) as error:
        parse_size(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", (8,)),
        ("8,1K,64K", (8, 1024, 65536)),
        ("0, 8", (0, 8)),
        ("8:64", (8, 16, 32, 64)),
        ("8:63", (8, 16, 32)),
        ("8:8", (8,)),
        ("3:20:2", (3, 6, 12)),
        ("1K:64K:4", (1024, 4096, 16384, 65536)),
        ("8:64M:4", tuple(8 * 4**k for k in range(12))),
        ("64,8:64,8", (64, 8, 16, 32)),
    ],
)
def test_parse_sizes_expands(text: str, expected: tuple[int, ...]) -> None:
    """Expand lists and ranges in the order given, each size once."""
    assert expected == parse_sizes(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8,,16",
        "8,",
        "64:8",
        "0:8",
        "8:64:1",
        "8:64:1.5",
        "8:64:-2",
        "8:64:",
        "8:64:2:2",
        "8:",
        ":8",
    ],
)
def test_parse_sizes_refuses(text: str) -> None:
    """Refuse empty items and ranges that go nowhere."""
    with pytest.raises(InputError):
        parse_sizes(text)


@given(st.integers(1, 2**40), st.integers(0, 2**41), st.integers(2, 9))
def test_range_is_that_of_nccl_tests(first: int, extra: int, factor: int) -> None:
    """Start at the minimum, grow by the factor, and end before exceeding the maximum."""
    sizes = parse_sizes(f"{first}:{first + extra}:{factor}")
    assert first == sizes[0]
    assert all(small * factor == large for small, large in itertools.pairwise(sizes))
    assert sizes[-1] <= first + extra < sizes[-1] * factor


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (8, "8 B"),
        (1000, "1000 B"),
        (1024, "1 KiB"),
        (1025, "1.001 KiB"),
        (1536, "1.5 KiB"),
        (65536, "64 KiB"),
        (1000 * 1024, "1000 KiB"),
        (16 * 1024**2, "16 MiB"),
        (3 * 1024**3, "3 GiB"),
        (20 * 1024**4, "20480 GiB"),
    ],
)
def test_format_size_chooses_the_unit(size: int, expected: str) -> None:
    """Print the largest binary unit that is not above the size."""
    assert expected == format_size(size)


@given(st.integers(1, 1023), st.sampled_from([1, 1024, 1024**2, 1024**3]))
def test_whole_units_survive_printing(count: int, unit: int) -> None:
    """Parse printed whole units back to the same size."""
    assert count * unit == parse_size(format_size(count * unit))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 us"),
        (0.245375e-6, "0.25 us"),
        (0.26e-6, "0.26 us"),
        (0.035e-6, "0.035 us"),
        (1e-6, "1.00 us"),
        (12.34e-6, "12.3 us"),
        (123.4e-6, "123 us"),
        (999.4e-6, "999 us"),
        (999.6e-6, "1.00 ms"),
        (1.2e-3, "1.20 ms"),
        (3.4, "3.40 s"),
        (123.4, "123 s"),
        (1234.0, "1230 s"),
        (-2e-6, "-2.00 us"),
    ],
)
def test_format_time_keeps_three_digits(seconds: float, expected: str) -> None:
    """Print three significant digits, two below a microsecond, and carry roundings into the next
    unit.
    """
    assert expected == format_time(seconds)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (0.0000311, "0.0000311"),
        (0.1166, "0.117"),
        (0.9996, "1.00"),
        (9.999, "10.0"),
        (99.96, "100"),
        (1234.4, "1234"),
        (-1.5, "-1.50"),
        (math.inf, "inf"),
    ],
)
def test_three_digits_have_no_exponent(value: float, expected: str) -> None:
    """Keep three digits of numbers of any size, and carry roundings."""
    assert expected == three_digits(value)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.2, "0 s"),
        (45, "45 s"),
        (59.4, "59 s"),
        (59.7, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.7, "1 h 00 min"),
        (3780, "1 h 03 min"),
        (90000, "25 h 00 min"),
    ],
)
def test_format_duration_is_for_people(seconds: float, expected: str) -> None:
    """Print seconds, minutes and seconds, or hours and minutes."""
    assert expected == format_duration(seconds)


def test_bandwidth_counts_in_thousands() -> None:
    """Divide bytes by time with GB = 1e9, though sizes count in 1024."""
    assert pytest.approx(1.0) == algbw_GBps(1e9, 1e6)
    assert pytest.approx(1.048576) == algbw_GBps(parse_size("1M"), 1000.0)


def test_nouns_follow_their_number() -> None:
    """Use the singular for one launch, and the plural for two and none."""
    assert ["1 launch", "2 launches", "0 ranks"] == [
        counted(1, "launch"),
        counted(2, "launch"),
        counted(0, "rank"),
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("20min", 1200.0),
        ("20m", 1200.0),
        ("2h", 7200.0),
        (" 1.5 H ", 5400.0),
        ("1h30m 5s", 5405.0),
    ],
)
def test_parse_duration_reads_seconds(text: str, seconds: float) -> None:
    """Add hours, minutes and seconds."""
    assert seconds == parse_duration(text)


@pytest.mark.parametrize(
    "text", ["", "90", "h", "2d", "-1h", "1h30", "1e3s", "inf", "\u0663s", "0s", "0h0m"]
)
def test_parse_duration_refuses(text: str) -> None:
    """Refuse a duration without a unit, of another form, or of 0."""
    with pytest.raises(InputError):
        parse_duration(text)


def test_utc_text_has_milliseconds() -> None:
    """Write a time of day in UTC."""
    assert "2026-11-25T04:31:07.123Z" == utc_text(1795581067.123)
