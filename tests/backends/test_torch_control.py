"""Tests of where Gloo's ranks meet and by which network interface they reach each other."""

import os
import socket
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from commbench.errors import InputError

torch_control = pytest.importorskip("commbench.backends.torch_control", reason="needs torch")

Placed = Callable[..., None]
INTERFACE = "GLOO_SOCKET_IFNAME"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Placed:
    """Return what puts this process on a host whose name and default route lead to given addresses."""

    def put(name: str, route: str = "", interface: str = "") -> None:
        found = {"lo": "127.0.0.1", "eth0": "10.0.0.5", "ib0": "10.1.0.5"}
        addresses = {
            nic: [
                SimpleNamespace(family=socket.AF_INET6, address="fe80::1"),
                SimpleNamespace(family=socket.AF_INET, address=address),
            ]
            for nic, address in found.items()
        }
        monkeypatch.setattr(socket, "gethostbyname", lambda _: name)
        monkeypatch.setattr(socket, "gethostname", lambda: "n0")
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
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
def test_ranks_meet_where_all_can_reach_them(
    place: Placed, one_host: bool, host: tuple[str, str, str], expected: tuple[str, str]
) -> None:
    """Take the interface that was asked for, else the loopback on one host, else where the name or the route leads."""
    place(*host)
    torch_control.choose_interface(one_host=one_host)
    assert expected == (os.environ[INTERFACE], torch_control._own_address())


def test_a_host_that_nobody_reaches_is_refused(place: Placed) -> None:
    """Ask for the interface where neither the name nor a route tells."""
    place("127.0.1.1")
    with pytest.raises(InputError, match=r"host n0 leads to 127\.0\.1\.1, .* by --interface\.$"):
        torch_control.choose_interface(one_host=False)


def test_an_interface_that_is_not_there_is_refused(place: Placed) -> None:
    """Name it rather than meet anywhere else."""
    place("10.0.0.5", interface="eth7")
    with pytest.raises(InputError, match=r"is eth7, and host n0 has no such interface"):
        torch_control._own_address()
