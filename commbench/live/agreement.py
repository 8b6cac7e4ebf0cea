"""Values that ranks hand to each other without waiting, through the store that DDP's ranks share.

What a rank sets before it begins a synchronised backward pass is there for every rank once that
pass is over, because the pass needed that rank. So every value that is read must be there.
"""

from __future__ import annotations

import hashlib
import pickle
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.plan.cases import TrainingCase

if TYPE_CHECKING:
    from commbench.results.recommendation import Recommendation

#: Clients of our own that a store gets at most: its server has a file descriptor for each.
MOST_CLIENTS = 256
#: Models of this process by process group; all ranks make those of a group in the same order.
_models: Counter[str] = Counter()


class AbsentError(Exception):
    """A value that must be there is absent: a rank takes part no more."""


class Instruction(NamedTuple):
    """What all ranks do next, as rank 0 has decided."""

    setting: TrainingCase
    steps: int = 0
    """Optimiser steps of a block with the setting; 0: keep it, nothing more is tried."""
    passes: int = 0
    """Synchronised backward passes of the block."""
    period: int = 1
    """Passes of a step."""
    reason: str = ""
    """Why the model is left alone; empty: it is not."""
    ends_process: bool = False
    """Whether the training ends, see ``--then stop``."""
    recommendation: Recommendation | None = None
    """The conclusion, with the last instruction."""


class Measured(NamedTuple):
    """A block that has ended, as rank 0 enters it."""

    times: NDArray[np.float64]
    """Of each step, shape (ranks, steps, columns)."""
    at: int
    """The step of the training at which the block began."""
    buckets: Sequence[int]
    """Bytes of the buckets in use."""
    is_finite: bool
    """Whether the last gradients are finite, or were not exchanged by a hook of the tuning."""


class Agreement:
    """The values of the ranks that train one model.

    Args:
        ddp_model: the model.

    Raises:
        Exception: the ranks have no store.
    """

    def __init__(self, ddp_model: DistributedDataParallel) -> None:
        group = ddp_model.process_group
        members = dist.get_process_group_ranks(group)
        self.rank = dist.get_rank(group)
        self.size = len(members)
        name = hashlib.sha256(repr((group.group_name, members)).encode()).hexdigest()[:12]
        number = _models[name]
        _models[name] += 1
        self.token = secrets.token_hex(8)
        """Tells this process from an earlier one, if a launcher starts the ranks again and keeps
        their store."""
        store = _get_default_store()
        clients = dist.get_world_size() * sum(_models.values())
        if hasattr(store, "clone") and clients <= MOST_CLIENTS:  # from torch 2.8 on
            # A thread of the script that waits in its store locks it for all others.
            store = store.clone()
        self._store = dist.PrefixStore(f"commbench/{name}/{number}", store)

    def enter(self, tokens: Sequence[str]) -> None:
        """Use a part of the store that is new from now on.

        Args:
            tokens: of all ranks, by rank, as rank 0 has read them.

        Raises:
            AbsentError: rank 0 has read them before this process began.
        """
        if tokens[self.rank] != self.token:
            raise AbsentError("rank 0 takes no part")
        self._store = dist.PrefixStore(tokens[0], self._store)

    def set(self, key: str, value: object) -> None:
        """Hand over a value of this rank."""
        self._store.set(key, pickle.dumps(value))

    def get(self, key: str) -> Any:
        """Return a value.

        Raises:
            AbsentError: it is not there.
        """
        if not self._store.check([key]):
            raise AbsentError("another rank has stopped taking part")
        return pickle.loads(self._store.get(key))  # noqa: S301 - of the same program's ranks

    def set_own(self, key: str, value: object) -> None:
        """Hand over this rank's part of `get_all`."""
        self.set(f"{key}/{self.rank}", value)

    def get_all(self, key: str) -> list[Any]:
        """Return every rank's value, by rank, and forget them.

        Raises:
            AbsentError: one is not there.
        """
        values = []
        for rank in range(self.size):
            name = f"{key}/{rank}"
            values.append(self.get(name))
            self._store.delete_key(name)
        return values
