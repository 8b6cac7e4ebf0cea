"""The network interface that a person names, in the words of each library that opens connections."""

from __future__ import annotations

import psutil

from commbench.errors import InputError


def interface_variables(interface: str | None) -> dict[str, str]:
    """Variables that make Open MPI, MPICH, Intel MPI, UCX, libfabric, Gloo and NCCL use ``interface``; none for None.

    UCX then uses no RDMA device either: who names an interface wants that one measured.
    """
    if interface is None:
        return {}
    return {
        "OMPI_MCA_btl_tcp_if_include": interface,
        "OMPI_MCA_oob_tcp_if_include": interface,  # Open MPI 4: how its daemons find each other
        "PRTE_MCA_prte_if_include": interface,  # Open MPI 5
        "UCX_NET_DEVICES": interface,
        "FI_TCP_IFACE": interface,
        "FI_SOCKETS_IFACE": interface,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",  # without the sign every interface whose name begins so
    }


def check_interface(interface: str) -> None:
    """Refuse an interface that this host lacks.

    Raises:
        InputError: the sentence lists those there are.
    """
    there = sorted(psutil.net_if_addrs())
    if interface not in there:
        raise InputError(
            f"--interface {interface} was asked for and this host has {', '.join(there)}; name one of these."
        )
