"""Tests of the exchange of reducers on one rank."""

import pytest
from training_builders import make_training_case

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commbench.errors import InputError
from commbench.live.switching import Switcher


def test_a_hook_that_needs_groups_of_its_own_is_not_tried_over_gloo() -> None:
    """Refuse int8 and aligned top-k before any collective: one rank may fail alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(40, 40))
        own = make_training_case(world_size=1)
        switcher = Switcher(model, own, list(model.parameters()))
        groups = len(dist.distributed_c10d._world.pg_names)
        for hook in ("int8", "topk:0.1:exchange=aligned"):
            with pytest.raises(InputError, match="groups of its own"):
                switcher.attempt(model, make_training_case(hook), is_trial=True)
        switcher.attempt(model, make_training_case("fp16"), is_trial=True)
        assert len(dist.distributed_c10d._world.pg_names) == groups
    finally:
        dist.destroy_process_group()
