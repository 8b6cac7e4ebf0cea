"""Tests of the control plane among threads, which replace real ranks in other tests."""

import pytest
from threads import ThreadControl, run_threads

from commbench.engine.control import agree_on, gather_everywhere
from commbench.findings import Finding, UnsupportedError


def test_everybody_learns_everything() -> None:
    """Return every rank's value to every rank, in repeated rounds."""

    def work(control: ThreadControl) -> list[list[int]]:
        return [gather_everywhere(control, control.rank + step) for step in range(20)]

    assert [[[step, step + 1, step + 2] for step in range(20)]] * 3 == run_threads(3, work)


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


def test_an_error_of_one_rank_is_raised() -> None:
    """Raise a rank's own error instead of the broken barrier of the waiting ranks."""

    def work(control: ThreadControl) -> None:
        if control.rank == 1:
            raise ValueError("of rank 1")
        control.barrier()

    with pytest.raises(ValueError, match="of rank 1"):
        run_threads(3, work)
