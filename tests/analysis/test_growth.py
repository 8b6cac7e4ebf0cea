"""Tests of one operation on more ranks and other links: exact at measured points, close where the
closed form holds.
"""

import dataclasses
import math

import pytest
from builders import KIB, MIB
from networks import HOP, LINK, RING, SIZES, measure

from commbench.analysis.prediction.closed_forms import (
    ALGORITHMS,
    Form,
    Hop,
    MeasuredCurve,
    hierarchical_all_reduce,
)
from commbench.analysis.prediction.growth import GrowingCurve
from commbench.analysis.prediction.links import WITHIN_HOST, Link
from commbench.errors import InputError

UNKNOWN = Link()
#: A quarter of the usual rate.
SLOWER = (
    Hop(alpha_us=HOP.alpha_us, beta_us_per_byte=4 * HOP.beta_us_per_byte),
    Link(rate_bps=0.25e9, source="emulated"),
)


def grow(
    *measured: MeasuredCurve, backend: str = "gloo", operation: str = "all_reduce", **how: object
) -> GrowingCurve:
    """Return the growing curve of the measured curves."""
    return GrowingCurve(operation=operation, backend=backend, measured=measured, **how)


def mpi(form: Form, *ranks: int, link: Link = UNKNOWN) -> GrowingCurve:
    """Return the growing curve of MPI's all_reduce, whose algorithm ``form`` is unknown to the
    model.
    """
    return grow(*(measure(form, number, link=link) for number in ranks), backend="mpi")


def test_a_prediction_at_a_measured_point_is_the_measurement() -> None:
    """Predict the measured time and interval at measured ranks and rate."""
    curves = [measure(RING, 2), measure(ALGORITHMS["all_reduce"]["recursive doubling"], 4)]
    for measured in curves:
        for size in (64 * KIB, 100_000, 16 * MIB):
            estimate = grow(*curves).estimate(size, measured.world_size)
            assert estimate.time_us == pytest.approx(measured.curve.time_us(size))
            interval = measured.curve.interval_us(size)
            assert interval is not None
            assert (estimate.low_us, estimate.high_us) == pytest.approx(
                (interval.low, interval.high)
            )


@pytest.mark.parametrize("ranks", [2, 3, 6, 8, 64, 1024])
def test_more_ranks_are_predicted_from_few(ranks: int) -> None:
    """Predict a ring on any number of ranks from 2 and 4 ranks."""
    curve = grow(measure(RING, 2), measure(RING, 4))
    for size in SIZES:
        estimate = curve.estimate(size, ranks)
        assert estimate.time_us == pytest.approx(float(RING(ranks, size, HOP)), rel=0.05)
        assert estimate.low_us < estimate.time_us < estimate.high_us
        assert estimate.algorithm == "ring"


@pytest.mark.parametrize("gbit", [0.5, 10, 100])
def test_another_link_rate_scales_the_time_of_the_link_only(gbit: float) -> None:
    """Keep the latency and scale the link's time, headers included, by the rate."""
    hop = Hop(alpha_us=50.0, beta_us_per_byte=1.1 * HOP.beta_us_per_byte)
    curve = grow(*(measure(RING, ranks, hop=hop) for ranks in (2, 4)))
    expected = Hop(alpha_us=50.0, beta_us_per_byte=hop.beta_us_per_byte / gbit)
    for size in SIZES:
        assert curve.time_us(size, 8, 1e9 * gbit) == pytest.approx(
            float(RING(8, size, expected)), rel=0.15
        )


def test_local_work_stays_over_other_links() -> None:
    """Keep local work unchanged over a faster link."""
    slow = 5 * HOP.beta_us_per_byte
    curve = grow(
        *(measure(RING, ranks, hop=Hop(alpha_us=50.0, beta_us_per_byte=slow)) for ranks in (2, 4))
    )
    expected = Hop(alpha_us=50.0, beta_us_per_byte=slow - 0.9 * HOP.beta_us_per_byte)
    assert curve.time_us(16 * MIB, 8, 1e10) == pytest.approx(
        float(RING(8, 16 * MIB, expected)), rel=0.05
    )


def test_a_faster_link_than_any_may_gain_nothing() -> None:
    """Include no gain in the interval over a faster link, since a slow link may hide local work."""
    slow, fast = (measure(RING, 4, hop=hop, link=link) for hop, link in (SLOWER, (HOP, LINK)))
    once = grow(slow).estimate(16 * MIB, 8, 1e9)
    same = grow(slow).estimate(16 * MIB, 8)
    assert once.time_us < once.high_us
    assert once.high_us >= same.high_us
    both = grow(slow, fast).estimate(16 * MIB, 8, 1e9)
    assert both.high_us < 0.7 * once.high_us / once.time_us * both.time_us


def test_oversubscription_is_removed_unless_cores_stay_shared() -> None:
    """Predict ranks with their own cores by default, and with shared cores on request."""
    link = Link(rate_bps=1e9, shared_cores=2, source="emulated")

    def crowded(ranks: int) -> Hop:
        return Hop(alpha_us=50.0 * ranks / 2, beta_us_per_byte=8e-3 + 4e-3 * ranks / 2)

    curve = grow(*(measure(RING, ranks, hop=crowded(ranks), link=link) for ranks in (2, 3, 4)))
    for ranks in (4, 8):
        assert curve.estimate(16 * MIB, ranks, has_shared_cores=True).time_us == pytest.approx(
            float(RING(ranks, 16 * MIB, crowded(ranks))), rel=0.05
        )
        alone = float(RING(ranks, 16 * MIB, Hop(alpha_us=50.0, beta_us_per_byte=12e-3)))
        assert curve.estimate(16 * MIB, ranks).time_us == pytest.approx(alone, rel=0.05)


def test_the_held_out_error_is_that_on_more_ranks() -> None:
    """Report a small held-out error if the closed form holds, and a large one if not."""
    good = grow(*(measure(RING, ranks) for ranks in (2, 3, 4))).held_out
    assert good.error is not None
    assert good.error < 0.05
    bad = grow(
        *(measure(ALGORITHMS["all_reduce"]["recursive doubling"], ranks) for ranks in (2, 8, 32))
    ).held_out
    assert bad.error is not None
    assert bad.error > 0.3
    alone = grow(measure(RING, 4)).held_out
    assert alone.error is not None
    assert "one world size only: the algorithm is assumed" in alone.over


def test_intervals_widen_with_distance_from_measurements() -> None:
    """Widen the interval with every doubling of ranks."""
    curve = grow(*(measure(ALGORITHMS["all_reduce"]["double tree"], ranks) for ranks in (2, 3, 4)))
    widths = []
    for ranks in (4, 8, 64, 1024):
        estimate = curve.estimate(MIB, ranks)
        widths.append(estimate.high_us / estimate.low_us)
    assert sorted(widths) == widths
    assert widths[0] < widths[-1]


@pytest.mark.parametrize("name", sorted(ALGORITHMS["all_reduce"]))
def test_an_unknown_algorithm_is_found_among_its_like(name: str) -> None:
    """Include the true algorithm among the plausible ones, and the true time in the interval."""
    form = ALGORITHMS["all_reduce"][name]
    curve = mpi(form, 2, 3, 4, 8)
    estimate = curve.estimate(16 * MIB, 32)
    assert name in estimate.algorithm.split(" or ")
    assert estimate.low_us <= float(form(32, 16 * MIB, HOP)) <= estimate.high_us


def test_where_algorithms_disagree_it_declines() -> None:
    """Refuse to predict 1000 ranks from 2, where ring and doubling agree and later differ
    widely.
    """
    curve = mpi(RING, 2)
    near = curve.estimate(16 * MIB, 3)
    assert "ring" in near.algorithm
    assert " or " in near.algorithm
    with pytest.raises(
        InputError,
        match=r"mpi all_reduce of 16 MiB on 1000 ranks is not predicted: .* a factor of \d",
    ):
        curve.estimate(16 * MIB, 1000)


def test_messages_of_the_same_length_are_scaled() -> None:
    """Predict a jump at the same chunk size on more ranks."""
    sizes = [2**k for k in range(14, 25)]

    def jumping(p: float, n: float, hop: Hop) -> float:
        return RING(p, n, hop) * (1 + (n / p > 64 * KIB))

    curve = grow(measure(jumping, 4, sizes=sizes))
    for size in (128 * KIB, 2 * MIB):
        assert curve.estimate(size, 16).time_us == pytest.approx(
            float(jumping(16, size, HOP)), rel=0.1
        )


def test_groups_across_hosts_share_the_links() -> None:
    """Double the link's time for two groups that share it, on any number of hosts."""
    shared = dataclasses.replace(HOP, beta_us_per_byte=2 * HOP.beta_us_per_byte)

    def cross(p: float, n: float, _: Hop) -> float:
        return RING(p / 2, n, shared)

    curve = grow(measure(cross, 4), measure(cross, 8), pattern="cross", ranks_per_node=2)
    assert curve.estimate(4 * MIB, 32).time_us == pytest.approx(
        float(RING(16, 4 * MIB, shared)), rel=0.05
    )
    with pytest.raises(InputError, match="needs two or more hosts of 2 ranks; 7 ranks make none"):
        curve.check_hosts(7, 2)


def test_hierarchical_operations_keep_the_time_within_hosts() -> None:
    """Extrapolate only the part of a hierarchical operation across hosts."""
    inner = Hop(alpha_us=5.0, beta_us_per_byte=2e-3)

    def hierarchical(p: float, n: float, hop: Hop) -> float:
        return hierarchical_all_reduce(p, n, inner, hop, 2)

    within = measure(RING, 2, hop=inner, link=Link(rate_bps=math.inf)).curve
    curve = grow(measure(hierarchical, 4), pattern="hierarchical", ranks_per_node=2, inner=within)
    for size in SIZES:
        assert curve.estimate(size, 64).time_us == pytest.approx(
            float(hierarchical(64, size, HOP)), rel=0.1
        )


def test_hosts_of_other_sizes() -> None:
    """Predict a ring for any number of ranks per host, and refuse a tree for unmeasured ones."""
    ring = grow(measure(RING, 4))
    ring.check_hosts(64, 8)
    tree = grow(measure(ALGORITHMS["broadcast"]["binomial"], 4), operation="broadcast")
    tree.check_hosts(64, 1)
    with pytest.raises(
        InputError,
        match="gloo broadcast was measured with 1 ranks on a host and is not predicted for 8",
    ):
        tree.check_hosts(64, 8)


def test_predictions_across_hosts_from_one_host_need_a_rate() -> None:
    """Require a link rate to predict several hosts from a measurement within one."""
    inside = grow(measure(RING, 2, link=WITHIN_HOST), ranks_per_node=2)
    inside.check_hosts(4, 4)
    inside.check_hosts(8, 2, 1e9)
    with pytest.raises(
        InputError,
        match="was measured within one host and is not predicted for 8 ranks on hosts of 2",
    ):
        inside.check_hosts(8, 2)


def test_ranks_that_fit_one_host_meet_no_link() -> None:
    """Predict ranks that fit on one host from the times within a host at any link rate, else
    refuse.
    """
    inside = Hop(alpha_us=2.0, beta_us_per_byte=1e-4)
    within = [measure(RING, ranks, hop=inside, link=WITHIN_HOST) for ranks in (2, 4)]
    across = grow(measure(RING, 16), within=within, ranks_per_node=8)
    for rate in (None, 1e8):
        estimate = across.estimate(MIB, 4, rate, ranks_per_node=8)
        assert estimate.time_us == pytest.approx(float(RING(4, MIB, inside)), rel=0.01)
        assert not estimate.is_lower_bound
    assert across.time_us(MIB, 16, ranks_per_node=8) == pytest.approx(
        float(RING(16, MIB, HOP)), rel=0.01
    )
    with pytest.raises(
        InputError,
        match="across hosts alone and is not predicted for 7 ranks, which fit on one host",
    ):
        grow(measure(RING, 16), ranks_per_node=8).estimate(MIB, 7, 1e8, ranks_per_node=8)


def test_predictions_across_hosts_from_one_host_are_lower_bounds() -> None:
    """Mark predictions from one host as lower bounds, with the share of latency."""
    inside = grow(measure(RING, 4, link=WITHIN_HOST), ranks_per_node=4)
    assert not inside.estimate(MIB, 2, 1e9, ranks_per_node=4).is_lower_bound
    small, large = (inside.estimate(size, 8, 1e9, ranks_per_node=4) for size in (KIB, 64 * MIB))
    assert small.is_lower_bound
    assert large.is_lower_bound
    assert large.start_up < 0.01
    assert small.start_up > 0.9


def test_intervals_widen_with_sizes_and_rates() -> None:
    """Widen intervals beyond the measured sizes and rates, unless only the link decides."""
    local = Hop(alpha_us=50.0, beta_us_per_byte=12e-3)
    curve = grow(*(measure(RING, ranks, hop=local) for ranks in (2, 3, 4)), backend="gloo")

    def width(size: float, rate: float | None = None, ranks: int = 4) -> float:
        estimate = curve.estimate(size, ranks, rate)
        return estimate.high_us / estimate.low_us

    assert width(16 * MIB) < width(64 * MIB) < width(1024 * MIB)
    assert width(MIB) < width(MIB, 0.5e9) < width(MIB, 4e9)
    rough = [measure(RING, 4, hop=local)]
    few = grow(*rough)
    slower = [few.estimate(16 * MIB, 4, rate) for rate in (1e9, 0.5e9, 1e7)]
    assert slower[1].high_us / slower[1].time_us > slower[0].high_us / slower[0].time_us
    assert slower[2].high_us / slower[2].low_us < 6


def test_one_number_of_ranks_is_not_certain() -> None:
    """State no confidence level and add 25 % error per doubling from one rank count."""
    alone, several = grow(measure(RING, 2)), grow(measure(RING, 2), measure(RING, 4))
    near, far = alone.estimate(MIB, 2), alone.estimate(MIB, 10_000)
    assert near.level == 0.95
    assert far.level is None
    assert far.high_us / far.time_us > 1.25 ** (2.9 * math.sqrt(12))
    assert several.estimate(MIB, 10_000).level == 0.95


def test_a_link_too_slow_rules_an_algorithm_out() -> None:
    """Exclude an algorithm whose bytes the known link could not carry in the measured time."""
    names = mpi(RING, 8, link=LINK).estimate(16 * MIB, 8).algorithm.split(" or ")
    assert "ring" in names
    assert "recursive doubling" not in names
    assert "recursive doubling" in mpi(RING, 8).estimate(16 * MIB, 8).algorithm.split(" or ")


def test_operations_without_closed_form_are_refused() -> None:
    """Refuse point-to-point operations and some patterns."""
    with pytest.raises(InputError, match="No closed form of latency"):
        grow(measure(RING, 2, link=LINK), operation="latency")
    with pytest.raises(
        InputError, match="No closed form of gloo broadcast in pattern hierarchical"
    ):
        grow(measure(RING, 2), operation="broadcast", pattern="hierarchical")
    with pytest.raises(
        InputError, match="No closed form of mpi all_reduce in pattern hierarchical"
    ):
        grow(measure(RING, 2), backend="mpi", pattern="hierarchical")
