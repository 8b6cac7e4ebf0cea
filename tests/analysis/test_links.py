"""Tests of the link that a run states."""

import math

import pytest
from builders import make_info
from networks import network_info

from commbench.analysis.prediction.links import Link, link_of


def test_emulated_links_have_their_slowest_rate():
    """Return the slowest emulated rate, its header overhead and the cores of the
    host.
    """
    info = network_info(4, cores=2)
    link = link_of(info, "tcp/eth0")
    assert (link.rate_bps, link.shared_cores, link.source) == (1e9, 2, "emulated")
    assert link.us_per_byte == pytest.approx(8e-3 * 1514 / 1448)
    info["environment"]["emulated"] |= {
        "slow": {"host1": "50mbit"},
        "racks": 2,
        "uplink": "200mbit",
    }
    assert link_of(info, "tcp/eth0").rate_bps == 50e6
    assert str(link_of(info, "tcp/eth0")) == "50mbit (the slowest, emulated)"


def test_links_without_a_rate():
    """Return an infinite rate within a host and for links without emulated limit."""
    assert link_of(network_info(2, rate="none"), "tcp/eth0").rate_bps == math.inf
    assert link_of(make_info(), "sm").rate_bps == math.inf
    assert link_of(make_info(), "sm").us_per_byte == 0.0


def test_real_links_have_their_interfaces_speed():
    """Return the slowest host's interface speed for the transport, else an unknown rate."""
    info = network_info(2, rate=None)
    assert link_of(info, "tcp/eth0+lo").rate_bps == 10e9
    assert link_of(info, "tcp/eth0").shared_cores is None
    unknown = link_of(info, "ucx/rc")
    assert unknown.rate_bps is None
    assert math.isnan(unknown.us_per_byte)
    info["environment"]["hosts"][0]["interfaces"][0]["speed_Mbps"] = None
    assert link_of(info, "tcp/eth0").rate_bps is None


def test_a_faster_link_is_the_same_but_for_its_rate():
    """Change only the rate; keep headers and shared cores."""
    link = link_of(network_info(4, cores=2), "tcp/eth0")
    faster = link.with_rate(25e9)
    assert faster.rate_bps == 25e9
    assert faster.payload == link.payload
    assert faster.shared_cores == 2
    assert link.with_rate(1e9) is link
    assert Link(rate_bps=math.inf).with_rate(1e9).payload < 1
