"""Tests of Gloo's rendezvous address and network interface."""

import os
import socket
from types import SimpleNamespace

import pytest

from commbench.errors import InputError

torch_control = pytest.importorskip("commbench.backends.torch_control", reason="needs torch")

INTERFACE = "GLOO_SOCKET_IFNAME"


@pytest.fixture
def place(monkeypatch, stub):
    """Return a function that simulates a host with a name's address, a default route and an
    interface request.
    """

    def put(name: str, route: str = "", interface: str = "") -> None:
        addresses_by_nic = {"lo": "127.0.0.1", "eth0": "10.0.0.5", "ib0": "10.1.0.5"}
        addresses = {
            nic: [
                SimpleNamespace(family=socket.AF_INET6, address="fe80::1"),
                SimpleNamespace(family=socket.AF_INET, address=address),
            ]
            for nic, address in addresses_by_nic.items()
        }
        stub("socket.gethostbyname", name)
        stub("socket.gethostname", "n0")
        stub("psutil.net_if_addrs", addresses)
        monkeypatch.setattr(torch_control, "_default_route_address", lambda: route)
        monkeypatch.setenv(INTERFACE, interface)

    return put


@pytest.mark.parametrize(
    ("one_host", "host", "expected"),
    [
        (True, ("127.0.1.1", "", ""), ("lo", "127.0.0.1")),
        (True, ("10.0.0.5", "", "ib0"), ("ib0", "10.1.0.5")),
        (False, ("10.0.0.5", "", ""), ("", "10.0.0.5")),
        (False, ("127.0.1.1", "10.0.0.5", ""), ("eth0", "10.0.0.5")),
        (False, ("127.0.1.1", "10.0.0.5", "ib0,eth0"), ("ib0,eth0", "10.1.0.5")),
    ],
)
def test_ranks_meet_where_all_can_reach_them(place, one_host, host, expected):
    """Choose the requested interface, else the loopback on one host, else by name or route."""
    place(*host)
    torch_control.choose_interface(one_host=one_host)
    assert expected == (os.environ[INTERFACE], torch_control._own_address())


def test_an_address_that_nobody_reaches_is_refused(place):
    """Ask for an interface if neither name nor route gives a reachable address, or another one if
    it is unknown.
    """
    place("127.0.1.1")
    with pytest.raises(InputError, match=r"host n0 leads to 127\.0\.1\.1, .* by --interface\.$"):
        torch_control.choose_interface(one_host=False)
    place("10.0.0.5", interface="eth7")
    with pytest.raises(InputError, match=r"is eth7, and host n0 has no such interface"):
        torch_control._own_address()
