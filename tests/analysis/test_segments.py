"""Tests of segments: known lines are recovered, noise makes no segments, small messages count."""

from collections.abc import Callable

import numpy as np
import pytest
from builders import KIB, MIB
from laws import COARSE, POWERS, launches_of, one, three, two

from commbench.analysis.prediction.fits import (
    Segment,
    fit_line,
    fit_segments,
    lines_at,
    medians_over_launches,
    noise_of,
)
from commbench.stats import Floats


def fitted(
    law: Callable[[Floats], Floats], sizes: list[int], *, noise: float = 0.03, **drawn: int
) -> list[Segment]:
    """Return the segments fitted to noisy launches."""
    table = np.array(launches_of(law, sizes, noise=noise, **drawn))
    return fit_segments(np.array(sizes, dtype=float), medians_over_launches(table), noise_of(table))


@pytest.mark.parametrize(
    ("law", "lines"),
    [
        (one, [(20, 1e-3, 8, 16 * MIB)]),
        (two, [(5, 2e-3, 8, 32 * KIB), (120, 2e-4, 64 * KIB, 16 * MIB)]),
        (
            three,
            [(1, 2e-3, 8, 2 * KIB), (12, 5e-4, 4 * KIB, 512 * KIB), (250, 1.5e-3, MIB, 16 * MIB)],
        ),
    ],
    ids=["one", "two", "three"],
)
def test_known_lines_are_recovered(
    law: Callable[[Floats], Floats], lines: list[tuple[float, float, int, int]]
) -> None:
    """Recover the number, ends and lines of segments."""
    segments = fitted(law, POWERS)
    assert [line[2:] for line in lines] == [(s.from_bytes, s.to_bytes) for s in segments]
    for segment, (alpha, beta, *_) in zip(segments, lines, strict=True):
        assert segment.alpha_us == pytest.approx(alpha, rel=0.15)
        assert segment.beta_us_per_byte == pytest.approx(beta, rel=0.05)


@pytest.mark.parametrize("sizes", [POWERS, COARSE], ids=["22 sizes", "11 sizes"])
@pytest.mark.parametrize("launches", [1, 2, 6])
def test_noise_is_no_segment(sizes: list[int], launches: int) -> None:
    """Split a straight line into segments in at most 10 of 100 draws."""
    draws = [fitted(one, sizes, launches=launches, seed=seed) for seed in range(100)]
    assert sum(len(segments) > 1 for segments in draws) <= 10


@pytest.mark.parametrize("launches", [1, 2, 6])
def test_jumps_are_found_through_noise(launches: int) -> None:
    """Find two segments in at least 80 of 100 draws if the second has twice the latency."""
    draws = [fitted(two, COARSE, launches=launches, seed=seed) for seed in range(100)]
    assert sum(len(segments) > 1 for segments in draws) >= 80


def test_small_messages_count_as_much_as_large_ones() -> None:
    """Recover a latency that absolute errors of the largest message would hide."""
    assert fitted(lambda n: 1 + n * 1e-3, POWERS, noise=0.05)[0].alpha_us == pytest.approx(
        1, rel=0.1
    )


def test_neither_start_up_nor_rate_is_negative() -> None:
    """Fit a line through zero or a constant instead of negative parameters."""
    sizes, faster, falling = (
        np.array([1.0, 2.0, 4.0]),
        np.array([1.0, 3.0, 9.0]),
        np.array([9.0, 3.0, 2.9]),
    )
    for times, free in ((faster, 1), (falling, 0)):
        line = fit_line(sizes, times)
        assert 0 == line[1 - free]
        for factor in (0.99, 1.01):  # the best of its kind
            other = line * factor
            errors = [np.sum(((a + b * sizes) / times - 1) ** 2) for a, b in (line, other)]
            assert errors[0] < errors[1]


def test_lines_are_fitted_to_many_at_once() -> None:
    """Fit many rows and chosen points as if each were fitted alone."""
    sizes = np.array(COARSE, dtype=float)
    rows = np.array(launches_of(one, COARSE)).T
    for row, line in zip(rows, fit_line(sizes, rows), strict=True):
        assert fit_line(sizes, row) == pytest.approx(line)
    chosen = np.arange(len(sizes)) < 5
    assert fit_line(sizes[:5], rows[0, :5]) == pytest.approx(fit_line(sizes, rows[0], chosen))


def test_one_size_has_no_rate() -> None:
    """Fit a constant to a single point."""
    assert [7.0, 0.0] == fit_line(np.array([8.0]), np.array([7.0])).tolist()


def test_segments_are_moved_to_other_times() -> None:
    """Scale the lines of fitted segments to other times, in one row or many."""
    sizes = np.array(POWERS, dtype=float)
    segments = fit_segments(sizes, three(sizes))
    assert lines_at(segments, sizes, three(sizes)) == pytest.approx(three(sizes))
    rows = np.stack([three(sizes), 2 * three(sizes)])
    assert lines_at(segments, sizes, rows) == pytest.approx(rows)
