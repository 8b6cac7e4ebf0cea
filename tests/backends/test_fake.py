"""Tests of the fake backend: the engine measures what its script specifies."""

from dataclasses import replace
from statistics import median

import pytest
from faking import EXACT, FakeRun, fake_case

from commbench.backends.fake import Regime, Script
from commbench.collectives.cases import Sweep
from commbench.collectives.operations import OPERATIONS


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_takes_the_scripted_time(operation: str) -> None:
    """Measure each operation's scripted time on all ranks, per message and halved for round
    trips.
    """
    (case,) = Sweep(operations=[operation], sizes=[4096], backends=["fake"]).cases(4)
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


def test_the_tail_is_as_heavy_as_scripted() -> None:
    """Slow down one repetition in ten, without shifting the median."""
    run = FakeRun(script=replace(EXACT, noise=0.02, tail=0.1), relative_half_width=1e-6, ranks=1)
    (record,) = run.launch([fake_case()])
    slow = [time for time in record.times_us if time > 25]
    assert 0.07 < len(slow) / len(record.times_us) < 0.13
    assert Script().time_us(1024) == pytest.approx(median(record.times_us), rel=0.01)


def test_arrivals_scatter_as_scripted() -> None:
    """Draw four exponential arrivals of mean 1 us: the median range is 1.4 to 1.8 us."""
    (record,) = FakeRun(
        script=replace(EXACT, skew_us=1.0), ranks=4, relative_half_width=1e-6
    ).launch([fake_case()])
    assert 1.4 < median(record.skew_us) < 1.8
    assert [len(record.times_us)] == [len(record.skew_us)]


def test_warm_up_is_counted_in_repetitions() -> None:
    """Slow down the first 30 repetitions of a call, in any chunks, and none later."""
    case, slow = fake_case(), replace(EXACT, warmup=30)
    (record,) = FakeRun(script=slow).launch([case])
    assert record.warmups >= 30
    assert [Script().time_us(1024)] * 30 == pytest.approx(record.times_us[:30], abs=1e-3)


def test_draws_follow_from_the_seed() -> None:
    """Draw equal times with equal seeds and different ones otherwise."""
    run, case = FakeRun(script=Script(seed=1), ranks=1), fake_case()
    first, second = run.launch([case])[0].times_us, run.launch([case])[0].times_us
    assert first == second
    assert first != FakeRun(script=Script(seed=2), ranks=1).launch([case])[0].times_us
