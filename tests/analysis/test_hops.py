"""Tests of fitting a hop: known hops are recovered from one or several numbers of ranks."""

import numpy as np
import pytest
from networks import HOP, LINK, RING, measure

from commbench.analysis.prediction.closed_forms import (
    Hop,
    MeasuredCurve,
    double_tree_all_reduce,
    fit_hop,
)
from commbench.analysis.prediction.curves import fit_curve
from commbench.analysis.prediction.links import WITHIN_HOST, Link

UNKNOWN = Link()
CLOSE = 0.03


def test_latency_and_rate_are_found_without_knowing_the_link() -> None:
    """Attribute the whole cost per byte to a link of unknown rate."""
    hop = fit_hop(RING, [measure(RING, 4, link=UNKNOWN)])
    assert hop.alpha_us == pytest.approx(HOP.alpha_us, rel=CLOSE)
    assert hop.link_us_per_byte == pytest.approx(HOP.beta_us_per_byte, rel=CLOSE)
    assert (hop.local_us_per_byte, hop.call_us) == (0.0, 0.0)


def test_cost_per_byte_beyond_the_link_is_excess_or_local_work() -> None:
    """Attribute 11 ns over a link of 8 ns to the link, and 30 ns to local work."""
    hop = fit_hop(
        RING,
        [measure(RING, ranks, hop=Hop(alpha_us=50.0, beta_us_per_byte=11e-3)) for ranks in (2, 4)],
    )
    assert hop.link_us_per_byte is None
    assert hop.local_us_per_byte == 0.0
    assert hop.link_excess == pytest.approx(3 / 8, rel=0.05)
    assert hop.alpha_us == pytest.approx(50.0, rel=CLOSE)
    hop = fit_hop(
        RING,
        [measure(RING, ranks, hop=Hop(alpha_us=50.0, beta_us_per_byte=30e-3)) for ranks in (2, 4)],
    )
    assert hop.local_us_per_byte == pytest.approx(22e-3, rel=0.05)
    assert hop.link_excess == 0.0


@pytest.mark.parametrize(("beyond", "field"), [(4e-3, "local_us_per_byte"), (0.5, "link_excess")])
def test_several_rates_separate_links_from_local_work(beyond: float, field: str) -> None:
    """Attribute time that falls with the link rate to the link, the rest to local work."""
    curves = []
    for rate in (1e9, 4e9):
        of_link = 8e6 / rate
        beta = of_link + beyond if field == "local_us_per_byte" else of_link * (1 + beyond)
        curves.append(
            measure(
                RING, 4, hop=Hop(alpha_us=50.0, beta_us_per_byte=beta), link=Link(rate_bps=rate)
            )
        )
    hop = fit_hop(RING, curves)
    assert getattr(hop, field) == pytest.approx(beyond, rel=0.1)
    assert {hop.local_us_per_byte, hop.link_excess} - {getattr(hop, field)} == {0.0}


def test_within_a_host_all_work_is_local() -> None:
    """Attribute the whole cost per byte to local work within a host."""
    hop = fit_hop(RING, [measure(RING, 4, link=WITHIN_HOST)])
    assert hop.local_us_per_byte == pytest.approx(HOP.beta_us_per_byte, rel=CLOSE)
    assert hop.link_excess == 0.0


def test_oversubscription_is_removed_from_local_work() -> None:
    """Fit the local work of a rank with its own core from ranks that share two cores."""
    link = Link(rate_bps=1e9, shared_cores=2, source="emulated")
    crowded = [
        measure(
            RING,
            ranks,
            hop=Hop(alpha_us=50.0 * ranks / 2, beta_us_per_byte=8e-3 + 4e-3 * ranks / 2),
            link=link,
        )
        for ranks in (2, 4, 8)
    ]
    hop = fit_hop(RING, crowded)
    assert hop.local_us_per_byte == pytest.approx(4e-3, rel=0.05)
    assert hop.alpha_us == pytest.approx(50.0, rel=0.05)


def test_a_fixed_time_of_calls_is_fitted_separately() -> None:
    """Attribute 5 ms on all numbers of ranks to the call, not to the hop."""
    curves = []
    for ranks in (2, 4, 8):
        plain = measure(RING, ranks)
        curve = fit_curve(plain.curve.sizes, [[5000.0 + time] for time in plain.curve.times_us])
        curves.append(MeasuredCurve(curve=curve, world_size=ranks, link=LINK))
    hop = fit_hop(RING, curves)
    assert hop.call_us == pytest.approx(5000.0, rel=0.05)
    assert hop.alpha_us == pytest.approx(50.0, rel=0.3)


def test_a_tree_is_fitted_though_its_terms_mix() -> None:
    """Recover latency and rate of a pipelined tree, whose time contains the root of their
    product.
    """
    hop = fit_hop(
        double_tree_all_reduce,
        [measure(double_tree_all_reduce, ranks, link=UNKNOWN) for ranks in (4, 16)],
    )
    assert hop.alpha_us == pytest.approx(HOP.alpha_us, rel=0.1)
    assert hop.link_us_per_byte == pytest.approx(HOP.beta_us_per_byte, rel=0.1)


def test_errors_are_relative() -> None:
    """Fit a measured curve with relative errors below 1 %."""
    measured = measure(RING, 4)
    assert np.abs(fit_hop(RING, [measured]).errors(measured)).max() < 0.01
