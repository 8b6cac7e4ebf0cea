"""Run under mpirun: the torch NCCL backend with Gloo and host memory in place of NCCL and a GPU."""

import os
import time
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
import verify_all
from measuring import measure
from reporting import connect, report_and_exit

from commbench.backends.torch_nccl import TorchNcclCommunicator
from commbench.collectives.cases import Case
from commbench.engine.session import Session
from commbench.engine.timing.loops import Progress
from commbench.stats.budgets import BUDGETS, Budget

BARRIER = {
    "operation": "barrier",
    "message_bytes": 0,
    "dtype": None,
    "in_place": None,
}


class HostEvent:
    """A GPU event simulated on the host, delayed by the time that was spun."""

    behind_ns = 0

    def __init__(self) -> None:
        self.at_ns = 0

    def record(self) -> None:
        """Record the event at the simulated device time."""
        self.at_ns = time.perf_counter_ns() + HostEvent.behind_ns

    def query(self) -> bool:
        """Return whether the event has occurred."""
        return time.perf_counter_ns() >= self.at_ns

    def synchronize(self) -> None:
        """Wait for the event; the device is then no longer behind."""
        assert self.at_ns
        time.sleep(max(0, self.at_ns - time.perf_counter_ns()) / 1e9)
        HostEvent.behind_ns = 0

    def elapsed_time(self, later: "HostEvent") -> float:
        """Return milliseconds between two events, as torch does."""
        return (later.at_ns - self.at_ns) / 1e6


class OnHost(TorchNcclCommunicator):
    """The torch NCCL backend with every device call simulated on the host."""

    carrier = "gloo"

    def take_device(self) -> torch.device:
        """Return the CPU device."""
        self.ranks_per_gpu = 1
        return torch.device("cpu")

    def describe_device(self) -> tuple[str, str, int]:
        """Return a device that is no GPU, with a cache of 1 MiB."""
        return "host", "", 2**20

    def complete(self) -> None:
        """Return at once, since host operations are complete."""

    def spin(self, cycles: int) -> None:
        """Delay the simulated device by one nanosecond per cycle."""
        HostEvent.behind_ns += cycles

    def new_event(self) -> HostEvent:
        """Return a simulated event."""
        return HostEvent()

    def rendezvous(self) -> None:
        """Fail for NVLS as NCCL does, because its rendezvous uses int8."""
        if os.environ.get("NCCL_ALGO") == "nvls":
            raise RuntimeError(
                "no algorithm/protocol available for function AllReduce with datatype ncclInt8"
            )
        super().rendezvous()


def measured(communicator: OnHost, control: Any, **axes: Any) -> dict[str, Any]:
    """Return fields of the record of a small all_gather, or of another case by ``axes``."""
    case = Case(
        **{
            "backend": "torch-nccl",
            "operation": "all_gather",
            "message_bytes": 4096,
            "dtype": "float32",
            "in_place": False,
            **axes,
        }
    )
    budget = Budget(**{**vars(BUDGETS["quick"]), "slice_s": 0.1})
    session = Session(
        control=control, budget=budget, progress=Progress(), hosts=["one"] * control.size
    )
    record = measure(case, communicator, session, launch=0)
    if record is None:
        return {}
    words = (
        "status",
        "reason",
        "wrong",
        "loop",
        "sync",
        "device",
        "library",
        "harness_us",
        "skew_us",
    )
    return {
        **{name: getattr(record, name) for name in words},
        "tried": len(record.times_us) + record.late_discarded,
    }


def too_large(communicator: OnHost, control: Any) -> dict[str, Any]:
    """Return fields of the record if the memory of the last rank's GPU is full."""
    full = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 KiB.")
    last = control.rank == control.size - 1
    with mock.patch.object(torch, "zeros", side_effect=full) if last else nullcontext():
        return measured(communicator, control)


def main() -> None:
    """Print the findings of all cases as one line of JSON on rank 0."""
    control = connect()
    communicator = OnHost(control)
    planned = [(case, "") for case in verify_all.cases("torch-nccl", control.size)]
    results = {"cases": verify_all.entries_of(planned, communicator, control)}
    results["barrier"] = verify_all.barrier_findings(communicator, control)
    results["measured"] = {
        "in place": measured(
            communicator, control, operation="all_reduce", redop="sum", in_place=True
        ),
        "plain": measured(communicator, control),
        "barrier": measured(communicator, control, **BARRIER),
        "barrier in a graph": measured(communicator, control, **BARRIER, graph=True),
        "too large": too_large(communicator, control),
        "algorithm": measured(communicator, control, algorithm="ring/ll"),
        "narrow": measured(communicator, control, algorithm="nvls"),
        "pipelined": measured(communicator, control, sync="none"),
        "rotated": measured(communicator, control, buffers="rotated"),
        "registered": measured(communicator, control, buffers="registered"),
    }
    if control.size == 4:
        results["measured"]["groups"] = measured(communicator, control, pattern="split:2")
    communicator.close()
    results["asked"] = {name: os.environ.get(name) for name in ("NCCL_ALGO", "NCCL_PROTO")}
    report_and_exit(results, control)


if __name__ == "__main__":
    main()
