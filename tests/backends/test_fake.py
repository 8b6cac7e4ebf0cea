"""Tests of the fake backend: the engine measures what its script specifies."""

from statistics import median

import pytest
from faking import FakeRun

from commbench.collectives.cases import Sweep
from commbench.collectives.operations import OPERATIONS


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_takes_the_scripted_time(operation):
    """Measure each operation's scripted time on all ranks, per message and halved for round
    trips.
    """
    (case,) = Sweep(operations=[operation], sizes=[4096], backends=["gloo"]).cases(4)
    (record,) = FakeRun(ranks=4).launch([case])
    # alpha 5 us, 10 GB/s: 4 KiB take 0.41 us, an empty acknowledgement or a barrier alpha alone
    calls_us = {
        "barrier": 5.0,
        "bandwidth": (5 + 64 * 0.4096 + 5) / 64,
        "bibandwidth": (5 + 64 * 0.4096) / 64,
    }
    assert calls_us.get(operation, 5.4096) == pytest.approx(median(record.times_us), abs=1e-3)
    assert record.rank_median_us == pytest.approx(
        [median(record.times_us)] * len(record.rank_median_us), abs=1e-3
    )
