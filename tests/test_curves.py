"""Tests of curves: known ones are recovered, predictions are monotone, intervals cover, files are read."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import KIB, MIB
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.errors import InputError
from commbench.prediction.curves import Curve, fit_curve
from commbench.stats import Floats

POWERS = [2**k for k in range(3, 25)]
COARSE = [8 * 4**k for k in range(11)]


def one(n: Floats) -> Floats:
    """Return a start-up time of 20 us and 1 GB/s."""
    return 20 + n * 1e-3


def two(n: Floats) -> Floats:
    """Return times that jump where the protocol changes, at 32 KiB."""
    return np.where(n <= 32 * KIB, 5 + n * 2e-3, 120 + n * 2e-4)


def three(n: Floats) -> Floats:
    """Return times that do so at 2 KiB and 512 KiB."""
    return np.where(n <= 2 * KIB, 1 + n * 2e-3, np.where(n <= 512 * KIB, 12 + n * 5e-4, 250 + n * 1.5e-3))


def launches_of(
    law: Callable[[Floats], Floats], sizes: list[int], *, noise: float = 0.03, launches: int = 6, seed: int = 0
) -> list[list[float]]:
    """Return launch medians that stray around a law by so much, relative."""
    times = law(np.array(sizes, dtype=float))
    return (times[:, None] * np.random.default_rng(seed).lognormal(0, noise, (len(sizes), launches))).tolist()


# ------------------------------------------------------------------------------------------------------ recovery


@pytest.mark.parametrize(
    ("law", "lines"),
    [
        (one, [(20, 1e-3, 8, 16 * MIB)]),
        (two, [(5, 2e-3, 8, 32 * KIB), (120, 2e-4, 64 * KIB, 16 * MIB)]),
        (three, [(1, 2e-3, 8, 2 * KIB), (12, 5e-4, 4 * KIB, 512 * KIB), (250, 1.5e-3, MIB, 16 * MIB)]),
    ],
    ids=["one", "two", "three"],
)
def test_known_curves_are_recovered(
    law: Callable[[Floats], Floats], lines: list[tuple[float, float, int, int]]
) -> None:
    """Find the number of segments, where they end and, within a few times the noise, their lines."""
    curve = fit_curve(POWERS, launches_of(law, POWERS))
    assert [line[2:] for line in lines] == [(s.from_bytes, s.to_bytes) for s in curve.segments]
    for segment, (alpha, beta, *_) in zip(curve.segments, lines, strict=True):
        assert segment.alpha_us == pytest.approx(alpha, rel=0.15)
        assert segment.beta_us_per_byte == pytest.approx(beta, rel=0.05)
    assert max(map(abs, curve.residuals)) < 0.08


@pytest.mark.parametrize("sizes", [POWERS, COARSE], ids=["22 sizes", "11 sizes"])
@pytest.mark.parametrize("launches", [1, 6], ids=["1 launch", "6 launches"])
def test_noise_is_no_segment(sizes: list[int], launches: int) -> None:
    """Cut a straight line into more than one segment in few of 100 draws."""
    draws = [fit_curve(sizes, launches_of(one, sizes, launches=launches, seed=seed)) for seed in range(100)]
    assert sum(len(curve.segments) > 1 for curve in draws) <= 10


def test_small_messages_count_as_much_as_large_ones() -> None:
    """Find a start-up time that a fit to absolute errors would drown in the noise of the largest message."""
    curve = fit_curve(POWERS, launches_of(lambda n: 1 + n * 1e-3, POWERS, noise=0.05))
    assert curve.segments[0].alpha_us == pytest.approx(1, rel=0.1)


def test_neither_start_up_nor_rate_is_negative() -> None:
    """Fit times that grow faster than the size, or that fall, by a line through zero and by a constant."""
    faster = fit_curve([KIB, 2 * KIB, 4 * KIB], [[1.0], [3.0], [9.0]])
    falling = fit_curve([KIB, 2 * KIB, 4 * KIB], [[9.0], [3.0], [2.9]])
    assert 0 == faster.segments[0].alpha_us
    assert 0 == falling.segments[0].beta_us_per_byte
    assert falling.time_us(KIB) == falling.time_us(4 * KIB) == pytest.approx((9 * 3 * 2.9) ** (1 / 3))


# ---------------------------------------------------------------------------------------------------- prediction


def test_measured_sizes_keep_their_times() -> None:
    """Predict at each measured size what was measured there, where times rise."""
    curve = fit_curve(POWERS, launches_of(three, POWERS, noise=0.0))
    assert list(curve.times_us) == pytest.approx([curve.time_us(size) for size in POWERS])


@pytest.mark.parametrize(("law", "worst"), [(one, 0.03), (two, 0.2), (three, 0.2)])
def test_between_sizes_the_law_is_met(law: Callable[[Floats], Floats], worst: float) -> None:
    """Predict between sizes 4 apart a line within 3 %, and others at most sizes so; next to a jump nobody can."""
    curve = fit_curve(COARSE, launches_of(law, COARSE, noise=0.0))
    between = np.geomspace(COARSE[0], COARSE[-1], 200)
    errors = np.abs([curve.time_us(n) / float(law(np.array(n))) - 1 for n in between])
    assert np.median(errors) < 0.03
    assert np.quantile(errors, 0.8) < worst


def test_beyond_the_data_the_outer_lines_go_on() -> None:
    """Continue the first and the last line without a jump, however far."""
    curve = fit_curve(POWERS, launches_of(three, POWERS, noise=0.0))
    for n in (1, 4, 32 * MIB, 2**40):
        assert curve.time_us(n) == pytest.approx(float(three(np.array(n))), rel=1e-6)
    assert curve.time_us(0) == pytest.approx(1)


sorted_sizes = st.lists(st.integers(1, 2**36), min_size=2, max_size=12, unique=True)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_longer_message_is_never_faster(data: st.DataObject) -> None:
    """Predict times that are above 0, rise or stay, and have no jump at the ends, whatever was measured."""
    sizes = data.draw(sorted_sizes)
    times = data.draw(st.lists(st.floats(0.01, 1e8), min_size=len(sizes), max_size=len(sizes)))
    curve = fit_curve(sizes, [[time] for time in times])
    ends = min(sizes), max(sizes)
    asked = sorted({*sizes, *np.geomspace(ends[0] / 4, ends[1] * 4, 60).tolist()})
    predicted = np.array([curve.time_us(n) for n in asked])
    assert predicted.min() > 0
    assert (np.diff(predicted) >= -1e-9 * predicted[1:]).all()
    for end in ends:
        assert curve.time_us(end * (1 - 1e-9)) == pytest.approx(curve.time_us(end * (1 + 1e-9)), rel=1e-5)


# ----------------------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize("launches", [3, 6, 10])
def test_intervals_cover_the_truth(launches: int) -> None:
    """Cover the true time in about 95 % of draws: at a measured size, between two, and beyond all."""
    sizes, asked = [KIB * 2**k for k in range(8)], [4 * KIB, 6 * KIB, MIB]
    hits = np.zeros(len(asked))
    for seed in range(200):
        curve = fit_curve(sizes, launches_of(one, sizes, launches=launches, seed=seed))
        for i, n in enumerate(asked):
            interval = curve.interval_us(n)
            assert interval is not None
            hits[i] += interval.low <= one(np.array(n)) <= interval.high
    assert (hits / 200 >= 0.88).all(), hits / 200


def test_intervals_know_that_launches_are_slow_as_a_whole() -> None:
    """Give beyond the data an interval as wide as launches differ, for their differences do not average out."""
    slow = np.array([0.8, 0.9, 0.95, 1.05, 1.1, 1.2])
    curve = fit_curve(POWERS, (one(np.array(POWERS, dtype=float))[:, None] * slow).tolist())
    interval = curve.interval_us(64 * MIB)
    assert interval is not None
    assert interval.half_width / curve.time_us(64 * MIB) > 0.1


def test_intervals_are_the_same_each_time() -> None:
    """Give the same interval for the same data, and keep the prediction within it."""
    curve = fit_curve(POWERS, launches_of(two, POWERS, launches=3))
    assert curve.interval_us(5000) == replace(curve).interval_us(5000)
    for n in (1, 8, 5000, 64 * MIB):
        interval = curve.interval_us(n)
        assert interval is not None
        assert interval.low <= curve.time_us(n) <= interval.high


def test_no_interval_from_one_launch() -> None:
    """Give none where one launch bears on the size, and one where others do."""
    launches = launches_of(one, POWERS, launches=4)
    curve = fit_curve(
        POWERS, [row if size > 64 else [*row[:1], None, None, None] for size, row in zip(POWERS, launches, strict=True)]
    )
    assert curve.interval_us(20) is None
    assert curve.interval_us(MIB + 8) is not None
    assert fit_curve(POWERS, [row[:1] for row in launches]).interval_us(MIB) is None


# --------------------------------------------------------------------------------------------------- odd inputs


def test_launches_may_miss_sizes() -> None:
    """Take the median of those there are, in any order of sizes, with None, NaN and rows of unequal length."""
    curve = fit_curve([4 * KIB, KIB, 2 * KIB], [[8.0, None, 8.2], [2.0], [4.0, math.nan, 4.2]])
    assert (KIB, 2 * KIB, 4 * KIB) == curve.sizes
    assert pytest.approx([2.0, 4.1, 8.1]) == list(curve.times_us)
    assert ((2.0, None, None), (4.0, None, 4.2), (8.0, None, 8.2)) == curve.launches_us


def test_times_of_zero_count_as_none() -> None:
    """Leave out sizes whose time the clock did not see, and a size of 0."""
    curve = fit_curve([0, KIB, 2 * KIB, 4 * KIB], [[1.0], [0.0, 0.0], [4.0, 0.0], [8.0, 8.0]])
    assert (2 * KIB, 4 * KIB) == curve.sizes
    assert pytest.approx([4.0, 8.0]) == list(curve.times_us)


def test_equal_times_make_a_constant() -> None:
    """Predict the same time everywhere."""
    curve = fit_curve(POWERS, [[7.0, 7.0]] * len(POWERS))
    assert pytest.approx([7.0] * 4, rel=1e-12) == [curve.time_us(n) for n in (0, 8, 5000, 2**30)]
    assert pytest.approx(0.0, abs=1e-12) == curve.held_out_error
    interval = curve.interval_us(5000)
    assert interval is not None
    assert (7.0, 7.0) == pytest.approx((interval.low, interval.high))


def test_two_sizes_make_a_line() -> None:
    """Draw the line through both, without an error, as none can be left out."""
    curve = fit_curve([KIB, MIB], [[2.0], [1025.0]])
    (segment,) = curve.segments
    assert pytest.approx((1.0, 1 / KIB)) == (segment.alpha_us, segment.beta_us_per_byte)
    assert curve.held_out_error is None


@pytest.mark.parametrize(
    ("sizes", "launches", "words"),
    [
        ([KIB], [[1.0]], "needs 2 message sizes with a time above 0 and 1 has one; measure more"),
        ([KIB, MIB], [[1.0], [0.0]], "and 1 has one"),
        ([], [], "and 0 have one"),
        ([KIB, KIB], [[1.0], [2.0]], "each message size once"),
        ([KIB, MIB], [[1.0]], "each message size once"),
    ],
)
def test_too_little_is_refused(sizes: list[int], launches: list[list[float]], words: str) -> None:
    """Say what a curve needs."""
    with pytest.raises(InputError, match=words):
        fit_curve(sizes, launches)


# ------------------------------------------------------------------------------------------------ error and file


def test_held_out_error_is_that_of_sizes_left_out() -> None:
    """Give the median error of inner sizes as curves without them predict."""
    launches = launches_of(three, COARSE)
    curve = fit_curve(COARSE, launches)
    errors = []
    for i in range(1, len(COARSE) - 1):
        without = fit_curve([*COARSE[:i], *COARSE[i + 1 :]], [*launches[:i], *launches[i + 1 :]])
        errors.append(abs(without.time_us(COARSE[i]) / curve.times_us[i] - 1))
    assert curve.held_out_error == pytest.approx(np.median(errors))


def test_curve_comes_back_from_json() -> None:
    """Read what was written, and predict the same from it."""
    curve = fit_curve(POWERS, [[*row, None] for row in launches_of(two, POWERS)])
    back = Curve.from_json(json.loads(json.dumps(curve.to_json())))
    assert curve == back
    assert curve.interval_us(5000) == back.interval_us(5000)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [8, 4, 2]},
        {"sizes": "none"},
        {"times_us": [1.0]},
        {"times_us": [1.0, -2.0, 3.0]},
        {"segments": []},
        {"segments": [{"from_bytes": 2}]},
        {"segments": [{"from_bytes": 2, "to_bytes": 8, "alpha_us": -1.0, "beta_us_per_byte": 0.1}]},
        {"segments": [{"from_bytes": 3, "to_bytes": 8, "alpha_us": 1.0, "beta_us_per_byte": 0.1}]},
        {"segments": [{"from_bytes": 2, "to_bytes": 8, "alpha_us": "fast", "beta_us_per_byte": 0.1}]},
        {"segments": None},
        {"residuals": []},
        {"launches_us": [[1.0], [2.0]]},
        {"launches_us": [[1.0], [2.0], [3.0, 4.0]]},
        {"launches_us": [[1.0], [2.0], [0.0]]},
        {"launches_us": 7},
        {"held_out_error": "good"},
    ],
)
def test_a_foreign_curve_is_refused(change: dict[str, Any]) -> None:
    """Say in one sentence that it is no curve."""
    sound = fit_curve([2, 4, 8], [[1.0], [2.0], [3.0]]).to_json()
    with pytest.raises(InputError, match=r"^This is no curve of commbench \(.*\); fit the run anew\.$"):
        Curve.from_json({**sound, **change})
    without = {name: value for name, value in sound.items() if name not in change}
    with pytest.raises(InputError, match="This is no curve"):
        Curve.from_json(without)
