"""Tests of the law of collectives: exact for rings, monotone, honest about its error."""

import dataclasses
import math

import pytest
from fields import fields_of
from hypothesis import given
from hypothesis import strategies as st
from networks import HOP, Hop, forecast_network, measured_run, network_info, ring_us

from commbench.analysis.prediction.fits import log_half_width
from commbench.analysis.prediction.forecast import CollectiveForecast, collective_forecast
from commbench.analysis.prediction.law import (
    KEPT_ERROR,
    KEPT_STEP_ERROR,
    Family,
    ForecastNetwork,
    HeldOut,
    Place,
    crossings,
    error_per_doubling,
    hold_out,
)
from commbench.errors import InputError

REDUCE = Family("all_reduce", "gloo", "float32")
GATHER = Family("all_gather", "gloo", "float32")
#: Header bytes of emulated links are left out of `HOP`.
CLOSE = 0.1


def times_of(row: CollectiveForecast) -> tuple[float, float, float]:
    """Return the ends of a row's interval, with its time between them."""
    return row.time_us_low or 0.0, row.time_us or 0.0, row.time_us_high or 0.0


def test_rings_on_more_ranks_are_met():
    """Predict what a ring takes on other numbers of ranks."""
    network = forecast_network((4,))
    for family, ranks in ((REDUCE, 2), (GATHER, 3), (REDUCE, 64), (GATHER, 1024)):
        for size in (2**16, 3 * 2**20, 2**24):
            time_us = network.time_us(family, size, Place(world_size=ranks))
            assert time_us == pytest.approx(ring_us(family.operation, ranks, size), rel=CLOSE)


@given(
    ranks=st.integers(min_value=2, max_value=5000),
    size=st.integers(min_value=4, max_value=2**26),
    rate_bps=st.floats(min_value=1e7, max_value=1e11),
)
def test_more_ranks_and_slower_links_never_help(ranks, size, rate_bps):
    """Predict times above 0 that grow with the ranks and fall with the rate, from one curve."""
    network = forecast_network((4,))
    times = [
        network.time_us(REDUCE, size, Place(world_size=world_size, rate_bps=bps))
        for world_size, bps in ((ranks, 2 * rate_bps), (ranks, rate_bps), (2 * ranks, rate_bps))
    ]
    assert 0 < times[0] <= times[1] <= times[2]


LOCAL = Hop(alpha_us=0.1, beta_us_per_byte=5 * HOP.beta_us_per_byte)


@pytest.mark.parametrize(
    ("hop", "size", "rate_bps", "expected_us"),
    [
        (HOP, 2**24, 1e8, ring_us("all_reduce", 4, 10 * 2**24)),
        (HOP, 4, 1e8, 6 * HOP.alpha_us),  # start-ups stay
        (LOCAL, 2**24, 1e12, 0.8 * ring_us("all_reduce", 4, 2**24, LOCAL)),  # and local work
    ],
)
def test_links_take_their_rate(hop, size, rate_bps, expected_us):
    """Lengthen or shorten the transfer, not the start-ups and not what a byte costs beside it."""
    place = Place(world_size=4, rate_bps=rate_bps)
    time_us = forecast_network((4,), hop=hop).time_us(REDUCE, size, place)
    assert time_us == pytest.approx(expected_us, rel=CLOSE)


def test_an_all_to_all_sends_what_each_rank_of_a_host_has_for_other_hosts():
    """Send 4 x 4 parts of n/8 over the link of each of two hosts; a ring crosses it once."""
    place = Place(world_size=8, ranks_per_node=4)
    assert (2.0, 1.75) == (crossings("all_to_all", place), crossings("all_reduce", place))
    assert 0.75 == crossings("all_to_all", Place(world_size=4, ranks_per_node=4))


def test_the_nearest_curve_is_extended():
    """Start from the curve with the nearest number of ranks."""
    odd = dataclasses.replace(HOP, alpha_us=5000.0)
    network = ForecastNetwork.fit([measured_run((2,)), measured_run((16,), hop=odd)])
    few, many = (network.time_us(REDUCE, 2**16, Place(world_size=n)) for n in (3, 12))
    assert few < 1500
    assert many > 5000


def test_errors_are_of_these_runs_or_of_the_kept_ones():
    """Use the error of these runs if it is the larger one, and state a level only with one."""
    double = Hop(beta_us_per_byte=2 * HOP.beta_us_per_byte, alpha_us=2 * HOP.alpha_us)
    off = ForecastNetwork.fit([measured_run((2,)), measured_run((4,), hop=double)])
    place = Place(world_size=64)
    for network, error, level in (
        (forecast_network((2, 4)), KEPT_ERROR, 0.95),
        (off, 1.0, 0.95),
        (forecast_network((4,)), KEPT_ERROR, None),
    ):
        row = collective_forecast(network, REDUCE, place, 2**20)
        assert row.held_out_error == pytest.approx(error, rel=CLOSE)
        assert level == row.level
        low_us, time_us, high_us = times_of(row)
        assert low_us < time_us < high_us


def test_few_large_errors_count():
    """Hold three forecasts of seven that are off by half in the interval of 95 %."""
    pairs = [HeldOut(ratio=1.01, doublings=1.0)] * 4 + [HeldOut(ratio=1.5, doublings=1.0)] * 3
    assert math.log(1.5) < log_half_width(error_per_doubling(pairs))


def test_intervals_widen_with_the_distance():
    """Widen with the square root of the doublings of ranks and rate."""
    network = forecast_network((4,))
    widths = []
    for ranks, rate_bps in ((8, None), (64, None), (64, 4e9)):
        place = Place(world_size=ranks, rate_bps=rate_bps)
        low_us, _, high_us = times_of(collective_forecast(network, REDUCE, place, 2**20))
        widths.append(math.log(high_us / low_us))
    assert widths[1] / widths[0] == pytest.approx(math.sqrt(4), rel=CLOSE)
    assert widths[2] / widths[0] == pytest.approx(math.sqrt(6), rel=CLOSE)


def test_every_larger_number_of_ranks_is_held_out():
    """Predict 4 and 8 ranks from fewer, and the same ranks over another link from each other; leave
    out curves of a single rank, which the smallest part of a scaling study has.
    """
    curves = forecast_network((1, 2, 4, 8)).curves[REDUCE]
    assert [2, 4, 8] == fields_of(curves, "place.world_size")
    pairs = hold_out(curves)
    assert 2 * len(curves[0].curve.sizes) == len(pairs)
    assert all(pair.ratio == pytest.approx(1.0, abs=0.1) for pair in pairs)
    slow = measured_run((4,), info=network_info(4, "100mbit"))
    both = ForecastNetwork.fit([measured_run((4,)), slow]).curves[REDUCE]
    assert 2 * len(curves[0].curve.sizes) == len(hold_out(both))


def test_ranks_of_one_host_use_no_link():
    """Predict within a host from within a host alone, and across hosts from it with a rate."""
    info = network_info(4, None, nodes=1, ranks_per_node=4)
    within = ForecastNetwork.fit([measured_run((4,), info=info)])
    inside = within.time_us(REDUCE, 2**20, Place(world_size=2, ranks_per_node=4, rate_bps=1e9))
    assert inside == pytest.approx(ring_us("all_reduce", 2, 2**20), rel=CLOSE)
    across = Place(world_size=8, ranks_per_node=4, rate_bps=1e9)
    assert within.time_us(REDUCE, 2**20, across) > inside
    assert collective_forecast(within, REDUCE, across, 2**20).level is None
    with pytest.raises(InputError, match="nothing is known of links between hosts; give --rate"):
        within.time_us(REDUCE, 2**20, dataclasses.replace(across, rate_bps=None))
    with pytest.raises(InputError, match="measured across hosts alone"):
        forecast_network((4,)).time_us(REDUCE, 2**20, Place(world_size=2, ranks_per_node=2))


def test_other_types_stand_in_unless_they_are_reduced():
    """Take another type's curve of an all_gather, and none of an all_reduce."""
    network = forecast_network((4,))
    place = Place(world_size=8)
    half = GATHER._replace(dtype="float16")
    assert network.time_us(half, 2**20, place) == network.time_us(GATHER, 2**20, place)
    with pytest.raises(InputError, match="Nothing is known of gloo all_reduce of float16"):
        network.time_us(REDUCE._replace(dtype="float16"), 2**20, place)


def test_runs_that_were_measured_differently_do_not_mix():
    """Refuse runs with other libraries or ranks on a host."""
    for info in (
        network_info(4, libraries={"gloo": "2"}),
        network_info(4, ranks_per_node=2, world_size=8),
    ):
        other = network_info(4, libraries={"gloo": "1"})
        with pytest.raises(InputError, match="which do not mix"):
            ForecastNetwork.fit([measured_run((4,), info=other), measured_run((2,), info=info)])


@pytest.mark.kept
def test_the_errors_over_the_kept_runs(load_benchmark):
    """State the errors that benchmarks/evidence/forecast_error.py finds, rounded up to a
    percent.
    """
    pairs = load_benchmark("forecast_error").kept_pairs()
    collectives, steps = (error_per_doubling(pairs[kind]) for kind in list(pairs)[-2:])
    assert KEPT_ERROR == math.ceil(100 * collectives) / 100
    assert KEPT_STEP_ERROR == math.ceil(100 * steps) / 100
