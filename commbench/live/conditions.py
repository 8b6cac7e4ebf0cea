"""The conditions of a person's training, as its ranks report them for ``run.json``."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel

from commbench.backends.nccl_library import loaded_version
from commbench.backends.torch_calls import pci_address, torch_version
from commbench.engine.control import gather_everywhere
from commbench.launch.events import Session
from commbench.launch.facts import collect_session, gather_places
from commbench.live.options import VARIABLE
from commbench.live.ranks import Ranks
from commbench.system.clock import machine_id
from commbench.system.variables import relevant_variables


@dataclass(kw_only=True)
class _Backend:
    """What exchanges the gradients, see `commbench.launch.facts.Carrier`."""

    version: str
    ranks_per_gpu: int | None

    def library(self) -> str:
        """Return the communication library, e.g. ``torch 2.13.0 gloo``."""
        return f"torch {torch_version()} {self.version}"


def gather_conditions(ranks: Ranks, ddp_model: DistributedDataParallel) -> Session | None:
    """Return the conditions of all ranks on rank 0, None elsewhere; all ranks call it together."""
    gpus = gather_everywhere(ranks, (machine_id(), _gpu(ddp_model.device)))
    on_gpus = bool(gpus[0][1])
    backend = _Backend(
        version=loaded_version() if on_gpus else "gloo",
        ranks_per_gpu=max(Counter(gpus).values()) if on_gpus else None,
    )
    variables = {name: value for name, value in os.environ.items() if name != VARIABLE}
    name = "torch-nccl" if on_gpus else "gloo"
    return collect_session(ranks, gather_places(ranks), {name: backend}, relevant_variables(variables))


def _gpu(device: torch.device) -> str:
    """Return what tells a GPU from the others of its machine; empty on CPUs."""
    if device.type != "cuda":
        return ""
    return pci_address(torch.cuda.get_device_properties(device)) or str(device)
