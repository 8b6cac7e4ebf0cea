"""The conditions of a training, which its ranks hand to rank 0."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from commbench.backends.nccl_library import loaded_version
from commbench.backends.torch_calls import pci_address
from commbench.ddp.devices import Device
from commbench.launch.facts import Place, session_of
from commbench.live.options import VARIABLE
from commbench.results.info import RunInfo
from commbench.system.clock import machine_id
from commbench.system.host import Host
from commbench.system.variables import relevant_variables


def gpu_of(ddp_model: DistributedDataParallel) -> tuple[str, str]:
    """Return the machine, and an identifier of the GPU that is unique on it; empty on CPUs."""
    device = ddp_model.device
    if device.type != "cuda":
        return machine_id(), ""
    address = pci_address(torch.cuda.get_device_properties(device))
    return machine_id(), address or str(device)


def conditions_of(
    places: Sequence[Place], gpus: Sequence[tuple[str, str]], hosts: Sequence[Host | None]
) -> RunInfo:
    """Return the conditions of all ranks, on rank 0.

    Args:
        places: of every rank.
        gpus: of every rank, see `gpu_of`.
        hosts: of every rank, see `commbench.launch.facts.own_host`.
    """
    name, device = "gloo", Device()
    if gpus[0][1]:
        name = "torch-nccl"
        device.backend = loaded_version()
        device.ranks_per_gpu = max(Counter(gpus).values())
    variables = relevant_variables(os.environ)
    variables.pop(VARIABLE, None)
    return session_of(hosts, places, {name: device}, variables)
