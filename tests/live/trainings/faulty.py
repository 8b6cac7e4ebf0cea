"""Trains with a fault: ``faulty.py METHOD CALL RANK``; RANK is a number or ``all``.

From ``CALL+`` on each call fails, else that one alone.
"""

import os
import signal
import subprocess
import sys
from typing import Any

import torch.distributed as dist
from common import batches, begin, network, report, sgd, update
from kinds import plain
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commbench.live import agreement, director, passes, switching


class PlantedError(Exception):
    """A fault that a test has planted."""


METHODS = {
    "set": (agreement.Agreement, "set"),
    "get": (agreement.Agreement, "get"),
    "store": (dist.PrefixStore, "check"),
    "prepare": (switching.Switcher, "_prepare"),
    "construct": (switching.Spare, "__init__"),
    "handle": (director.Director, "_handle"),
    "forward": (director, "is_compiled"),
    "stop": (director.Director, "_handle"),
    "interrupt": (director.Director, "_turn"),
    "interrupt_end": (passes.Passes, "_is_reduced"),
    "interrupt_inside": (passes.Passes, "end_inside"),
}


def stop() -> None:
    """Stop this process for some seconds."""
    process = os.getpid()
    subprocess.Popen(["/bin/sh", "-c", f"sleep 4; kill -CONT {process}"])
    os.kill(process, signal.SIGSTOP)


def plant(method: str, at: str, rank: str) -> None:
    """Let a method of commbench raise at one of its calls, or at all from one on."""
    owner, name = METHODS[method]
    original = getattr(owner, name)
    calls = 0

    def fail(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        is_due = calls == int(at.rstrip("+")) or (at.endswith("+") and calls > int(at[:-1]))
        if is_due and rank in {"all", os.environ["RANK"]}:
            if method == "stop":
                stop()
            elif method.startswith("interrupt"):
                signal.raise_signal(signal.SIGINT)
            else:
                raise PlantedError
        return original(*arguments, **keywords)

    setattr(owner, name, fail)


def interrupted(rank: int) -> list[nn.Module]:
    """Train as `plain`, and go on if a backward pass raises an interrupt, as one does on rank 1."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ddp = DistributedDataParallel(network())
    optimizer = sgd(ddp)
    interrupts = 0
    for x in batches(rank):
        loss = ddp(x).square().mean()
        try:
            loss.backward()
        except KeyboardInterrupt:
            interrupts += 1
        dist.all_reduce(loss.detach())
        update(optimizer)
    assert interrupts == rank
    return [ddp]


if __name__ == "__main__":
    plant(*sys.argv[1:])
    if sys.argv[1].startswith("interrupt"):
        report(*interrupted(begin()))
    report(*plain(begin()))
