"""Tests of the control plane among threads, which replace real ranks in other tests."""

import pytest
from threads import ThreadControl, run_threads

from commbench.engine.control import agree_on
from commbench.findings import Finding, UnsupportedError


@pytest.mark.parametrize("refusing", [set(), {2}, {1, 2}])
def test_what_one_rank_cannot_do_none_does(refusing: set[int]) -> None:
    """Return every rank's result, or the sentence of the first rank that failed."""

    def work(control: ThreadControl) -> int | Finding:
        def find() -> int:
            if control.rank in refusing:
                raise UnsupportedError("missing", backend=f"rank {control.rank}", what="reduce")
            return control.rank

        return agree_on(control, find)

    results = run_threads(3, work)
    if refusing:
        assert [f"rank {min(refusing)} has no reduce"] * 3 == list(map(str, results))
    else:
        assert [0, 1, 2] == results
