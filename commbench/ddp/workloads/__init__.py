"""The workloads by name: synthetic ones, real data, traces of real models, and a user's own file.

May import torch and the rest of ddp, except block, session and inspect, which train or inspect a
workload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from commbench.ddp.plan.workload import Workload
from commbench.ddp.traces import SHIPPED
from commbench.ddp.workloads import language, own, vision
from commbench.errors import InputError
from commbench.system.user_files import is_callable_of_file

TRACE = "trace:"


#: commbench's own workloads: each takes any of ``seed``, ``rank``, ``world_size`` and
#: ``batch_size``.
WORKLOADS: Mapping[str, Callable[..., Workload]] = {
    "digits": vision.digits,
    "gpt": language.gpt,
    "mlp": vision.mlp,
    "resnet18": vision.resnet18,
    "text": language.text,
}


def load_workload(
    spec: str, *, seed: int, rank: int, world_size: int, batch_size: int | None = None
) -> Workload:
    """Return one rank's workload of the name ``spec``; the same arguments return the same workload.

    ``spec`` is one of `WORKLOADS`, ``trace:NAME`` or ``trace:FILE``, or ``file.py:callable`` for a
    user's own model. ``batch_size`` is in samples per rank; None: the workload's default.

    Raises:
        InputError: there is no such workload, or a user's own workload is invalid.
    """
    arguments = {"seed": seed, "rank": rank, "world_size": world_size, "batch_size": batch_size}
    if spec.startswith(TRACE):
        from commbench.ddp.workloads import replay

        return replay.workload(
            spec.removeprefix(TRACE), seed=seed, rank=rank, batch_size=batch_size
        )
    if spec in WORKLOADS:
        make = WORKLOADS[spec]
        return make(**own.accepted_arguments(make, arguments))
    if is_callable_of_file(spec):
        return own.workload(spec, arguments)
    raise InputError(
        f"There is no workload {spec!r}: choose one of {', '.join(WORKLOADS)}, a trace such as"
        f" {', '.join(TRACE + name for name in SHIPPED)}, or your own as file.py:callable."
    )
