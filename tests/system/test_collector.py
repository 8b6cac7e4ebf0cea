"""Tests of pausing the garbage collector."""

import gc

import pytest

from commbench.system.process import without_collector


@pytest.mark.parametrize("was_on", [True, False])
def test_collector_waits_and_comes_back_as_it_was(was_on):
    """Pause the collector inside the block, and restore its state, after an error too."""
    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), without_collector():
            1 // int(gc.isenabled())
        assert was_on == gc.isenabled()
    finally:
        gc.enable()
