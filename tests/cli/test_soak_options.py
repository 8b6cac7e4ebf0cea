"""Tests of ``run --soak``: the lengths of launches and visits."""

import pytest

from commbench.cli.measure import MOST_SOAK_LAUNCHES, length_of_launch_s


@pytest.mark.parametrize(
    ("soak_s", "launch_s"), [(10, 10), (60, 10), (120, 20), (600, 60), (7200, 72), (24 * 3600, 864)]
)
def test_a_launch_lasts_about_a_minute(soak_s, launch_s):
    """Shorten launches of a short soak; lengthen those of a long one, which bounds their number."""
    assert launch_s == length_of_launch_s(soak_s)
    assert soak_s / launch_s <= MOST_SOAK_LAUNCHES
