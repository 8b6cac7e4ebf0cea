"""Tests of fitting a hop: known ones are recovered from one or several numbers of ranks."""

import numpy as np
import pytest
from networks import HOP, LINK, RING, measure

from commbench.analysis.prediction.closed_forms import Hop, MeasuredCurve, double_tree_all_reduce, fit_hop
from commbench.analysis.prediction.curves import fit_curve
from commbench.analysis.prediction.links import WITHIN_HOST, Link

UNKNOWN = Link()
CLOSE = 0.03


def test_latency_and_rate_are_found_without_knowing_the_link() -> None:
    """One number of ranks and an unknown rate: all the cost of a byte is the link's."""
    found = fit_hop(RING, [measure(RING, 4, link=UNKNOWN)])
    assert found.alpha_us == pytest.approx(HOP.alpha_us, rel=CLOSE)
    assert found.link_us_per_byte == pytest.approx(HOP.beta_us_per_byte, rel=CLOSE)
    assert (found.local_us_per_byte, found.call_us) == (0.0, 0.0)


def test_cost_per_byte_beyond_the_link_is_excess_or_local_work() -> None:
    """Attribute 11 ns over a link of 8 ns to the link, and 30 ns to local work."""
    found = fit_hop(RING, [measure(RING, ranks, hop=Hop(alpha_us=50.0, beta_us_per_byte=11e-3)) for ranks in (2, 4)])
    assert found.link_us_per_byte is None
    assert found.local_us_per_byte == 0.0
    assert found.link_excess == pytest.approx(3 / 8, rel=0.05)
    assert found.alpha_us == pytest.approx(50.0, rel=CLOSE)
    found = fit_hop(RING, [measure(RING, ranks, hop=Hop(alpha_us=50.0, beta_us_per_byte=30e-3)) for ranks in (2, 4)])
    assert found.local_us_per_byte == pytest.approx(22e-3, rel=0.05)
    assert found.link_excess == 0.0


@pytest.mark.parametrize(("beyond", "field"), [(4e-3, "local_us_per_byte"), (0.5, "link_excess")])
def test_several_rates_separate_links_from_local_work(beyond: float, field: str) -> None:
    """Attribute time that shrinks over a faster link to the link, the rest to local work."""
    curves = []
    for rate in (1e9, 4e9):
        of_link = 8e6 / rate
        beta = of_link + beyond if field == "local_us_per_byte" else of_link * (1 + beyond)
        curves.append(measure(RING, 4, hop=Hop(alpha_us=50.0, beta_us_per_byte=beta), link=Link(rate_bps=rate)))
    found = fit_hop(RING, curves)
    assert getattr(found, field) == pytest.approx(beyond, rel=0.1)
    assert {found.local_us_per_byte, found.link_excess} - {getattr(found, field)} == {0.0}


def test_within_a_host_all_work_is_local() -> None:
    """There is no link to take its part."""
    found = fit_hop(RING, [measure(RING, 4, link=WITHIN_HOST)])
    assert found.local_us_per_byte == pytest.approx(HOP.beta_us_per_byte, rel=CLOSE)
    assert found.link_excess == 0.0


def test_oversubscription_is_removed_from_local_work() -> None:
    """Fit the work of a rank with its own core from ranks that share two cores."""
    link = Link(rate_bps=1e9, shared_cores=2, source="emulated")
    crowded = [
        measure(RING, ranks, hop=Hop(alpha_us=50.0 * ranks / 2, beta_us_per_byte=8e-3 + 4e-3 * ranks / 2), link=link)
        for ranks in (2, 4, 8)
    ]
    found = fit_hop(RING, crowded)
    assert found.local_us_per_byte == pytest.approx(4e-3, rel=0.05)
    assert found.alpha_us == pytest.approx(50.0, rel=0.05)


def test_a_fixed_time_of_calls_is_fitted_separately() -> None:
    """Attribute 5 ms on all numbers of ranks to the call, not to the hop."""
    curves = []
    for ranks in (2, 4, 8):
        plain = measure(RING, ranks)
        curve = fit_curve(plain.curve.sizes, [[5000.0 + time] for time in plain.curve.times_us])
        curves.append(MeasuredCurve(curve=curve, world_size=ranks, link=LINK))
    found = fit_hop(RING, curves)
    assert found.call_us == pytest.approx(5000.0, rel=0.05)
    assert found.alpha_us == pytest.approx(50.0, rel=0.3)


def test_a_tree_is_fitted_though_its_terms_mix() -> None:
    """Latency and rate of a pipelined tree, whose time has a root of their product."""
    found = fit_hop(double_tree_all_reduce, [measure(double_tree_all_reduce, ranks, link=UNKNOWN) for ranks in (4, 16)])
    assert found.alpha_us == pytest.approx(HOP.alpha_us, rel=0.1)
    assert found.link_us_per_byte == pytest.approx(HOP.beta_us_per_byte, rel=0.1)


def test_errors_are_relative() -> None:
    """The fit's own curve is missed by less than its launches differ."""
    measured = measure(RING, 4)
    assert np.abs(fit_hop(RING, [measured]).errors(measured)).max() < 0.01
