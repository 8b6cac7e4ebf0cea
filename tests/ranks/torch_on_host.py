"""Run under mpirun: the backend of NCCL through torch with Gloo and host memory in place of NCCL and a GPU."""

import os
import time
from dataclasses import asdict
from typing import Any

import torch
import verify_all
from reporting import leave

from commbench.budgets import BUDGETS, Budget
from commbench.cases import Case
from commbench.communicators import connect_control
from commbench.communicators.torch_nccl import TorchNcclCommunicator
from commbench.measure import Session, measure
from commbench.timing.progress import Progress


class HostEvent:
    """An event of a device on which everything has happened when a call returns."""

    def __init__(self) -> None:
        self.stamp_ns = 0

    def record(self) -> None:
        """Take place."""
        self.stamp_ns = time.perf_counter_ns()

    def synchronize(self) -> None:
        """It has taken place."""
        assert self.stamp_ns

    def elapsed_time(self, later: "HostEvent") -> float:
        """Milliseconds, as torch's events say."""
        return (later.stamp_ns - self.stamp_ns) / 1e6


class OnHost(TorchNcclCommunicator):
    """All that a GPU does is done by the host."""

    carrier = "gloo"

    def take_device(self) -> torch.device:
        """The host."""
        self.ranks_per_gpu = 1
        return torch.device("cpu")

    def describe_device(self) -> tuple[str, str, int]:
        """Which is no GPU, and has a small cache."""
        return "host", "", 2**20

    def complete(self) -> None:
        """Everything is."""

    def new_event(self) -> HostEvent:
        """An event of the host."""
        return HostEvent()


def measured(communicator: OnHost, control: Any, **axes: Any) -> dict[str, Any]:
    """What a record says of a small all_reduce."""
    case = Case(
        **{
            "backend": "torch-nccl",
            "operation": "all_reduce",
            "message_bytes": 4096,
            "dtype": "float32",
            "redop": "sum",
            "in_place": True,
            **axes,
        }
    )
    budget = Budget(**{**vars(BUDGETS["quick"]), "slice_s": 0.1})
    session = Session(control=control, budget=budget, progress=Progress(), hosts=["one"] * control.size)
    record = measure(case, communicator, session, launch=0)
    if record is None:
        return {}
    words = ("status", "reason", "wrong", "loop", "sync", "device", "library", "harness_us")
    return {**{name: getattr(record, name) for name in words}, "times": len(record.times_us)}


def main() -> None:
    """Print the findings of all cases as one line of JSON on rank 0."""
    control = connect_control("mpirun", int(os.environ["OMPI_COMM_WORLD_SIZE"]))
    communicator = OnHost(control)
    found: dict[str, Any] = {"cases": []}
    for number, case in enumerate(verify_all.cases("torch-nccl", control.size)):
        findings = dict(verify_all.findings(case, number, communicator, control))
        found["cases"].append({"case": asdict(case)} | findings)
    found["barrier"] = verify_all.barrier_findings(communicator, control)
    found["measured"] = {
        "plain": measured(communicator, control),
        "algorithm": measured(communicator, control, algorithm="ring/ll"),
        "pipelined": measured(communicator, control, sync="none"),
        "rotated": measured(communicator, control, buffers="rotated"),
        "registered": measured(communicator, control, buffers="registered"),
    }
    if control.size == 4:
        found["measured"]["groups"] = measured(communicator, control, pattern="split:2")
    communicator.close()
    found["asked"] = {name: os.environ.get(name) for name in ("NCCL_ALGO", "NCCL_PROTO")}
    leave(found, control)


if __name__ == "__main__":
    main()
