"""Tests of extrapolation to other ranks and links: no time is below its link's, and none falls with
more ranks.
"""

import contextlib
import itertools
import math

import numpy as np
import pytest
from builders import KIB, MIB
from networks import HOP, LINK

from commbench.analysis.prediction.closed_forms import ALGORITHMS, Hop, MeasuredCurve, fit_hop
from commbench.analysis.prediction.curves import fit_curve
from commbench.analysis.prediction.growth import GrowingCurve, extrapolated_us, non_decreasing_us
from commbench.analysis.prediction.links import WITHIN_HOST, Link
from commbench.errors import InputError

SIZES = [8, KIB, 64 * KIB, MIB, 16 * MIB]
RANKS = [2, 3, 4, 5, 7, 8, 9, 11, 16, 64, 100, 1000, 1024, 10_000]
#: Local work of the link's size, and start-ups.
LOCAL = Hop(alpha_us=40.0, beta_us_per_byte=6e-3)


def stray(
    operation: str, algorithm: str, ranks: int, link: Link, rng: np.random.Generator
) -> MeasuredCurve:
    """Return a curve up to a factor of 4 off its algorithm's time, but never faster than its
    link.
    """
    form, sizes = ALGORITHMS[operation][algorithm], np.array(SIZES, float)
    of_link = form(ranks, sizes, Hop(alpha_us=0.0, beta_us_per_byte=link.us_per_byte))
    times = of_link + rng.uniform(0.25, 4.0, len(SIZES)) * form(ranks, sizes, LOCAL)
    curve = fit_curve(SIZES, [[time * factor for factor in (0.99, 1.0, 1.01)] for time in times])
    return MeasuredCurve(curve=curve, world_size=ranks, link=link)


def strays(
    operation: str, algorithm: str, backend: str, measured: tuple[int, ...], link: Link
) -> list[GrowingCurve]:
    """Return two growing curves of such measured curves, drawn from different seeds."""
    return [
        GrowingCurve(
            operation=operation,
            backend=backend,
            measured=[
                stray(operation, algorithm, ranks, link, np.random.default_rng([seed, ranks]))
                for ranks in measured
            ],
        )
        for seed in range(2)
    ]


CASES = [
    ("all_reduce", "ring", "gloo", (8,), LINK),
    ("all_reduce", "ring", "gloo", (2, 4, 8), LINK),
    ("all_gather", "ring", "gloo", (2, 3), WITHIN_HOST),
    ("broadcast", "binomial", "gloo", (2, 4), LINK),
    ("all_gather", "ring", "mpi", (8,), WITHIN_HOST),
    (
        "all_reduce",
        "ring",
        "gloo",
        (4, 8),
        Link(rate_bps=2e8, payload=0.95, shared_cores=2, source="emulated"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_beats_its_link(case: tuple[str, str, str, tuple[int, ...], Link]) -> None:
    """Predict no time and no interval bound below the link's time for the bytes that every rank
    must send.
    """
    operation, algorithm, _, measured, link = case
    form = ALGORITHMS[operation][algorithm]
    for curve in strays(*case):
        for rate in (None, 1e8, 1e9, 1e11):
            at = rate or link.rate_bps
            if not math.isfinite(at):
                continue
            bare = Hop(alpha_us=0.0, beta_us_per_byte=8e6 / at)
            for ranks in (each for each in RANKS if rate or each not in measured):
                for size in (8, 5000, 256 * MIB):
                    least = (1 - 1e-9) * float(form(ranks, size, bare))
                    with contextlib.suppress(InputError):  # algorithms that disagree
                        estimate = curve.estimate(size, ranks, rate)
                        assert least <= estimate.low_us <= estimate.time_us <= estimate.high_us


@pytest.mark.parametrize("case", CASES, ids=str)
def test_more_ranks_are_no_faster(case: tuple[str, str, str, tuple[int, ...], Link]) -> None:
    """Predict times that do not fall beyond the measured rank counts, whatever the measured
    error.
    """
    _, algorithm, _, measured, _ = case
    beyond = [ranks for ranks in RANKS if ranks >= measured[-1]]
    for curve in strays(*case):
        for rate in (None, 1e8, 1e11):
            for size in (8, 5000, 256 * MIB):
                times_by_algorithm = [curve.times_us(size, ranks, rate) for ranks in beyond]
                times = [
                    by_algorithm[algorithm]
                    for by_algorithm in times_by_algorithm
                    if algorithm in by_algorithm
                ]
                assert len(times) > 1
                assert all(more >= (1 - 1e-9) * less for less, more in itertools.pairwise(times))


def test_a_slower_link_adds_its_own_time_only() -> None:
    """Add the time of a slower link without scaling an outlier measured within a host."""
    form = ALGORITHMS["all_reduce"]["ring"]
    times = form(4, np.array(SIZES, float), LOCAL)
    odd = fit_curve(
        SIZES,
        [[time * (10 if size == MIB else 1)] * 3 for size, time in zip(SIZES, times, strict=True)],
    )
    measured = MeasuredCurve(curve=odd, world_size=4, link=WITHIN_HOST)
    link = Link(rate_bps=1e8)
    expected = odd.time_us(MIB) + float(
        form(4, MIB, Hop(alpha_us=0.0, beta_us_per_byte=link.us_per_byte))
    )
    times_us = extrapolated_us(
        fit_hop(form, [measured]),
        measured,
        curve_bytes=np.array([float(MIB)]),
        message_bytes=MIB,
        ranks=np.array([4.0]),
        link=link,
    )
    assert expected == pytest.approx(float(times_us[0]), rel=0.01)


def test_noise_is_not_multiplied() -> None:
    """Scale an outlier of a link-bound measurement with the whole time, not with the latency."""
    form = ALGORITHMS["all_reduce"]["ring"]
    times = form(4, np.array(SIZES, float), HOP) * np.array([1, 1, 1, 1, 1.2])
    measured = MeasuredCurve(
        curve=fit_curve(SIZES, [[time] * 3 for time in times]), world_size=4, link=LINK
    )
    curve = GrowingCurve(operation="all_reduce", backend="gloo", measured=[measured])
    assert curve.time_us(16 * MIB, 8) < 1.3 * float(form(8, 16 * MIB, HOP))


def test_times_are_made_non_decreasing_between_measurements() -> None:
    """Raise dips and cut peaks between measured rank counts, and keep measured times."""
    times = {2.0: 1.0, 4.0: 5.0, 8.0: 3.0, 16.0: 4.0}

    def times_us(ranks: np.ndarray) -> np.ndarray:
        return np.exp(np.interp(np.log(ranks), np.log([*times]), np.log([*times.values()])))

    assert [1.0, 3.0, 3.0, 4.0] == pytest.approx(
        [non_decreasing_us(times_us, [2, 8], ranks) for ranks in (2, 4, 8, 16)]
    )
    assert [5.0, 5.0] == pytest.approx(
        [non_decreasing_us(times_us, [4], ranks) for ranks in (8, 16)]
    )
    assert [3.0, 3.0, 1.0] == pytest.approx(
        [non_decreasing_us(times_us, [8], ranks) for ranks in (8, 4, 2)]
    )
