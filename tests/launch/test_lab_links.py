"""Tests of the emulated network: the rates of links and uplinks, measured by programs on the
hosts.
"""

import pytest
from labs import mark, rates

__all__ = ["mark"]  # a fixture

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("mark")]


def fills(rate: float, link: float) -> bool:
    """Return whether the rate is 75 to 110 % of the link's: headers and a busy machine take some,
    bursts add some.
    """
    return 0.75 < rate / link <= 1.1


@pytest.mark.slow
def test_links_have_the_rate_in_each_direction() -> None:
    """Limit each direction of a link to 200 Mbit/s over two flows; allow more without a rate."""
    for flows in rates(
        "host0:host1 host0:host2", "host1:host0 host2:host0", hosts=3, rate="200mbit"
    ):
        assert fills(sum(flows), 200), flows
    (unshaped,) = rates("host0:host1 host0:host2", hosts=3, rate="none")
    assert 420 < sum(unshaped), unshaped


@pytest.mark.slow
def test_slow_hosts_and_uplinks_have_rates_of_their_own() -> None:
    """Share a rack's uplink among its hosts, and slow one host only."""
    across, inside = (
        ("host0:host2 host1:host2", "host2:host0 host2:host1"),
        ("host0:host1 host2:host3", "host3:host2"),
    )
    flags = ("--slow", "host3=50mbit", "--racks", "2", "--uplink", "100mbit")
    out, back, (usual, to_slow), (from_slow,) = rates(
        *across, *inside, hosts=4, rate="200mbit", flags=flags
    )
    assert [True, True] == [fills(sum(shared), 100) for shared in (out, back)], (out, back)
    assert fills(usual, 200), usual
    assert [True, True] == [fills(rate, 50) for rate in (to_slow, from_slow)], (to_slow, from_slow)
