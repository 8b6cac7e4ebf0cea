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

MIB = 1024**2


def test_sizes_are_read_as_bytes():
    """Parse every accepted spelling as powers of 1024."""
    sizes = {"0": 0, "8B": 8, "1k": 1024, "1KB": 1024, "64 kib": 65536, " 2M ": 2 * MIB}
    sizes |= {"64KiB": 65536, "1G": 1024**3, "1.5K": 1536, "0.5M": MIB // 2}
    assert sizes == {text: parse_size(text) for text in sizes}


BAD_SIZES = ["", "x", "K", "1e3", "8iB", "1T", "1.K", "inf", "8 8", "\u0663", "-8", "0.5", "0.3K"]


@pytest.mark.parametrize("text", [*BAD_SIZES, "99999999999999999999"])
def test_what_is_no_size_is_refused(text):
    """Quote the text in one sentence."""
    with pytest.raises(InputError) as error:
        parse_size(text)
    assert repr(text) in str(error.value)


def test_lists_and_ranges_of_sizes():
    """Expand lists and ranges in the order given, each size once."""
    ranges = {
        "8,1K,64K": (8, 1024, 65536),
        "0, 8": (0, 8),
        "8:63": (8, 16, 32),
        "8:8": (8,),
        "1K:64K:4": (1024, 4096, 16384, 65536),
        "64,8:64,8": (64, 8, 16, 32),
    }
    assert ranges == {text: parse_sizes(text) for text in ranges}


BAD_RANGES = ["", "8,,16", "8,", "64:8", "0:8", "8:64:1", "8:64:1.5", "8:64:", "8:64:2:2", ":8"]


@pytest.mark.parametrize("text", BAD_RANGES)
def test_ranges_that_go_nowhere_are_refused(text):
    """Refuse empty items, and bounds and factors that make no list."""
    with pytest.raises(InputError):
        parse_sizes(text)


@given(st.integers(1, 2**40), st.integers(0, 2**41), st.integers(2, 9))
def test_range_is_that_of_nccl_tests(first, extra, factor):
    """Start at the minimum, grow by the factor, and end before exceeding the maximum."""
    sizes = parse_sizes(f"{first}:{first + extra}:{factor}")
    assert first == sizes[0]
    assert all(small * factor == large for small, large in itertools.pairwise(sizes))
    assert sizes[-1] <= first + extra < sizes[-1] * factor


def test_a_printed_size_has_the_largest_unit_below_it():
    """Print sizes; `parse_size` reads them again."""
    sizes = {0: "0 B", 1000: "1000 B", 1024: "1 KiB", 1025: "1.001 KiB", 1536: "1.5 KiB"}
    sizes |= {1000 * 1024: "1000 KiB", 16 * MIB: "16 MiB", 20 * 1024**4: "20480 GiB"}
    assert sizes == {size: format_size(size) for size in sizes}
    for size in (1, 1023, 5 * 1024, 7 * MIB):
        assert size == parse_size(format_size(size))


def test_times_keep_three_digits():
    """Print three significant digits, two below a microsecond, and carry roundings into the next
    unit.
    """
    times = {0: "0 us", 0.245375e-6: "0.25 us", 0.035e-6: "0.035 us", 1e-6: "1.00 us"}
    times |= {12.34e-6: "12.3 us", 999.4e-6: "999 us", 999.6e-6: "1.00 ms", 1.2e-3: "1.20 ms"}
    times |= {3.4: "3.40 s", 1234.0: "1230 s", -2e-6: "-2.00 us"}
    assert times == {seconds: format_time(seconds) for seconds in times}


def test_numbers_have_no_exponent():
    """Keep three digits of numbers of any size, and carry roundings."""
    numbers = {0.0: "0", 0.0000311: "0.0000311", 0.1166: "0.117", 0.9996: "1.00", 9.999: "10.0"}
    numbers |= {99.96: "100", 1234.4: "1234", -1.5: "-1.50", math.inf: "inf"}
    assert numbers == {value: three_digits(value) for value in numbers}


def test_durations_are_for_people():
    """Print seconds, minutes and seconds, or hours and minutes."""
    durations = {0.2: "0 s", 59.4: "59 s", 59.7: "1 min 00 s", 125: "2 min 05 s"}
    durations |= {3599.7: "1 h 00 min", 3780: "1 h 03 min", 90000: "25 h 00 min"}
    assert durations == {seconds: format_duration(seconds) for seconds in durations}


def test_bandwidth_counts_in_thousands():
    """Divide bytes by time with GB = 1e9, though sizes count in 1024."""
    assert pytest.approx(1.048576) == algbw_GBps(parse_size("1M"), 1000.0)


def test_nouns_follow_their_number():
    """Use the singular for one launch, and the plural for two and none."""
    assert "1 launch, 2 launches" == f"{counted(1, 'launch')}, {counted(2, 'launch')}"
    assert "0 ranks" == counted(0, "rank")


def test_durations_are_read_as_seconds():
    """Add hours, minutes and seconds; a number alone is seconds."""
    durations = {"90": 90.0, "0.5": 0.5, "90s": 90.0, "20min": 1200.0, "20m": 1200.0}
    durations |= {" 1.5 H ": 5400.0, "1h30m 5s": 5405.0}
    assert durations == {text: parse_duration(text) for text in durations}


@pytest.mark.parametrize(
    "text", ["", "0", "h", "2d", "-1h", "1h30", "1e3s", "inf", "\u0663s", "0h0m"]
)
def test_what_is_no_duration_is_refused(text):
    """Refuse a duration of another form, or of 0."""
    with pytest.raises(InputError):
        parse_duration(text)


def test_utc_text_has_milliseconds():
    """Write a time of day in UTC."""
    assert "2026-11-25T04:31:07.123Z" == utc_text(1795581067.123)
