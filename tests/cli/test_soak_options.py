"""Tests of ``run --soak``: its time, the lengths of launches and visits."""

import pytest

from commbench.cli.measure import MOST_SOAK_LAUNCHES, length_of_launch_s, parse_soak
from commbench.errors import InputError


def test_a_time_is_read_as_seconds():
    """Add hours, minutes and seconds."""
    times = {"90s": 90.0, "20min": 1200.0, "20m": 1200.0, "1.5h": 5400.0, "1h30m 5s": 5405.0}
    assert times == {text: parse_soak(text) for text in times}


@pytest.mark.parametrize("text", ["", "90", "h", "-1h", "9s", "nan", "inf", "999999999h"])
def test_what_is_no_time_of_a_soak_is_refused(text):
    """Refuse a time without a unit, of another form, or that is too short or too long."""
    with pytest.raises(InputError):
        parse_soak(text)


@pytest.mark.parametrize(
    ("soak_s", "launch_s"), [(10, 10), (60, 10), (120, 20), (600, 60), (7200, 72), (24 * 3600, 864)]
)
def test_a_launch_lasts_about_a_minute(soak_s, launch_s):
    """Shorten launches of a short soak; lengthen those of a long one, which bounds their number."""
    assert launch_s == length_of_launch_s(soak_s)
    assert soak_s / launch_s <= MOST_SOAK_LAUNCHES
