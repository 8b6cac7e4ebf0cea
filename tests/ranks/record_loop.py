"""Run on Gloo ranks: train with and without recording under DDP.

Print differences and what was recorded.
"""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gloo import (
    agree,
    batch,
    everywhere,
    flat,
    join,
    loss_of,
    make_ddp,
    report_and_exit,
    train_step,
)
from torch.nn.parallel import DistributedDataParallel

import commbench
from commbench.hooks import TopK

STEPS = 5


def plain(model: DistributedDataParallel, rank: int) -> None:
    """Train with Adam, which propagates any difference."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        train_step(model, optimizer, batch(rank, step))


def accumulate(model: DistributedDataParallel, rank: int) -> None:
    """Exchange every second gradient only."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(STEPS):
        with model.no_sync():
            loss_of(model, batch(rank, 2 * step)).backward()
        loss_of(model, batch(rank, 2 * step + 1)).backward()
        optimizer.step()
        optimizer.zero_grad()


def compress(model: DistributedDataParallel, rank: int) -> None:
    """Train with a hook that keeps what it does not send."""
    hook = TopK(density=0.05).register(model)
    plain(model, rank)
    hook.close()


LOOPS: dict[str, tuple[Callable[[DistributedDataParallel, int], None], dict[str, Any]]] = {
    "plain": (plain, {}),
    "views": (plain, {"gradient_as_bucket_view": True}),
    "static": (plain, {"static_graph": True}),
    "unused": (plain, {"find_unused_parameters": True}),
    "accumulate": (accumulate, {}),
    "compress": (compress, {}),
}


def compare_recorded(name: str, rank: int, folder: Path) -> dict[str, Any]:
    """Train without and with recording, and compare."""
    loop, options = LOOPS[name]
    ends, file = [], folder / f"{name}-{rank}.json"
    for recording in (False, True):
        model = make_ddp(**options)
        context = commbench.record_gradients(model, file) if recording else contextlib.nullcontext()
        with context as recorder:
            loop(model, rank)
        ends.append(flat(model.parameters()))
    return {
        "same": all(everywhere(torch.equal(*ends))),
        "agree": agree(ends[1]),
        "steps": recorder.steps,
        "names": [parameter.name for parameter in recorder.trace.parameters],
        "order": list(recorder.trace.ready_order),
        "logged": model._get_ddp_logging_data().get("prev_iteration_grad_ready_order_indices", ""),
        "batch": recorder.trace.batch,
        "ranks": recorder.trace.recorded["ranks"],
        "written": file.exists(),
        "written elsewhere": any(everywhere(rank > 0 and file.exists())),
    }


if __name__ == "__main__":
    rank, _ = join()
    report_and_exit({name: compare_recorded(name, rank, Path(sys.argv[1])) for name in LOOPS})
