"""Tests of the fake backend: the engine measures what its script specifies."""

from dataclasses import replace
from statistics import median

import pytest
from faking import EXACT, FakeRun, Regime, fake_case

from commbench.collectives.cases import Sweep
from commbench.collectives.operations import OPERATIONS


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_takes_the_scripted_time(operation: str) -> None:
    """Measure each operation's scripted time on all ranks, per message and halved for round
    trips.
    """
    (case,) = Sweep(operations=[operation], sizes=[4096], backends=["gloo"]).cases(4)
    (record,) = FakeRun(ranks=4).launch([case])
    calls_us = {  # alpha 5 us, 10 GB/s: 4 KiB take 0.41 us, an empty acknowledgement or a barrier alpha alone
        "barrier": 5.0,
        "bandwidth": (5 + 64 * 0.4096 + 5) / 64,
        "bibandwidth": (5 + 64 * 0.4096) / 64,
    }
    assert calls_us.get(operation, 5.4096) == pytest.approx(median(record.times_us), abs=1e-3)
    assert record.rank_median_us == pytest.approx(
        [median(record.times_us)] * len(record.rank_median_us), abs=1e-3
    )


def test_breakpoints_are_where_the_script_puts_them() -> None:
    """Measure each regime's line on both sides of a breakpoint."""
    script = replace(EXACT, regimes=(Regime(), Regime(from_bytes=4096, alpha_us=9.0, GBps=20.0)))
    sizes = [1024, 4092, 4096, 65536]
    records = FakeRun(script=script).launch([fake_case(message_bytes=size) for size in sizes])
    expected = [5 + 0.1024, 5 + 0.4092, 9 + 0.2048, 9 + 3.2768]
    assert expected == pytest.approx([median(record.times_us) for record in records], abs=1e-3)


def test_launches_differ_and_repetitions_within_do_not() -> None:
    """Vary launch medians by the launch effect, with equal repetitions within a launch."""
    records = FakeRun(script=replace(EXACT, launch_effect=0.05)).launches([fake_case()], 8)
    medians = [median(record.times_us) for record in records]
    assert max(medians) / min(medians) > 1.03
    assert all(
        max(record.times_us) == pytest.approx(min(record.times_us), rel=1e-3) for record in records
    )
