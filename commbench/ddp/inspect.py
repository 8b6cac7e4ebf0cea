"""The command by which a conductor inspects a workload without importing torch itself.

``python -m commbench.ddp.inspect [SPEC] [--batch N] [--gpu K] [--hook HOOK]...`` prints one line of
JSON: ``{"ok": {...}}`` with the `WorkloadFacts`, or ``{"error": "a sentence"}``. It imports torch
only after checking that torch is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.workload import WorkloadFacts
from commbench.errors import InputError
from commbench.hooks.registry import find_file_hooks, is_file_hook, make_hook, parse_hook

if TYPE_CHECKING:
    from commbench.ddp.devices import Device
    from commbench.hooks import Hook


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line of JSON about a workload; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m commbench.ddp.inspect", description="Inspect a workload."
    )
    parser.add_argument(
        "spec",
        nargs="?",
        help="a workload's name, trace:NAME, or file.py:callable (default: try only the hooks)",
    )
    parser.add_argument(
        "--batch", type=int, help="samples per rank and step (default: the workload's own)"
    )
    parser.add_argument(
        "--hook", action="append", default=[], help="a hook to make, as NAME:DENSITY:KEY=VALUE"
    )
    parser.add_argument("--seed", type=int, default=0, help="of initial weights and data")
    parser.add_argument(
        "--gpu", type=int, help="number of this host's GPU, modulo their number (default: none)"
    )
    options = parser.parse_args(arguments)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a user's own file may print
            facts = _inspect_spec(
                options.spec, options.batch, options.seed, options.hook, options.gpu
            )
    except InputError as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        return error.exit_code
    sys.stdout.write(json.dumps({"ok": facts.to_json() if facts else {}}) + "\n")
    return 0


def _inspect_spec(
    spec: str | None, batch: int | None, seed: int, hooks: Sequence[str], gpu: int | None
) -> WorkloadFacts | None:
    """Return the facts of a workload, after trying the hooks; None without a workload."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "Training needs PyTorch, which is not installed: pip install 'commbench[torch]'."
        )
    from commbench.ddp.devices import Device, Gpu, gpus_to_train_on
    from commbench.ddp.inspection import inspect_workload
    from commbench.ddp.workloads import load_workload

    device = Device() if gpu is None else Gpu(gpu % len(gpus_to_train_on()))
    made_hooks = _try_hooks(hooks, device)
    if spec is None:
        return None
    workload = load_workload(spec, seed=seed, rank=0, world_size=1, batch_size=batch)
    try:
        facts = inspect_workload(workload, device)
    except InputError as error:
        if gpu is None:
            raise
        raise InputError(
            f"{error} Its model and batches were on a GPU, where all it makes must be; --backend"
            " gloo trains on CPUs."
        ) from error
    for hook in made_hooks:
        hook.check_size(sum(parameter.numel for parameter in facts.parameters))
    return facts


def _try_hooks(hooks: Sequence[str], device: Device) -> list[Hook]:
    """Return each hook, so that an unknown option raises an error before any measurement.

    Import a user's own hooks.

    A hook's code is compiled here, outside of any case timeout: on a busy machine it takes longer
    than a timeout.
    """
    from commbench.ddp.session import compile_hooks
    from commbench.hooks.own import check_file_hook

    for path in find_file_hooks(hooks):
        check_file_hook(path)
    shipped = [text for text in hooks if not is_file_hook(text)]
    cases = [
        TrainingCase(workload="", world_size=1, batch_per_rank=1, **parse_hook(text))
        for text in shipped
    ]
    hooks_or_none = [
        make_hook(each.hook, density=each.density, options=each.options) for each in cases
    ]
    compile_hooks(cases, device.torch_device)
    return [hook for hook in hooks_or_none if hook is not None]


if __name__ == "__main__":
    sys.exit(main())
