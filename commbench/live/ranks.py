"""The ranks that train one DDP model, in a Gloo group of the tuning's own, and the conditions that
they report.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel

from commbench.backends.nccl_library import loaded_version
from commbench.backends.torch_calls import pci_address, torch_version
from commbench.backends.torch_control import INTERFACE, choose_interface
from commbench.engine.control import gather_everywhere
from commbench.errors import InputError
from commbench.launch.events import Session
from commbench.launch.facts import collect_session, gather_places
from commbench.live.options import VARIABLE
from commbench.system.clock import machine_id
from commbench.system.variables import relevant_variables

T = TypeVar("T")

#: Longest wait of a rank for the others at a block end; rank 0 may evaluate or save alone in
#: between.
PATIENCE = timedelta(minutes=30)
#: The same, while the group is made.
START_PATIENCE = timedelta(minutes=5)


class Ranks:
    """The ranks of a DDP model's process group; its constructor and methods are collective.

    A process group of its own keeps its messages apart from the script's.

    Args:
        ddp_model: trained by two ranks or more.
    """

    def __init__(self, ddp_model: DistributedDataParallel) -> None:
        members = dist.get_process_group_ranks(ddp_model.process_group)
        self._root = members[0]
        self.rank = dist.get_rank(ddp_model.process_group)
        self.size = len(members)
        self._group = self._agreed(lambda: _make_group(members))

    def _agreed(self, make: Callable[[], dist.ProcessGroup]) -> dist.ProcessGroup:
        """Return the group if every rank could make it: a rank without it would let the others
        wait.

        Raises:
            RuntimeError: another rank could not make the group; the failing rank raises its own
                error.
        """
        store = dist.PrefixStore(f"commbench/{next(_counter)}", _get_default_store())
        try:
            group = make()
        except Exception:
            store.set(str(self.rank), "failed")
            raise
        store.set(str(self.rank), "made")
        others = [str(rank) for rank in range(self.size)]
        store.wait(others, START_PATIENCE)
        if any(store.get(other) != b"made" for other in others):
            raise RuntimeError("another rank could not join the group of the tuning")
        return group

    def gather(self, value: T) -> list[T] | None:
        """Return every rank's value, by rank, on rank 0; None elsewhere."""
        values: list[T] | None = [value] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, dst=self._root, group=self._group)
        return values

    def broadcast(self, value: T) -> T:
        """Return rank 0's value."""
        box = [value]
        dist.broadcast_object_list(box, src=self._root, group=self._group)
        return box[0]

    def gather_tensor(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return all ranks' tensors of equal shape, stacked by rank, on rank 0; None elsewhere."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(tensor, parts, dst=self._root, group=self._group)
        return torch.stack(parts) if parts is not None else None

    def broadcast_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` with rank 0's values; its shape is the same on all ranks."""
        dist.broadcast(tensor, src=self._root, group=self._group)
        return tensor

    def can_all(self, is_able: bool) -> bool:
        """Return whether every rank is able."""
        able = torch.tensor([is_able], dtype=torch.int64)
        dist.all_reduce(able, op=dist.ReduceOp.MIN, group=self._group)
        return bool(able.item())

    def close(self) -> None:
        """Close the group; a rank that waits for this one notices."""
        if self._group not in _groups.values():
            with contextlib.suppress(Exception):
                dist.destroy_process_group(self._group)


#: Numbers the groups of this process: all ranks make the same ones in the same order.
_counter = itertools.count()
#: Groups of some of the ranks; they stay, because torch gives another group of the same ranks the
#: same name.
_groups: dict[tuple[int, ...], dist.ProcessGroup] = {}


def _make_group(members: Sequence[int]) -> dist.ProcessGroup:
    """Return a Gloo group of these ranks; only they make it."""
    with _usable_interface():
        if len(members) == dist.get_world_size():
            return dist.new_group(backend="gloo", timeout=PATIENCE)
        if tuple(members) not in _groups:
            _groups[tuple(members)] = dist.new_group(
                members, backend="gloo", timeout=PATIENCE, use_local_synchronization=True
            )
        return _groups[tuple(members)]


@contextlib.contextmanager
def _usable_interface() -> Iterator[None]:
    """Choose Gloo's interface for a group that is made inside, unless the script has chosen one."""
    before = os.environ.get(INTERFACE)
    local, world = os.environ.get("LOCAL_WORLD_SIZE", ""), os.environ.get("WORLD_SIZE", "1")
    with contextlib.suppress(InputError):  # Gloo's own choice may do
        choose_interface(one_host=local == world)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(INTERFACE, None)


# --------------------------------------------------------------------------------------- conditions


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
    return collect_session(
        ranks, gather_places(ranks), {name: backend}, relevant_variables(variables)
    )


def _gpu(device: torch.device) -> str:
    """Return an identifier of the GPU that is unique on its machine; empty on CPUs."""
    if device.type != "cuda":
        return ""
    return pci_address(torch.cuda.get_device_properties(device)) or str(device)
