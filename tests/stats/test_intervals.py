"""Tests of Student's t against printed tables and simulations."""

import math

import pytest

from commbench.stats.intervals import student_p, student_t


@pytest.mark.parametrize(
    ("freedom", "level", "expected"),
    [
        (1, 0.95, 12.706),
        (4, 0.998, 7.173),
        (30, 0.998, 3.385),
        (2, 0.999, 31.599),
        (120, 0.95, 1.980),
    ],
)
def test_quantiles_of_students_t_match_tables(freedom, level, expected):
    """Match printed quantiles for odd and even degrees of freedom, and invert probabilities."""
    assert pytest.approx(expected, abs=6e-4) == student_t(level, freedom)
    assert pytest.approx(1 - level, rel=1e-6) == student_p(-student_t(level, freedom), freedom)
    assert 1.0 == student_p(0.0, freedom)
    assert 0.0 == student_p(math.inf, freedom)
