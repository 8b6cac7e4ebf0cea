"""Tests of Student's t against printed tables and simulations."""

import math

import numpy as np
import pytest

from commbench.stats.intervals import detectable_effect, student_p, student_t


@pytest.mark.parametrize(
    ("freedom", "level", "expected"),
    [
        (1, 0.95, 12.706),
        (9, 0.95, 2.262),
        (10, 0.99, 3.169),
        (4, 0.998, 7.173),
        (30, 0.998, 3.385),
        (2, 0.999, 31.599),
        (120, 0.95, 1.980),
    ],
)
def test_quantiles_of_students_t_match_tables(freedom: int, level: float, expected: float) -> None:
    """Match printed quantiles for odd and even degrees of freedom, and invert probabilities."""
    assert pytest.approx(expected, abs=6e-4) == student_t(level, freedom)
    assert pytest.approx(1 - level, rel=1e-6) == student_p(-student_t(level, freedom), freedom)
    assert (1.0, 0.0) == (student_p(0.0, freedom), student_p(math.inf, freedom))


@pytest.mark.parametrize(("freedom", "level"), [(2, 0.95), (4, 0.995), (9, 0.95)])
def test_what_is_within_reach_is_found_as_often(freedom: int, level: float) -> None:
    """Exclude 0 in about four of five draws at the stated distance."""
    generator = np.random.default_rng(freedom)
    off = detectable_effect(level, 0.8, freedom) + generator.standard_normal(20_000)
    spread = np.sqrt(generator.chisquare(freedom, 20_000) / freedom)
    assert pytest.approx(0.8, abs=0.04) == float(np.mean(off / spread > student_t(level, freedom)))
