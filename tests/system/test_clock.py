"""Tests of commbench.system.clock: resolution, cost, and which processes share a clock."""

from itertools import count
from pathlib import Path

import pytest
from trees import plant

from commbench.system.clock import clock_domain, timer_cost_s, timer_tick_s


def test_clock_domain_holds_boot_and_time_namespace(root, stub):
    """Distinguish time namespaces of one boot, and processes that cannot read the boot id."""
    unknown = clock_domain()
    stub("os.getpid", 0)
    assert unknown != clock_domain()
    plant(root, {"proc/sys/kernel/random/boot_id": "b00t"})
    assert "b00t/none" == clock_domain()
    plant(root, {"proc/self/ns/time": Path("time:[4026531834]")})
    assert "b00t/time:[4026531834]" == clock_domain()


def test_timer_tick_is_the_step_of_a_coarse_clock():
    """Measure the step of a clock that is constant for seven readings and then jumps by 100 ns."""
    readings = count()
    assert timer_tick_s(lambda: next(readings) // 7 * 100) == pytest.approx(100e-9)


def test_timer_cost_is_the_time_of_one_reading():
    """Measure a cost of 40 ns per reading despite rare readings of 40 us."""
    readings = count()
    interrupted = 2500
    cost = timer_cost_s(
        lambda: (number := next(readings)) * 40 + (40_000 if number > interrupted else 0)
    )
    assert cost == pytest.approx(40e-9)
