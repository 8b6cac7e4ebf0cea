"""Tests of keeping the garbage collector away."""

import gc

import pytest

from commbench.system.process import without_collector


@pytest.mark.parametrize("was_on", [True, False])
def test_collector_waits_and_comes_back_as_it_was(was_on: bool) -> None:
    """Switch it off within, and leave it as it was found, also after an error."""
    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), without_collector():
            1 // int(gc.isenabled())
        assert was_on == gc.isenabled()
    finally:
        gc.enable()
