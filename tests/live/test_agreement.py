"""Tests of the values that ranks hand to each other."""

import threading
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commbench.live.agreement import Agreement


def test_a_script_that_waits_in_its_store_holds_up_no_value():
    """Hand over a value while a thread waits in the store of the process group, which it locks."""
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    agreement = Agreement(DistributedDataParallel(torch.nn.Linear(4, 4)))
    waiting = threading.Thread(target=store.wait, args=(["end"], timedelta(seconds=10)))
    waiting.start()
    agreement.set("key", 5)
    assert agreement.get("key") == 5
    assert waiting.is_alive()
    store.clone().set("end", "")
    waiting.join()
    dist.destroy_process_group()
