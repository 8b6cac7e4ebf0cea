"""Tests of the conditions of two runs: which differences make a comparison unsound."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from builders import make_info

from commbench.analysis.comparison.conditions import TRAINING, differences

HOST = {
    "hostname": "n1",
    "cpu_model": "X",
    "kernel": "6.1.7-generic",
    "governor": "performance",
    "interfaces": [{"name": "eth0", "speed_Mbps": 10000, "mtu": 1500}],
}


def info(
    host: Mapping[str, Any] | None = None,
    *,
    variables: Mapping[str, str] | None = None,
    **changes: Any,
) -> Any:
    """Return the ``run.json`` of a run on one host."""
    environment = {
        "hosts": [HOST | dict(host or {})],
        "versions": {"torch": "2.13.0"},
        "variables": variables or {},
    }
    return make_info(environment=environment, **changes)


def names(a: Any, b: Any, *, carriers: Collection[str] = ("mpi",)) -> str:
    """Return the names of differences, and ``!`` after those that make a comparison unsound."""
    found = []
    for each in differences([a], b, carriers=carriers):
        found.append(f"{each.name}!" if each.reason else each.name)
    return ", ".join(found)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (info(), ""),
        (info({"hostname": "n2"}), "hostname!"),
        (info({"cpu_model": "Y"}), "cpu_model!"),
        (info({"kernel": "6.1.9-generic"}), "kernel"),
        (info({"kernel": "6.6.1"}), "kernel series!, kernel"),
        (info({"governor": "powersave"}), "governor!"),
        (info({"governor": None}), ""),
        (info(world_size=4), "world_size!"),
        (info(nodes=2), "nodes!"),
        (info(git_commit="1"), ""),
        (info(budget="standard"), "budget"),
        (info(variables={"OMPI_MCA_btl": "tcp,self"}), "OMPI_MCA_btl!"),
        (info(variables={"OMP_NUM_THREADS": "4"}), "OMP_NUM_THREADS!"),
        (info(variables={"SLURM_NNODES": "4"}), "SLURM_NNODES"),
        (info(variables={"OMPI_MCA_plm_rsh_agent": "x"}), "OMPI_MCA_plm_rsh_agent"),
        (info({"interfaces": [HOST["interfaces"][0] | {"mtu": 9000}]}), "interface eth0"),
        (info(ranks=[{"rank": 0, "cpus": [0]}]), ""),
    ],
)
def test_each_condition_is_unsound_or_only_listed(other, expected):
    """Separate differences that could explain a difference of times from harmless ones."""
    assert expected == names(info(), other)


def test_torch_counts_where_it_carries_the_training():
    """Treat another torch version as unsound for training and only list it for collectives."""
    other = info()
    other["environment"]["versions"] = {"torch": "2.14.0"}
    assert "torch" == names(info(), other)
    assert "torch!" == names(info(), other, carriers={"gloo", TRAINING})


@pytest.mark.parametrize(
    ("name", "matters_to"),
    [
        ("OMPI_MCA_btl", {"mpi"}),
        ("UCX_TLS", {"mpi", "nccl", "torch-nccl"}),
        ("NCCL_ALGO", {"nccl", "torch-nccl"}),
        ("GLOO_SOCKET_IFNAME", {"gloo"}),
        ("OMP_NUM_THREADS", {"mpi", "gloo", "nccl", "torch-nccl"}),
        ("SLURM_CPUS_PER_TASK", set()),
    ],
)
def test_a_setting_counts_for_whom_it_concerns(name, matters_to):
    """Apply an environment variable only to the backends that read it."""
    backends = ("mpi", "gloo", "nccl", "torch-nccl")
    other = info(variables={name: "1"})
    assert matters_to == {
        backend for backend in backends if "!" in names(info(), other, carriers={backend})
    }


def test_an_interface_counts_between_hosts():
    """Treat another interface rate as unsound if the ranks are on several hosts."""
    other = info({"interfaces": [{"name": "eth0", "speed_Mbps": 1000, "mtu": 1500}]}, nodes=2)
    assert "interface eth0!" == names(info(nodes=2), other)


def test_binding_counts():
    """Treat ranks bound to one core and ranks free to move as different conditions."""
    bound, free = (info(ranks=[{"rank": 0, "cpus": cpus}]) for cpus in ([0], [0, 1]))
    (difference,) = differences([bound], free, carriers={"mpi"})
    assert ("cpus_per_rank", "1 vs 2") == (difference.name, difference.text)


def test_runs_that_state_nothing_do_not_differ():
    """Report no difference for an imported run that states no hosts."""
    assert [] == differences([{"schema": 1}], info(git_commit="1"), carriers={"gloo", TRAINING})


def test_baselines_are_compared_with_each_other():
    """List all values that baselines state, also those that B does not state."""
    (between,) = differences([info(), info({"hostname": "n2"})], info(), carriers={"mpi"})
    assert ("n1, n2 vs n1", True) == (between.text, between.is_among_baselines)
    (among,) = differences(
        [info(), info({"hostname": "n2"}), info()], {"schema": 1}, carriers={"mpi"}
    )
    assert ("n1, n2", True) == (among.text, among.is_among_baselines)
    (variable,) = differences(
        [info(), info(variables={"NCCL_ALGO": "ring"})], info(), carriers={"mpi"}
    )
    assert not variable.reason
    assert ("unset, ring vs unset", True) == (variable.text, variable.is_among_baselines)
