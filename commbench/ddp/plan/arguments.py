"""The arguments of `DistributedDataParallel` that a setting stands for, and the setting of a
model.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from commbench.ddp.plan.cases import (
    DEFAULT_CAP,
    SWITCHES,
    TrainingCase,
    canonical_cap,
    changed_switches,
)
from commbench.ddp.plan.layout import MIB

#: Arguments that DDP has since torch 2.13, by the name of an older one that does at least as much.
#: The attributes of a DDP object have the older name.
OLDER_NAMES = {"forward_sync_buffers": "broadcast_buffers"}


def ddp_arguments(case: TrainingCase) -> dict[str, Any]:
    """Return the arguments by which DDP trains as in ``case``, without those that are DDP's
    default.

    Names are those of torch 2.13; see `known_name`.
    """
    arguments: dict[str, Any] = {}
    caps = case.caps_mb
    if len(caps) == 1:
        arguments["bucket_cap_mb"] = caps[0]
    elif caps:
        arguments["bucket_cap_mb_list"] = list(caps)
    for switch in changed_switches(case):
        arguments[switch.argument] = getattr(case, switch.name)
    return arguments


def known_name(argument: str, known: Collection[str]) -> str:
    """Return the name of an argument in a torch whose DDP takes the ``known`` ones."""
    if argument not in known:
        return OLDER_NAMES.get(argument, argument)
    return argument


def setting_of_model(ddp_model: Any) -> dict[str, Any]:
    """Return the bucket size and the switches of a DDP object, as the fields of a
    `TrainingCase`.
    """
    setting: dict[str, Any] = {"bucket_cap_mb": _cap_of(ddp_model)}
    for switch in SWITCHES:
        attribute = OLDER_NAMES.get(switch.argument, switch.argument)
        setting[switch.name] = bool(getattr(ddp_model, attribute, switch.default))
    return setting


def _cap_of(ddp_model: Any) -> str:
    caps = getattr(ddp_model, "bucket_bytes_cap_list", None)
    if not caps:
        if getattr(ddp_model, "bucket_bytes_cap_default", False):
            return DEFAULT_CAP
        # The attribute of a tuned model stays as the script made it.
        caps = [ddp_model._get_ddp_logging_data()["bucket_cap_bytes"]]  # noqa: SLF001
    return canonical_cap("+".join(f"{cap / MIB:.9f}" for cap in caps))
