"""Tests of intervals, stopping and warm-up rules and comparisons, many of them simulations with
fixed seeds.
"""

import math

import numpy as np
import pytest
from effort import repetitions, slack
from fields import fields_of
from laws import covered
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, wilcoxon

from commbench.stats import (
    Comparison,
    Interval,
    compare_family,
    family_hint,
    fewest_launches,
    hodges_lehmann,
    is_bimodal,
    is_steady,
    launch_interval,
    median,
    median_interval,
    quantiles,
    ratio_interval,
    signed_rank_interval,
    warmup_count,
)
from commbench.stats.ratios import ratio_intervals
from commbench.stats.significance import benjamini_hochberg, rank_test

Floats = NDArray[np.float64]


def family(samples: Floats) -> list[tuple[Floats, Floats]]:
    """Return the cases of an array of shape (cases, 2, launches)."""
    return [(sides[0], sides[1]) for sides in samples]


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [
        (6, 1, 6),
        (7, 1, 7),
        (10, 2, 9),
        (20, 6, 15),
        (30, 10, 21),
        (50, 18, 32),
        (71, 27, 45),
        (100, 40, 61),
    ],
)
def test_median_interval_uses_the_published_ranks(n, low, high):
    """Use the order statistics of Le Boudec's table, in any order of values."""
    values = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    assert Interval(low=low, high=high, level=0.95) == median_interval(values)


@pytest.mark.parametrize(("level", "fewest"), [(0.95, 6), (0.99, 8), (1 - 1e-15, 51)])
def test_median_interval_needs_enough_values(level, fewest):
    """Return no interval below 6 values at 95 % and below 8 at 99 %."""
    assert median_interval([1.0] * (fewest - 1), level) is None
    assert median_interval([1.0] * fewest, level) == Interval(low=1.0, high=1.0, level=level)
    assert fewest_launches(level) == fewest


@pytest.mark.parametrize(
    ("launches", "level"),
    [(2, 0.95), (3, 0.95), (5, 0.95), (6, 0.95), (20, 0.95), (2, 0.9875), (7, 0.9875)],
)
def test_intervals_cover_the_truth_as_often_as_they_claim(launches, level):
    """Cover the true median in 92 to 98.5 % of runs at 95 % (97.9 % is exact for 10 launches), of
    too few launches for order statistics by Student's t.
    """
    rng = np.random.default_rng(launches)
    effects = rng.lognormal(math.log(100.0), 0.05, (2000, launches, 1))
    medians = np.median(effects * rng.lognormal(0.0, 0.01, (2000, launches, 31)), axis=2)
    plain = rng.lognormal(math.log(100.0), 0.3, (2000, launches))
    for runs in (medians, plain):
        share = np.mean([covered(launch_interval(run, level), 100.0) for run in runs])
        assert level - 0.03 <= share <= max(0.985, level + 0.01)


def test_launch_interval_of_two_launches_by_hand():
    """Match the t interval of two logarithms: 12.706 times half their distance around their
    mean.
    """
    interval, apart = launch_interval([100.0, 102.0]), launch_interval([1.0, 1e9], 0.99)
    assert pytest.approx(12.706 * math.log(1.02)) == math.log(interval.high / interval.low)
    assert 1e17 < apart.high < 1e18  # the largest number in result files


def test_launch_interval_without_spread_or_logarithm():
    """Return no interval for one launch or for non-positive times."""
    assert launch_interval([5.0]) is None
    assert launch_interval([0.0, 5.0]) is None


@pytest.mark.parametrize("size", [1, 2, 6, 499, 500])
def test_quantiles_are_numpys_to_the_last_bit(size):
    """Match numpy's quantiles for few and for many values."""
    random = np.random.default_rng(size)
    shares = (0, 0.25, 0.5, 0.75, 0.95, 1)
    for values in (random.lognormal(0, 1, size).tolist(), random.integers(0, 3, size).tolist()):
        assert np.quantile(values, shares).tolist() == quantiles(values, shares)
        assert float(np.median(values)) == median(values)


@pytest.mark.parametrize(
    ("start", "least", "most"),
    [
        (np.ones(0), 1, 12),
        (np.full(30, 2.0), 30, 40),
        (1 + 3 * np.exp(-np.arange(100) / 10), 30, 100),
    ],
    ids=["steady", "slow start", "decaying start"],
)
def test_warmup_ends_where_times_are_steady(start, least, most):
    """Discard a slow start and little more, and always the first repetition."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        times = rng.lognormal(0.0, 0.01, 300)
        times[: len(start)] *= start
        count = warmup_count(times)
        assert least <= count <= most


@pytest.mark.parametrize(
    ("times", "window", "expected"),
    [
        ([3.0, 2.0, 2.0] + [1.0] * 10, 5, 3),
        ([3.0, 2.0, 2.0] + [1.0] * 9, 5, None),
        ([100.0, *[100.0, 100.5] * 10, *[100.0] * 20], 20, 1),  # ticks of half a percent
        (np.geomspace(100.0, 1.0, 100), 20, None),  # falls to the end
        ([1.0] * 40, 20, None),  # no two full windows
        ([1.0] * 41, 20, 1),
    ],
)
def test_warmup_by_hand(times, window, expected):
    """Find the end of a slow start; tolerate clock ticks."""
    assert expected == warmup_count(times, window)


def test_is_steady_sees_drift():
    """Call a drift of 20 % unsteady and one of 3 % steady; accept thirds whose intervals overlap,
    and noise of few times.
    """
    noise = np.random.default_rng(1).lognormal(0.0, 0.01, 90)
    for drift, expected in ((0.0, True), (0.03, True), (0.2, False), (-0.2, False)):
        assert expected is is_steady(np.linspace(1.0, 1.0 + drift, 90) * noise)
    loud = np.random.default_rng(4).lognormal(0.0, 0.5, (100, 30))
    assert sum(map(is_steady, loud)) >= 95
    short = np.random.default_rng(4).lognormal(0.0, 0.1, (100, 7))
    assert sum(map(is_steady, short)) >= 95


def draw_unimodal(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Return samples of a distribution with one mode."""
    if kind == "normal":
        return rng.normal(1.0, 0.1, shape)
    if kind == "lognormal":
        return rng.lognormal(0.0, 0.5, shape)
    if kind == "heavy":
        return np.exp(0.1 * rng.standard_t(3, shape))
    if kind == "skewed":
        return 1.0 + rng.exponential(0.3, shape)
    times = rng.lognormal(0.0, 0.06, shape)
    return times * np.where(rng.random(shape) < 0.02, 10.0, 1.0)


@pytest.mark.parametrize(
    ("shape", "n"),
    [("normal", 10), ("lognormal", 6), ("heavy", 30), ("skewed", 200), ("tailed", 11)],
)
def test_one_mode_is_not_two(shape, n):
    """Call fewer than 2 % of unimodal samples bimodal, with and without outliers."""
    samples = draw_unimodal(shape, np.random.default_rng(n), (repetitions(1500), n))
    assert np.mean([is_bimodal(sample) for sample in samples]) < 0.02 + slack(0.02, 1500)


@pytest.mark.parametrize(("n", "power"), [(10, 0.88), (30, 0.99), (3000, 1.0)])
def test_two_modes_are_found(n, power):
    """Detect a 60/40 mixture 30 % apart with 2 % noise, in any order and with outliers."""
    rng = np.random.default_rng(n)
    shape = (500 if n < 3000 else 50, n)
    samples = rng.lognormal(0.0, 0.02, shape) * np.where(rng.random(shape) < 0.4, 1.3, 1.0)
    assert np.mean([is_bimodal(sample) for sample in samples]) >= power


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.00, 1.31, 1.01, 1.00, 1.30, 1.01], True),
        ([1.00, 1.30, 1.01, 1.00, 1.01, 1.01], False),  # one alone
        ([1.00, 1.04, 1.00, 1.00, 1.04, 1.00], False),  # less than 5 % apart
        ([1.0, 1.0, 1.0, 1.3, 1.3], False),
        ([1.0] * 10, False),
        ([0.0] * 10, False),
    ],
)
def test_two_modes_by_hand(values, expected):
    """Detect modes of 4 and 2 launches, but not of 5 and 1 or less than 5 % apart."""
    assert expected is is_bimodal(values)


@pytest.mark.parametrize(
    ("a", "b", "paired", "expected"),
    [
        (range(8, 16), range(8), False, 2 / 12870),
        ([1, 2, 3], [2, 3, 4], False, 10 / 20),
        ([1, 1], [1, 1], False, 1.0),
        ([], [1], False, 1.0),
        ([0] * 6, [-1, 2, 3, 4, 5, 6], True, 4 / 64),
        ([0] * 4, [0, 1, 2, 3], True, 2 / 8),
        ([0] * 3, [0, 0, 0], True, 1.0),
    ],
)
def test_rank_tests_by_hand(a, b, expected, *, paired):
    """Match values counted by hand, with and without ties; zero differences do not count."""
    assert pytest.approx(expected) == rank_test(a, b, paired=paired)


def test_mann_whitney_beyond_counting_is_close_to_counting(monkeypatch):
    """Approximate large samples with ties within a tenth of the exact value."""
    rng = np.random.default_rng(1)
    a, b = np.round(rng.normal(0.0, 1.0, 20), 1), np.round(rng.normal(0.5, 1.0, 20), 1)
    exact = rank_test(a, b)
    exact_paired = rank_test(a, b, paired=True)
    monkeypatch.setattr("commbench.stats.significance._EXACT", 0)
    assert 0.001 < exact < 0.5
    assert pytest.approx(exact, rel=0.1) == rank_test(a, b)
    assert pytest.approx(exact_paired, rel=0.1) == rank_test(a, b, paired=True)
    assert rank_test([1.0] * 30, [1.0] * 30) == 1.0


@pytest.mark.parametrize(("n", "m"), [(2, 3), (6, 6), (10, 14), (20, 20)])
def test_rank_tests_without_ties_are_scipys(n, m):
    """Match scipy's exact tests without ties."""
    rng = np.random.default_rng(n)
    a, b = rng.normal(0.0, 1.0, n), rng.normal(0.7, 1.0, m)
    assert pytest.approx(mannwhitneyu(a, b, method="exact").pvalue, abs=1e-9) == rank_test(a, b)
    assert pytest.approx(wilcoxon(a, b[:n], method="exact").pvalue, abs=1e-9) == rank_test(
        a, b[:n], paired=True
    )


#: The four smallest of 15 p-values in Benjamini and Hochberg's 1995 paper, and the others.
SMALL = [0.0001, 0.0004, 0.0019, 0.0095]
LARGE = [0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324, 0.4262, 0.5719, 0.6528, 0.759, 1.0]


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        ([*SMALL, *LARGE], [True] * 4 + [False] * 11),
        ([*LARGE, *SMALL], [False] * 11 + [True] * 4),
        ([0.04, 0.045, 0.05], [True] * 3),  # the largest passes its step
        ([0.04, 0.06], [False] * 2),
        ([], []),
    ],
)
def test_benjamini_hochberg_steps_up(p_values, rejected):
    """Reject the smallest p-values up to the largest that passes its step."""
    assert rejected == benjamini_hochberg(p_values, q=0.05)


@pytest.mark.parametrize("launches", [2, 3, 4, 6])
def test_ratio_intervals_cover(launches):
    """Cover the true ratio of B to A in at least 93 % of comparisons, also with few launches."""
    samples = np.random.default_rng(launches).lognormal(0.0, 0.03, (repetitions(400), 2, launches))
    hits = []
    for a, b in samples:
        narrow, wide = ratio_intervals(a, 1.5 * b, (0.95, 0.999))
        assert narrow.high - narrow.low <= wide.high - wide.low
        hits.append(covered(narrow, 1.5))
    assert np.mean(hits) >= 0.93 - slack(0.93, 400)


@pytest.mark.parametrize(
    ("launches", "level"), [(2, 0.95), (3, 0.95), (5, 0.99), (6, 0.99), (10, 0.95)]
)
def test_the_interval_of_pairs_covers(launches, level):
    """Cover the true ratio as often as the level says, less 2 % of simulation error."""
    samples = np.random.default_rng(launches).lognormal(0.0, 0.03, (400, 2, launches))
    hits = [covered(ratio_interval(a, 1.5 * b, level=level)[1], 1.5) for a, b in samples]
    assert np.mean(hits) >= level - 0.02


def test_pairing_removes_shared_drift():
    """Narrow the interval where launches of a pair drift together."""
    rng = np.random.default_rng(2)
    drift = rng.lognormal(0.0, 0.1, 10)
    a, b = drift * rng.lognormal(0.0, 0.002, 10), 1.05 * drift * rng.lognormal(0.0, 0.002, 10)
    (alone,) = ratio_intervals(a, b, [0.95])
    ratio, together = ratio_interval(a, b)
    assert pytest.approx(float(np.median(b) / np.median(a))) == ratio
    assert 10 * (together.high - together.low) < alone.high - alone.low
    assert covered(together, 1.05)
    assert compare_family([(a, b)], paired=True)[0].verdict == "slower"
    assert compare_family([(a, b)])[0].verdict == "inconclusive"


@pytest.mark.parametrize(("launches", "paired"), [(6, False), (10, True)])
def test_equal_runs_get_few_verdicts(launches, *, paired):
    """Judge at most 5 % of equal cases faster or slower, also with bimodal launches."""
    rng = np.random.default_rng(launches)
    shape = (3 if paired else 6, repetitions(40), 2, launches)
    smooth = rng.lognormal(0.0, 0.04, shape)
    bimodal = rng.lognormal(0.0, 0.005, shape) * np.where(rng.random(shape) < 0.4, 1.4, 1.0)
    verdicts = []
    for run in (*smooth, *bimodal):
        verdicts += fields_of(compare_family(family(run), paired=paired), "verdict")
    different = verdicts.count("faster") + verdicts.count("slower")
    assert different <= 0.05 * len(verdicts)


def test_a_planted_slowdown_is_found():
    """Detect nearly every 10 % slowdown among 40 cases of 10 launches with 1 % noise, and its
    direction.
    """
    samples = np.random.default_rng(1).lognormal(0.0, 0.01, (10, 40, 2, 10))
    samples[:, :4, 1] *= 1.1
    samples[:, 4:8, 1] /= 1.1
    runs = [compare_family(family(run)) for run in samples]
    verdicts = np.array([[str(comparison.verdict) for comparison in run] for run in runs])
    assert np.mean(verdicts[:, :4] == "slower") >= 0.95
    assert np.mean(verdicts[:, 4:8] == "faster") >= 0.95
    assert np.mean(np.isin(verdicts[:, 8:], ["slower", "faster"])) <= 0.05


def test_selected_cases_get_wider_intervals():
    """Widen the intervals of the selected R of m cases to level 1 - q R / m."""
    samples = np.random.default_rng(7).lognormal(0.0, 0.02, (20, 2, 10))
    samples[:2, 1] *= 1.3
    comparisons = compare_family(family(samples))
    levels = [comparison.interval.level for comparison in comparisons if comparison.interval]
    assert pytest.approx([1 - 0.05 * 2 / 20] * 2 + [0.95] * 18) == levels
    assert fields_of(comparisons[:2], "verdict") == ["slower"] * 2


def test_the_margin_decides():
    """Judge a significant difference within the margin as the same, and one across it as
    inconclusive.
    """
    a, b = np.random.default_rng(3).lognormal(0.0, 0.001, (2, 10))
    for factor, margin, verdict in (
        (1.0, 0.02, "same"),
        (1.01, 0.02, "same"),
        (1.02, 0.02, "inconclusive"),
        (1.01, 0.005, "slower"),
    ):
        (comparison,) = compare_family([(a, factor * b)], margin=margin)
        assert verdict == comparison.verdict
        assert (factor > 1) == (comparison.p_value < 0.001)


def test_cases_without_a_spread_are_inconclusive():
    """Judge cases with one launch, none or a time of 0 inconclusive, without effect on others."""
    good = ([1.0, 1.01, 1.02, 1.03, 1.04, 1.05], [2.0, 2.01, 2.02, 2.03, 2.04, 2.05])
    lone, empty, zero, others = compare_family(
        [([1.0], [2.0, 3.0]), ([], [1.0]), ([0.0, 1.0], [1.0, 2.0]), good]
    )
    assert Comparison(ratio=2.5, launches_a=1, launches_b=2) == lone
    assert math.isnan(empty.ratio)
    assert fields_of((lone, empty, zero), "verdict") == ["inconclusive"] * 3
    assert zero.interval is None
    assert 1.0 == zero.p_value
    assert math.inf == zero.detectable
    assert compare_family([good]) == [others]
    assert others.verdict == "slower"
    assert compare_family([]) == []


@pytest.mark.parametrize(("launches", "cases"), [(6, 1), (10, 10)])
def test_detectable_is_found_four_times_in_five(launches, cases):
    """Find a lone slowdown of the size called detectable in 65 to 95 % of comparisons."""
    rng = np.random.default_rng(launches)
    equals = rng.lognormal(0.0, 0.02, (repetitions(100), cases, 2, launches))
    sizes = [comparison.detectable for run in equals for comparison in compare_family(family(run))]
    assert min(sizes) > 0.02
    assert math.inf == compare_family([(equals[0, 0, 0, :3],) * 2])[0].detectable
    planted = rng.lognormal(0.0, 0.02, (repetitions(200), cases, 2, launches))
    planted[:, 0, 1] *= 1 + np.median(sizes)
    detections = [compare_family(family(run))[0].verdict == "slower" for run in planted]
    assert 0.65 - slack(0.65, 200) <= np.mean(detections) <= 0.95 + slack(0.95, 200)


def test_detectable_of_few_pairs_fits_their_interval():
    """Detect, of four pairs, what lies 2.80 / 1.96 half widths of their interval beyond the margin,
    where the estimated spread is 1.22 standard deviations.
    """
    ratios = np.exp(0.01 * np.array([-3.0, -1.0, 1.0, 3.0]))
    (comparison,) = compare_family([(np.ones(4), ratios)], paired=True)
    half_width = math.log(comparison.interval.high)
    beyond = math.log((1 + comparison.detectable) / 1.02)
    assert 2.80 / 1.96 * 1.22 == pytest.approx(beyond / half_width, rel=0.01)


def test_family_hint_knows_the_smallest_p():
    """Advise more launches exactly where 2 / C(2n, n) exceeds q / m."""
    assert (True, False) == (family_hint(1, 3, 3), family_hint(1, 4, 4))
    assert (False, True) == (family_hint(321, 8, 8), family_hint(322, 8, 8))


def test_hodges_lehmann_is_the_median_of_pairwise_means():
    """Average two values, leave an outlier nearly without effect, and spread less than the median
    of normal values.
    """
    assert 1.5 == hodges_lehmann([1.0, 2.0])
    assert 3.0 == hodges_lehmann([1.0, 2.0, 3.0, 1e6, 4.0])
    draws = np.random.default_rng(5).normal(size=(2000, 8))
    spread = np.std([hodges_lehmann(draw) for draw in draws])
    assert spread < 0.95 * np.std(np.median(draws, axis=1))


@pytest.mark.parametrize("n", [6, 9, 20])
def test_signed_rank_intervals_agree_with_the_test(n):
    """Hold exactly the centres that Wilcoxon's test does not reject."""
    values = np.random.default_rng(n).standard_normal(n)
    interval = signed_rank_interval(values)
    assert signed_rank_interval(values[:5]) is None
    for centre, is_rejected in (
        (interval.low - 1e-9, True),
        (interval.low + 1e-9, False),
        (interval.high - 1e-9, False),
        (interval.high + 1e-9, True),
    ):
        assert (wilcoxon(values - centre, mode="exact").pvalue <= 0.05) == is_rejected
