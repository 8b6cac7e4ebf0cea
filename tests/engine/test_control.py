"""Tests of the control plane among threads, which replace real ranks in other tests."""

import pytest
from threads import ThreadControl, run_threads

from commbench.engine.control import agree_on
from commbench.findings import UnsupportedError


@pytest.mark.parametrize("refusing", [set(), {2}, {1, 2}])
def test_what_one_rank_cannot_do_none_does(refusing):
    """Return every rank's result, or raise the reason of the first rank that refused."""

    def work(control: ThreadControl) -> int | str:
        def find() -> int:
            if control.rank in refusing:
                raise UnsupportedError("missing", backend=f"rank {control.rank}", what="reduce")
            return control.rank

        try:
            return agree_on(control, find)
        except UnsupportedError as error:
            return str(error)

    expected = [0, 1, 2]
    if refusing:
        expected = [f"rank {min(refusing)} has no reduce"] * 3
    assert expected == run_threads(3, work)
