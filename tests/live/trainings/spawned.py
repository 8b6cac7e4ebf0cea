"""Trains on two ranks of its own: ``spawned.py PORT``, or ``spawned.py PORT OUT`` to be tuned.

Rank 0 holds the store, and a tuned training stops after the decision.
"""

import os
import sys

import torch


def work(rank: int, *out: str) -> None:
    """Train on one rank."""
    os.environ["RANK"] = str(rank)
    from common import begin, network, report, train

    begin()
    model = torch.nn.parallel.DistributedDataParallel(network())
    if out:
        import commbench

        commbench.autotune(model, out=out[0], steps=60, then="stop")
    train(model, rank)
    report(model)


if __name__ == "__main__":
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
    torch.multiprocessing.spawn(work, tuple(sys.argv[2:]), nprocs=2)
