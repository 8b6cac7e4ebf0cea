"""Run on two Gloo ranks: how processes with a hook end, normally and after the other rank exits."""

import os
import sys

import torch
import torch.distributed as dist
from gloo import batch, join, loss_of, make_ddp

from commbench.hooks import make_hook


def good() -> None:
    """Train, destroy the groups and return, so that the interpreter shuts down with the hook's
    thread alive.
    """
    for step in range(5):
        loss_of(model, batch(rank, step)).backward()
    dist.barrier()
    dist.destroy_process_group()


def bereft() -> None:
    """Train until the other rank exits, and print the hook's failure."""
    for step in range(1000):
        if rank == 1 and step == 3:
            os._exit(0)
        try:
            loss_of(model, batch(rank, step)).backward()
        except RuntimeError:
            sys.stdout.write(f"{type(hook.failure).__name__}: {hook.failure}\n")
            sys.stdout.flush()
            os._exit(0)


rank, _ = join()
torch.manual_seed(0)
model = make_ddp()
made = make_hook(sys.argv[2])
hook = made.register(model)
{"good": good, "bereft": bereft}[sys.argv[1]]()
