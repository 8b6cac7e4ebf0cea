"""Tests of intervals against several runs, most of them simulations with fixed seeds."""

import math

import numpy as np
import pytest

from commbench.stats import Verdict, compare_family
from commbench.stats.hierarchy import median_of_runs, new_run_spread, run_ratio_intervals, run_spread, split_runs
from commbench.stats.intervals import Floats

LAUNCHES = 10


def make_runs(generator: np.random.Generator, count: int, *, between: float, within: float) -> list[Floats]:
    """Return launches of runs whose states, and whose launches, differ by so much."""
    states = between * generator.standard_normal((count, 1))
    return list(np.exp(states + within * generator.standard_normal((count, LAUNCHES))))


def miss_rate(count: int, *, between: float, within: float, samples: int = 200) -> float:
    """Return how often the 95 % interval of an equal run against ``count`` others leaves out 1."""
    generator = np.random.default_rng((count, round(1e4 * between)))
    missed = 0
    for _ in range(samples):
        *runs, b = make_runs(generator, count + 1, between=between, within=within)
        (interval,) = run_ratio_intervals(runs, b, [0.95], resamples=1000, seed=0)
        missed += not interval.low < 1 < interval.high
    return missed / samples


def test_runs_count_alike() -> None:
    """Take the median of the runs' medians, however many launches each has."""
    launches = np.asarray([1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0])
    assert [5, 1, 1] == [len(run) for run in split_runs(launches, [5, 1, 1])]
    assert 2.0 == median_of_runs(split_runs(launches, [5, 1, 1]))


def test_what_launches_explain_is_no_spread_of_runs() -> None:
    """Find the runs' own spread, and hardly any where there is none."""
    generator = np.random.default_rng(3)
    found = {
        between: float(
            np.median([run_spread(make_runs(generator, 8, between=between, within=0.02)) for _ in range(60)])
        )
        for between in (0.0, 0.05)
    }
    assert found[0.0] < 0.005
    assert 0.04 < found[0.05] < 0.06


def test_few_runs_tell_little() -> None:
    """Widen what is known from few runs: 12.7 / 1.96 sqrt(3/2) spreads with two."""
    runs = [np.asarray([1.0, 1.0]), np.asarray([1.1, 1.1])]
    assert 12.706 / 1.96 * math.sqrt(1.5) * run_spread(runs) == pytest.approx(new_run_spread(runs), rel=1e-3)
    many = make_runs(np.random.default_rng(1), 20, between=0.05, within=0.01)
    assert 1.0 < new_run_spread(many) / run_spread(many) < 1.15


@pytest.mark.parametrize("between", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("count", [3, 5, 10])
def test_intervals_cover_where_runs_differ(count: int, between: float) -> None:
    """Miss the truth at most as often as promised, and a little for so few samples, from three baselines on."""
    assert miss_rate(count, between=between, within=0.02) <= 0.09


def test_equal_runs_are_rarely_called_different_where_naive_pooling_often_does() -> None:
    """Call at most 5 % of equal cases different; without knowing of the runs it would be a quarter."""
    generator = np.random.default_rng(5)
    different = {"known": 0, "ignored": 0}
    cases = 0
    for _ in range(30):
        pairs = []
        for _case in range(8):
            *runs, b = make_runs(generator, 6, between=0.04, within=0.01)
            pairs.append((np.concatenate(runs), b))
        for name, sizes in (("known", [[LAUNCHES] * 5] * 8), ("ignored", None)):
            verdicts = [comparison.verdict for comparison in compare_family(pairs, runs=sizes)]
            different[name] += sum(verdict in {Verdict.SLOWER, Verdict.FASTER} for verdict in verdicts)
        cases += 8
    assert different["known"] <= 0.05 * cases
    assert different["ignored"] > 0.25 * cases


def test_a_slowdown_is_found_against_five_steady_baselines() -> None:
    """Find a lone slowdown of 10 % among eight cases where runs differ by half a percent."""
    generator = np.random.default_rng(6)
    found = wrong = 0
    for _ in range(40):
        pairs = []
        for case in range(8):
            *runs, b = make_runs(generator, 6, between=0.005, within=0.01)
            pairs.append((np.concatenate(runs), b * (1.1 if case == 0 else 1.0)))
        first, *others = [one.verdict for one in compare_family(pairs, runs=[[LAUNCHES] * 5] * 8)]
        found += first is Verdict.SLOWER
        wrong += sum(verdict in {Verdict.SLOWER, Verdict.FASTER} for verdict in others)
    assert found >= 38
    assert wrong <= 0.05 * 40 * 7


def test_one_run_is_as_without_runs() -> None:
    """Change nothing where A is a single run."""
    generator = np.random.default_rng(7)
    pairs = [(np.exp(0.01 * generator.standard_normal(8)), np.exp(0.01 * generator.standard_normal(8)))] * 2
    assert compare_family(pairs) == compare_family(pairs, runs=[[8], [8]])
