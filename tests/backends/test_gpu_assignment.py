"""Tests of the assignment of GPUs to ranks, without CUDA."""

import os
import threading

import pytest
from threads import run_threads

from commbench.backends.gpu_assignment import assign_gpu, distribute
from commbench.engine.control import Control

FOUR = ("0000:17:00.0", "0000:65:00.0", "0000:c1:00.0", "0000:e3:00.0")
pytestmark = pytest.mark.usefixtures("without_nccl_variables")


@pytest.mark.parametrize(
    ("visible", "numbers", "shared"),
    [
        ([FOUR] * 4, "0123", 1),
        ([FOUR] * 6, "012301", 2),
        ([FOUR[:1]] * 3, "000", 3),
        ([(gpu,) for gpu in FOUR], "0000", 1),
        ([(gpu,) for gpu in FOUR * 2], "00000000", 2),
        ([FOUR[:2], FOUR[:2], FOUR[2:], FOUR[2:]], "0101", 1),
        ([FOUR[:3], FOUR[1:], FOUR[1:], FOUR[:2]], "0010", 2),
        ([FOUR, FOUR[::-1]], "00", 1),
    ],
    ids=[
        "all",
        "two more",
        "one GPU",
        "each its own",
        "two for each",
        "halves",
        "overlapping",
        "in another order",
    ],
)
def test_each_rank_gets_the_gpu_with_the_fewest_ranks(visible, numbers, shared):
    """Assign by physical GPUs, whichever of them each rank sees."""
    devices = [int(number) for number in numbers]
    assert (devices, shared) == distribute([("node1", gpus) for gpus in visible])
    two_machines = [(machine, gpus) for gpus in visible for machine in ("node1", "node2")]
    twice = [device for device in devices for _ in range(2)]
    assert (twice, shared) == distribute(two_machines)  # which have GPUs of their own


@pytest.mark.parametrize(("machines", "shared"), [(("one", "one"), 2), (("one", "two"), 1)])
def test_hosts_of_one_machine_share_its_gpus(monkeypatch, machines, shared):
    """Count ranks in containers of one machine together, and set no network interface."""
    own = threading.local()
    monkeypatch.setattr("commbench.backends.gpu_assignment.machine_id", lambda: machines[own.rank])
    monkeypatch.setattr("socket.gethostname", lambda: f"host{own.rank}")

    def placed(control: Control) -> int:
        own.rank = control.rank
        return assign_gpu(control, FOUR[:1])[1]

    assert [shared] * 2 == run_threads(2, placed)
    assert "NCCL_SOCKET_IFNAME" not in os.environ


@pytest.mark.parametrize(
    ("visible", "shared"),
    [([FOUR] * 2, False), ([(gpu,) for gpu in FOUR[:2]], False), ([FOUR[:1]] * 2, True)],
)
def test_nccl_is_configured_if_ranks_share_a_gpu(visible, shared):
    """Set NCCL's variables only if ranks share a GPU, also as parts of one."""
    gpus = run_threads(2, lambda control: assign_gpu(control, visible[control.rank]))
    assert {1 + shared} == {ranks_per_gpu for _, ranks_per_gpu in gpus}
    assert 0 == gpus[0][0]
    variables = {name for name in os.environ if name.startswith("NCCL_") and "DEBUG" not in name}
    expected = {"NCCL_NET", "NCCL_NVLS_ENABLE", "NCCL_HOSTID", "NCCL_SOCKET_IFNAME"}
    assert (expected if shared else set()) == variables
